# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Quantizes blocks of numbers to codes of 1, 2, 3, 4 or 8 bits, with a scale per block, on a CPU.

A code stands for a level; the decoded number is this level times the block's scale. Levels are fitted to a normal
distribution, or evenly spaced.

Sources: Max, "Quantizing for Minimum Distortion", IRE Trans. Inf. Theory 1960, table I (the fitted levels); Vargaftik
et al., "EDEN", ICML 2022 (levels times a scale fitted to the coded numbers).

A number is first rounded to a grid of 255 points; a table then gives the point's code. This is exact, since all
thresholds between codes are grid points. A block's scale is the least-squares scale for its codes (for 8 bits, the
block's largest magnitude). The coding is therefore contractive: ``‖x - decode(encode(x))‖ <= ‖x‖``.

The code works on pieces that fit in a CPU cache. numpy looks up several codes at once, which is about ten times faster
than looking up single codes. ``codebook_on_device`` computes the same on other devices.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from gravac.compressors.levels import (
    GRID_POINTS_PER_RMS,
    LevelKind,
    code_of_pair,
    levels_by_key,
    levels_of_nibbles,
    threshold_points_of,
)
from gravac.compressors.packing import pack, packed_bytes, unpack
from gravac.compressors.squares import MIN_EXACT_ENERGY

_Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Memory for intermediate results while a piece is coded: a float32, an int8 and a float32 tensor."""

SCALE_DTYPE = torch.bfloat16
"""Number format of a block's scale on the wire: float32's range in half the bytes."""

PIECE_ELEMENTS = 1 << 17
"""Number of elements that are coded at a time: few enough to fit in a CPU cache, together with scratch memory."""


class Coded(NamedTuple):
    """Codes and scales of blocks.

    Attributes:
        packed: packed codes: uint8, ``[..., blocks, packed_bytes(block, bits)]``.
        scales: scale of each block: ``SCALE_DTYPE``, ``[..., blocks]``.
    """

    packed: torch.Tensor
    scales: torch.Tensor

    def as_single_rank(self) -> "Coded":
        """Return all codes and scales in one row, as if a single rank had coded all blocks: ``[1, blocks, ...]``."""
        return Coded(self.packed.reshape(1, -1, self.packed.shape[-1]), self.scales.reshape(1, -1))


def encode(x: torch.Tensor, bits: int, kind: LevelKind, out: torch.Tensor | None = None) -> tuple[Coded, torch.Tensor]:
    """Round each number of each block to a level, and fit a scale to each block.

    Args:
        x: numbers to code: float32, shape ``[blocks, block]``, contiguous, finite; ``block`` a multiple of 8.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: ``"fitted"``: levels fitted to a normal distribution; ``"uniform"``: evenly spaced, as always for 8 bits.
        out: memory of the shape and dtype of x, which is overwritten with the decoded numbers. ``None``: decoded
            numbers are not stored.

    Returns:
        The codes, and ``‖x - decoded‖²``, 0-d, float64.
    """
    coded, error = _encode(x, bits, kind, out)
    if MIN_EXACT_ENERGY < float(error) < math.inf:
        return coded, error.double()
    # squares may have overflowed or underflowed: scale x by a power of two, which does not change the codes
    peak = float(x.abs().max()) if x.numel() else 0.0
    if not 0 < peak < math.inf:
        return coded, error.double()
    exponent = math.frexp(peak)[1]
    coded, error = _encode(_times_power_of_two(x, -exponent), bits, kind, out)
    max_scale = torch.finfo(SCALE_DTYPE).max
    coded.scales.copy_(_times_power_of_two(coded.scales.double(), exponent).clamp_(-max_scale, max_scale))
    if out is not None:
        out.copy_(_times_power_of_two(out, exponent))
    return coded, error.double().mul_(4.0**exponent)


def _times_power_of_two(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Return ``x * 2 ** exponent``, float32 or float64, computed in two steps, since the power itself may overflow."""
    half_exponent = exponent // 2
    return (x * 2.0**half_exponent).mul_(2.0 ** (exponent - half_exponent))


def _encode(x: torch.Tensor, bits: int, kind: LevelKind, out: torch.Tensor | None) -> tuple[Coded, torch.Tensor]:
    """Encode as ``encode`` does; the result is wrong if squares of numbers in x overflow or underflow."""
    block_count, block = x.shape
    packed = torch.empty(block_count, packed_bytes(block, bits), dtype=torch.uint8, device=x.device)
    scales = torch.empty(block_count, dtype=SCALE_DTYPE, device=x.device)
    piece_blocks = _blocks_per_piece(block)
    # all pieces use the same memory: allocating memory for each piece would take longer than coding it
    scratch = [torch.empty_like(x[:piece_blocks], dtype=dtype) for dtype in (x.dtype, torch.int8, x.dtype)]
    error = x.new_zeros(())
    for first_block in range(0, block_count, piece_blocks):
        block_range = slice(first_block, first_block + piece_blocks)
        piece, piece_codes = x[block_range], Coded(packed[block_range], scales[block_range])
        decoded = None if out is None else out[block_range]
        scaled_blocks, grid_points, code_levels = (memory[: len(piece)] for memory in scratch)
        error += _encode_piece(piece, bits, kind, piece_codes, decoded, (scaled_blocks, grid_points, code_levels))
    return Coded(packed, scales), error


def decode_mean(coded: Coded, bits: int, kind: LevelKind, out: torch.Tensor) -> torch.Tensor:
    """Decode several ranks' codes, and return the mean of the ranks' numbers.

    Numbers are added in the order of ranks, so that all ranks compute the same bits.

    Args:
        coded: codes to average, ``[ranks, blocks, ...]``.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        out: memory for the mean: float32, shape ``[blocks, block]``, contiguous; overwritten.

    Returns:
        ``out``.
    """
    (block_count, block), ranks = out.shape, len(coded.packed)
    piece_blocks = _blocks_per_piece(block)
    scratch = torch.empty_like(out[:piece_blocks])
    for first_block in range(0, block_count, piece_blocks):
        block_range = slice(first_block, first_block + piece_blocks)
        piece_mean = out[block_range]
        for rank in range(ranks):
            numbers = scratch[: len(piece_mean)] if rank else piece_mean
            # each product is rounded before it is added, as on the rank that encoded the numbers
            scale = coded.scales[rank, block_range].float().unsqueeze(1)
            _look_up_levels(coded.packed[rank, block_range], bits, kind, numbers).mul_(scale)
            if rank:
                piece_mean.add_(numbers)
        if ranks > 1:
            piece_mean.mul_(1 / ranks)
    return out


@dataclass(frozen=True, slots=True)
class CodedMean:
    """Mean of several ranks' coded tensors; ``add_to`` decodes a few blocks at a time, to save memory.

    Attributes:
        coded: codes and scales of all ranks, ``[ranks, blocks, ...]``.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        block: numbers per block.
        extra_numbers: ``(position, numbers)``: flat float32 numbers that are added to the mean, from this position of
            the flat tensor on. ``None``: nothing is added.
    """

    coded: Coded
    bits: int
    kind: LevelKind
    block: int
    extra_numbers: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the mean to ``dense`` (flat), in place; return ``dense``.

        Numbers beyond the end of ``dense`` are ignored.
        """
        packed, scales = self.coded
        block_count = scales.shape[1]
        piece_blocks = _blocks_per_piece(self.block)
        scratch = scales.new_empty(min(piece_blocks, block_count), self.block, dtype=torch.float32)
        for first_block in range(0, block_count, piece_blocks):
            piece = Coded(
                packed[:, first_block : first_block + piece_blocks], scales[:, first_block : first_block + piece_blocks]
            )
            numbers = decode_mean(piece, self.bits, self.kind, scratch[: piece.scales.shape[1]]).view(-1)
            add_at(dense, first_block * self.block, numbers, alpha)
        if self.extra_numbers is not None:
            position, numbers = self.extra_numbers
            add_at(dense, position, numbers, alpha)
        return dense


def add_at(dense: torch.Tensor, position: int, numbers: torch.Tensor, alpha: float) -> None:
    """Add ``alpha`` times flat numbers to flat ``dense``, in place, from a position on.

    Numbers beyond the end of ``dense`` are ignored.

    Args:
        dense: tensor that is changed in place.
        position: index in ``dense`` of the first number.
        numbers: numbers to add.
        alpha: factor of the numbers.
    """
    target = dense[position : position + numbers.numel()]
    target.add_(numbers[: target.numel()], alpha=alpha)


def _blocks_per_piece(block: int) -> int:
    """Return how many blocks of ``block`` numbers are coded at a time: at least 1."""
    return max(1, PIECE_ELEMENTS // block)


def _encode_piece(
    x: torch.Tensor, bits: int, kind: LevelKind, coded: Coded, out: torch.Tensor | None, scratch: _Scratch
) -> torch.Tensor:
    """Encode a few blocks of numbers, and return the squared error, 0-d.

    Args:
        x: numbers to code, ``[blocks, block]``.
        bits: bits per code.
        kind: placement of the levels.
        coded: codes and scales, which are overwritten.
        out: memory that is overwritten with the decoded numbers; ``None``: decoded numbers are not stored.
        scratch: memory for intermediate results, each tensor of the shape of x.
    """
    scaled_blocks, grid_points, code_levels = scratch
    norms: torch.Tensor | None = None
    if bits == 1:
        scaled_blocks = x
    elif kind == "uniform" or bits == 8:
        max_code = (1 << (bits - 1)) - 1
        coded.scales.copy_(round_up_to_scale(torch.abs(x, out=scaled_blocks).amax(1)))
        torch.mul(x, inverse_of(coded.scales.float(), max_code).unsqueeze(1), out=scaled_blocks).round_()
    else:
        norms = torch.linalg.vector_norm(x, dim=1)
        torch.mul(x, inverse_of(norms, GRID_POINTS_PER_RMS * x.shape[1] ** 0.5).unsqueeze(1), out=scaled_blocks)
    if bits == 8:
        coded.packed.copy_(grid_points.copy_(scaled_blocks.clamp_(-127, 127)).view(torch.uint8))
    else:
        coded.packed.copy_(
            _pack_signs(x)
            if bits == 1
            else _pack_codes(grid_points.copy_(scaled_blocks.clamp_(-127, 127).floor_()), bits, kind)
        )
    _look_up_levels(coded.packed, bits, kind, code_levels)
    scaled_blocks = scratch[0]
    if bits < 8:
        level_products = torch.mul(x, code_levels, out=scaled_blocks).sum(1)
        level_squares = (
            torch.full_like(level_products, x.shape[1])
            if bits == 1
            else torch.mul(code_levels, code_levels, out=scaled_blocks).sum(1)
        )
        # clamp: if all levels are 0, level_products is 0 too, and the scale becomes 0
        coded.scales.copy_(level_products / level_squares.clamp(min=1e-30))
        if out is None:
            scale, x_squares = coded.scales.float(), torch.linalg.vecdot(x, x) if norms is None else norms.square_()
            return (x_squares - scale * (2 * level_products - scale * level_squares)).clamp_(min=0).sum()
    decoded = torch.mul(code_levels, coded.scales.float().unsqueeze(1), out=code_levels if out is None else out)
    coding_error = torch.sub(x, decoded, out=scaled_blocks).view(-1)
    return torch.dot(coding_error, coding_error)


def inverse_of(scale: torch.Tensor, factor: float) -> torch.Tensor:
    """Return ``factor / scale``, of any shape; 0 for a scale that is 0 or too small to divide by."""
    return (factor / scale).nan_to_num_(0.0, 0.0, 0.0)


def round_up_to_scale(magnitudes: torch.Tensor) -> torch.Tensor:
    """Round magnitudes, of any shape, up to ``SCALE_DTYPE``, so that the result is never below the magnitude."""
    nearest_scales = magnitudes.to(SCALE_DTYPE)
    return torch.where(
        nearest_scales < magnitudes,
        torch.nextafter(nearest_scales, torch.full_like(nearest_scales, torch.inf)),
        nearest_scales,
    )


def _pack_signs(x: torch.Tensor) -> torch.Tensor:
    """Pack the signs of float32 ``[rows, block]`` as bits, 1 if not negative: uint8, ``[rows, block / 8]``."""
    return torch.from_numpy(np.packbits(np.greater_equal(x.numpy(), 0), axis=1, bitorder="little"))


def _pack_codes(grid_points: torch.Tensor, bits: int, kind: LevelKind) -> torch.Tensor:
    """Look up the codes of grid points (see ``threshold_points_of``), int8, ``[rows, block]``; return the packed codes.

    The result is uint8, ``[rows, bytes]``.
    """
    if bits == 2:
        point_array = grid_points.numpy()
        codes, *reaches_higher_thresholds = (
            np.greater_equal(point_array, threshold).view(np.uint8) for threshold in threshold_points_of(bits, kind)
        )
        for reaches_threshold in reaches_higher_thresholds:
            codes += reaches_threshold
        return pack(torch.from_numpy(codes), bits)
    point_pairs = grid_points.view(torch.int16).numpy().view(np.uint16)
    pair_codes = torch.from_numpy(np.take(code_of_pair(bits, kind), point_pairs, mode="clip"))
    if bits == 4:
        return pair_codes
    return torch.cat([pack(pair_codes & 15, 4), pack(pair_codes >> 4, 2)], dim=1)


def _look_up_levels(packed: torch.Tensor, bits: int, kind: LevelKind, out: torch.Tensor) -> torch.Tensor:
    """Write the levels of packed codes into ``out``, float32, ``[rows, block]``; return ``out``."""
    block = out.shape[1]
    if bits == 8:
        return out.copy_(packed.view(torch.int8)).mul_(1 / 127)
    if bits == 4:
        level_pairs = torch.view_as_complex(out.view(-1, 2))  # for elements of 8 bytes, torch is faster than numpy
        torch.index_select(levels_of_nibbles(kind), 0, packed.reshape(-1).int(), out=level_pairs)
        return out
    keys = packed.numpy()
    if bits == 3:
        low_bytes, high_bytes = keys[:, : block // 4], packed[:, block // 4 :]
        keys = low_bytes.astype(np.uint16) | (unpack(high_bytes, 4, block // 4).numpy().astype(np.uint16) << 8)
    level_table = levels_by_key(bits, kind)
    np.take(level_table, keys.reshape(-1), mode="clip", out=out.view(-1).numpy().view(level_table.dtype))
    return out
