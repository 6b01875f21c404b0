# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run whose mode changes is replayed to the decision, also if outer steps were admitted while it trained."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gravac import Goodput, GraVAC
from gravac.candidate import Forecast
from gravac.compressors import ladder, topk
from gravac.controllers import Decision, Measurement
from gravac.engine.admission import Admission
from gravac.engine.decisions import COMPUTE_STEPS, Deciding
from gravac.engine.run_state import RunState
from gravac.measurement import LocalMeasurement
from gravac.policy import Policy
from gravac.replay import read_trace, replay
from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.records import ForecastsRecord, Record, RunRecord, StepRecord
from tests.controllers.test_goodput import LADDER
from tests.controllers.test_native import ABSOLUTE, EVERY, GRAVAC, Site, gains

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def proposes_the_made_up_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up ladder has other rungs than the real one."""
    cfs = tuple(rung.candidate.cf for rung in LADDER[2:])
    monkeypatch.setattr(Goodput, "propose", lambda self, cf_range, reach: cfs)


class Admitting:
    """Admits outer steps beside others once a step's compute is known, as a run does."""

    def __init__(self, first: tuple[Forecast, ...], then: tuple[Forecast, ...]) -> None:
        self._first, self._then = first, then

    def __call__(self, state: RunState, forms: Any) -> Admission:
        lacks = state.compute_s is None and self._first != self._then
        return Admission(self._first if lacks else self._then, lacks_compute_time=lacks)


def record_run(path: Path, controller: Any, admit: Admitting, measure: Any, steps: int, policy: Policy) -> list[Record]:
    """Run a controller as the engine does, over made-up measurements, and record it."""
    sink, records = JSONLSink(path), list[Record]()

    def emit(record: Record) -> None:
        if isinstance(record, RunRecord):
            record = replace(record, settings={**policy.as_dict(), "samples_per_step": 16.0})
        records.append(record)
        sink(record)

    deciding, state = Deciding(controller, admit, emit), RunState()
    deciding.set_latency(2, ())
    pending: list[Measurement] = []
    decision = deciding.decide_first(state, [], 2)
    mode, previous = decision.candidate.mode, decision.candidate

    def observe() -> None:
        measured = pending.pop(0)
        local = LocalMeasurement(measured.step, measured.candidate, measured.first, measured.steps)
        local.native_step_s = measured.seconds
        deciding.observe(state, measured, local)

    for number in range(steps):
        assert deciding.decision is not None
        holds = deciding.decision
        after = holds.candidate.mode
        if after != mode:
            holds = Decision(previous)
        previous, native = holds.candidate, holds.candidate.mode == "native"
        made = holds.watch if native else previous.every
        measured = replace(measure(state.trained, holds), step=number, first=state.trained, steps=made)
        if native:
            measured = replace(measured, error=0.0, energy=0.0, shadow=())
            measured = replace(measured, waited=math.nan, coded=math.nan, exchanged=math.nan)
        pending.append(measured)
        state.trained += made
        while len(pending) > (0 if native else 1):
            observe()
        mode = deciding.decision.candidate.mode if native else after
    sink.close()
    return records


def goodput_policy() -> Policy:
    return Policy(base=ladder, controller=Goodput(), every=(1, 100))


@pytest.mark.parametrize("every", [(1,), EVERY], ids=["in each step", "or apart"])
@pytest.mark.parametrize(("seconds", "exposed"), [(0.015, 0.0), (0.07, 0.1), (0.5, 0.6), (7.0, 0.99)])
def test_a_run_of_several_modes_is_replayed_to_the_decision(
    tmp_path: Path, every: tuple[int, ...], seconds: float, exposed: float
) -> None:
    site = Site(seconds, exposed, noise=0.03, every=every)
    alone = Site(seconds, exposed, noise=0.03)
    path, policy = tmp_path / "gravac.jsonl", goodput_policy()
    records = record_run(path, Goodput(), Admitting(alone.forecasts, site.forecasts), site.measure(0), 400, policy)
    trace = read_trace(path)
    played = replay(trace, policy)
    assert played.parting is None
    assert played.same
    assert [(r.step, r.mode, r.reason) for r in played.replayed] == [
        (r.step, r.mode, r.reason) for r in trace.decisions
    ]
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert played.steps == sum(record.steps for record in steps)
    assert ("outer" in {record.mode for record in steps}) == (exposed == 0.99 and len(every) > 1)


def test_outer_steps_are_admitted_once_compute_is_known(tmp_path: Path) -> None:
    alone, site = Site(0.07, 0.1), Site(0.07, 0.1, every=EVERY)
    records = record_run(
        tmp_path / "t.jsonl",
        Goodput(),
        Admitting(alone.forecasts, site.forecasts),
        site.measure(0),
        60,
        goodput_policy(),
    )
    ((at, admitted),) = [(at, one) for at, one in enumerate(records) if isinstance(one, ForecastsRecord)]
    assert admitted.forecasts == site.forecasts
    before = [record for record in records[:at] if isinstance(record, StepRecord)]
    measured = sum(record.steps for record in before if record.step >= 3)
    assert measured >= COMPUTE_STEPS
    assert admitted.step == before[-1].step + before[-1].steps
    assert asdict(read_trace(tmp_path / "t.jsonl").admitted_forecasts[0][1]) == asdict(admitted)


def test_a_run_of_gravac_with_native_rests_is_replayed(tmp_path: Path) -> None:
    policy = Policy(base=topk, cf_range=(10, 40), controller=ABSOLUTE)
    measure = gains(lambda step: 0.1 if step < 400 else 0.9)
    records = record_run(tmp_path / "t.jsonl", ABSOLUTE, Admitting(GRAVAC, GRAVAC), measure, 600, policy)
    assert {"native", "hook"} == {record.mode for record in records if isinstance(record, StepRecord)}
    assert replay(read_trace(tmp_path / "t.jsonl"), policy).same


def test_a_policy_that_keeps_the_hook_parts_from_a_native_run(tmp_path: Path) -> None:
    site, policy = Site(0.015, 0.0, hides=0.0), goodput_policy()
    record_run(tmp_path / "t.jsonl", Goodput(), Admitting(site.forecasts, site.forecasts), site.measure(0), 100, policy)
    played = replay(read_trace(tmp_path / "t.jsonl"), policy(native=False))
    assert played.parting is not None
    assert played.parting.ran.mode == "native"
    assert played.parting.would.mode == "hook"
    assert not replay(read_trace(tmp_path / "t.jsonl"), policy(controller=GraVAC())).same
