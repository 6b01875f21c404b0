# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Quantizes numbers to codes of 1, 2, 4 or 8 bits, with a scale per block of numbers; decodes and averages them.

A code stands for a level, an integer or half an integer; the decoded number is the level times the block's scale.

==== ===================================== ============================
bits levels                                scale of a block
==== ===================================== ============================
8    -127, -126, ..., 127                  largest magnitude / 127
4    -7.5, -6.5, ..., -0.5, 0.5, ..., 7.5  largest magnitude / 7.5
2    -1.5, -0.5, 0.5, 1.5                  0.97 times the root mean square
1    -1, 1                                 mean magnitude
==== ===================================== ============================

Up to 4 bits, 0 is not a level: every number keeps its sign. With the levels -8 to 7, most numbers of a block that has
some large ones become 0, and their parameters do not train (``docs/evidence/decisions.md``).

No coding increases the error beyond the numbers: ``‖x - decoded‖ <= ‖x‖`` for every block of up to 128 numbers. In a
block of n numbers, 4 bits lose at most n / 225 of the energy. With 1 bit, the scale is the least-squares one. With 2
bits, 0.996 times the root mean square would have the least error for normal numbers, but would break the bound for one
number and 127 zeros.

A scale has 8 significant bits (bfloat16) and a level at most 7. Their product is exact in float32, so that all
processors decode to the same bits, whether they add it with or without rounding the product first. Encoding may round
differently on different processors, which is harmless, since each rank's codes are sent.

On a CPU, a piece of the tensor at a time stays in the cache, and kernels of torch (FBGEMM) and numpy round and pack.
torch's kernels take a row's smallest and largest number as the ends of a grid. Each piece is one such row, and gets the
ends of our grid appended, so that the grid's step is exactly 1. On other devices, and if torch has no kernels, torch's
plain operators compute the same.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from gravac.compressors.packing import pack, pack_into, packed_bytes
from gravac.compressors.squares import MIN_EXACT_ENERGY, energy, norms_of_rows

SCALE_DTYPE = torch.bfloat16
"""Number format of a block's scale on the wire: float32's range in half the bytes."""

LONGEST_BLOCK = 128
"""Largest number of numbers per scale; see the bound above."""

PIECE_ELEMENTS = 1 << 18
"""Number of elements that a CPU codes at a time: few enough for its cache, and enough to make calls cheap."""

SAMPLED_ELEMENTS = 1 << 14
"""Number of elements from which a CPU estimates the error of coding a tensor; smaller tensors have an exact error."""

ENDS = 32
"""Numbers appended to a piece before it is packed: half have the lowest level, half the highest.

The kernel handles 32 numbers at a time.
"""


class Grid(NamedTuple):
    """Levels of a code, evenly spaced: ``lowest``, ``lowest + spacing``, ..., ``highest``."""

    lowest: float
    highest: float
    spacing: float = 1.0


GRIDS = {1: Grid(-1.0, 1.0, 2.0), 2: Grid(-1.5, 1.5), 4: Grid(-7.5, 7.5), 8: Grid(-127.0, 127.0)}
"""Levels by bits per code."""

BITS = tuple(GRIDS)
"""Supported bits per code, ascending."""

RMS_PER_SCALE = 0.97
"""Scale of a block of codes of 2 bits / root mean square of the block."""

_SIGNS_OF_BYTES = (
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.int8) * 2 - 1
).view(np.uint64)[:, 0]
"""The levels of the eight codes of 1 bit in each byte, as int8 in a machine word."""


class _Kernels(NamedTuple):
    """torch's operators that pack rows of float32 with a grid's ends and step appended to each row, and unpack them."""

    pack: Callable[[torch.Tensor], torch.Tensor]
    unpack: Callable[[torch.Tensor], torch.Tensor]


@functools.cache
def _kernels(bits: int) -> _Kernels | None:
    """Return torch's kernels for codes of ``bits`` bits; ``None`` if torch has none."""
    name = f"embedding_bag_{bits}bit"
    pack_rows = getattr(torch.ops.quantized, f"{name}_prepack", None)
    unpack_rows = getattr(torch.ops.quantized, f"{name}_unpack", None)
    return _Kernels(pack_rows, unpack_rows) if pack_rows and unpack_rows else None


@functools.cache
def _levels_of_bytes(bits: int, device: torch.device) -> torch.Tensor:
    """Return the levels of the codes packed in each byte: float32, ``[256, 8 // bits]``.

    The table is cached, so that it is copied to a device only once.
    """
    grid, mask = GRIDS[bits], (1 << bits) - 1
    levels = [
        [(byte >> shift & mask) * grid.spacing + grid.lowest for shift in range(0, 8, bits)] for byte in range(256)
    ]
    return torch.tensor(levels, dtype=torch.float32, device="cpu").to(device)


@functools.cache
def _ends_of_grid(bits: int) -> torch.Tensor:
    """Return the numbers that are appended to a piece before it is packed: ``[ENDS]``; see ``ENDS``."""
    grid = GRIDS[bits]
    return torch.tensor([grid.lowest, grid.highest], dtype=torch.float32, device="cpu").repeat_interleave(ENDS // 2)


@functools.cache
def _step_and_lowest(bits: int) -> torch.Tensor:
    """Return the bytes that follow a row that the kernel packed: the grid's step, 1, and its lowest level, float16."""
    return torch.tensor([1.0, GRIDS[bits].lowest], dtype=torch.float16, device="cpu").view(torch.uint8)


class Coded(NamedTuple):
    """Codes and scales of blocks.

    Attributes:
        packed: codes, the first in the lowest bits of the first byte: uint8, flat, ``packed_bytes`` for each block.
        scales: scale of each block: ``SCALE_DTYPE``, ``[blocks]``.
    """

    packed: torch.Tensor
    scales: torch.Tensor


def split(message: torch.Tensor, block: int, bits: int) -> Coded:
    """Return the codes and scales in the bytes that ``encode`` returned, as views."""
    code_bytes = len(message) // bytes_per_block(block, bits) * packed_bytes(block, bits)
    return Coded(message[:code_bytes], message[code_bytes:].view(SCALE_DTYPE))


def bytes_per_block(block: int, bits: int) -> int:
    """Return the bytes of the codes of a block of numbers, and of its scale."""
    return packed_bytes(block, bits) + SCALE_DTYPE.itemsize


def encode(x: torch.Tensor, bits: int, block: int, block_count: int) -> torch.Tensor:
    """Quantize numbers, block by block; numbers beyond the end of x count as 0, and their codes decode to 0.

    Args:
        x: numbers to code: float32, flat, contiguous, finite; at most ``block * block_count``.
        bits: bits per code, one of ``BITS``.
        block: numbers per scale: a multiple of 16, at most ``LONGEST_BLOCK``.
        block_count: number of blocks of the result.

    Returns:
        The codes of all blocks, followed by their scales (see ``split``): uint8, flat.
    """
    allocate = torch.zeros if block_count * block > x.numel() else torch.empty
    message = allocate(block_count * bytes_per_block(block, bits), dtype=torch.uint8, device=x.device)
    packed, scales = split(message, block, bits)
    piece_elements = _elements_per_piece(x, block)
    scratch = x.new_empty(min(piece_elements, -(-x.numel() // block) * block) + ENDS)
    for start in range(0, x.numel(), piece_elements):
        rows = rows_of(x[start : start + piece_elements], block)
        first_block = start // block
        piece_scales = scales[first_block : first_block + len(rows)]
        piece_packed = packed[start * bits // 8 : (start + rows.numel()) * bits // 8]
        _encode_piece(rows, bits, scratch[: rows.numel() + ENDS], piece_packed, piece_scales)
    return message


def decode_mean(parts: Sequence[Coded], bits: int, block: int, first_block: int, out: torch.Tensor) -> None:
    """Decode several ranks' codes of some blocks, and write the mean of the ranks' numbers.

    Numbers are added in the order of ranks, so that all ranks and all devices compute the same bits.

    Args:
        parts: codes to average, at least one; all of as many blocks.
        bits: bits per code, as encoded.
        block: numbers per scale, as encoded.
        first_block: first block to decode.
        out: memory for the mean: float32, ``[blocks, block]``, contiguous, overwritten. As many blocks are decoded.
    """
    ranks, bytes_per_row = len(parts), packed_bytes(block, bits)
    block_range = slice(first_block, first_block + len(out))
    byte_range = slice(block_range.start * bytes_per_row, block_range.stop * bytes_per_row)
    scales = _joined([part.scales[block_range] for part in parts]).float().view(ranks, -1, 1)
    # 1 / ranks is a factor of the scales only if products stay exact, so that no rounding depends on the processor
    divides_scales = ranks & (ranks - 1) == 0
    if divides_scales and ranks > 1:
        scales *= 1 / ranks
    packed_by_rank = [part.packed[byte_range] for part in parts]
    levels_by_rank: Iterable[torch.Tensor] = (_levels(packed, bits) for packed in packed_by_rank)
    if not out.is_cpu:  # one launch of each kernel for all ranks
        levels_by_rank = _levels(_joined(packed_by_rank), bits).view(ranks, -1)
    for rank, rank_levels in enumerate(levels_by_rank):
        levels = rank_levels.view_as(out)
        if rank:
            out.addcmul_(levels, scales[rank])
        else:
            torch.mul(levels, scales[rank], out=out)
    if not divides_scales:
        out.mul_(1 / ranks)


def add_mean(parts: Sequence[Coded], bits: int, block: int, dense: torch.Tensor, alpha: float | None) -> None:
    """Decode the mean of several ranks' codes, and add ``alpha`` times the mean to a tensor, or overwrite the tensor.

    Args:
        parts: codes to average, at least one; all of as many blocks.
        bits: bits per code, as encoded.
        block: numbers per scale, as encoded.
        dense: flat tensor that is changed in place; numbers beyond its end are ignored.
        alpha: factor of the mean; ``None``: ``dense`` is overwritten with the mean.
    """
    block_count, piece_elements = len(parts[0].scales), _elements_per_piece(dense, block)
    writes_directly = alpha is None and dense.dtype == torch.float32 and dense.is_contiguous()
    scratch: torch.Tensor | None = None
    for first_block in range(0, block_count, piece_elements // block):
        target = dense[first_block * block : first_block * block + piece_elements]
        element_count = min(piece_elements, (block_count - first_block) * block)
        if writes_directly and target.numel() == element_count:
            decode_mean(parts, bits, block, first_block, target.view(-1, block))
            continue
        if scratch is None:  # all pieces use the same memory: allocating new memory takes as long as decoding
            scratch = dense.new_empty(element_count, dtype=torch.float32)
        numbers = scratch[:element_count]
        decode_mean(parts, bits, block, first_block, numbers.view(-1, block))
        if alpha is None:
            target.copy_(numbers[: target.numel()])
        else:
            target.add_(numbers[: target.numel()], alpha=alpha)


def coding_error(x: torch.Tensor, coded: Coded, bits: int, block: int) -> torch.Tensor:
    """Return ``‖x - decoded‖²``, 0-d, float64; of a large tensor on a CPU, an estimate from a sample of blocks.

    A block is sampled in proportion to its squared scale, and so about to its share of the error. Blocks of zeros are
    never sampled. Zeros that fill up the last block count, as do those between tensors that were joined.

    Args:
        x: the numbers that were coded: float32, flat, finite.
        coded: their codes.
        bits: bits per code.
        block: numbers per scale.
    """
    block_count, sample_size = x.numel() // block, SAMPLED_ELEMENTS // block
    if block_count <= sample_size or not x.is_cpu:
        rows = rows_of(x, block)
        decoded = torch.empty_like(rows)
        decode_mean([coded], bits, block, 0, decoded)
        return energy(torch.sub(rows, decoded, out=decoded).view(-1))
    # numpy, since torch takes several times as long for operations on few numbers
    scales = coded.scales.float().numpy()
    cumulative = np.cumsum(np.square(scales[:block_count], dtype=np.float64))
    chosen = np.searchsorted(cumulative, np.arange(0.5, sample_size) / sample_size * cumulative[-1])
    inverse = 1 / np.maximum(scales[chosen, None], np.finfo(np.float32).tiny)
    scaled = x.numpy()[: block_count * block].reshape(-1, block)[chosen] * inverse
    grid = GRIDS[bits]
    levels = np.rint((scaled - grid.lowest) / grid.spacing) * grid.spacing + grid.lowest
    scaled -= levels.clip(grid.lowest, grid.highest)
    error = np.square(scaled).sum() / sample_size * np.square(scales, dtype=np.float64).sum()
    return torch.tensor(error, dtype=torch.float64, device="cpu")


def rows_of(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return flat x as a matrix ``[blocks, block]``; a copy, padded with zeros, if the last block is partial."""
    padding = -x.numel() % block
    return (torch.nn.functional.pad(x, (0, padding)) if padding else x).view(-1, block)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate flat tensors; a single tensor is returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _elements_per_piece(x: torch.Tensor, block: int) -> int:
    """Return how many elements are coded at a time: complete blocks; on other devices than a CPU, all elements."""
    return PIECE_ELEMENTS // block * block if x.is_cpu else -(-max(1, x.numel()) // block) * block


def _encode_piece(
    rows: torch.Tensor, bits: int, scratch: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor
) -> None:
    """Quantize some blocks.

    Args:
        rows: numbers to code, ``[blocks, block]``.
        bits: bits per code.
        scratch: memory for intermediate results: float32, flat, ``ENDS`` more than the numbers.
        packed: memory for the codes: uint8, flat; overwritten.
        scales: memory for the scales: ``SCALE_DTYPE``, ``[blocks]``; overwritten.
    """
    scaled = scratch[:-ENDS].view_as(rows)
    _fit_scales(rows, bits, scaled, scales)
    if bits == 1:
        packed.copy_(_pack_signs(rows))
        return
    torch.mul(rows, _inverse(scales), out=scaled)
    if bits == 8:
        packed.view(torch.int8).view_as(rows).copy_(scaled.round_())
        return
    grid = GRIDS[bits]
    if bits == 2:
        scaled.clamp_(grid.lowest, grid.highest)
    kernels = _kernels(bits) if rows.is_cpu else None
    if kernels is None:
        pack_into(packed, scaled.sub_(grid.lowest).round_().to(torch.uint8).view(-1), bits)
        return
    scratch[-ENDS:] = _ends_of_grid(bits)
    packed.copy_(kernels.pack(scratch.unsqueeze(0))[0, : len(packed)])


def _fit_scales(rows: torch.Tensor, bits: int, scratch: torch.Tensor, scales: torch.Tensor) -> None:
    """Compute the scale of each row of a matrix, and store it in ``scales``; overwrites ``scratch``, of rows' shape."""
    if bits == 1:
        scales.copy_(torch.abs(rows, out=scratch).mul_(1 / rows.shape[1]).sum(1))  # no sum overflows
    elif bits == 2:
        scales.copy_(_norms(rows).mul_(RMS_PER_SCALE / rows.shape[1] ** 0.5))
    else:
        magnitudes = torch.abs(rows, out=scratch).amax(1)
        # rounded up, so that no level is beyond the grid
        scales.copy_(magnitudes.mul_((1 + 2.0**-8) / -GRIDS[bits].lowest))


def _norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row, ``[rows]``, float32 or float64; no square overflows.

    A square underflows only if the norm is less than 1e-8 of the largest norm.
    """
    if not rows.is_cpu:
        wide_norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return wide_norms
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms if MIN_EXACT_ENERGY**0.5 < float(norms.max()) < torch.inf else norms_of_rows(rows)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """Return 1 / scale as a column, float32; a number at least as large for a scale that is 0 or subnormal."""
    return scales.float().clamp_(min=torch.finfo(torch.float32).tiny).reciprocal_().unsqueeze(1)


def _pack_signs(rows: torch.Tensor) -> torch.Tensor:
    """Pack the signs of a matrix as bits, 1 if not negative: uint8, flat."""
    if not rows.is_cpu:
        return pack((rows >= 0).to(torch.uint8).view(-1), 1)
    return torch.from_numpy(np.packbits(np.greater_equal(rows.numpy(), 0).reshape(-1), bitorder="little"))


def _levels(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the levels of packed codes: float32, flat; ``packed`` is uint8, flat."""
    if bits == 8:
        return packed.view(torch.int8).float()
    if bits == 1 and packed.is_cpu:
        words = np.take(_SIGNS_OF_BYTES, packed.numpy(), mode="clip")
        return torch.from_numpy(words.view(np.int8)).float()
    kernels = _kernels(bits) if packed.is_cpu else None
    if kernels is None:
        return _levels_of_bytes(bits, packed.device).index_select(0, packed.int()).view(-1)
    return kernels.unpack(torch.cat([packed, _step_and_lowest(bits)]).unsqueeze(0)).view(-1)
