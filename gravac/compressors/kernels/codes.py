# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of codes that the quantizer's kernels are made of: which code, what it stands for, how it is packed.

Source: ``compressors/codebook.py``, which tells the levels, the thresholds and the order in which all is rounded;
``compressors/packing.py`` for how codes lie. A kernel's numbers are ``[rows, groups, together]``: of some blocks (its
rows), the groups of as many numbers as have codes that fill whole bytes.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from gravac.compressors.levels import FITTED, points_between

TILE = 2048
"""Numbers that a program takes, where a block is not longer."""


class CodeTable(NamedTuple):
    """What a kernel is compiled for: how codes of some bits are chosen, and what they stand for.

    Attributes:
        positive: positive levels, ascending; none where levels are even.
        points: positive grid points at which one level gives way to the next, ascending, one fewer.
        most: outermost even level, counted from the middle.
        together: numbers whose codes fill whole bytes.
    """

    positive: tuple[float, ...]
    points: tuple[float, ...]
    most: int
    together: int


def code_for(bits: int, kind: str) -> CodeTable:
    """The codes of so many bits; of one bit, the signs."""
    together = 8 if bits == 3 else 8 // bits
    if bits == 1:
        return CodeTable((1.0,), (), 0, together)
    if kind == "uniform" or bits == 8:
        return CodeTable((), (), (1 << (bits - 1)) - 1, together)
    points = (float(point) for point in points_between(bits, "fitted") if point > 0)
    return CodeTable(FITTED[bits], tuple(points), 0, together)


def tiling(block: int, together: int) -> dict[str, int]:
    """What a program takes, in powers of two, and how many warps work on it."""
    groups = triton.next_power_of_2(block // together)
    rows = max(1, TILE // (groups * together))
    warps = min(16, rows * groups * together // 256)
    return {"rows": rows, "groups": groups, "together": together, "num_warps": warps}


@triton.jit
def codes_of(fine: tl.tensor, bits: tl.constexpr, points: tl.constexpr, most: tl.constexpr) -> tl.tensor:
    """Codes of numbers, of any shape, in units of grid points (even levels: of steps): int32; of 8 bits, signed."""
    if most > 0:
        within = tl.minimum(tl.maximum(fine, -most * 1.0), most * 1.0)
        # adding 1.5 * 2 ** 23 leaves no bits for a fraction: rounds to nearest, half to even
        step = (within + 12582912.0 - 12582912.0).to(tl.int32)
        code = step if bits == 8 else step + most
    else:
        half: tl.constexpr = len(points) + 1
        point = tl.floor(fine)
        up = point >= 0
        away = tl.where(up, point, -1 - point)
        rank = tl.zeros_like(away).to(tl.int32)
        for i in tl.static_range(len(points)):
            rank += (away >= points[i]).to(tl.int32)
        code = tl.where(up, half + rank, half - 1 - rank)
    return code


@triton.jit
def levels_of(code: tl.tensor, bits: tl.constexpr, positive: tl.constexpr, most: tl.constexpr) -> tl.tensor:
    """What codes stand for, in units of a scale: float32."""
    if bits == 8:
        level = code.to(tl.float32) * (1 / 127)
    elif most > 0:
        level = tl.div_rn(tl.minimum(code - most, most).to(tl.float32), most * 1.0)
    else:
        half: tl.constexpr = len(positive)
        rank = tl.where(code >= half, code - half, half - 1 - code)
        level = tl.zeros_like(rank).to(tl.float32) + positive[0]
        for i in tl.static_range(1, len(positive)):
            level = tl.where(rank >= i, positive[i], level)
        level = tl.where(code >= half, level, -level)
    return level


@triton.jit
def inverse_of(scale: tl.tensor, factor: tl.tensor) -> tl.tensor:
    """``factor / scale``, 0 where scale is 0 or too small to divide by."""
    inverse = tl.div_rn(tl.zeros_like(scale) + 1.0, scale) * factor
    return tl.where(tl.abs(inverse) < float("inf"), inverse, 0.0)


@triton.jit
def narrowed(x: tl.tensor, up: tl.constexpr) -> tl.tensor:
    """Numbers as bfloat16, in the lowest bits of int32: rounded to nearest, half to even, or away from zero."""
    word = x.to(tl.int32, bitcast=True)
    rounded = ((word & 0x7FFFFFFF) + (0xFFFF if up else 0x7FFF + ((word >> 16) & 1))) >> 16
    return tl.where(x == x, rounded | ((word >> 16) & 0x8000), 0x7FC0)


@triton.jit
def widened(narrow: tl.tensor) -> tl.tensor:
    """What ``narrowed`` gave, of any shape, as float32."""
    return (narrow << 16).to(tl.float32, bitcast=True)


@triton.jit
def powers_near(peak: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Powers of two, of any shape: what brings magnitudes to [1, 4) if they are normal numbers, and what undoes it."""
    exponent = tl.minimum(tl.maximum((peak.to(tl.int32, bitcast=True) >> 23) & 0xFF, 1), 253)
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True), (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def sum_of_blocks(x: tl.tensor) -> tl.tensor:
    """The sum of each block of numbers ``[rows, groups, together]``: ``[rows]``."""
    return tl.sum(tl.sum(x, axis=2), axis=1)


@triton.jit
def places(
    numbers: tl.tensor,
    blocks: tl.tensor,
    block: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    together: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Where a program's numbers are.

    Returns:
        The blocks, ``[rows]``, and their groups, ``[groups]``; the first number, a scalar, and all of them from there
        on, ``[rows, groups, together]``; which groups there are, and which numbers: those of padding there are not.
    """
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    group = tl.arange(0, groups)
    first = tl.program_id(0).to(tl.int64) * rows * block
    # counted from the first one they fit into 32 bits, which takes half the registers
    in_block = group[:, None] * together + tl.arange(0, together)[None, :]
    at = tl.arange(0, rows)[:, None, None] * block + in_block[None, :, :]
    there = (row < blocks)[:, None] & (group * together < block)[None, :]
    within = tl.minimum(numbers - first, rows * block).to(tl.int32)
    return row, group, first, at, there, there[:, :, None] & (at < within)


@triton.jit
def pack(
    into: tl.tensor,
    code: tl.tensor,
    there: tl.tensor,
    bits: tl.constexpr,
    block: tl.constexpr,
    group: tl.tensor,
    together: tl.constexpr,
) -> None:
    """Store the codes ``[rows, groups, together]`` of blocks from ``into``, ``[rows]``, on."""
    place = tl.arange(0, together)[None, None, :]
    to = into[:, None] + group[None, :]
    if bits == 3:
        low = tl.sum((code & 3) << (2 * place), axis=2)
        tl.store(to + group[None, :], low.to(tl.uint8), mask=there)
        tl.store(to + group[None, :] + 1, (low >> 8).to(tl.uint8), mask=there)
        tl.store(to + block // 4, tl.sum((code >> 2) << place, axis=2).to(tl.uint8), mask=there)
    else:
        tl.store(to, tl.sum(code << (bits * place), axis=2).to(tl.uint8), mask=there)


@triton.jit
def unpack(
    start: tl.tensor,
    there: tl.tensor,
    bits: tl.constexpr,
    block: tl.constexpr,
    group: tl.tensor,
    together: tl.constexpr,
) -> tl.tensor:
    """Load what was packed from ``start``, ``[rows]``, on: int32, ``[rows, groups, together]``; of 8 bits, signed."""
    place = tl.arange(0, together)[None, None, :]
    of = start[:, None] + group[None, :]
    if bits == 3:
        first = tl.load(of + group[None, :], mask=there, other=0).to(tl.int32)
        second = tl.load(of + group[None, :] + 1, mask=there, other=0).to(tl.int32)
        high = tl.load(of + block // 4, mask=there, other=0).to(tl.int32)
        low = first | (second << 8)
        code = ((low[:, :, None] >> (2 * place)) & 3) | (((high[:, :, None] >> place) & 1) << 2)
    else:
        word = tl.load(of, mask=there, other=0).to(tl.int32)
        code = (word[:, :, None] >> (bits * place)) & ((1 << bits) - 1)
        if bits == 8:
            code = (code ^ 128) - 128
    return code
