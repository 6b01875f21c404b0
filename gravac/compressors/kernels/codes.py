# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions of the quantizer's kernels: convert numbers to codes, codes to levels, and pack and unpack codes.

Levels, thresholds and the order of roundings are those of ``compressors/codebook.py``; codes are packed as by
``compressors/packing.py``. A kernel's numbers have the shape ``[rows, groups, group_size]``: each row is a block, and
the codes of a group fill whole bytes.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from gravac.compressors.levels import FITTED_LEVELS, threshold_points_of

TILE_ELEMENTS = 2048
"""Number of elements that one program of a kernel processes; if a block is longer, the program processes one block."""


class CodeTable(NamedTuple):
    """Constants with which a kernel is compiled: thresholds and levels of codes.

    Attributes:
        positive_levels: positive levels, ascending; empty for evenly spaced levels.
        threshold_points: thresholds between neighbouring positive levels, as grid points (see
            ``levels.threshold_points_of``), ascending; one fewer than levels.
        max_code: number of evenly spaced levels above 0; 0 for fitted levels.
        group_size: smallest number of codes that fill whole bytes.
    """

    positive_levels: tuple[float, ...]
    threshold_points: tuple[float, ...]
    max_code: int
    group_size: int


def code_table_for(bits: int, kind: str) -> CodeTable:
    """Return the constants for codes of ``bits`` bits, and levels ``"fitted"`` or ``"uniform"``.

    Codes of one bit are signs.
    """
    group_size = 8 if bits == 3 else 8 // bits
    if bits == 1:
        return CodeTable((1.0,), (), 0, group_size)
    if kind == "uniform" or bits == 8:
        return CodeTable((), (), (1 << (bits - 1)) - 1, group_size)
    threshold_points = (float(point) for point in threshold_points_of(bits, "fitted") if point > 0)
    return CodeTable(FITTED_LEVELS[bits], tuple(threshold_points), 0, group_size)


def tiling(block: int, group_size: int) -> dict[str, int]:
    """Return keyword arguments of a launch: the shape of a program's numbers, and the number of warps.

    The shape is ``[rows, groups, group_size]``, all powers of two. Each row is a block of ``block`` numbers, padded.
    """
    groups = triton.next_power_of_2(block // group_size)
    rows = max(1, TILE_ELEMENTS // (groups * group_size))
    warps = min(16, rows * groups * group_size // 256)
    return {"rows": rows, "groups": groups, "group_size": group_size, "num_warps": warps}


@triton.jit
def codes_of(
    grid_numbers: tl.tensor, bits: tl.constexpr, threshold_points: tl.constexpr, max_code: tl.constexpr
) -> tl.tensor:
    """Return the codes of numbers, any shape: int32; signed for 8 bits.

    Args:
        grid_numbers: numbers as multiples of the grid's unit (see ``levels.threshold_points_of``), not yet rounded to
            grid points.
        bits: bits per code.
        threshold_points: see ``CodeTable``.
        max_code: see ``CodeTable``.
    """
    if max_code > 0:
        clamped = tl.minimum(tl.maximum(grid_numbers, -max_code * 1.0), max_code * 1.0)
        # adding 1.5 * 2 ** 23 leaves no bits for a fraction: rounds to nearest, half to even
        signed_code = (clamped + 12582912.0 - 12582912.0).to(tl.int32)
        code = signed_code if bits == 8 else signed_code + max_code
    else:
        positive_count: tl.constexpr = len(threshold_points) + 1
        grid_point = tl.floor(grid_numbers)
        is_positive = grid_point >= 0
        magnitude = tl.where(is_positive, grid_point, -1 - grid_point)
        level_index = tl.zeros_like(magnitude).to(tl.int32)
        for i in tl.static_range(len(threshold_points)):
            level_index += (magnitude >= threshold_points[i]).to(tl.int32)
        code = tl.where(is_positive, positive_count + level_index, positive_count - 1 - level_index)
    return code


@triton.jit
def levels_of(code: tl.tensor, bits: tl.constexpr, positive_levels: tl.constexpr, max_code: tl.constexpr) -> tl.tensor:
    """Return the levels of codes, of any shape, as multiples of the block's scale: float32.

    Args:
        code: codes, int32; signed for 8 bits.
        bits: bits per code.
        positive_levels: positive levels, see ``CodeTable``.
        max_code: see ``CodeTable``.
    """
    if bits == 8:
        level = code.to(tl.float32) * (1 / 127)
    elif max_code > 0:
        level = tl.div_rn(tl.minimum(code - max_code, max_code).to(tl.float32), max_code * 1.0)
    else:
        positive_count: tl.constexpr = len(positive_levels)
        level_index = tl.where(code >= positive_count, code - positive_count, positive_count - 1 - code)
        level = tl.zeros_like(level_index).to(tl.float32) + positive_levels[0]
        for i in tl.static_range(1, len(positive_levels)):
            level = tl.where(level_index >= i, positive_levels[i], level)
        level = tl.where(code >= positive_count, level, -level)
    return level


@triton.jit
def inverse_of(scale: tl.tensor, factor: tl.tensor) -> tl.tensor:
    """Return ``factor / scale``, any shape; 0 for a scale that is 0 or too small to divide by."""
    inverse = tl.div_rn(tl.zeros_like(scale) + 1.0, scale) * factor
    return tl.where(tl.abs(inverse) < float("inf"), inverse, 0.0)


@triton.jit
def to_bfloat16_bits(x: tl.tensor, away_from_zero: tl.constexpr) -> tl.tensor:
    """Return numbers, any shape, as bfloat16 in the lowest 16 bits of int32.

    Numbers are rounded away from zero if ``away_from_zero``, otherwise to nearest (half to even).
    """
    word = x.to(tl.int32, bitcast=True)
    rounded_word = ((word & 0x7FFFFFFF) + (0xFFFF if away_from_zero else 0x7FFF + ((word >> 16) & 1))) >> 16
    return tl.where(x == x, rounded_word | ((word >> 16) & 0x8000), 0x7FC0)


@triton.jit
def from_bfloat16_bits(bfloat16_bits: tl.tensor) -> tl.tensor:
    """Convert results of ``to_bfloat16_bits``, of any shape, back to float32."""
    return (bfloat16_bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def scaling_powers_for(peak: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the powers of two that scale magnitudes ``peak``, of any shape, to [1, 4), and the inverse powers.

    Exception: subnormal magnitudes are scaled to less than 1.
    """
    exponent = tl.minimum(tl.maximum((peak.to(tl.int32, bitcast=True) >> 23) & 0xFF, 1), 253)
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True), (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def block_sums(x: tl.tensor) -> tl.tensor:
    """Return the sum of each block of numbers ``[rows, groups, group_size]``: ``[rows]``."""
    return tl.sum(tl.sum(x, axis=2), axis=1)


@triton.jit
def program_layout(
    elements: tl.tensor,
    block_count: tl.tensor,
    block: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    group_size: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the positions of the numbers that this program processes, and which of these are not padding.

    Args:
        elements: number of elements of the tensor.
        block_count: number of blocks of the tensor.
        block: numbers per block.
        rows: blocks per program.
        groups: groups of codes per block, rounded up to a power of two.
        group_size: codes per group.

    Returns:
        The index of each block, ``[rows]``; the index of each group in its block, ``[groups]``; the position of the
        first number, a scalar; the offsets of all numbers from the first, ``[rows, groups, group_size]``; whether each
        group exists, ``[rows, groups]``; whether each number exists, shaped like the offsets.
    """
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    group = tl.arange(0, groups)
    first_number = tl.program_id(0).to(tl.int64) * rows * block
    # offsets from the first number fit into 32 bits, which take half the registers
    offset_in_block = group[:, None] * group_size + tl.arange(0, group_size)[None, :]
    offset = tl.arange(0, rows)[:, None, None] * block + offset_in_block[None, :, :]
    group_exists = (row < block_count)[:, None] & (group * group_size < block)[None, :]
    remaining_numbers = tl.minimum(elements - first_number, rows * block).to(tl.int32)
    return row, group, first_number, offset, group_exists, group_exists[:, :, None] & (offset < remaining_numbers)


@triton.jit
def pack(
    row_start: tl.tensor,
    code: tl.tensor,
    group_exists: tl.tensor,
    bits: tl.constexpr,
    block: tl.constexpr,
    group: tl.tensor,
    group_size: tl.constexpr,
) -> None:
    """Pack the codes of blocks, ``[rows, groups, group_size]``, and store them: each row from its ``row_start``.

    Args:
        row_start: pointer to the first byte of each row, ``[rows]``.
        code: codes, int32.
        group_exists: False for each group that is padding, ``[rows, groups]``.
        bits: bits per code.
        block: numbers per block.
        group: index of each group in its block, ``[groups]``.
        group_size: codes per group.
    """
    position_in_group = tl.arange(0, group_size)[None, None, :]
    target = row_start[:, None] + group[None, :]
    if bits == 3:
        low_bits = tl.sum((code & 3) << (2 * position_in_group), axis=2)
        tl.store(target + group[None, :], low_bits.to(tl.uint8), mask=group_exists)
        tl.store(target + group[None, :] + 1, (low_bits >> 8).to(tl.uint8), mask=group_exists)
        tl.store(target + block // 4, tl.sum((code >> 2) << position_in_group, axis=2).to(tl.uint8), mask=group_exists)
    else:
        tl.store(target, tl.sum(code << (bits * position_in_group), axis=2).to(tl.uint8), mask=group_exists)


@triton.jit
def unpack(
    row_start: tl.tensor,
    group_exists: tl.tensor,
    bits: tl.constexpr,
    block: tl.constexpr,
    group: tl.tensor,
    group_size: tl.constexpr,
) -> tl.tensor:
    """Load the codes that ``pack`` stored, and return them unpacked: int32, ``[rows, groups, group_size]``.

    Codes of 8 bits are signed.

    Args:
        row_start: pointer to the first byte of each row, ``[rows]``.
        group_exists: False for each group that is padding, ``[rows, groups]``.
        bits: bits per code.
        block: numbers per block.
        group: index of each group in its block, ``[groups]``.
        group_size: codes per group.
    """
    position_in_group = tl.arange(0, group_size)[None, None, :]
    source = row_start[:, None] + group[None, :]
    if bits == 3:
        first_byte = tl.load(source + group[None, :], mask=group_exists, other=0).to(tl.int32)
        second_byte = tl.load(source + group[None, :] + 1, mask=group_exists, other=0).to(tl.int32)
        high_bits = tl.load(source + block // 4, mask=group_exists, other=0).to(tl.int32)
        low_bits = first_byte | (second_byte << 8)
        code = ((low_bits[:, :, None] >> (2 * position_in_group)) & 3) | (
            ((high_bits[:, :, None] >> position_in_group) & 1) << 2
        )
    else:
        packed = tl.load(source, mask=group_exists, other=0).to(tl.int32)
        code = (packed[:, :, None] >> (bits * position_in_group)) & ((1 << bits) - 1)
        if bits == 8:
            code = (code ^ 128) - 128
    return code
