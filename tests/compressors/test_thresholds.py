# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers that estimate a threshold: the laws, their counts, and Deep Gradient Compression step by step."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac import testing as conformance
from gravac.averaging.in_memory import exchange
from gravac.collectives import AllGather
from gravac.compressors.base import Context, Reduced, energy, k_for
from gravac.compressors.baselines.redsync import redsync
from gravac.compressors.dgc import DGC, dgc
from gravac.compressors.sparse import Sparse, as_dense
from gravac.compressors.threshold import ThresholdK
from gravac.compressors.topk import topk
from gravac.exchange import memory
from gravac.exchange.fuse import fuse

EXACT: tuple[ThresholdK, ...] = (
    redsync,
    redsync(search="bisection"),
    dgc,
)
BISECTION = redsync(search="bisection", exact_count=False)
AS_PUBLISHED = tuple(c(exact_count=False) for c in EXACT)
OTHERS = (
    redsync(search="bisection", values="bfloat16", exact_count=False),
    dgc(exact_count=False),
    dgc(masking=False),
)


@pytest.mark.parametrize("compressor", [*EXACT, *OTHERS, pytest.param(BISECTION, marks=pytest.mark.long)], ids=repr)
def test_obeys(compressor: ThresholdK) -> None:
    conformance.check_compressor(compressor)


def gradient(kind: str, elements: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(elements, generator=g, dtype=dtype)
    match kind:
        case "laplace":
            return x.sign() * -torch.rand(elements, generator=g, dtype=dtype).clamp_(min=1e-30).log()
        case "heavy":
            return x * torch.rand(elements, generator=g, dtype=dtype) ** 6
        case "sparse":
            return x * (torch.rand(elements, generator=g) < 0.0005)
        case "equal":
            return x.sign()
        case "few values":
            return x.sign() * (x.abs() > 1)
        case "zeros":
            return torch.zeros(elements, dtype=dtype)
        case "one spike":
            return torch.zeros(elements, dtype=dtype).index_fill_(
                0, torch.arange(elements // 2, min(elements, elements // 2 + 1)), 1e6
            )
        case "huge":
            return x * 1e37
        case "small":
            return x * 1e-30
    return x


KINDS = ("normal", "laplace", "heavy", "sparse", "equal", "few values", "zeros", "one spike", "huge", "small")


@pytest.mark.parametrize("kind", ["normal", "laplace", "sparse"])
@pytest.mark.parametrize("compressor", EXACT, ids=repr)
def test_an_exact_count_achieves_the_cf(compressor: ThresholdK, kind: str) -> None:
    x = gradient(kind, 200_000)
    for cf in (10.0, 100.0, 1000.0):
        assert exchange(compressor, [x], cf)[0].cf == pytest.approx(cf, rel=0.02)


@given(
    compressor=st.sampled_from(EXACT),
    kind=st.sampled_from(KINDS),
    elements=st.one_of(st.integers(1, 400), st.just(70_001)),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_an_exact_count_keeps_the_largest(
    compressor: ThresholdK, kind: str, elements: int, share: float, seed: int, dtype: torch.dtype
) -> None:
    x = gradient(kind, elements, seed, dtype)
    k = max(1, round(share * elements))
    chosen = compressor.select(x, k)
    assert chosen.indices.unique().numel() == k
    assert torch.equal(chosen.indices, topk.select(x, k).indices)
    assert torch.equal(chosen.values, x[chosen.indices])


@given(
    compressor=st.sampled_from(AS_PUBLISHED),
    kind=st.sampled_from(KINDS),
    elements=st.one_of(st.integers(0, 400), st.just(70_001)),
    cf=st.floats(1, 2000),
    seed=st.integers(0, 9),
)
def test_a_published_count_fits_its_slots(
    compressor: ThresholdK, kind: str, elements: int, cf: float, seed: int
) -> None:
    x = gradient(kind, elements, seed)
    k = k_for(elements, cf)
    chosen = compressor.select(x, k)
    m = chosen.indices.numel()
    slots = k if compressor.exact_cf else min(elements, 2 * k)
    assert m <= slots
    assert torch.equal(chosen.indices, chosen.indices.unique())
    assert bool(chosen.values.isfinite().all())
    asked = next(compressor.rounds(x, cf, Context(shape=(elements,))))
    assert isinstance(asked, AllGather)
    assert asked.tensors[0].numel() == slots
    (traffic,) = compressor.traffic((elements,), cf, torch.float32)
    assert traffic.payload_bytes == asked.payload_bytes
    if 0 < m < slots:
        others = torch.ones(elements, dtype=torch.bool)
        others[chosen.indices] = False
        assert not others.any() or x[others].abs().max() <= chosen.values.abs().min(), "kept by magnitude"


@pytest.mark.parametrize("cf", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", ["normal", "laplace"])
def test_published_counts(kind: str, cf: float) -> None:
    x = gradient(kind, 500_000)
    k = k_for(x.numel(), cf)
    _, bisection, sampled = (c.select(x, k).indices.numel() / k for c in AS_PUBLISHED)
    assert 1 <= bisection <= 2
    # the steps of 1.3 and 0.8 are coarse where the tail is steep: as published, far too few
    assert (0.02 if (kind, cf) == ("normal", 1000.0) else 0.75) <= sampled <= 1.35


def test_trimmed_keeps_k_as_published() -> None:
    x = gradient("normal", 100_000)
    assert torch.equal(redsync(exact_count=False).select(x, 1000).indices, topk.select(x, 1000).indices)


@pytest.mark.parametrize(
    "compressor",
    AS_PUBLISHED,
    ids=repr,
)
def test_a_published_count_prefers_what_is_not_zero(compressor: ThresholdK) -> None:
    x = gradient("sparse", 200_000)
    chosen = compressor.select(x, 2000)
    assert int(torch.count_nonzero(chosen.values)) == int(torch.count_nonzero(x))


@pytest.mark.parametrize(
    "compressor",
    AS_PUBLISHED,
    ids=repr,
)
def test_a_published_count_of_large_values(compressor: ThresholdK) -> None:
    chosen = compressor.select(gradient("huge", 200_000), 2000)
    assert 1000 <= chosen.indices.numel() < 4000


def test_no_index_travels_twice() -> None:
    asked = next(BISECTION.rounds(gradient("normal", 5000), 10.0, Context(shape=(5000,))))
    assert isinstance(asked, AllGather)
    assert asked.tensors[1].unique().numel() == 1000


@pytest.mark.parametrize("compressor", [dgc(nesterov=True), dgc(clip=0.5)], ids=repr)
def test_dgc_foresees_what_is_lost_with(compressor: DGC) -> None:
    conformance.errors_foresee_what_is_lost(compressor)


def test_published_counts_where_no_search_can_do() -> None:
    """Of equal magnitudes all reach any threshold or none do: the first 2k go."""
    x = gradient("equal", 1000)
    for compressor in (redsync(search="bisection", exact_count=False), dgc(exact_count=False)):
        assert compressor.select(x, 10).indices.numel() in (0, 20)


def test_a_published_count_is_told_by_the_cf_achieved() -> None:
    xs = [gradient("normal", 20_000, seed) for seed in range(2)]
    for x, came in zip(xs, exchange(BISECTION, xs, 50.0), strict=True):
        assert isinstance(came.sent, Sparse)
        m = BISECTION.select(x, 400).indices.numel()
        assert came.sent.parts[0][0].numel() == m
        assert came.cf == 20_000 / m


def test_a_published_count_does_not_depend_on_shadows() -> None:
    x, ctx = gradient("normal", 50_000), Context(shape=(50_000,))
    BISECTION.errors(x, (10.0, 100.0), ctx)
    asked = next(BISECTION.rounds(x, 100.0, ctx))
    again = next(BISECTION.rounds(x, 100.0, Context(shape=(50_000,))))
    assert isinstance(asked, AllGather)
    assert isinstance(again, AllGather)
    assert all(torch.equal(a, b) for a, b in zip(asked.tensors, again.tensors, strict=True))


def test_exact_cf_tells_the_settings() -> None:
    assert redsync.exact_cf
    assert not BISECTION.exact_cf
    assert dgc.exact_cf


def test_dgc_that_warms_up_has_no_exact_cf() -> None:
    assert not dgc(warmup_steps=3).exact_cf


def reference(
    grads: list[list[torch.Tensor]], k: list[int], world: int, settings: dict[str, Any]
) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor, set[int]]]]:
    """Algorithm 1 of the paper with momentum correction, masking and clipping, element by element, in float64."""
    m, n = settings["momentum"], grads[0][0].numel()
    us, vs = ([[0.0] * n for _ in range(world)] for _ in range(2))
    means, sets = [], [set[int]() for _ in range(world)]
    for step, by_rank in enumerate(grads):
        total = [0.0] * n
        for rank, tensor in enumerate(by_rank):
            g, u, v = tensor.double().tolist(), us[rank], vs[rank]
            if settings["clip"] is not None:
                norm, most = sum(a * a for a in g) ** 0.5, settings["clip"] / world**0.5
                g = [a * most / norm for a in g] if norm > most else g
            for i in range(n):
                if settings["nesterov"]:
                    u[i] = m * (u[i] + g[i])
                    v[i] += u[i] + g[i]
                else:
                    u[i] = m * u[i] + g[i]
                    v[i] += u[i]
            sets[rank] = set(sorted(range(n), key=lambda i, v=v: -abs(v[i]))[: k[step]])
            for i in sets[rank]:
                total[i] += v[i] / world
                v[i] = 0.0
                if settings["masking"]:
                    u[i] = 0.0
        means.append(torch.tensor(total, dtype=torch.float64))
    last = [
        (torch.tensor(u, dtype=torch.float64), torch.tensor(v, dtype=torch.float64), chosen)
        for u, v, chosen in zip(us, vs, sets, strict=True)
    ]
    return means, last


def steps(
    compressor: DGC, grads: list[list[torch.Tensor]], cf: float
) -> tuple[list[torch.Tensor], list[Reduced], list[dict[str, torch.Tensor]]]:
    """Means of each step, the last step's outcome by rank, and the ranks' states."""
    world, elements = len(grads[0]), grads[0][0].numel()
    states: list[dict[str, torch.Tensor]] = [{} for _ in range(world)]
    means, came = [], []
    for step, by_rank in enumerate(grads):
        contexts = [
            Context("w", step, rank, world, shape=(elements,), dtype=x.dtype, state=states[rank])
            for rank, x in enumerate(by_rank)
        ]
        before = [dict(state) for state in states]
        copies = [{key: tensor.clone() for key, tensor in state.items()} for state in states]
        done = memory.run([fuse([compressor.rounds(x, cf, ctx)]) for x, ctx in zip(by_rank, contexts, strict=True)])
        for old, copy in zip(before, copies, strict=True):
            assert all(torch.equal(old[key], copy[key]) for key in old), "a state was written in place"
        came = [one.reduced[0] for one in done if one is not None]
        means.append(as_dense(came[0].mean, by_rank[0]))
    return means, came, states


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nesterov": True},
        {"masking": False},
        {"momentum": 0.0},
        {"clip": 3.0},
        {"warmup_steps": 4},
        {"nesterov": True, "masking": False, "clip": 2.0, "momentum": 0.5, "warmup_steps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dgc_is_algorithm_1(changes: dict[str, Any], dtype: torch.dtype) -> None:
    compressor, cf, world = dgc(**changes), 20.0, 2
    grads = [[gradient("laplace", 900, 10 * s + r, dtype) for r in range(world)] for s in range(6)]
    originals = [[x.clone() for x in by_rank] for by_rank in grads]
    warmup = compressor.warmup_steps
    k = [k_for(900, 4 * (cf / 4) ** min(1.0, (s + 1) / (warmup + 1))) for s in range(6)]
    expected, last = reference(grads, k, world, compressor.model_dump())
    means, came, states = steps(compressor, grads, cf)
    for mean, right in zip(means, expected, strict=True):
        torch.testing.assert_close(mean.double(), right, rtol=1e-4, atol=1e-5)
    for one, state, (u, v, chosen) in zip(came, states, last, strict=True):
        assert isinstance(one.sent, Sparse)
        assert set(one.sent.parts[0][0].tolist()) == chosen
        torch.testing.assert_close(state["momentum"].double(), u, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state["velocity"].double(), v, rtol=1e-4, atol=1e-5)
        assert state["momentum"].dtype == state["velocity"].dtype == dtype
        assert one.target is not None
        sent = as_dense(one.sent, one.target)
        torch.testing.assert_close(one.target - sent, state["velocity"])
    assert all(torch.equal(a, b) for xs, ys in zip(grads, originals, strict=True) for a, b in zip(xs, ys, strict=True))


@pytest.mark.parametrize(
    "compressor",
    [dgc, dgc(exact_count=False), dgc(nesterov=True), dgc(warmup_steps=5)],
    ids=repr,
)
def test_dgc_foresees_later_steps_too(compressor: DGC) -> None:
    grads = [[gradient("normal", 2000, s)] for s in range(3)]
    _, _, (state,) = steps(compressor, grads[:2], 40.0)
    ctx = Context("w", 2, shape=(2000,), state=dict(state))
    foreseen = compressor.errors(grads[2][0], (10.0, 40.0), ctx)
    assert set(ctx.state) == {"momentum", "velocity"}
    assert ctx.state["velocity"] is state["velocity"]
    _, (came,), _ = steps(compressor, grads, 40.0)
    assert came.target is not None
    lost = energy(came.target - as_dense(came.sent, came.target))
    assert float(foreseen[1]) == pytest.approx(float(lost), rel=1e-4)


def test_dgc_without_an_exact_count_clears_only_what_was_sent() -> None:
    grads = [[gradient("normal", 50_000, 10 * s + r) for r in range(2)] for s in range(3)]
    _, came, states = steps(dgc(exact_count=False), grads, 100.0)
    for one, state in zip(came, states, strict=True):
        assert isinstance(one.sent, Sparse)
        (indices, _), m = one.sent.parts[0], one.sent.parts[0][0].numel()
        assert 350 <= m <= 800
        for key in ("momentum", "velocity"):
            assert not state[key][indices].any()
            assert int(torch.count_nonzero(state[key])) >= 50_000 - 3 * 1000
        assert one.cf == 50_000 / m


def test_dgc_keeps_what_the_wire_rounds() -> None:
    x = gradient("normal", 1000)
    _, (came,), (state,) = steps(dgc(values="bfloat16"), [[x]], 10.0)
    torch.testing.assert_close(state["velocity"] + as_dense(came.sent, x), x)


def test_dgc_warms_up() -> None:
    x = gradient("normal", 100_000)
    achieved = []
    for step in range(6):
        rounds = dgc(warmup_steps=4).rounds(x, 1024.0, Context(step=step, shape=(100_000,)))
        asked = next(rounds)
        assert isinstance(asked, AllGather)
        achieved.append(100_000 / asked.tensors[0].numel())
    assert achieved == pytest.approx([4 * 256 ** (i / 5) for i in (1, 2, 3, 4, 5, 5)], rel=0.02)
