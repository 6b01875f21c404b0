# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""CFs of single tensors on real gloo: what ranks tell each other, and what they decide from it."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import Accordion, AdaptiveCompressor, Goodput, GraVAC, Static, merge_states, topk, topkc
from gravac.candidate import Span
from gravac.collectives import AllReduce
from gravac.compressors import Compressor, artopk, ladder, powersgd, quantize, randomk
from gravac.controllers import Decision, Measurement
from gravac.stepping.agreement import Layout
from gravac.stepping.planning import Factors
from gravac.telemetry.records import StepRecord
from tests.distributed.training import network, parallel, sgd, train, weights
from tests.ranks import processes

EPOCH = 6
MATRICES = sorted(f"{2 * layer}.weight" for layer in range(6))


@dataclass
class Watched:
    """A controller that writes down what it is told and decides."""

    controller: Any
    told: list[Measurement] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.controller, name)

    def observe(self, state: Any, measurement: Measurement) -> Any:
        self.told.append(measurement)
        state, decision = self.controller.observe(state, measurement)
        self.decided.append(decision)
        return state, decision


def accordion(**options: Any) -> AdaptiveCompressor:
    return AdaptiveCompressor(
        topk(values="float16"), (3, 30), controller=Accordion(eta=0.05, every=1), steps_per_epoch=EPOCH, **options
    )


def surveyed(rank: int, world: int) -> tuple[Any, ...]:
    ddp = parallel()
    optimizer = sgd(ddp)
    epochs: dict[str, list[torch.Tensor]] = {}
    step = 0

    for name, parameter in ddp.module.named_parameters():

        def add(gradient: torch.Tensor, name: str = name) -> None:
            sums = epochs.setdefault(name, [])
            if step % EPOCH == 0:
                sums.append(torch.zeros_like(gradient))
            sums[-1] += gradient

        parameter.register_hook(add)
    with accordion() as compressor:
        compressor.attach(ddp, optimizer)
        watched = compressor._steps._deciding._controller = Watched(compressor.policy.controller)
        for step in range(5 * EPOCH):  # which the hooks read
            if step == 3 * EPOCH:
                optimizer.param_groups[0]["lr"] /= 10
            train(ddp, optimizer, rank, range(step, step + 1))
        compressor.state_dict()
        squares = torch.stack([torch.stack([s.double().square().sum() for s in epochs[name]]) for name in MATRICES])
        dist.all_reduce(squares)
        norms = (squares / world).sqrt().T.tolist()
        return (
            watched.told,
            watched.decided,
            norms,
            weights(ddp),
            compressor._steps.state.survey_bytes,
            compressor.ledger,
        )


def test_ranks_survey_their_tensors_and_decide_the_same() -> None:
    first, *others = processes(surveyed, 3)
    told, decided, norms, trained, survey_bytes, ledger = first
    reports = [(measured.step, measured.norms) for measured in told if measured.norms]
    assert [step for step, _ in reports] == [EPOCH * epoch + EPOCH - 1 for epoch in range(4)]
    for (_, agreed), expected in zip(reports, norms, strict=False):
        assert [name for name, _ in agreed] == MATRICES
        assert [norm for _, norm in agreed] == pytest.approx(expected, rel=1e-5)
    assert any(decision.tensors for decision in decided), "no step had tensors at both CFs"
    fell = next(measured for measured in told if measured.step == 3 * EPOCH)
    assert (told[0].learning_rate, fell.learning_rate) == pytest.approx((0.05, 0.005))
    assert not decided[3 * EPOCH].tensors
    assert decided[3 * EPOCH].candidate.cf == 3
    assert survey_bytes == 4 * 8 * len(MATRICES)
    assert ledger.calls["AllReduce"] >= 5 * EPOCH - 1 + 4
    for other in others:
        assert other[1] == decided
        assert torch.equal(other[3], trained)


def by_gain(**options: Any) -> AdaptiveCompressor:
    settings = {"controller": Static(cf=20), "allocation": "by_gain", "survey_every": EPOCH, **options}
    return AdaptiveCompressor(topkc, (4, 100), **settings)


def allotted(rank: int, world: int) -> tuple[Any, ...]:
    ddp = parallel()
    optimizer = sgd(ddp)
    records: list[StepRecord] = []
    plans: dict[int, dict[str, float | None]] = {}

    def sink(record: Any) -> None:
        if isinstance(record, StepRecord):
            records.append(record)

    with by_gain(sinks=[sink]) as compressor:
        compressor.attach(ddp, optimizer)
        steps = compressor._steps
        planned = steps._planner.plan

        def watched(step: int, decision: Decision, factors: Factors, candidates: Any) -> Any:
            plans[step] = dict(factors.cfs)
            return planned(step, decision, factors, candidates)

        steps._planner.plan = watched  # type: ignore[method-assign]
        train(ddp, optimizer, rank, range(4 * EPOCH))
        beside = compressor.ledger.wire_bytes - steps.state.wire_bytes
        return plans, compressor.curves, weights(ddp), steps.state.survey_bytes, beside, records


def test_bytes_are_spent_by_gain_from_the_first_survey_on_and_the_same_on_all_ranks() -> None:
    first, *others = processes(allotted, 3)
    plans, curves, trained, survey_bytes, beside, records = first
    for other in others:
        assert (other[0], other[1]) == (plans, curves)
        assert torch.equal(other[2], trained)
    assert all(not plans[step] for step in range(EPOCH + 1))
    assert all(set(plans[step]) == set(MATRICES) for step in range(EPOCH + 1, 4 * EPOCH))
    assert len(set(plans[EPOCH + 1].values())) > 1
    points = 1 + len({4.0, 8.0, 16.0, 20.0, 32.0, 64.0, 100.0})
    assert survey_bytes == 3 * 8 * len(MATRICES) * points
    agreements = (4 * EPOCH - 1) * AllReduce.wire_bytes(8 * len(Layout().slots), 3)
    assert beside == agreements + 3 * AllReduce.wire_bytes(survey_bytes // 3, 3)
    uniform, spent = records[1 : EPOCH + 1], records[EPOCH + 1 :]
    assert max(record.wire_bytes for record in spent) <= min(record.wire_bytes for record in uniform)
    assert sum(r.gain or 0.0 for r in spent[: EPOCH - 1]) > sum(r.gain or 0.0 for r in uniform[1:])


def resume(rank: int, world: int, make: Any, at: int) -> tuple[torch.Tensor, torch.Tensor, list[Any], list[Any]]:
    def trained(loaded: bytes | None, steps: range) -> tuple[Any, bytes]:
        ddp = parallel(network())
        optimizer = sgd(ddp)
        compressor = make()
        if loaded is not None:
            model, moments, state = torch.load(io.BytesIO(loaded), weights_only=True)
            ddp.module.load_state_dict(model)
            optimizer.load_state_dict(moments)
            compressor.load_state_dict(state)
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, steps)
        file = io.BytesIO()
        torch.save([ddp.module.state_dict(), optimizer.state_dict(), compressor.state_dict()], file)
        changes = [(record.step, record.cf, record.reason) for record in compressor.history if record.changed]
        compressor.close()
        return (weights(ddp), changes), file.getvalue()

    end = 4 * EPOCH
    (straight, changes), _ = trained(None, range(end))
    _, saved = trained(None, range(at))
    (resumed, again), _ = trained(saved, range(at, end))
    return straight, resumed, changes, again


@pytest.mark.parametrize("make", [accordion, by_gain])
@pytest.mark.parametrize("at", [EPOCH + 2, 2 * EPOCH])
def test_resume_in_an_epoch_and_with_a_survey_under_way_is_bit_for_bit(make: Any, at: int) -> None:
    for straight, resumed, changes, again in processes(resume, 2, make, at):
        assert torch.equal(straight, resumed)
        assert changes == again


def of_any(
    rank: int, world: int, bases: Sequence[Compressor], controllers: Sequence[Any]
) -> list[tuple[torch.Tensor, set[str], list[Any]]]:
    trained = []
    for base, controller in zip(bases, controllers, strict=True):
        ddp = parallel()
        optimizer = sgd(ddp)
        options: dict[str, Any] = {"cf_range": (2, 64), "allocation": "by_gain", "survey_every": 4}
        with AdaptiveCompressor(base, controller=controller, **options) as compressor:
            compressor.attach(ddp, optimizer)
            train(ddp, optimizer, rank, range(12))
            factors = compressor._steps.state.factors
            trained.append((weights(ddp), set(compressor.curves), [factors.cf, factors.cfs]))
    return trained


def test_any_base_may_be_allocated_under_any_controller() -> None:
    bases = [topk, topkc, randomk, artopk, quantize, powersgd, ladder]
    lists = [base.candidates((2, 64)) for base in bases]
    controllers: list[Any] = [Static(cf=12.0 if isinstance(it, Span) else it[len(it) // 2]) for it in lists]
    bases += [topk, topkc, topkc]
    controllers += [GraVAC(window=3, warmup=0, shadow_every=2), Goodput(), Accordion(epoch=3, every=1)]
    first, second = processes(of_any, 2, bases, controllers)
    for base, controller, (one, names, plan), (other, same, too) in zip(bases, controllers, first, second, strict=True):
        assert torch.equal(one, other), (base.name, controller)
        assert names == same == set(MATRICES), (base.name, controller)
        assert plan == too
        assert bool(one.isfinite().all())


def elsewhere(rank: int, world: int, merged: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    ddp = parallel()
    with by_gain() as compressor:
        compressor.attach(ddp)
        compressor.load_state_dict(merged)
        train(ddp, sgd(ddp), rank, range(1))
        before = compressor.curves
        train(ddp, sgd(ddp), rank, range(2 * EPOCH))
        return {"before": before, "after": compressor.curves}, weights(ddp)


def saved(rank: int, world: int) -> dict[str, Any]:
    ddp = parallel()
    with by_gain() as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(2 * EPOCH))
        return compressor.state_dict()


def test_at_another_world_size_tensors_are_surveyed_again() -> None:
    states = processes(saved, 3)
    assert states[0]["curves"] == states[1]["curves"] != {}
    first, second = processes(elsewhere, 2, merge_states(states))
    assert first[0] == second[0]
    assert not first[0]["before"]
    assert set(first[0]["after"]) == set(MATRICES)
    assert torch.equal(first[1], second[1])
