# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Quantizes numbers to codes of 1, 2, 4 or 8 bits, with a scale per block of numbers; decodes and averages them.

A code stands for a level, an integer; the decoded number is the level times the block's scale.

==== ===================================== ===========================
bits levels                                scale of a block
==== ===================================== ===========================
8    -127, -126, ..., 127                  largest magnitude / 127
4    ±1, ±3, ±5, ±10, ±18, ±26, ±34, ±42   largest magnitude / 42
2    ±3, ±10                               0.151 times root mean square
1    ±1                                    mean magnitude
==== ===================================== ===========================

With 4 bits, small numbers have a quarter of the error of large ones: Adam divides each parameter's gradient by its
size, so that errors in proportion to a block's largest number drown the small ones. Evenly spaced levels train worse
(``docs/evidence/decisions.md``). The levels of 2 bits are in the ratio of those that have the least squared error for a
normal distribution (Max, "Quantizing for Minimum Distortion", IRE Trans. Inf. Theory 1960, table I), as is their scale.
Up to 4 bits, 0 is not a level: every number keeps its sign.

No coding increases the error beyond the numbers: ``‖x - decoded‖ <= ‖x‖`` for every block of up to 128 numbers. The
worst block has one number and zeros, which are decoded to the smallest level.

A scale has 8 significant bits (bfloat16) and a level at most 7. Their product is exact in float32, so that all
processors decode to the same bits, whether they add it with or without rounding the product first. Encoding may round
differently on different processors, which is harmless, since each rank's codes are sent.

On a CPU, a piece of the tensor at a time stays in the cache, and a kernel of torch (FBGEMM) rounds and packs. The
kernel takes a row's smallest and largest number as the ends of a grid. Each piece is one such row, and gets the ends of
our grid appended, so that the grid's step is exactly 1. On other devices, and if torch has no kernel, torch's plain
operators compute the same. Decoding looks up the levels of several codes at once, on every device.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from gravac.compressors.packing import pack, pack_into, packed_bytes
from gravac.compressors.squares import MIN_EXACT_ENERGY, energy, norms_of_rows

SCALE_DTYPE = torch.bfloat16
"""Number format of a block's scale on the wire: float32's range in half the bytes."""

LONGEST_BLOCK = 128
"""Largest number of numbers per scale; see the bound above."""

PIECE_ELEMENTS = 1 << 19
"""Number of elements that a CPU codes at a time: few enough for its cache, and enough to make calls cheap."""

SAMPLED_ELEMENTS = 1 << 14
"""Number of elements from which a CPU estimates the error of coding some tensors, which together have more."""

ENDS = 32
"""Numbers appended to a piece before it is packed: half have the grid's lowest number, half its highest.

The kernel handles 32 numbers at a time.
"""

LEVELS: dict[int, tuple[int, ...]] = {
    1: (-1, 1),
    2: (-10, -3, 3, 10),
    4: (-42, -34, -26, -18, -10, -5, -3, -1, 1, 3, 5, 10, 18, 26, 34, 42),
    8: tuple(range(-127, 128)),
}
"""Level of each code, ascending, by bits per code; with 8 bits, a code is an int8 and its own level."""

BITS = tuple(LEVELS)
"""Supported bits per code, ascending."""

RMS_PER_SCALE = 0.151
"""Scale of a block of codes of 2 bits / root mean square of the block: the levels are 0.453 and 1.51 of it."""

GRID_ENDS = {2: 1.5, 4: 7.5}
"""Largest number on the grid to which numbers are rounded before they are packed; the smallest is its negative."""

_PACKED_DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint16}
"""Type of the packed codes whose levels are looked up at once, by bits per code: 8 levels, or 4 levels of 4 bits."""


@functools.cache
def _kernel(bits: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return torch's operator that packs rows of float32 in ``bits`` bits; ``None`` if torch has none.

    It appends a grid's step and end to each row.
    """
    return getattr(torch.ops.quantized, f"embedding_bag_{bits}bit_prepack", None)


@functools.cache
def _table_of_levels(bits: int, device: torch.device) -> torch.Tensor:
    """Return the levels of all values of ``_PACKED_DTYPES``: int8, several in each int32 or int64 of the result.

    The table is cached, so that it is copied to a device only once.
    """
    bits_per_value = 8 * _PACKED_DTYPES[bits].itemsize
    values, shifts = np.arange(1 << bits_per_value), np.arange(0, bits_per_value, bits)
    levels = np.array(LEVELS[bits], np.int8)[values[:, None] >> shifts & (1 << bits) - 1]
    return torch.from_numpy(levels.view(f"i{len(shifts)}")[:, 0]).to(device)


@functools.cache
def _ends_of_grid(bits: int) -> torch.Tensor:
    """Return the numbers that are appended to a piece before it is packed: ``[ENDS]``; see ``ENDS``."""
    end = GRID_ENDS[bits]
    return torch.tensor([-end, end], dtype=torch.float32, device="cpu").repeat_interleave(ENDS // 2)


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
    scratch_rows = 2 if bits == 4 else 1
    scratch = x.new_empty(scratch_rows, min(piece_elements, -(-x.numel() // block) * block) + ENDS)
    for start in range(0, x.numel(), piece_elements):
        rows = rows_of(x[start : start + piece_elements], block)
        first_block = start // block
        piece_scales = scales[first_block : first_block + len(rows)]
        piece_packed = packed[start * bits // 8 : (start + rows.numel()) * bits // 8]
        _encode_piece(rows, bits, scratch[:, : rows.numel() + ENDS], piece_packed, piece_scales)
    return message


class _Decoder:
    """Decodes the mean of several ranks' codes, some blocks at a time.

    Numbers are added in the order of ranks, so that all ranks and all devices compute the same bits. On a CPU, all
    blocks share the memory for intermediate results: allocating new memory takes as long as decoding.

    Args:
        parts: codes to average, at least one; all of as many blocks.
        bits: bits per code, as encoded.
        block: numbers per scale, as encoded.
        blocks_at_once: largest number of blocks that are decoded at a time.
    """

    def __init__(self, parts: Sequence[Coded], bits: int, block: int, blocks_at_once: int) -> None:
        self._parts, self._bits, self._bytes_per_block = parts, bits, packed_bytes(block, bits)
        ranks = len(parts)
        self._scales = _joined([part.scales for part in parts]).float().view(ranks, -1, 1)
        # 1 / ranks is a factor of the scales only if products stay exact, so that no rounding depends on the processor
        self._divides_scales = ranks & (ranks - 1) == 0
        if self._divides_scales and ranks > 1:
            self._scales *= 1 / ranks
        self._is_cpu = parts[0].packed.is_cpu
        if self._is_cpu:
            self._lookup = _Lookup.of(bits, blocks_at_once * self._bytes_per_block) if bits < 8 else None
            self._numbers = self._scales.new_empty(blocks_at_once if ranks > 1 else 0, block)

    def write_mean(self, first_block: int, out: torch.Tensor) -> None:
        """Decode some blocks, and write the mean of the ranks' numbers.

        Args:
            first_block: first block to decode.
            out: memory for the mean: float32, ``[blocks, block]``, contiguous, overwritten. As many blocks are decoded.
        """
        blocks = slice(first_block, first_block + len(out))
        code_bytes = slice(blocks.start * self._bytes_per_block, blocks.stop * self._bytes_per_block)
        packed_by_rank = [part.packed[code_bytes] for part in self._parts]
        if self._is_cpu:
            for rank, packed in enumerate(packed_by_rank):
                # faster than an operator that converts int8 itself, which takes new memory to do so
                numbers = self._numbers[: len(out)] if rank else out
                numbers.copy_(_levels(packed, self._bits, self._lookup).view_as(out))
                self._add(numbers, rank, blocks, out)
        else:  # one launch of each kernel for all ranks
            levels_by_rank = _levels(_joined(packed_by_rank), self._bits).view(-1, *out.shape)
            for rank, levels in enumerate(levels_by_rank):
                self._add(levels, rank, blocks, out)
        if not self._divides_scales:
            out.mul_(1 / len(self._parts))

    def _add(self, levels: torch.Tensor, rank: int, blocks: slice, out: torch.Tensor) -> None:
        """Add a rank's numbers to ``out``, which the first rank's numbers overwrite."""
        scales = self._scales[rank, blocks]
        if rank:
            out.addcmul_(levels, scales)
        else:
            torch.mul(levels, scales, out=out)


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
    decoder = _Decoder(parts, bits, block, min(piece_elements // block, block_count))
    writes_directly = alpha is None and dense.dtype == torch.float32 and dense.is_contiguous()
    scratch: torch.Tensor | None = None
    for first_block in range(0, block_count, piece_elements // block):
        target = dense[first_block * block : first_block * block + piece_elements]
        element_count = min(piece_elements, (block_count - first_block) * block)
        if writes_directly and target.numel() == element_count:
            decoder.write_mean(first_block, target.view(-1, block))
            continue
        if scratch is None:  # all pieces use the same memory: allocating new memory takes as long as decoding
            scratch = dense.new_empty(element_count, dtype=torch.float32)
        numbers = scratch[:element_count]
        decoder.write_mean(first_block, numbers.view(-1, block))
        if alpha is None:
            target.copy_(numbers[: target.numel()])
        else:
            target.add_(numbers[: target.numel()], alpha=alpha)


class CodedNumbers(NamedTuple):
    """Numbers and their codes, to compute the error of coding them.

    Attributes:
        x: the numbers that were coded: float32, flat, finite.
        coded: their codes.
        bits: bits per code.
        block: numbers per scale.
    """

    x: torch.Tensor
    coded: Coded
    bits: int
    block: int

    @property
    def error(self) -> torch.Tensor:
        """``‖x - decoded‖²``, 0-d, float64."""
        block_count = len(self.coded.scales)
        decoded = self.x.new_empty(block_count, self.block)
        _Decoder([self.coded], self.bits, self.block, block_count).write_mean(0, decoded)
        return energy(torch.sub(self.x, decoded.view(-1)[: self.x.numel()]))


def coding_error(tensors: Sequence[CodedNumbers]) -> torch.Tensor:
    """Return ``‖x - decoded‖²`` summed over some tensors, 0-d, float64; of many numbers on a CPU, an estimate.

    Args:
        tensors: at least one; all on one device.
    """
    alike: dict[tuple[int, int], list[CodedNumbers]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.bits, tensor.block), []).append(tensor)
    errors: list[torch.Tensor] = []
    for same_coding in alike.values():
        is_large = sum(tensor.x.numel() for tensor in same_coding) > SAMPLED_ELEMENTS
        is_estimated = is_large and same_coding[0].x.is_cpu
        errors += [_estimated_error(same_coding)] if is_estimated else [tensor.error for tensor in same_coding]
    return errors[0] if len(errors) == 1 else torch.stack(errors).sum()


def _estimated_error(tensors: Sequence[CodedNumbers]) -> torch.Tensor:
    """Return ``‖x - decoded‖²`` of tensors on a CPU, all of one coding, estimated from a sample of their blocks.

    A block is sampled in proportion to its squared scale, and so about to its share of the error. Blocks of zeros and
    partial blocks are never sampled.
    """
    # numpy, since torch takes several times as long for operations on few numbers
    bits, block = tensors[0].bits, tensors[0].block
    scales = _joined([tensor.coded.scales for tensor in tensors]).float().numpy()
    ends = np.cumsum([len(tensor.coded.scales) for tensor in tensors])
    squares = np.square(scales, dtype=np.float64)
    total = squares.sum()
    squares[ends[[tensor.x.numel() % block > 0 for tensor in tensors]] - 1] = 0
    cumulative = np.cumsum(squares)
    sample_size = SAMPLED_ELEMENTS // block
    chosen = np.searchsorted(cumulative, np.arange(0.5, sample_size) / sample_size * cumulative[-1])
    bounds = [0, *np.searchsorted(chosen, ends)]
    packed, numbers = [], []
    for index, tensor in enumerate(tensors):
        rows = chosen[bounds[index] : bounds[index + 1]] - (ends[index] - len(tensor.coded.scales))
        if len(rows):
            whole_blocks = tensor.x.numel() // block
            packed.append(tensor.coded.packed.numpy().reshape(-1, packed_bytes(block, bits))[rows])
            numbers.append(tensor.x.numpy()[: whole_blocks * block].reshape(-1, block)[rows])
    levels = _levels(torch.from_numpy(np.concatenate(packed).reshape(-1)), bits).numpy().reshape(-1, block)
    inverse = 1 / np.maximum(scales[chosen, None], np.finfo(np.float32).tiny)
    lost = levels - np.concatenate(numbers) * inverse
    return torch.tensor(np.square(lost).sum() / sample_size * total, dtype=torch.float64, device="cpu")


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
        scratch: memory for intermediate results: float32, ``[1, numbers + ENDS]``; two rows with 4 bits.
        packed: memory for the codes: uint8, flat; overwritten.
        scales: memory for the scales: ``SCALE_DTYPE``, ``[blocks]``; overwritten.
    """
    numbers = scratch[0, :-ENDS].view_as(rows)
    if bits == 1:
        scales.copy_(torch.abs(rows, out=numbers).mul_(1 / rows.shape[1]).sum(1))  # no sum overflows
        packed.copy_(_pack_signs(rows))
    elif bits == 2:
        scales.copy_(_norms(rows).mul_(RMS_PER_SCALE / rows.shape[1] ** 0.5))
        # numbers are rounded to ±0.5 and ±1.5, and so at 1: halfway between the levels 3 and 10
        threshold = (LEVELS[bits][-2] + LEVELS[bits][-1]) / 2
        torch.mul(rows, _inverse(scales).mul_(1 / threshold), out=numbers).clamp_(-GRID_ENDS[bits], GRID_ENDS[bits])
        _pack(scratch[0], bits, packed)
    elif bits == 4:
        _store_largest(rows, bits, scales)
        # up to 6 scales, two become one step of the grid; beyond, eight
        torch.mul(rows, _inverse(scales).mul_(0.125), out=numbers)
        numbers.add_(torch.clamp(numbers, -0.75, 0.75, out=scratch[1, :-ENDS].view_as(rows)), alpha=3)
        _pack(scratch[0], bits, packed)
    else:
        _store_largest(rows, bits, scales)
        packed.view(torch.int8).view_as(rows).copy_(torch.mul(rows, _inverse(scales), out=numbers).round_())


def _store_largest(rows: torch.Tensor, bits: int, scales: torch.Tensor) -> None:
    """Store each row's largest magnitude / the largest level in ``scales``, rounded up, so that no number is larger."""
    # on a CPU, no magnitudes are stored, so that the numbers stay in the cache
    largest = torch.maximum(rows.amax(1).abs_(), rows.amin(1).abs_()) if rows.is_cpu else rows.abs().amax(1)
    scales.copy_(largest.mul_((1 + 2.0**-8) / LEVELS[bits][-1]))


def _pack(scratch: torch.Tensor, bits: int, packed: torch.Tensor) -> None:
    """Round numbers to the grid of ``GRID_ENDS``, and pack their codes of 2 or 4 bits.

    Args:
        scratch: the numbers, followed by ``ENDS`` numbers that are overwritten: float32, flat; overwritten.
        bits: bits per code.
        packed: memory for the codes: uint8, flat; overwritten.
    """
    kernel = _kernel(bits) if scratch.is_cpu else None
    if kernel is None:
        codes = scratch[:-ENDS].add_(GRID_ENDS[bits]).round_().to(torch.uint8)
        pack_into(packed, codes, bits)
        return
    scratch[-ENDS:] = _ends_of_grid(bits)
    packed.copy_(kernel(scratch.unsqueeze(0))[0, : len(packed)])


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


class _Lookup(NamedTuple):
    """A CPU's memory for looking up levels.

    Attributes:
        values: packed codes whose levels are looked up at once: int32, flat.
        levels: the levels of ``values``, several int8 in each number; flat.
    """

    values: torch.Tensor
    levels: torch.Tensor

    @classmethod
    def of(cls, bits: int, byte_count: int) -> "_Lookup":
        """Return memory to look up the levels of at most ``byte_count`` bytes of packed codes."""
        table = _table_of_levels(bits, torch.device("cpu"))
        value_count = byte_count // _PACKED_DTYPES[bits].itemsize
        return cls(table.new_empty(value_count, dtype=torch.int32), table.new_empty(value_count))


def _levels(packed: torch.Tensor, bits: int, lookup: _Lookup | None = None) -> torch.Tensor:
    """Return the levels of packed codes: int8, flat.

    Args:
        packed: packed codes: uint8, flat, aligned to 2 bytes.
        bits: bits per code.
        lookup: memory for the result, which the next call overwrites; ``None``: new memory.
    """
    if bits == 8:
        return packed.view(torch.int8)
    values, table = packed.view(_PACKED_DTYPES[bits]), _table_of_levels(bits, packed.device)
    if lookup is None:
        return table.index_select(0, values.int()).view(torch.int8)
    indices, levels = lookup.values[: values.numel()].copy_(values), lookup.levels[: values.numel()]
    return torch.index_select(table, 0, indices, out=levels).view(torch.int8)
