# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors that fold what is fed back in the kernel that codes: what comes of it is what comes of folding before."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac import Compressor, dense, ladder, quantize, topkc
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import kernels
from gravac.compressors.ladder import wire_ratio
from gravac.compressors.quantize import Quantize
from gravac.compressors.topkc import TopKC
from gravac.exchange import memory
from gravac.measurement import LocalMeasurement
from tests.kernels import DEVICE
from tests.kernels import kernels as need_kernels
from tests.kernels.test_quantize import Launches

need_kernels("quantize")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of what is divided by zero

MASKED: Any = SimpleNamespace(judge=lambda finite: finite, everywhere=lambda finite: finite, host_looks=False)
"""Of an executor, what says that the host must not look."""

SHAPES = ((40, 30), (7, 33), (5,))

CASES: tuple[tuple[Compressor, float, float | None], ...] = (
    (quantize(4), 8.0, None),
    (quantize(2), 16.0, 1.0),
    (quantize(1, block=40), 32.0, 0.5),
    (topkc(chunk=16), 10.0, None),
    (topkc(chunk=16, values=quantize(1)), 10.0, None),
    (ladder, wire_ratio(quantize(2), 16), None),
)
"""Compressors, CFs, and shares that are kept."""


class Ranks:
    """Ranks that average step after step, where the host must not look."""

    def __init__(self, base: Compressor, cf: float, strength: float | None, count: int, **feedback: Any) -> None:
        self.cf = cf
        self.averagers = [Averager(base, dense, strength, 16, Feedback(**feedback)) for _ in range(count)]
        for rank, averager in enumerate(self.averagers):
            averager.rank, averager.world = rank, count

    def step(self, step: int, dtype: torch.dtype = torch.float32, bad: float = 0.0) -> list[list[torch.Tensor]]:
        """What every rank has in place of its gradients afterwards; of the last, one number is ``bad``, if not 0."""
        draw = torch.Generator().manual_seed(step)
        outs = [[torch.randn(shape, generator=draw).to(DEVICE, dtype) for shape in SHAPES] for _ in self.averagers]
        if bad:
            outs[-1][1][3, 4] = bad
        running = []
        for averager, mine in zip(self.averagers, outs, strict=True):
            pieces = [Piece(str(i), out.view(-1), tuple(out.shape)) for i, out in enumerate(mine)]
            averager.measure(LocalMeasurement(step, Candidate(averager.base.name, self.cf, self.cf)), MASKED)
            running.append(averager.average(pieces, averager.plan(step, self.cf)))
        memory.run(running, [Ledger(len(outs)) for _ in outs])
        for averager in self.averagers:
            averager.commit()
        return outs

    def kept(self) -> list[dict[str, torch.Tensor]]:
        """Residuals, copied, and what compressors keep."""
        return [
            {name: one.clone() for name, one in averager.feedback.residual.items()}
            | {f"{name} {key}": one.clone() for name, of in averager.memory.stored.items() for key, one in of.items()}
            for averager in self.averagers
        ]


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda device_type: True)


def folds_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (Quantize, TopKC):
        monkeypatch.setattr(one, "folds", lambda self, gradient, cf: False)


def assert_same(got: Any, want: Any, exact: bool = True) -> None:
    for mine, other in zip(got, want, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], other[name], rtol=0 if exact else 1e-6, atol=0 if exact else 1e-7)


@pytest.mark.parametrize(
    ("world", "settings", "dtype"),
    [
        (2, {}, torch.float32),
        (3, {"dtype": "bfloat16"}, torch.float32),
        (2, {"overflow_safety": True}, torch.float32),
        (2, {"dtype": "bfloat16"}, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize(("base", "cf", "strength"), CASES, ids=lambda value: repr(value)[:30])
def test_folded_in_the_kernel_or_before_it_all_is_the_same(
    base: Compressor,
    cf: float,
    strength: float | None,
    settings: dict[str, Any],
    dtype: torch.dtype,
    world: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = Ranks(base, cf, strength, world, **settings)
    means = [ours.step(step, dtype) for step in range(2)]
    folds_before(monkeypatch)
    theirs = Ranks(base, cf, strength, world, **settings)
    for step, mine in enumerate(means):
        for one, other in zip(mine, theirs.step(step, dtype), strict=True):
            # what the interpreter writes as bfloat16 is cut off where a GPU rounds
            exact = dtype == torch.float32
            assert all(
                torch.allclose(*both, rtol=0 if exact else 2**-7, atol=0) for both in zip(one, other, strict=True)
            )
    # what a second coding adds is taken off what was sent, or what was sent and that off x: another rounding
    assert_same(ours.kept(), theirs.kept(), exact=base.name != "topkc" or world < 3)
    for averager, other in zip(ours.averagers, theirs.averagers, strict=True):
        assert float(averager.measurement.error) == pytest.approx(float(other.measurement.error), rel=1e-4)
        assert float(averager.measurement.energy) == pytest.approx(float(other.measurement.energy), rel=1e-4)


@pytest.mark.parametrize(
    ("bad", "first", "safe", "world"),
    [(float("nan"), False, False, 2), (float("inf"), False, True, 3), (float("nan"), True, False, 2)],
)
@pytest.mark.parametrize(("base", "cf", "strength"), CASES, ids=lambda value: repr(value)[:30])
def test_a_gradient_that_is_not_finite_gives_nan_everywhere_and_moves_nothing(
    base: Compressor, cf: float, strength: float | None, safe: bool, first: bool, bad: float, world: int
) -> None:
    ranks = Ranks(base, cf, strength, world, overflow_safety=safe)
    for step in range(0 if first else 1):
        ranks.step(step)
    before = ranks.kept()
    assert all(out.isnan().all() for outs in ranks.step(7, bad=bad) for out in outs)
    if first:
        assert all(one.isfinite().all() for kept in ranks.kept() for one in kept.values())
    else:
        assert_same(ranks.kept(), before)
    for averager in ranks.averagers:
        assert not bool(averager.measurement.finite)
        assert float(averager.measurement.error) == float(averager.measurement.energy) == 0.0
    assert all(out.isfinite().all() for outs in ranks.step(8) for out in outs)


def test_rows_of_a_matrix_are_coded_as_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kernels.test_folding.SHAPES", ((8, 16), (16, 8), (4, 32)))
    alone, together = (Ranks(topkc(chunk=16), 3.0, None, 2) for _ in range(2))
    for step in range(2):
        monkeypatch.setattr("gravac.averaging.average.goes_alone", lambda x: True)
        want = alone.step(step)
        monkeypatch.setattr("gravac.averaging.average.goes_alone", lambda x: False)
        for mine, other in zip(together.step(step), want, strict=True):
            assert all(map(torch.equal, mine, other))
        assert_same(together.kept(), alone.kept())


def test_a_group_of_rows_is_coded_by_three_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kernels.test_folding.SHAPES", ((8, 16), (16, 8), (4, 32)))
    monkeypatch.setattr("gravac.averaging.average.goes_alone", lambda x: False)
    ranks = Ranks(topkc(chunk=16), 3.0, None, 1)
    for step in range(2):
        with Launches() as launches:
            ranks.step(step)
        coded = [name for name in launches.names if name.startswith("gravac.")]
        assert coded == ["gravac.chunk_energies", "gravac.chunk_take", "gravac.chunk_decode"]


def test_a_residual_that_is_left_is_sent_with_what_keeps_nothing() -> None:
    ranks = Ranks(quantize(8), 4.0, 0.0, 2)
    ranks.averagers[0].feedback.residual["0"] = torch.ones(1200, device=DEVICE)
    clean = Ranks(quantize(8), 4.0, 0.0, 2)
    more = ranks.step(0)[0][0] - clean.step(0)[0][0]
    torch.testing.assert_close(more, torch.full_like(more, 0.5), rtol=0, atol=0.05)
    assert not ranks.averagers[0].feedback.residual["0"].any()  # and is dropped when all ranks say so


def test_a_group_that_keeps_nothing_is_coded_by_one_launch() -> None:
    ranks = Ranks(quantize(4), 8.0, None, 1)
    with Launches() as launches:
        ranks.step(0)
    coded = [name for name in launches.names if name.startswith("gravac.")]
    assert coded == ["gravac.quantize_encode", "gravac.quantize_decode"]
