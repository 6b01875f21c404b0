# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes orthonormal bases for the columns of tall matrices.

A CPU uses Householder QR. On a GPU, torch computes Householder QR of more than 256 rows with several launches per
column. A GPU therefore uses Cholesky QR twice, with about a dozen operators. Source: Yamamoto et al., "Roundoff Error
Analysis of the CholeskyQR2 Algorithm", ETNA 44, 2015. The host waits for neither method.
"""

import functools
import math

import torch

from gravac.compressors.draws import Draws

NUDGE_LENGTH = 2.0**-18
"""Norm of the random vector that is added to each column before orthogonalization; the column itself has norm 1.

Each column gets a different vector, so that columns that are zero, or depend linearly on others, become independent.
Condition numbers then stay below about 10⁷, and Cholesky QR, which squares them, is accurate in float64. The vectors
change the spanned subspace no more than rounding products to float32 does.
"""

ZERO_LENGTH = 1e-150
"""Norm below which a column counts as zero: below float32's range, but the square is within float64's range."""


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis ``[rows, rank]`` of a factor's columns.

    For each r, the first r columns of the basis span the first r columns of the factor.

    If a column of the factor is zero or depends linearly on earlier columns, the basis has some other direction in its
    place. The basis is therefore always orthonormal, and projecting a matrix on this basis is contractive. The other
    directions can only capture more of the matrix. A factor that is not finite gives a basis that is not finite.

    Args:
        factor: ``[rows, rank]``, ``rank < rows``, float32 or float64.
    """
    return by_householder(factor) if factor.is_cpu else by_cholesky(factor)


def by_householder(factor: torch.Tensor) -> torch.Tensor:
    """Compute the result of ``orthonormal``, ``[rows, rank]``, by Householder QR."""
    basis: torch.Tensor = torch.linalg.qr(rescaled(factor)).Q
    return basis


def by_cholesky(factor: torch.Tensor) -> torch.Tensor:
    """Compute the result of ``orthonormal``, ``[rows, rank]``, by Cholesky QR in float64, twice for accuracy.

    With ``A^T A = L L^T``, the columns of ``A L^-T`` are orthonormal and span the same space as those of A.
    """
    columns = factor.double()
    lengths = torch.linalg.vector_norm(columns, dim=-2, keepdim=True)
    rows, rank = columns.shape[-2:]
    columns = columns / lengths.clamp_(min=ZERO_LENGTH)
    columns.add_(nudge_directions(rows, rank, columns.device), alpha=NUDGE_LENGTH * math.sqrt(3 / rows))
    for _ in range(2):
        # cholesky_ex does not check for success, so that the host need not wait
        lower_triangle = torch.linalg.cholesky_ex(columns.mT @ columns).L
        columns = torch.linalg.solve_triangular(lower_triangle.mT, columns, upper=True, left=False)
    basis: torch.Tensor = columns.to(factor.dtype)
    return basis


def nudge_directions(rows: int, rank: int, device: torch.device) -> torch.Tensor:
    """Return a different vector for each column: fixed random numbers in [-1, 1), float64, ``[rows, rank]``.

    Each vector is the previous vector, shifted by one row.
    """
    length = rows + rank - 1
    return _fixed_random_numbers(1 << (length - 1).bit_length(), device)[:length].unfold(0, rows, 1).mT


def rescaled(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor ``[rows, rank]`` divided by its largest magnitude; a factor of zeros is unchanged.

    Sums of squares of the result neither overflow nor underflow.
    """
    return factor / factor.abs().amax((-2, -1), keepdim=True).clamp_(min=torch.finfo(factor.dtype).tiny)


@functools.cache
def _fixed_random_numbers(length: int, device: torch.device) -> torch.Tensor:
    """Return fixed random numbers in [-1, 1): float64, ``[length]``.

    The numbers are cached, so that they are copied to a device only once.
    """
    return Draws("directions").uniform(length).double().mul_(2).sub_(1).to(device)
