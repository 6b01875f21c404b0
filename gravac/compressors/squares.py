# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sums of squares that neither overflow nor underflow if the numbers themselves do not.

A square has twice its number's exponent: in float32, squares of norms above 1.8e19 overflow, and squares of numbers
below 1e-19 lose bits or become 0. On a CPU the sum is computed in the numbers' own format, at the speed of memory. In
the rare case that the sum is outside the format's safe range, a second sum is computed in float64, which takes 30 times
as long. On other devices, where the host must not read the sum, sums are float64 from the start, without a copy.
"""

import math
from collections.abc import Sequence

import torch

MIN_EXACT_ENERGY = 2.0**-96
"""Lowest sum of squares in float32 that is accurate even if 2^30 of the squares underflowed to 0."""

MAX_SENT_ENERGY = 2.0**126
"""Largest sum of squares that a rank sends in a format with float32's range; larger sums are clamped.

Each of N ranks sends its sum divided by N, so that the total does not overflow.
"""

PIECE_ELEMENTS = 1 << 15
"""Number of elements that are converted to float64 at a time: few enough to fit in a CPU cache."""


def energy(x: torch.Tensor) -> torch.Tensor:
    """Return ``‖x‖²`` as a 0-d float64 tensor; x is flat, of a floating dtype.

    The result is finite if and only if every element is finite, and 0 only if x is zero.

    Exception: for float64 numbers with a norm below 1e-154 or above 1e154, the sum is outside float64's range. The
    result is then float64's smallest or largest number on a CPU, and 0 or inf on other devices.
    """
    if not x.is_cpu:
        norm: torch.Tensor = torch._foreach_norm([x], 2, torch.float64)[0]  # converts to float64 while it sums
        return norm.square()
    return recompute_if_inexact(_sum_in_dtype(x), x)


def all_finite(energies: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all elements of some tensors are finite, as a 0-d bool tensor.

    Args:
        energies: ``energy`` of each tensor; at least one.
    """
    return energies[0] < torch.inf if len(energies) == 1 else (torch.stack([*energies]) < torch.inf).all()


def norm(x: torch.Tensor) -> torch.Tensor:
    """Return ``‖x‖`` as a 0-d float64 tensor; x is flat, of a floating dtype.

    The sum of squares neither overflows nor underflows, as in ``energy``.
    """
    if not x.is_cpu:
        wide_norm: torch.Tensor = torch._foreach_norm([x], 2, torch.float64)[0]
        return wide_norm
    fast_norm: torch.Tensor = torch.linalg.vector_norm(x, dtype=torch.float32 if x.element_size() < 4 else None)
    return fast_norm.double() if MIN_EXACT_ENERGY**0.5 < float(fast_norm) < math.inf else energy(x).sqrt()


def recompute_if_inexact(sum_of_squares: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a sum of squares converted to float64, 0-d; for tensors on a CPU.

    If the sum overflowed, or is so small that squares may have underflowed, the squares are summed again in float64.

    Args:
        sum_of_squares: sum of the squares of x in x's own number format, 0-d.
        x: the numbers, flat.
    """
    is_safe = MIN_EXACT_ENERGY < float(sum_of_squares) < math.inf
    return sum_of_squares.double() if is_safe else _sum_in_float64(x)


def norms_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row of a float32 or float64 matrix ``[count, length]``: ``[count]``, in that dtype.

    No square overflows or underflows, as in ``energy``.
    """
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    if not rows.numel():
        return norms
    is_unsafe = (norms < MIN_EXACT_ENERGY**0.5) | (norms == torch.inf)
    if not rows.is_cpu:
        return torch.where(is_unsafe, _norms_by_scaling(rows), norms)
    if is_unsafe.any():
        norms[is_unsafe] = _norms_by_scaling(rows[is_unsafe])
    return norms


def _norms_by_scaling(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row, ``[count]``; rows are first scaled by powers of two, so that no square overflows."""
    exponents = rows.abs().amax(1).frexp().exponent.clamp(-126, 126)
    scaled_rows = rows * power_of_two(-exponents, rows.dtype).unsqueeze(1)
    norms: torch.Tensor = torch.linalg.vector_norm(scaled_rows, dim=1)
    return norms.mul_(power_of_two(exponents, rows.dtype))


def power_of_two(exponent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``2 ** exponent`` in float32 or float64, exact even if the result is subnormal.

    Args:
        exponent: integers, of any shape.
        dtype: dtype of the result: float32 or float64.
    """
    bits, mantissa_bits, integer_dtype = (64, 52, torch.int64) if dtype == torch.float64 else (32, 23, torch.int32)
    biased_exponent = exponent.to(integer_dtype) + ((1 << (bits - mantissa_bits - 2)) - 1)
    # a subnormal power of two is a single bit of the mantissa, with an exponent field of 0
    return torch.where(
        biased_exponent > 0,
        biased_exponent << mantissa_bits,
        1 << (biased_exponent + mantissa_bits - 1).clamp_(0, mantissa_bits),
    ).view(dtype)


def _sum_in_dtype(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares in the dtype of x (float32 for 16-bit numbers): 0-d."""
    if x.element_size() >= 4:
        return torch.dot(x, x)
    norm: torch.Tensor = torch.linalg.vector_norm(x, dtype=torch.float32)
    return norm.square()


def _sum_in_float64(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of flat x on a CPU, in float64, 0-d.

    Other formats are converted a few numbers at a time. Float64 numbers are divided by the largest magnitude first.
    """
    if x.dtype == torch.float64:
        peak = x.abs().max() if x.numel() else x.new_zeros(())
        if not 0 < float(peak) < math.inf:
            return peak
        scaled = x / peak
        float64_limits = torch.finfo(torch.float64)
        return torch.dot(scaled, scaled).mul_(peak).mul_(peak).clamp_(float64_limits.tiny, float64_limits.max)
    sum_of_squares = x.new_zeros((), dtype=torch.float64)
    for first_index in range(0, x.numel(), PIECE_ELEMENTS):
        numbers = x[first_index : first_index + PIECE_ELEMENTS].double()
        sum_of_squares += torch.dot(numbers, numbers)
    return sum_of_squares
