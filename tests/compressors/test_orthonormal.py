# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A basis is orthonormal, and spans what it was made of, whatever that is, in both ways."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.compressors.orthonormal import by_cholesky, by_householder, nudge_directions, orthonormal
from tests.device.counting import DEVICE, counting

Way = Callable[[torch.Tensor], torch.Tensor]

each_way = pytest.mark.parametrize("way", [by_householder, by_cholesky], ids=lambda way: way.__name__)

KINDS = ("normal", "zero columns", "dependent", "nearly dependent", "few rows", "ranges", "small", "large", "power")


def factor(kind: str, rows: int, rank: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Columns that are independent, or are not; of like lengths, or from 1e-30 to 1e30."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    if kind == "zero columns":
        columns[:, torch.rand(rank, generator=generator) < 0.6] = 0
    elif kind == "dependent":
        columns[:, rank // 2 :] = columns[:, :1] * torch.rand(rank - rank // 2, generator=generator)
    elif kind == "nearly dependent":
        columns[:, 1:] = columns[:, :1] + 10.0 ** -torch.arange(1, rank).fmod(9).double() * columns[:, 1:]
    elif kind == "few rows":  # an embedding's gradient
        columns[2:] = 0
    elif kind == "ranges":
        columns *= 10.0 ** torch.linspace(-30, 30, rank, dtype=torch.float64)
    elif kind in ("small", "large"):
        columns *= 1e-38 if kind == "small" else 1e37
    elif kind == "power":  # what a power iteration makes of a matrix whose singular values fall fast
        matrix = torch.randn(rows, rows, generator=generator, dtype=torch.float64)
        columns = matrix * 10.0 ** -torch.arange(rows).clamp(max=30).double() @ columns
    return columns.to(dtype)


@each_way
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(3, 200),
    rank=st.integers(1, 16),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_basis_is_orthonormal_and_spans_the_columns(
    way: Way, kind: str, rows: int, rank: int, seed: int, dtype: torch.dtype
) -> None:
    rank = min(rank, rows - 1)
    columns = factor(kind, rows, rank, seed, dtype)
    basis = way(columns)
    assert (basis.shape, basis.dtype) == (columns.shape, dtype)
    basis, columns = basis.double(), columns.double()
    sharp = 2e-6 if dtype == torch.float32 else 1e-10
    assert float((basis.T @ basis - torch.eye(rank)).abs().max()) < sharp
    for first in {1, (rank + 1) // 2, rank}:
        mine, theirs = basis[:, :first], columns[:, :first]
        missing = (theirs - mine @ (mine.T @ theirs)).norm(dim=0)
        lengths = theirs.norm(dim=0)
        # Householder's scales a matrix as a whole, so that a column may vanish beside another
        lost = 1e-18 * float(columns.norm()) if way is by_householder else 0.0
        assert bool((missing <= 2e-5 * lengths + lost).all()), missing / lengths


def test_both_ways_keep_as_much_of_a_matrix() -> None:
    for seed in range(20):
        matrix = torch.linalg.qr(torch.randn(90, 60, generator=torch.Generator().manual_seed(seed))).Q
        matrix = matrix * 10.0 ** -torch.linspace(0, 6, 60)
        columns = matrix @ factor("normal", 60, 8, seed)
        one, other = (float((way(columns).T @ matrix).norm()) for way in (by_householder, by_cholesky))
        assert one == pytest.approx(other, rel=1e-5)


@each_way
def test_what_is_not_finite_does_not_raise(way: Way) -> None:
    for bad in (float("nan"), float("inf")):
        columns = factor("normal", 40, 3, 0)
        columns[3, 1] = bad
        assert not way(columns).isfinite().all()


def test_directions_do_not_depend_on_how_many() -> None:
    device = torch.device("cpu")
    assert torch.equal(nudge_directions(50, 7, device)[:, :3], nudge_directions(50, 3, device))
    many = nudge_directions(1000, 16, device)
    assert float((many.T @ many * 3 / 1000 - torch.eye(16)).abs().max()) < 0.2  # of length 1, and hardly alike


@pytest.mark.parametrize("shape", [(1024, 1), (1024, 4), (24, 1024, 16)])
def test_elsewhere_it_takes_few_operators(shape: tuple[int, ...]) -> None:
    for _ in range(2):  # brings a table to the device, once
        with counting() as seen:
            orthonormal(torch.empty(shape, device=DEVICE))
    assert not seen.waits and not seen.copies
    assert sum(seen.kernels.values()) <= 16, seen.kernels
