# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps become candidates while a run trains, once a step's compute time is known."""

import math
from dataclasses import replace
from typing import Any

from gravac import Goodput
from gravac.averaging.recording import StepRecording
from gravac.candidate import Forecast
from gravac.controllers import Decision, Measurement
from gravac.engine.admission import Admission
from gravac.engine.decisions import COMPUTE_STEPS, Deciding
from gravac.engine.run_state import RunState
from gravac.telemetry.records import ForecastsRecord, Record, StepRecord
from tests.controllers.test_native import EVERY, Site


class Admitting:
    """Admits outer steps beside others once a step's compute is known, as a run does."""

    def __init__(self, first: tuple[Forecast, ...], then: tuple[Forecast, ...]) -> None:
        self._first, self._then = first, then

    def __call__(self, state: RunState, forms: Any) -> Admission:
        lacks = state.compute_s is None and self._first != self._then
        return Admission(self._first if lacks else self._then, lacks_compute_time=lacks)


def records_of_run(admit: Admitting, measure: Any, steps: int) -> list[Record]:
    """Run a controller as the engine does, over made-up measurements."""
    records = list[Record]()
    deciding, state = Deciding(Goodput(), admit, records.append), RunState()
    deciding.set_latency(2, ())
    pending: list[Measurement] = []
    decision = deciding.decide_first(state, [], 2)
    mode, previous = decision.candidate.mode, decision.candidate

    def observe() -> None:
        measured = pending.pop(0)
        local = StepRecording(measured.step, measured.candidate, measured.first, measured.steps)
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
    return records


def test_outer_steps_are_admitted_once_compute_is_known() -> None:
    alone, site = Site(0.07, 0.1), Site(0.07, 0.1, every=EVERY)
    records = records_of_run(Admitting(alone.forecasts, site.forecasts), site.measure(0), 60)
    ((at, admitted),) = [(at, record) for at, record in enumerate(records) if isinstance(record, ForecastsRecord)]
    assert admitted.forecasts == site.forecasts
    before = [record for record in records[:at] if isinstance(record, StepRecord)]
    measured = sum(record.steps for record in before if record.step >= 3)
    assert measured >= COMPUTE_STEPS
    assert admitted.step == before[-1].step + before[-1].steps
