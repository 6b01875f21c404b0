# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sums of squares that neither overflow nor vanish where the numbers themselves do not.

A square has twice its number's exponent: in float32, squares of norms above 1.8e19 overflow, and squares of numbers
below 1e-19 lose bits or vanish. On a processor the sum is taken in the numbers' own format, at the speed of memory, and
taken again in float64 in the rare case that it lies outside of what that format holds safely: summing in float64 at
once takes 30 times as long there. Elsewhere, where the host must not look, sums are float64 at once, without a copy.
"""

import math
from collections.abc import Sequence

import torch

LEAST = 2.0**-96
"""Sum of squares in float32 from which on squares that vanished make no difference, even of 2^30 numbers."""

MOST = 2.0**126
"""Largest sum of squares that travels between ranks in a format with float32's range: sums over ranks, each of an Nth
of its own, do not overflow."""

PIECE = 1 << 15
"""Numbers that are widened at once, so that they stay in a cache."""


def energy(x: torch.Tensor) -> torch.Tensor:
    """``‖x‖²`` of flat x, a floating dtype: 0-d, float64.

    Finite if and only if every element is finite, and 0 only if x is zero. Of float64 numbers with a norm outside of
    1e-154 to 1e154 it is only that (the smallest or largest float64 on a processor; elsewhere 0 or inf).
    """
    if not x.is_cpu:
        norm: torch.Tensor = torch._foreach_norm([x], 2, torch.float64)[0]  # widens as it sums
        return norm.square()
    return checked(_own(x), x)


def all_finite(energies: Sequence[torch.Tensor]) -> torch.Tensor:
    """True if some tensors' ``energy``, at least one, are finite, 0-d bool: if and only if all their elements are."""
    return energies[0] < torch.inf if len(energies) == 1 else (torch.stack([*energies]) < torch.inf).all()


def norm(x: torch.Tensor) -> torch.Tensor:
    """``‖x‖`` of flat x, a floating dtype: 0-d, float64; right wherever ``energy`` is."""
    if not x.is_cpu:
        widened: torch.Tensor = torch._foreach_norm([x], 2, torch.float64)[0]
        return widened
    own: torch.Tensor = torch.linalg.vector_norm(x, dtype=torch.float32 if x.element_size() < 4 else None)
    return own.double() if LEAST**0.5 < float(own) < math.inf else energy(x).sqrt()


def checked(size: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a sum of squares of x, any shape, on a CPU, as float64 scalar; sum again if it left its format's range."""
    return size.double() if LEAST < float(size) < math.inf else _widened(x)


def norms_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row of a matrix ``[count, length]``, float32 or float64, as a vector in that dtype."""
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    if not rows.numel():
        return norms
    unsafe = (norms < LEAST**0.5) | (norms == torch.inf)
    if not rows.is_cpu:
        return torch.where(unsafe, _norms_scaled(rows), norms)
    if unsafe.any():
        norms[unsafe] = _norms_scaled(rows[unsafe])
    return norms


def _norms_scaled(rows: torch.Tensor) -> torch.Tensor:
    """Norm of each row, each multiplied by a power of two before, and divided by it after."""
    exponents = rows.abs().amax(1).frexp().exponent.clamp(-126, 126)
    scaled = rows * power_of_two(-exponents, rows.dtype).unsqueeze(1)
    norms: torch.Tensor = torch.linalg.vector_norm(scaled, dim=1)
    return norms.mul_(power_of_two(exponents, rows.dtype))


def power_of_two(exponent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Exactly ``2 ** exponent``, in the shape of an integer tensor; wrong where ``dtype`` has no such number."""
    bits, mantissa, integer = (64, 52, torch.int64) if dtype == torch.float64 else (32, 23, torch.int32)
    biased = exponent.to(integer) + ((1 << (bits - mantissa - 2)) - 1)
    # a subnormal number is the bit of its power alone, at the mantissa's end and without an exponent
    return torch.where(biased > 0, biased << mantissa, 1 << (biased + mantissa - 1).clamp_(0, mantissa)).view(dtype)


def _own(x: torch.Tensor) -> torch.Tensor:
    """Sum of squares in the format of x, of 16 bits in float32: 0-d."""
    if x.element_size() >= 4:
        return torch.dot(x, x)
    narrow: torch.Tensor = torch.linalg.vector_norm(x, dtype=torch.float32)
    return narrow.square()


def _widened(x: torch.Tensor) -> torch.Tensor:
    """Sum of squares of flat x on a processor, in float64, piece by piece; float64 numbers are scaled before."""
    if x.dtype == torch.float64:
        peak = x.abs().max() if x.numel() else x.new_zeros(())
        if not 0 < float(peak) < math.inf:
            return peak
        scaled = x / peak
        limits = torch.finfo(torch.float64)
        return torch.dot(scaled, scaled).mul_(peak).mul_(peak).clamp_(limits.tiny, limits.max)
    total = x.new_zeros((), dtype=torch.float64)
    for start in range(0, x.numel(), PIECE):
        wide = x[start : start + PIECE].double()
        total += torch.dot(wide, wide)
    return total
