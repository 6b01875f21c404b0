# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The codebook for GPUs, on which launches cost most: codes a whole tensor at once, by few operators.

Codes and scales are those of ``codebook``, computed by the same arithmetic in the same order. Numbers are compared with
the thresholds instead of being looked up, and all ranks' codes are decoded at once. The number of kernels depends
neither on a tensor's size nor on the number of ranks.
"""

from typing import NamedTuple

import torch

from gravac.compressors.codebook import SCALE, Coded, inverse_of, rounded_up
from gravac.compressors.levels import (
    GRID,
    Kind,
    levels,
    levels_of_bytes,
    levels_of_twelve_bits,
    shifts_of_nibbles,
    thresholds,
)
from gravac.compressors.packing import pack_into, packed_bytes
from gravac.compressors.squares import energy


class _Fit(NamedTuple):
    """Coded blocks, and sums from which their error is computed.

    Attributes:
        coded: codes ``[blocks, bytes]`` and scales ``[blocks]``.
        values: the codes' levels: float32, ``[blocks, block]``.
        along: sum of number times level of each block, ``[blocks]``; ``None`` for 8 bits.
        size: sum of squared levels of each block, ``[blocks]``; ``None`` for 8 bits.
        norms: norm of each block, ``[blocks]``; ``None`` if not computed.
    """

    coded: Coded
    values: torch.Tensor
    along: torch.Tensor | None = None
    size: torch.Tensor | None = None
    norms: torch.Tensor | None = None


def encode(x: torch.Tensor, bits: int, kind: Kind) -> tuple[Coded, torch.Tensor]:
    """Round each number of each block to a level, and fit a scale to each block; see ``codebook.encode``.

    Args:
        x: numbers to code: float32, of shape ``[blocks, block]``, contiguous, finite; ``block`` a multiple of 8.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: placement of the levels; 8 bits are always uniform.

    Returns:
        The codes, and ``‖x - decoded‖²``, 0-d, float64. Blocks of norms below 1e-19 or above 1e18 are not coded
        correctly, since float32 cannot represent their squares.
    """
    fit = _fit(x, bits, kind)
    if fit.along is None or fit.size is None:
        rest = torch.sub(x, _scaled(fit.values, fit.coded.scales), out=fit.values).view(-1)
        return fit.coded, energy(rest)
    total = torch.linalg.vecdot(x, x) if fit.norms is None else fit.norms.square_()
    change = (fit.size * fit.coded.scales).sub_(fit.along, alpha=2).mul_(fit.coded.scales)
    return fit.coded, change.add_(total).clamp_(min=0).sum(dtype=torch.float64)


def encode_decoded(x: torch.Tensor, bits: int, kind: Kind) -> tuple[Coded, torch.Tensor]:
    """Encode blocks as ``encode`` does; return codes, and the decoded numbers: float32, shape ``[blocks, block]``."""
    fit = _fit(x, bits, kind)
    return fit.coded, _scaled(fit.values, fit.coded.scales)


def decode(packed: torch.Tensor, scales: torch.Tensor, bits: int, kind: Kind, block: int) -> torch.Tensor:
    """Decode packed codes.

    Args:
        packed: packed codes: uint8, ``[..., packed_bytes(block, bits)]``.
        scales: scale of each block: ``SCALE``, ``[...]``.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        block: numbers per block.

    Returns:
        float32, of shape ``[..., block]``, contiguous.
    """
    if bits == 8:
        numbers = packed.view(torch.int8).to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 127)
        return _scaled(numbers, scales)
    if bits == 3:
        low, high = packed[..., : block // 4], packed[..., block // 4 :]
        high_bits = (high.unsqueeze(-1) << shifts_of_nibbles(packed.device)).bitwise_and_(0xF00)
        table, keys = levels_of_twelve_bits(kind, packed.device), high_bits.flatten(-2).bitwise_or_(low)
    else:
        table = levels_of_bytes(bits, kind, packed.device)
        keys = packed.to(torch.int32, memory_format=torch.contiguous_format)
    numbers = table.index_select(0, keys.reshape(-1)).view(*scales.shape, block)
    return _scaled(numbers, scales)


def _fit(x: torch.Tensor, bits: int, kind: Kind) -> _Fit:
    """Encode blocks ``[blocks, block]`` and fit a scale to each: least squares; for 8 bits the largest magnitude."""
    packed = torch.empty(len(x), packed_bytes(x.shape[1], bits), dtype=torch.uint8, device=x.device)
    scales, fine = torch.empty(len(x), dtype=SCALE, device=x.device), x
    norms: torch.Tensor | None = None
    if kind == "uniform" or bits == 8:
        max_step = (1 << (bits - 1)) - 1
        if bits > 1:
            scales = rounded_up(x.abs().amax(1))
            fine = (x * inverse_of(scales.float(), max_step).unsqueeze(1)).round_()
    elif bits > 1:
        norms = torch.linalg.vector_norm(x, dim=1)
        fine = x * inverse_of(norms, GRID * x.shape[1] ** 0.5).unsqueeze(1)
    if bits == 8:
        packed.view(torch.int8).copy_(fine.clamp_(-127, 127))
        return _Fit(Coded(packed, scales), fine.mul_(1 / 127))
    codes = torch.bucketize(fine, thresholds(bits, kind, x.device), right=True, out_int32=True)
    pack_into(packed, codes, bits)
    values = levels(bits, kind, x.device).index_select(0, codes.view(-1)).view_as(x)
    along = (x * values).sum(1)
    size = torch.full_like(along, x.shape[1]) if bits == 1 else (values * values).sum(1)
    # only even levels may all be 0, and then so is their product with x
    torch.div(along, size.clamp(min=1e-30) if kind == "uniform" else size, out=scales)
    return _Fit(Coded(packed, scales), values, along, size, norms)


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return values.mul_(scales.unsqueeze(-1))
