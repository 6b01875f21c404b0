# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation over ranks in memory: nothing is lost, whatever changes (invariants 1, 3 and 4)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac.averaging.average import Averager
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.averaging.residuals import Residuals
from gravac.candidate import DENSE, Candidate, Forecast
from gravac.collectives import AllReduce
from gravac.compressors import Addend, Compressor, Context, Dense, Reduced, dense, randomk, topk
from gravac.compressors.base import Rounds, energy, k_for
from gravac.controllers.base import Decision, Measurement, Sums
from gravac.engine.admission import Admission
from gravac.engine.decisions import Deciding
from gravac.engine.engine import Engine
from gravac.engine.factors import Factors
from gravac.engine.handle import Handle
from gravac.exchange import memory
from gravac.exchange.fuse import ALIGNMENT
from gravac.exchange.lockstep import Lockstep

SHAPES = {"conv": (8, 4, 3, 3), "bias": (8,), "linear": (40, 30), "tiny": (2, 2)}


@dataclass
class Dictated:
    """Stands in for a controller: it decides what a test says."""

    decision: Decision

    def start(self, candidates: Sequence[Candidate]) -> tuple[None, Decision]:
        return None, self.decision

    def observe(self, state: None, measurement: Measurement) -> tuple[None, Decision]:
        return None, self.decision


@dataclass
class World:
    """Ranks that make steps of the same model in memory."""

    base: Compressor = topk
    dense: Dense = dense
    ranks: int = 3
    strength: float = 1.0
    safe: bool = False
    dtype: torch.dtype = torch.float32
    host_looks: bool = True
    averagers: list[Averager] = field(init=False)

    def __post_init__(self) -> None:
        residuals = [Residuals(self.safe) for _ in range(self.ranks)]
        self.averagers = [Averager(self.base, self.dense, self.strength, 16, each) for each in residuals]
        self.lockstep = Lockstep(self.ranks, host_looks=self.host_looks)
        self.controller: Any = Dictated(Decision(self.candidate(None)))
        self.engines = [Engine(averager, self.deciding()) for averager in self.averagers]
        for engine, executor in zip(self.engines, self.lockstep.executors, strict=True):
            engine.use(executor)

    def deciding(self) -> Deciding:
        admission = Admission((Forecast(self.candidate(None), self.dense.cf),))
        return Deciding(self.controller, lambda *_: admission, lambda _: None)

    def candidate(self, cf: float | None) -> Candidate:
        return Candidate("hook", DENSE, self.dense.cf) if cf is None else Candidate("hook", self.base.name, cf)

    def step(
        self,
        gradients: list[dict[str, torch.Tensor]],
        cf: float | None,
        step: int,
        layout: list[list[str]],
        shadow: tuple[float, ...] = (),
        cfs: Mapping[str, float | None] = MappingProxyType({}),
        sums: Sums = "none",
    ) -> list[dict[str, torch.Tensor]]:
        """One step of all ranks, group after group; returns what each rank applies."""
        outs = [{name: g.clone() for name, g in mine.items()} for mine in gradients]
        own = tuple((name, self.candidate(cfs[name])) for name in sorted(cfs))
        self.controller.decision = Decision(self.candidate(cf), shadow, tensors=own, sums=sums)
        begun: list[Future[Candidate]] = []
        handles: list[Handle] = []
        for engine, out in zip(self.engines, outs, strict=True):
            assert engine.state.step == step
            engine.deciding.decision = engine.decision and self.controller.decision
            begun.append(engine.begin())
            for group in layout:
                handles.append(engine.submit([Piece(n, out[n].view(-1), tuple(out[n].shape)) for n in group]))
                engine.flush()
            engine.end()
        self.lockstep.run()
        assert {future.result() for future in begun} == {self.controller.decision.candidate}
        for handle in handles:
            handle.wait()
        assert self.lockstep.failure is None
        return outs

    def kept(self, name: str) -> torch.Tensor:
        """Mean over ranks of all that is kept for a parameter, float64."""
        total = torch.zeros(SHAPES[name]).double().view(-1)
        for averager in self.averagers:
            if name in averager.residuals.by_name:
                total += averager.residuals.by_name[name].double()
        return total / self.ranks


def gradients(ranks: int, seed: int, dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [{name: torch.randn(shape, generator=g).to(dtype) for name, shape in SHAPES.items()} for _ in range(ranks)]


LAYOUTS = ([["conv", "bias", "linear", "tiny"]], [["tiny", "linear"], ["bias", "conv"]], [[n] for n in SHAPES])


@given(
    base=st.sampled_from([topk, randomk, topk(values="float16")]),
    wire=st.sampled_from(["float32", "float16", "bfloat16"]),
    cfs=st.lists(st.sampled_from([None, 2.0, 10.0, 200.0]), min_size=1, max_size=12),
    own=st.lists(
        st.dictionaries(st.sampled_from(["conv", "linear"]), st.sampled_from([None, 4.0, 50.0])),
        min_size=12,
        max_size=12,
    ),
    safe=st.booleans(),
    ranks=st.integers(1, 4),
    layouts=st.integers(0, 26),
)
def test_conservation_across_switches_dense_and_rebuilds(
    base: Compressor,
    wire: str,
    cfs: list[float | None],
    own: list[dict[str, float | None]],
    safe: bool,
    ranks: int,
    layouts: int,
) -> None:
    world = World(base, dense(dtype=wire), ranks, safe=safe)
    applied = {name: torch.zeros(SHAPES[name]).double().view(-1) for name in SHAPES}
    total = {name: value.clone() for name, value in applied.items()}
    terms = {name: value.clone() for name, value in applied.items()}
    for step, cf in enumerate(cfs):
        grads = gradients(ranks, step)
        out = world.step(
            grads,
            cf,
            step,
            LAYOUTS[layouts // 3 ** (step % 3) % 3],
            (10.0, 200.0) if step % 3 == 0 else (),
            cfs=own[step],
        )
        assert all(torch.equal(out[0][n], out[r][n]) for n in SHAPES for r in range(ranks))
        for name in SHAPES:
            stacked = torch.stack([g[name].double().view(-1) for g in grads])
            applied[name] += out[0][name].double().view(-1)
            total[name] += stacked.mean(0)
            terms[name] += stacked.abs().sum(0)
    unit = {"float32": 2.0**-22, "float16": 2.0**-11, "bfloat16": 2.0**-8}[wire]
    if base == topk(values="float16"):
        unit = max(unit, 2.0**-22)  # its rounding is kept as residual
    for name in SHAPES:
        off = (applied[name] + world.kept(name) - total[name]).abs()
        # residuals of several steps may leave together: each is rounded anew, with all that it holds
        bound = len(cfs) * unit * ranks * terms[name] / ranks + 1e-5
        assert bool((off <= bound).all()), f"{name}: {float((off / bound).max()):.2f} times the bound"


@given(
    cfs=st.lists(st.sampled_from([None, 2.0, 10.0, 200.0]), min_size=1, max_size=8),
    base=st.sampled_from([topk, randomk]),
)
def test_gain_is_between_zero_and_one(cfs: list[float | None], base: Compressor) -> None:
    world = World(base)
    for step, cf in enumerate(cfs):
        world.step(gradients(3, step), cf, step, LAYOUTS[0])
        for averager in world.averagers:
            error, whole = float(averager.recording.error), float(averager.recording.energy)
            assert 0 <= error <= whole * (1 + 1e-6)


def test_gain_of_randomk_is_one_over_cf_in_expectation() -> None:
    world = World(randomk(), ranks=1, strength=0.0)
    error = whole = 0.0
    for step in range(400):
        out = [{"linear": torch.randn(40, 30)}]
        world.averagers[0].measure(StepRecording(step, world.candidate(10.0)))
        memory.run(
            [
                world.averagers[0].average(
                    [Piece("linear", out[0]["linear"].view(-1), (40, 30))], world.averagers[0].plan(step, 10.0)
                )
            ]
        )
        error += float(world.averagers[0].recording.error)
        whole += float(world.averagers[0].recording.energy)
    assert 1 - error / whole == pytest.approx(0.1, abs=0.004)


@dataclass
class Half(Addend):
    """Half of a tensor, not laid out."""

    of: torch.Tensor

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return dense.add_(self.of, alpha=alpha / 2)


class Halves(Compressor):
    """Sends half of what it is given."""

    name: ClassVar[str] = "halves"

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        total = yield AllReduce(x / ctx.world)
        return Reduced(Half(total), Half(x.clone()), 2.0)


def test_what_is_not_laid_out_is_added_to_the_mean_and_taken_from_the_residual() -> None:
    world = World(Halves(), ranks=1)
    (mine,) = gradients(1, 0)
    (out,) = world.step([mine], 2.0, 0, [["linear"]])
    x = mine["linear"].view(-1)
    assert torch.allclose(out["linear"].view(-1), x / 2)
    assert torch.allclose(world.averagers[0].residuals.by_name["linear"], x / 2)
    assert float(world.averagers[0].recording.error) == pytest.approx(float(energy(x)) / 4)


@pytest.mark.parametrize("cf", [None, 10.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_with_overflow_safety_a_non_finite_gradient_moves_no_residual(cf: float | None, bad: float) -> None:
    world = World(safe=True)
    world.step(gradients(3, 0), 10.0, 0, LAYOUTS[1])
    before = [{k: v.clone() for k, v in a.residuals.by_name.items()} for a in world.averagers]
    poisoned = gradients(3, 1)
    poisoned[2]["linear"][3, 4] = bad
    for engine in world.engines:
        engine.state.factors = Factors(cf)
    outs = world.step(poisoned, cf, 1, LAYOUTS[1])
    assert all(not out["linear"].isfinite().all() for out in outs)
    assert all(not averager.recording.finite for averager in world.averagers)
    for averager, old in zip(world.averagers, before, strict=True):
        assert averager.residuals.by_name.keys() == old.keys()
        assert all(torch.equal(averager.residuals.by_name[k], old[k]) for k in old)
    outs = world.step(gradients(3, 2), cf, 2, LAYOUTS[1])
    assert all(out["linear"].isfinite().all() for out in outs)


def test_without_it_the_groups_that_were_finite_go_on() -> None:
    world = World()
    world.step(gradients(3, 0), 10.0, 0, LAYOUTS[1])
    poisoned = gradients(3, 1)
    poisoned[0]["linear"][0, 0] = float("nan")
    outs = world.step(poisoned, 10.0, 1, LAYOUTS[1])
    for out in outs:
        assert out["linear"].isnan().all()
        assert out["conv"].isfinite().all()
    for averager in world.averagers:
        assert all(bool(r.isfinite().all()) for r in averager.residuals.by_name.values())


@pytest.mark.parametrize("host_looks", [True, False])
def test_a_dense_step_sends_the_whole_residual(host_looks: bool) -> None:
    world = World(host_looks=host_looks)
    for step in range(20):
        world.step(gradients(3, step), 200.0, step, LAYOUTS[0])
    for step in range(20, 25):  # on a device, ranks learn some steps later that all residuals are zero
        world.step(gradients(3, 99), None, step, LAYOUTS[0])
    assert not any(averager.residuals.by_name for averager in world.averagers)


@pytest.mark.parametrize("host_looks", [True, False])
def test_a_parameter_that_dense_steps_leave_out_keeps_its_residual(host_looks: bool) -> None:
    """No gradient, no exchange: nothing of its residual was sent, though all that was sent was dense."""
    world = World(host_looks=host_looks, ranks=2)
    for step in range(5):
        world.step(gradients(2, step), 200.0, step, LAYOUTS[0])
    kept = world.kept("linear")
    for step in range(5, 12):
        world.step(gradients(2, step), None, step, [["conv", "bias", "tiny"]])
    assert all([*averager.residuals.by_name] == ["linear"] for averager in world.averagers)
    assert torch.equal(world.kept("linear"), kept)
    mean = sum(one["linear"].double() for one in gradients(2, 12)) / 2
    (out, _) = world.step(gradients(2, 12), None, 12, LAYOUTS[0])
    assert torch.allclose(out["linear"].double().view(-1), mean.view(-1) + kept, atol=1e-5)


def test_ranks_that_differ_in_what_they_keep_still_ask_for_the_same() -> None:
    world = World(ranks=2)
    world.step(gradients(2, 0), 200.0, 0, LAYOUTS[0])
    world.averagers[0].residuals.load({})
    world.step(gradients(2, 1), None, 1, LAYOUTS[0])
    world.step(gradients(2, 2), 10.0, 2, LAYOUTS[0])


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_strength_is_the_share_that_is_kept(strength: float) -> None:
    world = World(ranks=1, strength=strength)
    grads = gradients(1, 0)
    out = world.step(grads, 10.0, 0, LAYOUTS[0])
    left = (grads[0]["linear"] - out[0]["linear"]).view(-1)
    residual = world.averagers[0].residuals.by_name.get("linear", torch.zeros(1200))
    assert torch.allclose(residual, strength * left, atol=1e-6)


def test_small_and_one_dimensional_tensors_are_exact() -> None:
    world = World()
    grads = gradients(3, 0)
    out = world.step(grads, 200.0, 0, LAYOUTS[0])
    for name in ("bias", "tiny"):
        assert torch.allclose(out[0][name], torch.stack([g[name] for g in grads]).mean(0), atol=1e-6)
        assert name not in world.averagers[0].residuals.by_name


def test_a_change_of_loss_scale_keeps_residuals_in_proportion() -> None:
    world = World(ranks=1)
    world.step(gradients(1, 0), 10.0, 0, LAYOUTS[0])
    before = world.kept("linear")
    world.averagers[0].residuals.rescale(0.5)
    assert torch.allclose(world.kept("linear"), before / 2)


def test_a_zero_gradient_has_gain_one_and_flushes_the_residual() -> None:
    world = World(ranks=1)
    world.step(gradients(1, 0), 10.0, 0, LAYOUTS[0])
    zero = [{name: torch.zeros(shape) for name, shape in SHAPES.items()}]
    out = world.step(zero, 10.0, 1, LAYOUTS[0])
    assert out[0]["linear"].abs().sum() > 0


def test_each_tensor_is_compressed_at_its_own_cf_and_the_bytes_are_those_predicted() -> None:
    own = {"conv": 4.0, "linear": 50.0, "bias": 10.0}
    world = World(topk)
    world.step(gradients(3, 0), 10.0, 0, LAYOUTS[0], cfs=own)
    for averager in world.averagers:
        assert averager.recording.sent == k_for(288, 4.0) + k_for(1200, 50.0)
        assert float((averager.residuals.by_name["conv"] != 0).sum()) == 288 - k_for(288, 4.0)
        forms = {name: (shape, torch.float32) for name, shape in SHAPES.items()}
        predicted = sum(
            t.payload_bytes for n, form in forms.items() for t in averager.traffic([form], topk, own.get(n, 10.0))
        )
        pieces = [Piece(name, torch.ones(shape).view(-1), shape) for name, shape in SHAPES.items()]
        asked = next(averager.average(pieces, averager.plan(1, 10.0, cfs=own)))
        flag_and_padding = 8 + ALIGNMENT
        assert predicted <= sum(one.payload_bytes for one in asked) <= predicted + flag_and_padding


def test_a_tensor_may_be_dense_among_compressed_ones_and_the_other_way_round() -> None:
    for cf, own in ((10.0, {"conv": None}), (None, {"linear": 10.0})):
        world = World(topk)
        grads = gradients(3, 0)
        out = world.step(grads, cf, 0, LAYOUTS[0], cfs=own)
        mean = torch.stack([g["conv"] for g in grads]).mean(0)
        assert torch.allclose(out[0]["conv"], mean, atol=1e-6)
        assert all(set(averager.residuals.by_name) == {"linear"} for averager in world.averagers)


@pytest.mark.parametrize("cf", [None, 10.0])
def test_gradients_are_added_up_as_they_are_and_reported_once(cf: float | None) -> None:
    world = World(topk)
    total = [{name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(3)]
    reports: tuple[Sums, ...] = ("add", "add", "report")
    for step, sums in enumerate(reports):
        grads = gradients(3, step)
        if step == 1:
            grads[0]["bias"][0] = float("nan")
        else:
            for so_far, mine in zip(total, grads, strict=True):
                for name, g in mine.items():
                    so_far[name] += g
        if step == 1:  # the other ranks' gradients were finite
            for so_far, mine in zip(total[1:], grads[1:], strict=True):
                for name, g in mine.items():
                    so_far[name] += g
        world.step(grads, cf, step, LAYOUTS[0], sums=sums)
    for averager, so_far in zip(world.averagers, total, strict=True):
        assert {name: float(norm) for name, norm in averager.recording.norms.items()} == pytest.approx(
            {name: float(so_far[name].square().sum()) for name in ("conv", "linear")}
        )
        assert not averager.diagnostics.sums


def test_sums_are_forgotten_when_nobody_wants_them() -> None:
    world = World(topk)
    world.step(gradients(3, 0), 10.0, 0, LAYOUTS[0], sums="add")
    assert set(world.averagers[0].diagnostics.sums) == {"conv", "linear"}
    world.step(gradients(3, 1), 10.0, 1, LAYOUTS[0])
    assert not world.averagers[0].diagnostics.sums


@pytest.mark.parametrize("apart", [False, True])
def test_a_mean_that_overflows_leaves_residuals_bit_for_bit_where_groups_are_refused_by_themselves(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gravac.averaging import average as module
    from gravac.averaging.in_memory import average, averagers
    from gravac.testing import gradients

    ranks = averagers(topk, 2)
    if apart:
        for rank in ranks:
            rank.residuals.checks_group_means = True
    for step in range(3):
        average(ranks, gradients(2, (64, 64), seed=step), 10.0, step)
    before = [rank.residuals.by_name["w"].clone() for rank in ranks]
    monkeypatch.setattr(module, "all_elements_finite", lambda flats: torch.tensor(False))
    outs = average(ranks, gradients(2, (64, 64), seed=3), 10.0, 3)
    unmoved = [torch.equal(old, rank.residuals.by_name["w"]) for old, rank in zip(before, ranks, strict=True)]
    assert unmoved == [apart, apart]
    assert all(out.isnan().all() == apart for out in outs)
