# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Quantizes blocks of numbers as ``codebook`` does, on a GPU: codes a whole tensor at once, by few operators.

On a GPU, kernel launches cost most. Codes and scales are those of ``codebook``, computed by the same arithmetic in the
same order. Numbers are compared with the thresholds; no table is used for coding. All ranks' codes are decoded at once.
The number of launches depends neither on the tensor's size nor on the number of ranks.
"""

from typing import NamedTuple

import torch

from gravac.compressors.codebook import SCALE_DTYPE, Coded, inverse_of, round_up_to_scale
from gravac.compressors.levels import (
    GRID_POINTS_PER_RMS,
    LevelKind,
    levels,
    levels_of_bytes,
    levels_of_twelve_bits,
    shifts_of_nibbles,
    thresholds,
)
from gravac.compressors.packing import pack_into, packed_bytes
from gravac.compressors.squares import energy


class _EncodedBlocks(NamedTuple):
    """Coded blocks, and sums over each block from which the squared error is computed.

    Attributes:
        coded: codes ``[blocks, bytes]`` and scales ``[blocks]``.
        code_levels: the codes' levels: float32, ``[blocks, block]``.
        level_products: sum over a block of number times level, ``[blocks]``; ``None`` for 8 bits.
        level_squares: sum over a block of squared levels, ``[blocks]``; ``None`` for 8 bits.
        norms: norm of each block of numbers, ``[blocks]``; ``None`` if not computed.
    """

    coded: Coded
    code_levels: torch.Tensor
    level_products: torch.Tensor | None = None
    level_squares: torch.Tensor | None = None
    norms: torch.Tensor | None = None


def encode(x: torch.Tensor, bits: int, kind: LevelKind) -> tuple[Coded, torch.Tensor]:
    """Round each number of each block to a level, and fit a scale to each block; see ``codebook.encode``.

    Args:
        x: numbers to code: float32, of shape ``[blocks, block]``, contiguous, finite; ``block`` a multiple of 8.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: ``"fitted"``: levels fitted to a normal distribution; ``"uniform"``: evenly spaced, as always for 8 bits.

    Returns:
        The codes, and ``‖x - decoded‖²``, 0-d, float64. Blocks of norms below 1e-19 or above 1e18 are not coded
        correctly, since float32 cannot represent their squares.
    """
    encoded = _encode_blocks(x, bits, kind)
    if encoded.level_products is None or encoded.level_squares is None:
        coding_error = torch.sub(
            x, _scale_in_place(encoded.code_levels, encoded.coded.scales), out=encoded.code_levels
        ).view(-1)
        return encoded.coded, energy(coding_error)
    x_squares = torch.linalg.vecdot(x, x) if encoded.norms is None else encoded.norms.square_()
    error_change = (
        (encoded.level_squares * encoded.coded.scales).sub_(encoded.level_products, alpha=2).mul_(encoded.coded.scales)
    )
    return encoded.coded, error_change.add_(x_squares).clamp_(min=0).sum(dtype=torch.float64)


def encode_decoded(x: torch.Tensor, bits: int, kind: LevelKind) -> tuple[Coded, torch.Tensor]:
    """Encode blocks as ``encode`` does; return codes, and decoded numbers: float32, shape ``[blocks, block]``."""
    encoded = _encode_blocks(x, bits, kind)
    return encoded.coded, _scale_in_place(encoded.code_levels, encoded.coded.scales)


def decode(packed: torch.Tensor, scales: torch.Tensor, bits: int, kind: LevelKind, block: int) -> torch.Tensor:
    """Return the numbers that packed codes and their scales represent.

    Args:
        packed: packed codes: uint8, ``[..., packed_bytes(block, bits)]``.
        scales: scale of each block: ``SCALE_DTYPE``, ``[...]``.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        block: numbers per block.

    Returns:
        float32, of shape ``[..., block]``, contiguous.
    """
    if bits == 8:
        numbers = packed.view(torch.int8).to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 127)
        return _scale_in_place(numbers, scales)
    if bits == 3:
        low_bytes, high_bytes = packed[..., : block // 4], packed[..., block // 4 :]
        high_bits = (high_bytes.unsqueeze(-1) << shifts_of_nibbles(packed.device)).bitwise_and_(0xF00)
        level_table, keys = levels_of_twelve_bits(kind, packed.device), high_bits.flatten(-2).bitwise_or_(low_bytes)
    else:
        level_table = levels_of_bytes(bits, kind, packed.device)
        keys = packed.to(torch.int32, memory_format=torch.contiguous_format)
    numbers = level_table.index_select(0, keys.reshape(-1)).view(*scales.shape, block)
    return _scale_in_place(numbers, scales)


def _encode_blocks(x: torch.Tensor, bits: int, kind: LevelKind) -> _EncodedBlocks:
    """Encode x, ``[blocks, block]``; scales are fitted by least squares, for 8 bits they are the largest magnitudes."""
    packed_codes = torch.empty(len(x), packed_bytes(x.shape[1], bits), dtype=torch.uint8, device=x.device)
    scales, scaled_blocks = torch.empty(len(x), dtype=SCALE_DTYPE, device=x.device), x
    norms: torch.Tensor | None = None
    if kind == "uniform" or bits == 8:
        max_code = (1 << (bits - 1)) - 1
        if bits > 1:
            scales = round_up_to_scale(x.abs().amax(1))
            scaled_blocks = (x * inverse_of(scales.float(), max_code).unsqueeze(1)).round_()
    elif bits > 1:
        norms = torch.linalg.vector_norm(x, dim=1)
        scaled_blocks = x * inverse_of(norms, GRID_POINTS_PER_RMS * x.shape[1] ** 0.5).unsqueeze(1)
    if bits == 8:
        packed_codes.view(torch.int8).copy_(scaled_blocks.clamp_(-127, 127))
        return _EncodedBlocks(Coded(packed_codes, scales), scaled_blocks.mul_(1 / 127))
    codes = torch.bucketize(scaled_blocks, thresholds(bits, kind, x.device), right=True, out_int32=True)
    pack_into(packed_codes, codes, bits)
    code_levels = levels(bits, kind, x.device).index_select(0, codes.view(-1)).view_as(x)
    level_products = (x * code_levels).sum(1)
    level_squares = torch.full_like(level_products, x.shape[1]) if bits == 1 else (code_levels * code_levels).sum(1)
    # uniform levels may all be 0: level_products is then 0 too, and the scale becomes 0
    torch.div(level_products, level_squares.clamp(min=1e-30) if kind == "uniform" else level_squares, out=scales)
    return _EncodedBlocks(Coded(packed_codes, scales), code_levels, level_products, level_squares, norms)


def _scale_in_place(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply each block of values, ``[..., block]``, by its scale, ``[...]``, in place; return the values."""
    return values.mul_(scales.unsqueeze(-1))
