# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Orthonormal bases for the columns of tall matrices, of one or of a batch.

On a processor by Householder's QR. torch runs that on a GPU matrix by matrix, several launches a column, as soon as
there are more than 256 rows; so there it is Cholesky QR, done twice, which is a dozen operators for any batch. Source:
Yamamoto et al., "Roundoff Error Analysis of the CholeskyQR2 Algorithm", ETNA 44, 2015. Neither has the host wait.
"""

import functools
import math

import torch

from gravac.compressors.draws import Draws

NUDGE = 2.0**-18
"""Length of what is added to columns of length 1, in directions of its own for each, before they are orthogonalized.

Columns that are zero, or depend on others, so become other directions. Condition numbers stay below some 10⁷, whose
square float64 resolves; and a subspace turns by no more than float32's rounding of products turns it.
"""

TINY = 1e-150
"""Length below which a column counts as zero: less than what float32 holds; in float64 its square is not zero."""


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis ``[..., rows, rank]`` whose first columns span what the factor's first columns do.

    Where columns are zero, or depend on those before, it goes on with other directions instead of zeros: always
    orthonormal, so that projecting on it is contractive, it can only capture more, and a direction that was lost comes
    back. ``rank < rows``, float32 or float64. What is not finite gives what is not finite.
    """
    return by_householder(factor) if factor.is_cpu else by_cholesky(factor)


def by_householder(factor: torch.Tensor) -> torch.Tensor:
    """The basis ``[..., rows, rank]`` by Householder's QR."""
    basis: torch.Tensor = torch.linalg.qr(rescaled(factor)).Q
    return basis


def by_cholesky(factor: torch.Tensor) -> torch.Tensor:
    """The basis ``[..., rows, rank]`` by Cholesky QR in float64: a first time, and again for what that left.

    With ``A^T A = L L^T``, the columns of ``A L^-T`` are orthonormal and span what those of A do.
    """
    columns = factor.double()
    lengths = torch.linalg.vector_norm(columns, dim=-2, keepdim=True)
    rows, rank = columns.shape[-2:]
    columns = columns / lengths.clamp_(min=TINY)
    columns.add_(directions(rows, rank, columns.device), alpha=NUDGE * math.sqrt(3 / rows))
    for _ in range(2):
        # not checked for success, which the host would have to wait for
        lower = torch.linalg.cholesky_ex(columns.mT @ columns).L
        columns = torch.linalg.solve_triangular(lower.mT, columns, upper=True, left=False)
    basis: torch.Tensor = columns.to(factor.dtype)
    return basis


def directions(rows: int, rank: int, device: torch.device) -> torch.Tensor:
    """Columns of numbers drawn from [-1, 1), float64, ``[rows, rank]``: each column is the next one, shifted by one."""
    length = rows + rank - 1
    return _drawn(1 << (length - 1).bit_length(), device)[:length].unfold(0, rows, 1).mT


def rescaled(factor: torch.Tensor) -> torch.Tensor:
    """Factors ``[..., rows, rank]``, each with 1 as largest magnitude, so that squares neither overflow nor vanish.

    Zeros stay zeros.
    """
    return factor / factor.abs().amax((-2, -1), keepdim=True).clamp_(min=torch.finfo(factor.dtype).tiny)


@functools.cache
def _drawn(length: int, device: torch.device) -> torch.Tensor:
    """Numbers drawn from [-1, 1), float64, ``[length]``; copied to a device once."""
    return Draws("directions").uniform(length).double().mul_(2).sub_(1).to(device)
