# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Codes of 1, 2, 3, 4 or 8 bits for blocks of numbers: a scale per block, levels fitted to a normal law or even.

Sources: Max, "Quantizing for Minimum Distortion", IRE Trans. Inf. Theory 1960, table I (the fitted levels); Vargaftik
et al., "EDEN", ICML 2022 (levels times a scale fitted to what was coded).

A number is first rounded to a grid of 255 points, then a table tells its code: thresholds lie on the grid. A block's
scale is then the least-squares one for its codes (of 8 bits, its largest magnitude), so that coding never adds error:
``‖x - decode(encode(x))‖ <= ‖x‖``.

Here all is on CPU, done in pieces that stay in a cache, and tables are looked up by numpy: several codes at once, some
ten times faster than one by one. ``codebook_on_device`` does the same elsewhere.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from gravac.compressors.levels import (
    GRID,
    Kind,
    code_of_pair,
    levels_of_nibbles,
    levels_of_words,
    points_between,
)
from gravac.compressors.packing import pack, packed_bytes, unpack
from gravac.compressors.squares import LEAST

_Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Memory for intermediate results, as large as a piece: float32, int8 and float32."""

SCALE = torch.bfloat16
"""Format of a block's scale on the wire: float32's range in half the bytes."""

PIECE = 1 << 17
"""Numbers coded at once: what fits in a cache, with its intermediate results."""


class Coded(NamedTuple):
    """Codes and scales of blocks.

    Attributes:
        packed: packed codes: uint8, ``[..., blocks, packed_bytes(block, bits)]``.
        scales: scale of each block: ``SCALE``, ``[..., blocks]``.
    """

    packed: torch.Tensor
    scales: torch.Tensor

    def of_one(self) -> "Coded":
        """All codes as those of one rank: ``[1, blocks, ...]``."""
        return Coded(self.packed.reshape(1, -1, self.packed.shape[-1]), self.scales.reshape(1, -1))


def encode(x: torch.Tensor, bits: int, kind: Kind, out: torch.Tensor | None = None) -> tuple[Coded, torch.Tensor]:
    """Round each number of each block to a level, and fit a scale to each block.

    Args:
        x: numbers to code: float32, shape ``[blocks, block]``, contiguous, finite; ``block`` a multiple of 8.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: how the levels lie; 8 bits are always uniform.
        out: like x; overwritten with what the codes stand for. ``None``: that is not kept.

    Returns:
        The codes, and ``‖x - decoded‖²``, 0-d, float64.
    """
    coded, error = _encode(x, bits, kind, out)
    if LEAST < float(error) < math.inf:
        return coded, error.double()
    # perhaps squares overflowed or vanished: of x times a power of two, none do, and codes and scales are the same
    peak = float(x.abs().max()) if x.numel() else 0.0
    if not 0 < peak < math.inf:
        return coded, error.double()
    exponent = math.frexp(peak)[1]
    coded, error = _encode(_shifted(x, -exponent), bits, kind, out)
    most = torch.finfo(SCALE).max
    coded.scales.copy_(_shifted(coded.scales.double(), exponent).clamp_(-most, most))
    if out is not None:
        out.copy_(_shifted(out, exponent))
    return coded, error.double().mul_(4.0**exponent)


def _shifted(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """``x * 2 ** exponent``, in the shape of x, float32 or float64, in two steps, as the power itself may overflow."""
    half = exponent // 2
    return (x * 2.0**half).mul_(2.0 ** (exponent - half))


def _encode(x: torch.Tensor, bits: int, kind: Kind, out: torch.Tensor | None) -> tuple[Coded, torch.Tensor]:
    """``encode``, but for numbers whose squares overflow or vanish."""
    count, block = x.shape
    packed = torch.empty(count, packed_bytes(block, bits), dtype=torch.uint8)
    scales = torch.empty(count, dtype=SCALE)
    rows = _piece(block)
    # memory for one piece, used again for the next: asking for it anew would cost more than all else
    scratch = [torch.empty_like(x[:rows], dtype=dtype) for dtype in (x.dtype, torch.int8, x.dtype)]
    error = x.new_zeros(())
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        piece, into = x[part], Coded(packed[part], scales[part])
        decoded = None if out is None else out[part]
        fine, grid, values = (memory[: len(piece)] for memory in scratch)
        error += _encode_piece(piece, bits, kind, into, decoded, (fine, grid, values))
    return Coded(packed, scales), error


def mean(coded: Coded, bits: int, kind: Kind, out: torch.Tensor) -> torch.Tensor:
    """The mean of what several ranks' codes stand for, added in their order: the same bits on all ranks.

    Args:
        coded: codes to average, ``[ranks, blocks, ...]``.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        out: where the mean goes: float32, shape ``[blocks, block]``, contiguous; overwritten.

    Returns:
        ``out``.
    """
    (count, block), ranks = out.shape, len(coded.packed)
    rows = _piece(block)
    scratch = torch.empty_like(out[:rows])
    for start in range(0, count, rows):
        at = slice(start, start + rows)
        into = out[at]
        for rank in range(ranks):
            numbers = scratch[: len(into)] if rank else into
            # rounded before it is added, as whoever encoded it has it
            _looked_up(coded.packed[rank, at], bits, kind, numbers).mul_(coded.scales[rank, at].float().unsqueeze(1))
            if rank:
                into.add_(numbers)
        if ranks > 1:
            into.mul_(1 / ranks)
    return out


@dataclass(frozen=True, slots=True)
class Decoded:
    """What codes stand for, decoded piece by piece as it is added: nothing as large as the tensor is made.

    Attributes:
        coded: codes, ``[ranks, blocks, ...]``; the mean over the ranks counts.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        block: numbers per block.
        more: a position, and numbers (flat, float32) that are added from there on.
    """

    coded: Coded
    bits: int
    kind: Kind
    block: int
    more: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat; what is beyond its end is left out), in place; returns it."""
        packed, scales = self.coded
        count = scales.shape[1]
        rows = _piece(self.block)
        scratch = scales.new_empty(min(rows, count), self.block, dtype=torch.float32)
        for start in range(0, count, rows):
            piece = Coded(packed[:, start : start + rows], scales[:, start : start + rows])
            numbers = mean(piece, self.bits, self.kind, scratch[: piece.scales.shape[1]]).view(-1)
            add_at(dense, start * self.block, numbers, alpha)
        if self.more is not None:
            add_at(dense, *self.more, alpha)
        return dense


def add_at(dense: torch.Tensor, position: int, numbers: torch.Tensor, alpha: float) -> None:
    """Add ``alpha`` times flat numbers to flat ``dense`` from a position on; what is beyond its end is left out."""
    into = dense[position : position + numbers.numel()]
    into.add_(numbers[: into.numel()], alpha=alpha)


def _piece(block: int) -> int:
    """Blocks done at once."""
    return max(1, PIECE // block)


def _encode_piece(
    x: torch.Tensor, bits: int, kind: Kind, coded: Coded, out: torch.Tensor | None, scratch: _Scratch
) -> torch.Tensor:
    fine, grid, values = scratch
    norms: torch.Tensor | None = None
    if bits == 1:
        fine = x
    elif kind == "uniform" or bits == 8:
        most = (1 << (bits - 1)) - 1
        coded.scales.copy_(rounded_up(torch.abs(x, out=fine).amax(1)))
        torch.mul(x, inverse_of(coded.scales.float(), most).unsqueeze(1), out=fine).round_()
    else:
        norms = torch.linalg.vector_norm(x, dim=1)
        torch.mul(x, inverse_of(norms, GRID * x.shape[1] ** 0.5).unsqueeze(1), out=fine)
    if bits == 8:
        coded.packed.copy_(grid.copy_(fine.clamp_(-127, 127)).view(torch.uint8))
    else:
        coded.packed.copy_(_signs(x) if bits == 1 else _codes(grid.copy_(fine.clamp_(-127, 127).floor_()), bits, kind))
    _looked_up(coded.packed, bits, kind, values)
    fine = scratch[0]
    if bits < 8:
        along = torch.mul(x, values, out=fine).sum(1)
        size = torch.full_like(along, x.shape[1]) if bits == 1 else torch.mul(values, values, out=fine).sum(1)
        # where all levels are 0, their sum with x is, too
        coded.scales.copy_(along / size.clamp(min=1e-30))
        if out is None:
            scale, whole = coded.scales.float(), torch.linalg.vecdot(x, x) if norms is None else norms.square_()
            return (whole - scale * (2 * along - scale * size)).clamp_(min=0).sum()
    decoded = torch.mul(values, coded.scales.float().unsqueeze(1), out=values if out is None else out)
    left = torch.sub(x, decoded, out=fine).view(-1)
    return torch.dot(left, left)


def inverse_of(scale: torch.Tensor, factor: float) -> torch.Tensor:
    """``factor / scale``, of any shape, 0 where scale is 0 or too small to divide by."""
    return (factor / scale).nan_to_num_(0.0, 0.0, 0.0)


def rounded_up(reach: torch.Tensor) -> torch.Tensor:
    """Magnitudes, of any shape, in the scales' format, rounded up: no number may lie outside."""
    rounded = reach.to(SCALE)
    return torch.where(rounded < reach, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)


def _signs(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(np.greater_equal(x.numpy(), 0), axis=1, bitorder="little"))


def _codes(grid: torch.Tensor, bits: int, kind: Kind) -> torch.Tensor:
    """Packed codes of grid points: int8 ``[rows, block]`` to uint8 ``[rows, packed_bytes(block, bits)]``."""
    if bits == 2:
        points = grid.numpy()
        codes, *higher = (np.greater_equal(points, point).view(np.uint8) for point in points_between(bits, kind))
        for above in higher:
            codes += above
        return pack(torch.from_numpy(codes), bits)
    pairs = grid.view(torch.int16).numpy().view(np.uint16)
    of_pairs = torch.from_numpy(np.take(code_of_pair(bits, kind), pairs, mode="clip"))
    if bits == 4:
        return of_pairs
    return torch.cat([pack(of_pairs & 15, 4), pack(of_pairs >> 4, 2)], dim=1)


def _looked_up(packed: torch.Tensor, bits: int, kind: Kind, out: torch.Tensor) -> torch.Tensor:
    """The levels of packed codes: float32, ``[rows, block]``, into ``out``; returns it."""
    block = out.shape[1]
    if bits == 8:
        return out.copy_(packed.view(torch.int8)).mul_(1 / 127)
    if bits == 4:
        pairs = torch.view_as_complex(out.view(-1, 2))  # torch selects 8 bytes faster than numpy, others slower
        torch.index_select(levels_of_nibbles(kind), 0, packed.reshape(-1).int(), out=pairs)
        return out
    codes = packed.numpy()
    if bits == 3:
        low, high = codes[:, : block // 4], packed[:, block // 4 :]
        codes = low.astype(np.uint16) | (unpack(high, 4, block // 4).numpy().astype(np.uint16) << 8)
    words = levels_of_words(bits, kind)
    np.take(words, codes.reshape(-1), mode="clip", out=out.view(-1).numpy().view(words.dtype))
    return out
