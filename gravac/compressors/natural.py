# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Natural compression: random rounding to a power of two, so that only sign and exponent travel.

Source: Horvath et al., "Natural Compression for Distributed Deep Learning", 2019 (arXiv:1905.10988), definition 1 and
theorem 1: unbiased, second moment at most 9/8 of the square. Contractive too: no element errs by more than itself.
Both hold down to 2**-126 of the tensor's largest magnitude, also of subnormal numbers; what is smaller is rounded to
zero or the smallest that travels, unbiased.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch

from gravac.collectives import AllGather, Traffic
from gravac.compressors.base import Compressor, Context, Rounds
from gravac.compressors.draws import Draws
from gravac.compressors.profile import CostPoints
from gravac.compressors.qsgd import block_largest, exchanged, round_randomly, rounding_variance
from gravac.compressors.squares import energy, power_of_two

SPAN = 126
"""Binary orders of magnitude between the largest and the smallest power of two that travel."""


class Natural(Compressor):
    """Sign and 7-bit exponent, relative to the tensor's smallest, exchanged by all-gather."""

    name: ClassVar[str] = "natural"
    cf: ClassVar[float] = 4.0
    contractive: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((4, 73.30, 88.18),)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """A byte per element, and two for the smallest exponent."""
        elements = torch.Size(shape).numel()
        return (Traffic(AllGather, elements + bool(elements) * torch.int16.itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of each rank's codes and smallest exponent."""
        lowest = lowest_exponent(x)
        codes = encode(x, lowest, ctx.draws(own=True))
        return (yield from exchanged(codes, lowest, 8, partial(decode, dtype=x.dtype), ctx))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Expected squared error: the sum of ``(|x| - below) (above - |x|)``, the powers of two around each element."""
        _, position, step = _neighbours(x, lowest_exponent(x))
        error = energy(rounding_variance(position).sqrt_() * step)
        return [error for _ in cfs]


def lowest_exponent(x: torch.Tensor) -> torch.Tensor:
    """Exponent of the smallest power of two that travels for flat x: int16, ``[1]`` (``[0]`` when x is empty)."""
    exponent = block_largest(x, 0).frexp().exponent
    return (exponent - SPAN).clamp(min=_least(x.dtype)).to(torch.int16)


def encode(x: torch.Tensor, lowest: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Flat x as codes: the sign in the highest bit; 0 for zero, or 1 more than the exponent above the lowest.

    Args:
        x: numbers to code: flat, float32 or float64.
        lowest: ``lowest_exponent`` of x.
        draws: source of the random numbers that decide the rounding.

    Returns:
        Codes: uint8, flat, as long as x.
    """
    below, position, _ = _neighbours(x, lowest)
    magnitude = below.add_(round_randomly(position, draws))
    return magnitude.to(torch.uint8).add_(x.signbit().to(torch.uint8), alpha=128)


def decode(codes: torch.Tensor, lowest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that codes stand for: flat, as long as ``codes``, in ``dtype``. The inverse of ``encode``."""
    magnitude = codes & 127
    power = power_of_two(magnitude.to(torch.int32) - 1 + lowest, dtype).mul_(magnitude > 0)
    return torch.where(codes > 127, -power, power)


def _neighbours(x: torch.Tensor, lowest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The code of the power of two below each magnitude, where between its neighbours it lies, how far they are apart.

    Magnitudes under the lowest power lie between zero (code 0) and that power (code 1).

    Returns:
        (code, position in [0, 1), distance), each in the dtype of x.
    """
    mantissa, exponent = x.abs().frexp()
    above = exponent - lowest  # code of the power below, when that is at least 1
    small = (above < 1) | (x == 0)
    step = power_of_two(torch.where(small, lowest.to(torch.int32), exponent - 1), x.dtype)
    position = torch.where(small, x.abs() / step, 2 * mantissa - 1)
    return torch.where(small, 0, above).to(x.dtype), position, step


def _least(dtype: torch.dtype) -> int:
    """Exponent of the smallest power of two that a number of float32 or float64 can be, subnormal."""
    return -1074 if dtype == torch.float64 else -149


natural = Natural()
"""Natural compression, which has no settings."""
