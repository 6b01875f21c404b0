# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Orthonormal bases for the columns of tall matrices, of one matrix or of a batch.

A CPU uses Householder's QR. On a GPU, torch computes that QR matrix by matrix, with several launches a column, if there
are more than 256 rows. So a GPU uses Cholesky QR twice, which takes a dozen operators for any batch. Source: Yamamoto
et al., "Roundoff Error Analysis of the CholeskyQR2 Algorithm", ETNA 44, 2015. Neither way makes the host wait.
"""

import functools
import math

import torch

from gravac.compressors.draws import Draws

NUDGE_LENGTH = 2.0**-18
"""Length of the vector that is added to each column before orthogonalization; the column has length 1.

Each column gets another vector. Columns that are zero, or depend on other columns, thereby become new directions.
Condition numbers stay below some 10⁷, whose square float64 can represent. The vectors change the subspace no more than
rounding products to float32 does.
"""

ZERO_LENGTH = 1e-150
"""Length below which a column counts as zero: below float32's range, but its square is in float64's range."""


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis ``[..., rows, rank]`` of a factor's columns.

    For each r, the first r columns of the basis span the first r columns of the factor.

    If a column is zero or depends on earlier columns, the basis has another direction instead of a zero. The basis is
    always orthonormal, so that projecting on it is contractive. Extra directions can only capture more of a matrix, and
    a direction that was lost can return. A factor that is not finite gives a basis that is not finite.

    Args:
        factor: one matrix or a batch, ``[..., rows, rank]``, ``rank < rows``, float32 or float64.
    """
    return by_householder(factor) if factor.is_cpu else by_cholesky(factor)


def by_householder(factor: torch.Tensor) -> torch.Tensor:
    """Return the basis of ``orthonormal``, ``[..., rows, rank]``, by Householder's QR."""
    basis: torch.Tensor = torch.linalg.qr(rescaled(factor)).Q
    return basis


def by_cholesky(factor: torch.Tensor) -> torch.Tensor:
    """Return the basis of ``orthonormal``, ``[..., rows, rank]``, by Cholesky QR in float64, done twice for accuracy.

    With ``A^T A = L L^T``, the columns of ``A L^-T`` are orthonormal and span the same space as those of A.
    """
    columns = factor.double()
    lengths = torch.linalg.vector_norm(columns, dim=-2, keepdim=True)
    rows, rank = columns.shape[-2:]
    columns = columns / lengths.clamp_(min=ZERO_LENGTH)
    columns.add_(directions(rows, rank, columns.device), alpha=NUDGE_LENGTH * math.sqrt(3 / rows))
    for _ in range(2):
        # no check for success, since the host would wait for its result
        lower_triangle = torch.linalg.cholesky_ex(columns.mT @ columns).L
        columns = torch.linalg.solve_triangular(lower_triangle.mT, columns, upper=True, left=False)
    basis: torch.Tensor = columns.to(factor.dtype)
    return basis


def directions(rows: int, rank: int, device: torch.device) -> torch.Tensor:
    """Return the vectors to add to columns: fixed random numbers in [-1, 1), float64, ``[rows, rank]``.

    Each column is the previous column, shifted by one.
    """
    length = rows + rank - 1
    return _sampled(1 << (length - 1).bit_length(), device)[:length].unfold(0, rows, 1).mT


def rescaled(factor: torch.Tensor) -> torch.Tensor:
    """Return factors ``[..., rows, rank]``, each divided by its largest magnitude; zeros stay zeros.

    Squares then neither overflow nor underflow.
    """
    return factor / factor.abs().amax((-2, -1), keepdim=True).clamp_(min=torch.finfo(factor.dtype).tiny)


@functools.cache
def _sampled(length: int, device: torch.device) -> torch.Tensor:
    """Return fixed random numbers in [-1, 1): float64, ``[length]``.

    The numbers are cached, so that they are copied to a device only once.
    """
    return Draws("directions").uniform(length).double().mul_(2).sub_(1).to(device)
