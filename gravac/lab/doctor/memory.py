# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What each mode takes of a rank's memory, beside the model, its gradients and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravac.candidate import Mode
from gravac.engine.coalescing import TEMPORARIES
from gravac.lab.shapes import Shape
from gravac.modes.together import CHUNK_BYTES
from gravac.settings import Settings

AVERAGING = 3
"""Memory that averaging a group of moments takes, in sizes of the group."""


class Memory(Settings):
    """What a part of a mode takes of a rank's memory.

    Attributes:
        mode: the mode.
        part: what takes the memory, in words.
        when: since when and how long it does, in words.
        sizes: its size in float32 models, of 4 bytes a parameter.
        extra_bytes: bytes that it takes besides, whatever the model.
    """

    mode: Mode
    part: str
    when: str
    sizes: float = 0.0
    extra_bytes: int = 0


def memory_of_modes(shapes: Sequence[Shape] | None = None) -> tuple[Memory, ...]:
    """Return what each mode takes, of a model of these shapes, or of any.

    Moments are averaged in groups of 16 MiB, or by themselves if they are larger.
    """
    largest = 0 if shapes is None else 4 * max(map(math.prod, shapes))
    group = max(CHUNK_BYTES, largest)
    return (
        Memory(mode="native", part="nothing", when="always"),
        Memory(mode="hook", part="residuals", when="since the first compressed step", sizes=1),
        Memory(mode="hook", part="coding, at most", when="while a step is exchanged", extra_bytes=TEMPORARIES),
        Memory(mode="outer", part="the anchor", when="all the time", sizes=1),
        Memory(mode="outer", part="residuals", when="since the first compressed round", sizes=1),
        Memory(mode="outer", part="what is sent", when="while a round is exchanged", sizes=1),
        Memory(mode="outer", part="the rank's own weights", when="while evaluated or saved", sizes=1),
        Memory(
            mode="outer",
            part="the average of moments",
            when="on the way to another mode, a moment",
            extra_bytes=AVERAGING * group,
        ),
    )


def in_words(memory: Memory, elements: int | None) -> str:
    """Return what a part takes, in words: bytes for a model of so many parameters, else multiples of its size.

    Example:
        >>> anchor = Memory(mode="outer", part="the anchor", when="all the time", sizes=1)
        >>> in_words(anchor, None), in_words(anchor, 25_000_000)
        ('the anchor: 1 x the model, all the time', 'the anchor: 100 MB, all the time')
    """
    if not memory.sizes and not memory.extra_bytes:
        return memory.part
    if memory.sizes and elements is None:
        return f"{memory.part}: {memory.sizes:g} x the model, {memory.when}"
    count = memory.extra_bytes + 4 * memory.sizes * (elements or 0)
    return f"{memory.part}: {_bytes(count)}, {memory.when}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
