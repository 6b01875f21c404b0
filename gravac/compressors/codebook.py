# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Codes of 1, 2, 3, 4 or 8 bits for blocks of numbers: a scale per block, levels fitted to a normal law or even.

Sources: Max, "Quantizing for Minimum Distortion", IRE Trans. Inf. Theory 1960, table I (the fitted levels); Vargaftik
et al., "EDEN", ICML 2022 (levels times a scale fitted to what was coded).

A number is first rounded to a grid of 255 points, then a table tells its code: thresholds lie on the grid. A block's
scale is then the least-squares one for its codes (of 8 bits, its largest magnitude), so that coding never adds error:
``‖x - decode(encode(x))‖ <= ‖x‖``.

On CPU all is done in pieces that stay in a cache, and tables are looked up by numpy: several codes at once, some ten
times faster than one by one.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gravac.compressors.packing import pack, packed_bytes, unpack

Kind = Literal["fitted", "uniform"]
"""How levels lie: fitted to a normal law, or evenly."""

_Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Memory for intermediate results, as large as a piece: float32, int8 and float32."""

Table = npt.NDArray[np.uint8]
"""Codes looked up by numpy, one byte each."""

SCALE = torch.bfloat16
"""Format of a block's scale on the wire: float32's range in half the bytes."""

PIECE = 1 << 17
"""Numbers coded at once: what fits in a cache, with its intermediate results."""

GRID = 40
"""Grid points per root mean square of a fitted block; the outermost of the 255 is at 3.2 times."""

FITTED: dict[int, tuple[float, ...]] = {
    1: (0.7980,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
"""The positive levels with the least mean squared error for N(0, 1), by bits per code."""


class Coded(NamedTuple):
    """Codes and scales of blocks.

    Attributes:
        packed: packed codes: uint8, ``[blocks, packed_bytes(block, bits)]``.
        scales: scale of each block: ``SCALE``, ``[blocks]``.
    """

    packed: torch.Tensor
    scales: torch.Tensor


def levels(bits: int, kind: Kind) -> torch.Tensor:
    """Levels, ascending, in units of a block's scale: float32, flat, ``2 ** bits`` numbers (uniform: one unused)."""
    if bits == 1:
        return torch.tensor([-1.0, 1.0])
    if kind == "uniform" or bits == 8:
        most = (1 << (bits - 1)) - 1
        return torch.arange(-most, most + 2, dtype=torch.float32).clamp(max=most) / most
    positive = torch.tensor(FITTED[bits])
    return torch.cat([-positive.flip(0), positive])


def encode(x: torch.Tensor, bits: int, kind: Kind, out: torch.Tensor | None = None) -> tuple[Coded, torch.Tensor]:
    """Round each number of each block to a level, and fit a scale to each block.

    Args:
        x: numbers to code: float32, shape ``[blocks, block]``, contiguous, finite; ``block`` a multiple of 8.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: how the levels lie; 8 bits are always uniform.
        out: like x; overwritten with what the codes stand for. ``None``: that is not kept.

    Returns:
        The codes, and ``‖x - decoded‖²``, 0-d.
    """
    count, block = x.shape
    packed = torch.empty(count, packed_bytes(block, bits), dtype=torch.uint8, device=x.device)
    scales = torch.empty(count, dtype=SCALE, device=x.device)
    rows = max(1, PIECE // block)
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


def mean(parts: Sequence[Coded], bits: int, kind: Kind, out: torch.Tensor) -> torch.Tensor:
    """The mean of what codes stand for, added part after part, which gives the same bits on all ranks.

    Args:
        parts: codes to average; at least one, all with as many blocks.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        out: where the mean goes: float32, shape ``[blocks, block]``, contiguous; overwritten.

    Returns:
        ``out``.
    """
    count, block = out.shape
    rows = max(1, PIECE // block)
    scratch = torch.empty_like(out[:rows])
    for start in range(0, count, rows):
        at = slice(start, start + rows)
        into = out[at]
        for position, part in enumerate(parts):
            numbers = scratch[: len(into)] if position else into
            # rounded before it is added, as whoever encoded it has it
            _looked_up(part.packed[at], bits, kind, numbers).mul_(part.scales[at].float().unsqueeze(1))
            if position:
                into.add_(numbers)
        if len(parts) > 1:
            into.mul_(1 / len(parts))
    return out


@dataclass(frozen=True, slots=True)
class Decoded:
    """What codes stand for, decoded piece by piece as it is added: nothing as large as the tensor is made.

    Attributes:
        shards: consecutive pieces of the tensor, each of equally many blocks; each stands for the mean of its parts.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        block: numbers per block.
        more: a position, and numbers (flat, float32) that are added from there on.
    """

    shards: Sequence[Sequence[Coded]]
    bits: int
    kind: Kind
    block: int
    more: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat; what is beyond its end is left out), in place; returns it."""
        rows = max(1, PIECE // self.block)
        scratch = self.shards[0][0].scales.new_empty(rows, self.block, dtype=torch.float32)
        position = 0
        for parts in self.shards:
            count = len(parts[0].scales)
            for start in range(0, count, rows):
                piece = [Coded(part.packed[start : start + rows], part.scales[start : start + rows]) for part in parts]
                numbers = mean(piece, self.bits, self.kind, scratch[: len(piece[0].scales)]).view(-1)
                _add(dense, position, numbers, alpha)
                position += numbers.numel()
        if self.more is not None:
            _add(dense, *self.more, alpha)
        return dense


def _add(dense: torch.Tensor, position: int, numbers: torch.Tensor, alpha: float) -> None:
    into = dense[position : position + numbers.numel()]
    into.add_(numbers[: into.numel()], alpha=alpha)


def _encode_piece(
    x: torch.Tensor, bits: int, kind: Kind, coded: Coded, out: torch.Tensor | None, scratch: _Scratch
) -> torch.Tensor:
    fine, grid, values = scratch
    norms: torch.Tensor | None = None
    if bits == 1:
        coded.packed.copy_(_signs(x))
    elif kind == "uniform" or bits == 8:
        most = (1 << (bits - 1)) - 1
        coded.scales.copy_(_up(torch.abs(x, out=fine).amax(1)))
        torch.mul(x, _inverse(coded.scales.float(), most).unsqueeze(1), out=fine)
        grid.copy_(fine.round_().clamp_(-most, most))
        coded.packed.copy_(grid.view(torch.uint8) if bits == 8 else _codes(grid, bits, kind))
    else:
        norms = torch.linalg.vector_norm(x, dim=1)
        torch.mul(x, _inverse(norms, GRID * x.shape[1] ** 0.5).unsqueeze(1), out=fine)
        grid.copy_(fine.clamp_(-127, 127).floor_())
        coded.packed.copy_(_codes(grid, bits, kind))
    _looked_up(coded.packed, bits, kind, values)
    if bits < 8:
        along = torch.mul(x, values, out=fine).sum(1)
        size = torch.full_like(along, x.shape[1]) if bits == 1 else torch.mul(values, values, out=fine).sum(1)
        coded.scales.copy_(torch.where(size > 0, along / size, torch.zeros_like(size)))
        if out is None:
            scale, whole = coded.scales.float(), torch.linalg.vecdot(x, x) if norms is None else norms.square_()
            return (whole - scale * (2 * along - scale * size)).clamp_(min=0).sum()
    decoded = torch.mul(values, coded.scales.float().unsqueeze(1), out=values if out is None else out)
    left = torch.sub(x, decoded, out=fine).view(-1)
    return torch.dot(left, left)


def _inverse(scale: torch.Tensor, factor: float) -> torch.Tensor:
    """``factor / scale``, 0 where scale is 0 or too small to divide by."""
    inverse = factor / scale
    return torch.where(inverse.isfinite(), inverse, torch.zeros_like(inverse))


def _up(reach: torch.Tensor) -> torch.Tensor:
    """In the scales' format, rounded up: no number may lie outside."""
    rounded = reach.to(SCALE)
    return torch.where(rounded.float() < reach, torch.nextafter(rounded, rounded.new_tensor(float("inf"))), rounded)


def _signs(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "cpu":
        return pack((x >= 0).to(torch.uint8), 1)
    return torch.from_numpy(np.packbits(np.greater_equal(x.numpy(), 0), axis=1, bitorder="little"))


def _codes(grid: torch.Tensor, bits: int, kind: Kind) -> torch.Tensor:
    """Packed codes of grid points: int8 ``[rows, block]`` to uint8 ``[rows, packed_bytes(block, bits)]``."""
    if grid.device.type != "cpu":
        table = torch.from_numpy(_code_of_point(bits, kind)).to(grid.device)
        return pack(table[grid.view(torch.uint8).int()], bits)
    if bits == 2:
        points = grid.numpy()
        codes, *higher = (np.greater_equal(points, point).view(np.uint8) for point in _points_between(bits, kind))
        for above in higher:
            codes += above
        return pack(torch.from_numpy(codes), bits)
    pairs = grid.view(torch.int16).numpy().view(np.uint16)
    of_pairs = torch.from_numpy(np.take(_code_of_pair(bits, kind), pairs, mode="clip"))
    if bits == 4:
        return of_pairs
    return torch.cat([pack(of_pairs & 15, 4), pack(of_pairs >> 4, 2)], dim=1)


@functools.cache
def _points_between(bits: int, kind: Kind) -> list[int]:
    """The lowest grid point of every code but the first."""
    if kind == "uniform":
        most = (1 << (bits - 1)) - 1
        return list(range(1 - most, most + 1))
    every = levels(bits, kind).double()
    return [int(point) for point in ((every[1:] + every[:-1]) / 2 * GRID).round()]


@functools.cache
def _code_of_point(bits: int, kind: Kind) -> Table:
    """The code of every grid point, in the order of its byte: uint8, ``[256]``."""
    points = np.arange(256, dtype=np.uint8).view(np.int8)
    codes: Table = np.searchsorted(_points_between(bits, kind), points, side="right").astype(np.uint8)
    return codes


@functools.cache
def _code_of_pair(bits: int, kind: Kind) -> Table:
    """The codes of two neighbouring grid points, by both bytes: uint8, ``[65536]``. Of 3 bits, low ones first."""
    code = _code_of_point(bits, kind)
    pairs = np.arange(1 << 16)
    first, second = code[pairs & 255].astype(np.int64), code[pairs >> 8].astype(np.int64)
    both = first | second << bits
    if bits == 3:
        both = (first & 3) | (second & 3) << 2 | (first >> 2) << 4 | (second >> 2) << 5
    table: Table = both.astype(np.uint8)
    return table


def _looked_up(packed: torch.Tensor, bits: int, kind: Kind, out: torch.Tensor) -> torch.Tensor:
    """The levels of packed codes: float32, ``[rows, block]``, into ``out``; returns it."""
    block = out.shape[1]
    if bits == 8:
        return out.copy_(packed.view(torch.int8)).mul_(1 / 127)
    if packed.device.type != "cpu":
        return out.copy_(levels(bits, kind).to(packed.device)[unpack(packed, bits, block).int()])
    if bits == 4:
        pairs = torch.view_as_complex(out.view(-1, 2))  # torch selects 8 bytes faster than numpy, others slower
        torch.index_select(_levels_of_nibbles(kind), 0, packed.view(-1).int(), out=pairs)
        return out
    keys = packed.numpy()
    if bits == 3:
        low, high = keys[:, : block // 4], packed[:, block // 4 :]
        keys = low.astype(np.uint16) | (unpack(high, 4, block // 4).numpy().astype(np.uint16) << 8)
    table = _levels_of_byte(bits, kind)
    np.take(table, keys.reshape(-1), mode="clip", out=out.view(-1).numpy().view(table.dtype))
    return out


@functools.cache
def _levels_of_byte(bits: int, kind: Kind) -> npt.NDArray[np.void]:
    """The levels of all codes in a byte (of 3 bits: of four codes, low bits in the low byte), as one element each."""
    if bits == 3:
        keys = torch.arange(1 << 12).unsqueeze(1)
        codes = unpack((keys & 255).byte(), 2, 4) | unpack((keys >> 8).byte(), 1, 4) << 2
    else:
        codes = unpack(torch.arange(256).byte().unsqueeze(1), bits, 8 // bits)
    table = levels(bits, kind)[codes.long()].contiguous().numpy()
    return table.view(f"V{table.dtype.itemsize * table.shape[1]}").reshape(-1)


@functools.cache
def _levels_of_nibbles(kind: Kind) -> torch.Tensor:
    """The levels of both codes in a byte, as one complex number: complex64, ``[256]``."""
    return torch.from_numpy(_levels_of_byte(4, kind).view(np.complex64))
