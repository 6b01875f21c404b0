# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the memory that each mode of steps takes on a rank, in addition to model, gradients and optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravac.candidate import Mode
from gravac.engine.coalescing import MAX_CODING_BYTES
from gravac.lab.mesh import Mesh
from gravac.lab.shapes import Shape
from gravac.modes.equalizing import CHUNK_BYTES
from gravac.settings import Settings

AVERAGING_SIZES = 3
"""Memory that averaging a group of optimizer moments (such as Adam's) takes, in multiples of the group's size."""


class Memory(Settings):
    """Memory that a mode occupies on each rank for one purpose.

    Attributes:
        mode: mode of steps.
        purpose: text that names the purpose, such as "residuals".
        when: text that names the time during which the mode occupies the memory.
        sizes: memory in multiples of the model's size in float32, 4 bytes a parameter.
        extra_bytes: bytes in addition to ``sizes``.
    """

    mode: Mode
    purpose: str
    when: str
    sizes: float = 0.0
    extra_bytes: int = 0


def memory_of_modes(shapes: Sequence[Shape] | None = None, mesh: Mesh | None = None) -> tuple[Memory, ...]:
    """Return the memory that each mode takes on a rank, an entry for each purpose: first native, then hook, then outer.

    When the mode changes, gravac averages the optimizer's moments over the ranks, in groups of tensors of up to 16 MiB;
    a larger tensor is a group by itself. A model in shards has no native steps, and its memory is computed
    for the shards of one rank.

    Args:
        shapes: parameter shapes of the model; ``None`` for a model without tensors of more than 16 MiB.
        mesh: mesh of a model in shards; ``None``: DDP, without shards.
    """
    rank_shapes = shapes if shapes is None or mesh is None else [mesh.shard_shape(shape) for shape in shapes]
    largest_bytes = 0 if rank_shapes is None else 4 * max(map(math.prod, rank_shapes))
    group_bytes = max(CHUNK_BYTES, largest_bytes)
    rank_share = 1.0 if mesh is None else mesh.shard_share(shapes)
    native_memories = (Memory(mode="native", purpose="nothing", when="always"),) if mesh is None else ()
    return (
        *native_memories,
        Memory(mode="hook", purpose="residuals", when="since the first compressed step", sizes=rank_share),
        Memory(
            mode="hook",
            purpose="encode and decode, at most",
            when="while ranks exchange a step",
            extra_bytes=MAX_CODING_BYTES,
        ),
        Memory(mode="outer", purpose="the anchor", when="all the time", sizes=rank_share),
        Memory(mode="outer", purpose="residuals", when="since the first compressed round", sizes=rank_share),
        Memory(mode="outer", purpose="the tensors to send", when="while ranks exchange a round", sizes=rank_share),
        Memory(
            mode="outer",
            purpose="the rank's own weights",
            when="while the model is evaluated or saved",
            sizes=rank_share,
        ),
        Memory(
            mode="outer",
            purpose="the average of moments",
            when="while the mode changes",
            extra_bytes=AVERAGING_SIZES * group_bytes,
        ),
    )


def describe_memory(memory: Memory, elements: int | None) -> str:
    """Return a text about a mode's memory: purpose, size and time; size in bytes or in multiples of the model's size.

    Args:
        memory: memory that a mode takes for one purpose.
        elements: number of the model's parameters; ``None``: the size is given in multiples of the model's size.

    Example:
        >>> anchor = Memory(mode="outer", purpose="the anchor", when="all the time", sizes=1)
        >>> describe_memory(anchor, None), describe_memory(anchor, 25_000_000)
        ('the anchor: 1 x the model, all the time', 'the anchor: 100 MB, all the time')
    """
    if not memory.sizes and not memory.extra_bytes:
        return memory.purpose
    if memory.sizes and elements is None:
        return f"{memory.purpose}: {memory.sizes:.3g} x the model, {memory.when}"
    byte_count = memory.extra_bytes + 4 * memory.sizes * (elements or 0)
    return f"{memory.purpose}: {format_bytes(byte_count)}, {memory.when}"


def format_bytes(byte_count: float) -> str:
    """Return a number of bytes as text, such as ``335 MB``.

    Example:
        >>> format_bytes(335.1e6), format_bytes(1.34e9)
        ('335 MB', '1.34 GB')
    """
    return f"{byte_count / 1e9:.3g} GB" if byte_count >= 1e9 else f"{byte_count / 1e6:.3g} MB"
