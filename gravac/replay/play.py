# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Feeds a recorded run to a policy's controller, and stops where the controller would run something else.

A controller is a pure function of measurements. Fed with the measurements of its own run, in the order and with the
latency of training, a controller decides what the run decided: nothing but measurements leads to decisions.

Another policy's controller is fed as long as it would run what ran, with the same shadow CFs evaluated. From the first
other step on, the trace has no measurement of what the policy would run, and the replay ends. Nothing is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.controllers.base import Controller, Decision, Measurement, at_latency
from gravac.engine.agreement import gain
from gravac.engine.records import decided, holds_from, with_cost
from gravac.measurement import LAST
from gravac.modes.outer.candidates import check_chosen
from gravac.policy import Policy, RunSettings
from gravac.replay.trace import Trace
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import finite
from gravac.telemetry.records import DecisionRecord, ForecastsRecord, RunRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step in which a policy would run something else than was recorded.

    Attributes:
        step: number of the training step, counted from 0.
        ran: candidate that ran.
        would: candidate that the policy would run.
        evaluated: shadow CFs that were evaluated.
        would_evaluate: shadow CFs that the policy would evaluate.
    """

    step: int
    ran: Candidate
    would: Candidate
    evaluated: tuple[float, ...]
    would_evaluate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """Decisions of a run and of a policy, up to the step in which the policy would run something else.

    Attributes:
        trace: the recorded run.
        first: candidate that the policy begins with.
        parting: where run and policy part; ``None``: nowhere.
        forecasts: forecasts of the candidates that the policy could choose from, dense first.
        recorded: the run's decisions, as far as the replay has measurements for the policy's.
        replayed: the policy's decisions, in the same form; ``step`` is the first step that a decision holds for.
        notes: what else keeps the replay from being the run itself.
    """

    trace: Trace
    first: Candidate
    parting: Parting | None
    forecasts: tuple[Forecast, ...]
    recorded: tuple[DecisionRecord, ...]
    replayed: tuple[DecisionRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of training steps in which the policy would run what ran: all recorded, or those before they part."""
        return self.trace.trained if self.parting is None else self.parting.step - self.trace.steps[0].step

    @property
    def same(self) -> bool:
        """True if every decision fell at the same step, for the same candidate, as in the run."""
        return self.parting is None and [*map(_gist, self.recorded)] == [*map(_gist, self.replayed)]

    def plain(self) -> dict[str, Any]:
        """Return the replay as plain values for JSON; a number that is not finite is ``None``."""
        plain: dict[str, Any] = finite(
            {
                "same": self.same,
                "first_step": self.trace.steps[0].step,
                "steps": self.steps,
                "steps_recorded": self.trace.trained,
                "parting": self.parting,
                "notes": self.notes,
                "forecasts": self.forecasts,
                "recorded": self.recorded,
                "replayed": self.replayed,
            }
        )
        return plain


def replay(trace: Trace, policy: Policy) -> Replay:
    """Feed a run's measurements to a policy's controller until it would run something else.

    The controller chooses from the run's own candidates, less those that the policy does not allow.

    Args:
        trace: the recorded run.
        policy: gives controller, range and base; its base must be the recorded one, as a trace says nothing of another
            compressor.

    Returns:
        Both sets of decisions, and where run and policy part.

    Raises:
        SettingsError: the policy has another base, decides by single tensors, does not choose how often ranks exchange
            although the run did, or has but choices that the run did not have; or the trace has not all steps.
    """
    if not trace.steps:
        raise SettingsError("trace: it has no step records, so there is nothing to replay")
    if any(record.step + record.steps != following.step for record, following in pairwise(trace.steps)):
        raise SettingsError("trace: steps are missing in between; a controller must see every step")
    steps_per_epoch = trace.number("steps_per_epoch")
    epoch = None if steps_per_epoch is None else int(steps_per_epoch)
    policy = RunSettings(steps_per_epoch=epoch, policy=policy).policy
    notes = _settings_noted(trace, policy)
    forecasts, left_out = _forecasts(trace.run, policy)
    admitted = {number: _forecasts(record, policy)[0] for number, record in trace.admitted}
    controller = at_latency(policy.controller, trace.latency)
    state, first = controller.start(forecasts)
    decisions, observed = [first], 0  # after so many measurements
    replayed, changes = list[tuple[int, DecisionRecord]](), _ModeChange()
    parting: Parting | None = None
    previous: Candidate | None = None
    for at, (record, ran) in enumerate(zip(trace.steps, trace.choices(), strict=True)):
        observed = max(observed, at + 1 - trace.latency)
        holds = decisions[observed]
        _check_recorded(controller, holds)
        parting = changes.follow(at, record, ran, holds, previous)
        if parting is not None:
            break
        previous = replace(ran, every=record.every)
        measured = _measurement(trace, at, previous)
        state, decision = controller.observe(state, measured)
        changed = decision.runs != decisions[-1].runs
        if changed or decision.summary is not None:
            last, step = gain(measured.error, measured.energy), holds_from(measured, trace.latency)
            recorded_decision = with_cost(decision, forecasts, controller) if changed else decision
            replayed.append((at, decided(step, recorded_decision, changed, last, steps_per_epoch)))
        if at + 1 in admitted:
            forecasts = admitted[at + 1]
            state, decision = controller.restore(controller.dump(state), forecasts)
        decisions.append(decision)
        if record.mode == "native":
            observed = at + 1
    parts_at = len(trace.steps) if parting is None else changes.began
    end = math.inf if parting is None else _end(trace, parts_at)
    recorded = tuple(decision for decision in trace.decisions if decision.step < end)
    until = tuple(decision for at, decision in replayed if at < parts_at)
    return Replay(trace, first.candidate, parting, forecasts, recorded, until, (*notes, *left_out))


def _end(trace: Trace, at: int) -> int:
    """Return the training step before which decisions hold from to which measurements before a record led."""
    if at == 0:
        return trace.steps[0].step
    last = trace.steps[at - 1]
    return last.step + (1 if last.mode == "native" else trace.latency) * last.steps + 1


LONGEST_CHANGE = 3
"""Most of the engine's steps that ranks still make in one mode when another was decided: what is under way ends."""


@dataclass(slots=True)
class _ModeChange:
    """Follows whether a policy would run what ran; if another mode was decided, the ranks may take a few steps to it.

    Attributes:
        began: number of the record in which run and policy part, or began to differ in mode.
    """

    began: int = 0
    _parting: Parting | None = None

    def follow(
        self, at: int, record: StepRecord, ran: Candidate, holds: Decision, previous: Candidate | None
    ) -> Parting | None:
        """Return how run and policy part; ``None``: they do not, or it is not sure yet.

        Args:
            at: number of the record.
            record: what ran.
            ran: candidate that ran, as decided.
            holds: decision of the policy that holds in the step.
            previous: candidate of the step before.
        """
        if holds.candidate.mode == record.mode:
            self._parting, self.began = None, at
            return _parting(record, ran, holds)
        goes_on = previous is not None and previous.mode == record.mode
        as_before = previous is not None and replace(ran, every=previous.every) == previous
        if self._parting is None:
            self._parting, self.began = _parting(record, ran, holds), at
        if goes_on and (as_before or ran.dense) and not record.shadow and at - self.began < LONGEST_CHANGE:
            return None
        return self._parting


def _forecasts(run: RunRecord | ForecastsRecord, policy: Policy) -> tuple[tuple[Forecast, ...], list[str]]:
    """Return forecasts of the run's candidates that a policy allows, and a note of choices that the run did not have.

    Raises:
        SettingsError: the policy's choices are fixed, and the run did not have one of them; or its controller does not
            choose how often ranks exchange, although the run's did; or the run has no candidates.
    """
    controller, base = policy.controller, policy.base
    forecasts = run.forecasts
    if not (policy.native and getattr(controller, "native", False)):
        forecasts = _without_native(forecasts)
    candidates = [forecast.candidate for forecast in forecasts]
    if not (candidates and candidates[0].dense):
        raise SettingsError("trace: the run's first candidate is not dense, so no controller can start from them")
    first = candidates[0]
    numbers = [candidate.every for candidate in candidates]
    check_chosen(controller, min(numbers), max(numbers))
    proposed = controller.propose(policy.cf_range, base.candidates(policy.cf_range)) if base.compresses else ()
    dense_cfs = {first.cf, *(form.cf for form in policy.dense_formats)}
    allowed = [
        candidate for candidate in candidates[1:] if candidate.cf in (dense_cfs if candidate.dense else proposed)
    ]
    dropped = () if controller.keeps_all else (dropped.forecast.candidate for dropped in run.dropped)
    unknown = (
        {*proposed} - {1.0, first.cf} - {candidate.cf for candidate in (*candidates, *dropped) if not candidate.dense}
    )
    names = ", ".join(f"{base.name} {cf:g}x" for cf in sorted(unknown))
    if unknown and controller.keeps_all:
        raise SettingsError(
            f"controller: {controller.name} runs {names}, which the run could not choose, so its trace says nothing "
            "of that; give a policy that chooses from the run's candidates"
        )
    left_out = f"the policy could also choose {names}, which the run did not have, and might then decide otherwise"
    chosen = tuple(forecast for forecast in forecasts if forecast.candidate in (first, *allowed))
    return chosen, [left_out] if unknown else []


def _without_native(forecasts: Sequence[Forecast]) -> tuple[Forecast, ...]:
    """Return forecasts as they are if gravac's hook stays: float32 by the hook, and no float16 by torch's own."""
    others = (forecast for forecast in forecasts if forecast.candidate.mode != "native" or forecast.candidate.cf == 1)
    return tuple(
        replace(forecast, candidate=forecast.candidate.in_hook) if forecast.candidate.mode == "native" else forecast
        for forecast in others
    )


def _parting(record: StepRecord, ran: Candidate, holds: Decision) -> Parting | None:
    """Return how a recorded step and the decision that holds in the step differ; ``None``: they do not."""
    evaluated = tuple(cf for cf, _ in record.shadow)
    if ran == holds.candidate and evaluated == holds.shadow:
        return None
    return Parting(record.step, ran, holds.candidate, evaluated, holds.shadow)


def _measurement(trace: Trace, at: int, candidate: Candidate) -> Measurement:
    """Return the measurement that a step's record was made of.

    The record has no mean of the ranks' step times: throughput gives the mean back.

    Args:
        trace: the recorded run.
        at: number of the record among those of steps.
        candidate: candidate that ran.
    """
    record = trace.steps[at]
    samples = trace.number("samples_per_step") or float(trace.run.world_size)
    timed = math.isfinite(record.t_system) and record.t_system > 0
    energy = math.nan if record.energy is None else record.energy
    return Measurement(
        step=trace.steps[0].step + at,
        first=record.step,
        steps=record.steps,
        candidate=candidate,
        seconds=samples / record.t_system if timed else record.seconds,
        samples=samples,
        error=math.nan if record.gain is None else energy * (1 - record.gain),
        energy=energy,
        shadow=tuple((cf, energy * (1 - share)) for cf, share in record.shadow),
        **{slot: getattr(record, recorded) for slot, recorded in LAST.items()},
    )


def _check_recorded(controller: Controller[Any], holds: Decision) -> None:
    """Check that a trace records all that a decision asks for.

    Raises:
        SettingsError: the decision is of single tensors, or asks for their norms.
    """
    if holds.sums != "none" or holds.tensors:
        raise SettingsError(
            f"controller: {controller.name} decides by norms of single tensors, which a trace does not hold; give a "
            "policy with another"
        )


def _settings_noted(trace: Trace, policy: Policy) -> Sequence[str]:
    """Return what differs between run and policy besides the controller.

    Raises:
        SettingsError: the policy has another base.
    """
    recorded = trace.run.settings
    base = recorded.get("base", policy.base.name)
    if policy.base.name not in (base, DENSE):
        raise SettingsError(
            f"base: the policy's is {policy.base.name}, the trace was recorded with {base}, and says nothing of "
            f"another compressor's gain; give a policy with base {base}"
        )
    notes = []
    for name, setting in policy.plain().items():
        matters = name.startswith(("base.", "dense")) or name in ("error_feedback", "release")
        if matters and name in recorded and str(recorded[name]) != str(setting):
            notes.append(f"{name}: recorded with {recorded[name]}, the policy has {setting}; gains are the recording's")
    if trace.steps[0].step:
        notes.append(f"the run was resumed at step {trace.steps[0].step}; the controller starts afresh there")
    return notes


def _gist(record: DecisionRecord) -> tuple[Any, ...]:
    return record.step, record.changed, record.mode, record.compressor, record.cf, record.every, record.delay
