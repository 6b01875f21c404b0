# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the memory that each mode takes on a rank, beside the model, its gradients and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravac.candidate import Mode
from gravac.engine.coalescing import TEMPORARIES
from gravac.lab.shapes import Shape
from gravac.modes.equalizing import CHUNK_BYTES
from gravac.settings import Settings

AVERAGING = 3
"""Memory that averaging a group of an optimizer's moments takes, in sizes of the group."""


class Memory(Settings):
    """Memory that a mode occupies on each rank for one purpose.

    Attributes:
        mode: the mode.
        purpose: text that names the purpose, such as "residuals".
        when: text that names the time during which the mode occupies the memory.
        sizes: memory in sizes of the model in float32, of 4 bytes a parameter.
        extra_bytes: additional bytes, the same for every model.
    """

    mode: Mode
    purpose: str
    when: str
    sizes: float = 0.0
    extra_bytes: int = 0


def memory_of_modes(shapes: Sequence[Shape] | None = None) -> tuple[Memory, ...]:
    """Return the memory that each mode takes.

    An optimizer's moments are averaged in groups of 16 MiB; a larger tensor is a group by itself.

    Args:
        shapes: parameter shapes of the model; ``None`` for a model without larger tensors.
    """
    largest = 0 if shapes is None else 4 * max(map(math.prod, shapes))
    group = max(CHUNK_BYTES, largest)
    return (
        Memory(mode="native", purpose="nothing", when="always"),
        Memory(mode="hook", purpose="residuals", when="since the first compressed step", sizes=1),
        Memory(mode="hook", purpose="coding, at most", when="while a step is exchanged", extra_bytes=TEMPORARIES),
        Memory(mode="outer", purpose="the anchor", when="all the time", sizes=1),
        Memory(mode="outer", purpose="residuals", when="since the first compressed round", sizes=1),
        Memory(mode="outer", purpose="what is sent", when="while a round is exchanged", sizes=1),
        Memory(mode="outer", purpose="the rank's own weights", when="while evaluated or saved", sizes=1),
        Memory(
            mode="outer",
            purpose="the average of moments",
            when="on the way to another mode, a moment",
            extra_bytes=AVERAGING * group,
        ),
    )


def describe(memory: Memory, elements: int | None) -> str:
    """Return a text about a mode's memory, in bytes or in multiples of the model's size.

    Args:
        memory: memory that a mode takes for one purpose.
        elements: number of the model's parameters; ``None`` gives multiples of the model's size.

    Example:
        >>> anchor = Memory(mode="outer", purpose="the anchor", when="all the time", sizes=1)
        >>> describe(anchor, None), describe(anchor, 25_000_000)
        ('the anchor: 1 x the model, all the time', 'the anchor: 100 MB, all the time')
    """
    if not memory.sizes and not memory.extra_bytes:
        return memory.purpose
    if memory.sizes and elements is None:
        return f"{memory.purpose}: {memory.sizes:g} x the model, {memory.when}"
    count = memory.extra_bytes + 4 * memory.sizes * (elements or 0)
    return f"{memory.purpose}: {_bytes(count)}, {memory.when}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
