# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD obeys the laws, does what torch's hook does, and survives zeros, deficient ranks and changes of rank."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import testing as conformance
from gravac.collectives import Ledger
from gravac.compressors import Addend, Context, Reduced
from gravac.compressors.orthonormal import orthonormal
from gravac.compressors.powersgd import PowerSGD, Product, multiply, powersgd
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.settings import SettingsError
from tests import ranks

VARIANTS = (
    powersgd,
    powersgd(iterations=2),
    powersgd(iterations=4),
    powersgd(warm_start=False),
    powersgd(alternating=True),
)
each_variant = pytest.mark.parametrize("compressor", VARIANTS, ids=repr)


@pytest.mark.parametrize(
    "compressor",
    [pytest.param(c, marks=pytest.mark.long) if c.iterations == 2 else c for c in VARIANTS],
    ids=repr,
)
def test_obeys(compressor: PowerSGD) -> None:
    conformance.check_compressor(compressor)


def cf_of(rank: int, n: int, m: int) -> float:
    """The CF that gives this rank."""
    return n * m / (rank * (n + m))


class Run:
    """Some ranks that average one tensor, step after step, and remember their state.

    Args:
        compressor: of all ranks.
        shape: of the tensor.
        world: number of ranks.
    """

    def __init__(self, compressor: PowerSGD, shape: tuple[int, int], world: int = 1) -> None:
        self.compressor, self.shape, self.world = compressor, shape, world
        self.states: list[dict[str, torch.Tensor]] = [{} for _ in range(world)]
        self.step_count = 0
        self.payloads: list[int] = []

    def contexts(self, dtype: torch.dtype = torch.float32) -> list[Context]:
        """Of the coming step."""
        return [
            Context("w", self.step_count, rank, self.world, 0, self.shape, dtype, self.states[rank])
            for rank in range(self.world)
        ]

    def step(self, xs: list[torch.Tensor], cf: float) -> list[Reduced]:
        """What each rank gets; all remember the same afterwards."""
        before = [{key: (value, value.clone()) for key, value in state.items()} for state in self.states]
        ledgers = [Ledger(self.world) for _ in xs]
        rounds = [
            fuse([self.compressor.rounds(x.reshape(-1), cf, ctx)])
            for x, ctx in zip(xs, self.contexts(xs[0].dtype), strict=True)
        ]
        got = [one.reduced[0] for one in memory.run(rounds, ledgers) if one is not None]
        self.step_count += 1
        self.payloads.append(ledgers[0].payload_bytes)
        for tensor, copy in (pair for state in before for pair in state.values()):
            assert torch.equal(tensor, copy), "a remembered tensor was written to"
        for state in self.states[1:]:
            assert state.keys() == self.states[0].keys()
            assert all(torch.equal(state[key], self.states[0][key]) for key in state)
        return got


def dense_of(tensor: torch.Tensor | Addend, shape: tuple[int, int]) -> torch.Tensor:
    factor = tensor.left if isinstance(tensor, Product) else tensor
    return as_dense(tensor, torch.zeros(shape, dtype=getattr(factor, "dtype", None)).view(-1)).view(shape)


def low_rank(n: int, m: int, rank: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, rank, generator=generator) @ torch.randn(rank, m, generator=generator)


def gradients(world: int, steps: int, n: int, m: int) -> torch.Tensor:
    """``[steps, world, n, m]``: some directions that stay from step to step, and noise."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(steps, world, n, m, generator=generator)
    return noise + 3 * low_rank(n, m, 5, seed=8)


COLUMNS = (1, 2, 4)


def references(rank: int, world: int, matrices: torch.Tensor) -> dict[int, list[torch.Tensor]]:
    """What torch's hook makes of these gradients, by number of columns."""
    return {columns: reference(rank, matrices, columns) for columns in COLUMNS}


def reference(rank: int, matrices: torch.Tensor, columns: int) -> list[torch.Tensor]:
    """What torch's hook makes of these gradients, each step, from a DDP model of one linear layer."""
    _, _, n, m = matrices.shape
    model = DistributedDataParallel(torch.nn.Linear(m, n, bias=False))
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=columns,
        start_powerSGD_iter=2,
        min_compression_rate=0.5,
        use_error_feedback=True,
        warm_start=True,
        orthogonalization_epsilon=0,
        random_seed=0,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    means = []
    for gradient in matrices[:, rank]:
        model.zero_grad()
        (model(torch.eye(m)) * gradient.T).sum().backward()
        means.append(model.module.weight.grad.clone())
    return means


@pytest.fixture(scope="module")
def of_torch() -> dict[int, list[torch.Tensor]]:
    return ranks.processes(references, 2, gradients(2, 10, 24, 16))[0]


@pytest.mark.parametrize("columns", COLUMNS)
def test_gives_what_the_hook_of_torch_gives(columns: int, of_torch: dict[int, list[torch.Tensor]]) -> None:
    """Over 2 ranks and 8 compressed steps with warm start and error feedback, from the same Q.

    The hook differs in two ways that do not show in the mean. Its residual is this rank's gradient less the *mean*
    (ours: less this rank's own share of it): the sum of residuals is the same, and only that goes into P and Q. It
    orthogonalizes by Gram-Schmidt up to rank 2 (ours: QR always): the basis differs in signs, its span does not.
    """
    n, m, world = 24, 16, 2
    matrices = gradients(world, 10, n, m)
    expected = of_torch[columns]
    run = Run(powersgd, (n, m), world)
    torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
    first = torch.randn(m, columns)
    run.states = [{"q": first} for _ in range(world)]
    residuals = torch.zeros(world, n, m)
    for step in range(2, 10):
        xs = list(matrices[step] + residuals)
        got = run.step(xs, cf_of(columns, n, m))
        residuals = torch.stack([x - dense_of(r.sent, (n, m)) for x, r in zip(xs, got, strict=True)])
        mean = dense_of(got[0].mean, (n, m))
        assert float((mean - expected[step]).norm() / expected[step].norm()) < 1e-5, f"step {step}"


@each_variant
def test_zeros_keep_the_factor(compressor: PowerSGD) -> None:
    run = Run(compressor, (24, 16), 2)
    run.step(list(gradients(2, 1, 24, 16)[0]), 3.0)
    before = dict(run.states[0])
    for got in run.step([torch.zeros(24, 16)] * 2, 3.0):
        assert not dense_of(got.mean, (24, 16)).any()
        assert not dense_of(got.sent, (24, 16)).any()
    assert before.keys() == run.states[0].keys()
    for key, factor in before.items():
        new = run.states[0][key]
        assert bool(new.isfinite().all())
        assert torch.allclose(
            orthonormal(new) @ orthonormal(new).T, orthonormal(factor) @ orthonormal(factor).T, atol=1e-5
        )


@each_variant
def test_a_deficient_matrix_is_sent_whole(compressor: PowerSGD) -> None:
    """A matrix of rank 2 at rank 4 and more: all of it arrives, without NaN; and later one of rank 4 does."""
    run = Run(compressor, (96, 64))
    x = low_rank(96, 64, 2)
    for _ in range(3):
        (got,) = run.step([x], 2.0)
    assert torch.allclose(dense_of(got.mean, (96, 64)), x, atol=1e-4)
    y = low_rank(96, 64, 4, seed=1)
    for _ in range(6):
        (got,) = run.step([y], 2.0)
    assert torch.allclose(dense_of(got.mean, (96, 64)), y, atol=1e-4)


@each_variant
@pytest.mark.parametrize("scale", [1e-36, 1e-22, 1e22, 1e35])
def test_extreme_scales_neither_overflow_nor_vanish(compressor: PowerSGD, scale: float) -> None:
    run = Run(compressor, (96, 64))
    x = low_rank(96, 64, 2) * scale
    for _ in range(3):
        (got,) = run.step([x], 2.0)
    assert torch.allclose(dense_of(got.mean, (96, 64)) / scale, x / scale, atol=1e-3)


def test_an_overflow_is_not_remembered() -> None:
    run = Run(powersgd, (24, 16))
    x = low_rank(24, 16, 2)
    run.step([x], 2.0)
    run.step([torch.full((24, 16), 3e38)], 2.0)
    (got,) = run.step([x], 2.0)
    assert torch.allclose(dense_of(got.mean, (24, 16)), x, atol=1e-4)


def test_warm_start_survives_a_change_of_rank() -> None:
    """Kept columns are used again: rank 4, then 2, then 4 loses less than a cold start does, at each."""
    x = low_rank(48, 32, 8) + 0.3 * low_rank(48, 32, 32, seed=1)
    best = torch.linalg.svdvals(x).square()
    run = Run(powersgd, (48, 32))
    for _ in range(12):
        run.step([x], cf_of(4, 48, 32))
    wide = run.states[0]["q"]
    assert wide.shape == (32, 4)
    lengths = wide.norm(dim=0)
    assert bool((lengths[:-1] >= lengths[1:]).all()), "columns are not in order of importance"
    for rank in (2, 4):
        (warm,) = run.step([x], cf_of(rank, 48, 32))
        (cold,) = Run(powersgd, (48, 32)).step([x], cf_of(rank, 48, 32))
        assert run.states[0]["q"].shape == (32, rank)
        lost = float((x - dense_of(warm.mean, (48, 32))).square().sum())
        assert lost < float((x - dense_of(cold.mean, (48, 32))).square().sum())
        assert rank == 4 or lost < 1.02 * float(best[rank:].sum())


def test_alternating_sends_p_and_q_in_turn() -> None:
    """The longer factor first; after both, it has found the subspace as one power iteration does."""
    x = low_rank(48, 16, 3)
    run = Run(powersgd(alternating=True), (48, 16))
    kept = []
    for _ in range(4):
        (got,) = run.step([x], 4.0)
        kept.append(set(run.states[0]))
    assert kept == [{"p"}, {"q"}, {"p"}, {"q"}]
    rank = run.states[0]["q"].shape[1]
    sent = [48 * rank * 4, 16 * rank * 4]
    assert all(size <= payload <= size + 16 for size, payload in zip(sent * 2, run.payloads, strict=True))
    assert got.cf == pytest.approx(48 * 16 / (rank * (48 + 16) / 2))
    assert rank == 6
    assert torch.allclose(dense_of(got.mean, (48, 16)), x, atol=1e-4)


@pytest.mark.parametrize("compressor", [powersgd, powersgd(iterations=3), powersgd(alternating=True)], ids=repr)
def test_errors_are_exact_for_one_rank(compressor: PowerSGD) -> None:
    """At every CF, also cold and after several steps, and when more columns than kept are wanted."""
    x = low_rank(48, 32, 8) + 0.3 * low_rank(48, 32, 32, seed=1)
    cfs = [1.0, 1.5, 2.5, 4.0, 9.0, 500.0]
    run = Run(compressor, (48, 32))
    for _ in range(4):
        foreseen = compressor.errors(x.reshape(-1), cfs, run.contexts()[0])
        for cf, expected in zip(cfs[1:], foreseen[1:], strict=True):
            if compressor.plan((48, 32), cf) is None:
                assert float(expected) == 0
                continue
            trial = Run(compressor, (48, 32))
            trial.states, trial.step_count = [dict(run.states[0])], run.step_count
            (got,) = trial.step([x], cf)
            lost = float((x - dense_of(got.sent, (48, 32))).square().sum())
            # drawn columns depend on how many are drawn: only those runs that draw as errors() did agree exactly
            slack = 1e-4 if run.step_count and cf >= 4.0 else 0.1
            assert abs(lost - float(expected)) <= slack * float(x.square().sum()), f"{cf}x, step {run.step_count}"
        run.step([x], 4.0)


@pytest.mark.parametrize("shape", [(5,), (1, 9), (9, 1), (0, 3), (3, 0), (), (1, 1, 7)])
def test_where_low_rank_is_no_saving_it_is_dense(shape: tuple[int, ...]) -> None:
    for compressor in VARIANTS:
        assert compressor.plan(shape, 2.0) is None


@given(
    n=st.integers(2, 40),
    m=st.integers(2, 40),
    cf=st.floats(1, 100),
    world=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    sparsity=st.floats(0, 1),
    index=st.integers(0, len(VARIANTS) - 1),
)
def test_contraction_of_any_matrix(
    n: int, m: int, cf: float, world: int, seed: int, sparsity: float, index: int
) -> None:
    """No rank's error exceeds its energy, mean is the mean of sent, the CF is achieved where a rank achieves it."""
    compressor = VARIANTS[index]
    generator = torch.Generator().manual_seed(seed)
    run = Run(compressor, (n, m), world)
    for _ in range(3):
        some = torch.rand(world, n, m, generator=generator) >= sparsity
        xs = list(torch.randn(world, n, m, generator=generator) * some)
        got = run.step(xs, cf)
        for x, r in zip(xs, got, strict=True):
            error = float((x - dense_of(r.sent, (n, m))).square().sum())
            assert error <= float(x.square().sum()) * (1 + 1e-5)
        sent = torch.stack([dense_of(r.sent, (n, m)) for r in got]).mean(0)
        assert torch.allclose(dense_of(got[0].mean, (n, m)), sent, atol=1e-5)
        plan = compressor.plan((n, m), cf)
        assert got[0].cf >= cf * 0.999 or plan is None or plan.rank == 1


def test_what_cannot_alternate_is_refused() -> None:
    for fields in ({"iterations": 2}, {"warm_start": False}):
        with pytest.raises(SettingsError, match="alternating"):
            powersgd(alternating=True, **fields)
    with pytest.raises(SettingsError, match="iterations"):
        powersgd(iterations=5)


@pytest.mark.parametrize("has_onednn", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 40])
def test_a_product_is_the_same_with_and_without_onednn(
    rank: int, dtype: torch.dtype, has_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_onednn:
        monkeypatch.setattr(sys.modules[PowerSGD.__module__], "_onednn_linear", lambda: None)
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(300, 200, generator=generator, dtype=dtype)
    for either_matrix in (matrix, matrix.mT):
        factor = torch.randn(either_matrix.shape[1], rank, generator=generator, dtype=dtype)
        product = multiply(either_matrix, factor)
        assert product.is_contiguous()
        assert torch.allclose(product.double(), (either_matrix.double() @ factor.double()).mT, atol=1e-4)
