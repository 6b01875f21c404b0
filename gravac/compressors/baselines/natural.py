# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Natural compression: rounds each element stochastically to a power of two, so that only sign and exponent are sent.

Source: Horvath et al., "Natural Compression for Distributed Deep Learning", 2019 (arXiv:1905.10988), definition 1 and
theorem 1. Unbiased, and an element's expected square grows by at most 1/8. Also contractive, since no element's error
exceeds the element. Both hold for elements down to 2**-126 of the tensor's largest magnitude, also for subnormal
numbers. Smaller elements are rounded to zero or to the smallest power that is sent, which is unbiased too.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch

from gravac.collectives import AllGather, Traffic
from gravac.compressors.base import Compressor, Context, Rounds
from gravac.compressors.baselines.qsgd import block_largest, exchange_codes, round_randomly, rounding_variance
from gravac.compressors.draws import Draws
from gravac.compressors.profile import CostPoints
from gravac.compressors.squares import energy, power_of_two

EXPONENT_SPAN = 126
"""Exponent of the largest minus exponent of the smallest power of two that a rank sends for a tensor."""


class Natural(Compressor):
    """Natural compression: a sign and a 7-bit exponent per element, exchanged by all-gather.

    A rank also sends the lowest exponent of its tensor, from which all exponents are counted.
    """

    name: ClassVar[str] = "natural"
    cf: ClassVar[float] = 4.0
    contractive: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((4, 60.47, 90.17),)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic: an all-gather of a byte per element, and two bytes for the lowest exponent."""
        elements = torch.Size(shape).numel()
        return (Traffic(AllGather, elements + bool(elements) * torch.int16.itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of each rank's codes and lowest exponent."""
        base_exponent = lowest_exponent(x)
        codes = encode(x, base_exponent, ctx.draws(per_rank=True))
        return (yield from exchange_codes(codes, base_exponent, 8, partial(decode, dtype=x.dtype), ctx))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the expected squared error of flat x, 0-d.

        The error is the sum over elements of ``(|x| - below) (above - |x|)``: ``below`` and ``above`` are the powers of
        two next to ``|x|``.
        """
        _, relative_position, distance = _neighbours(x, lowest_exponent(x))
        error = energy(rounding_variance(relative_position).sqrt_() * distance)
        return [error for _ in cfs]


def lowest_exponent(x: torch.Tensor) -> torch.Tensor:
    """Return the exponent of the smallest power of two that is sent for flat x: int16, ``[1]``; empty if x is empty."""
    exponent = block_largest(x, 0).frexp().exponent
    return (exponent - EXPONENT_SPAN).clamp(min=_min_exponent(x.dtype)).to(torch.int16)


def encode(x: torch.Tensor, base_exponent: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Round flat x stochastically to powers of two, and return their codes.

    A code has the sign in its highest bit. The other seven bits are 0 for the number 0, otherwise the exponent of the
    power of two, minus ``base_exponent``, plus 1.

    Args:
        x: numbers to code: flat, float32 or float64.
        base_exponent: exponent of the smallest power that is sent, as ``lowest_exponent`` returns it.
        draws: random numbers that decide the rounding.

    Returns:
        Codes: uint8, flat, of x's length.
    """
    lower_codes, relative_position, _ = _neighbours(x, base_exponent)
    magnitude_codes = lower_codes.add_(round_randomly(relative_position, draws))
    return magnitude_codes.to(torch.uint8).add_(x.signbit().to(torch.uint8), alpha=128)


def decode(codes: torch.Tensor, base_exponent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers that codes of ``encode`` (flat) represent: flat, of the codes' length, in ``dtype``.

    Args:
        codes: codes, uint8, flat.
        base_exponent: the exponent that was given to ``encode``.
        dtype: float32 or float64.
    """
    magnitude_codes = codes & 127
    power = power_of_two(magnitude_codes.to(torch.int32) - 1 + base_exponent, dtype).mul_(magnitude_codes > 0)
    return torch.where(codes > 127, -power, power)


def _neighbours(x: torch.Tensor, base_exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the powers of two below and above each magnitude of flat x.

    The neighbours of a magnitude below the lowest power are zero (code 0) and the lowest power (code 1).

    Returns:
        The code of the lower neighbour; the magnitude's position between its neighbours, in [0, 1); the distance of
        the neighbours. Each is in the dtype of x.
    """
    mantissa, exponent = x.abs().frexp()
    lower_code = exponent - base_exponent  # code of the lower neighbour, if at least 1
    is_below_base = (lower_code < 1) | (x == 0)
    distance = power_of_two(torch.where(is_below_base, base_exponent.to(torch.int32), exponent - 1), x.dtype)
    relative_position = torch.where(is_below_base, x.abs() / distance, 2 * mantissa - 1)
    return torch.where(is_below_base, 0, lower_code).to(x.dtype), relative_position, distance


def _min_exponent(dtype: torch.dtype) -> int:
    """Return the exponent of the smallest positive number of float32 or float64, a subnormal power of two."""
    return -1074 if dtype == torch.float64 else -149


natural = Natural()
"""Natural compression, which has no settings."""
