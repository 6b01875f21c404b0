# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Feeds a recorded run's measurements to a policy's controller, until the controller decides otherwise than the run.

A controller decides by measurements alone. If a controller gets the measurements of its own run, in the order and with
the latency of training, it makes the same decisions again.

Another policy's controller gets measurements as long as it would run the same candidate and evaluate the same shadow
CFs (compression factors that are evaluated without sending). From the first step that differs, the record has no
measurement of the policy's candidate, so the replay ends. Nothing is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.controllers.base import Controller, Decision, Measurement, adapt_to_latency, has_flag
from gravac.engine.agreement import gain
from gravac.engine.records import decision_record, holds_from, with_cost
from gravac.modes.outer.candidates import check_chooses_every
from gravac.policy import Policy, RunSettings
from gravac.replay.trace import Trace
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import parse_back
from gravac.telemetry.records import DecisionRecord, ForecastsRecord, RunRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step in which a policy would run another candidate, or evaluate other CFs, than the run did.

    Attributes:
        step: index of the training step, counted from 0.
        ran: candidate that the run executed in the step.
        would: candidate that the policy would run.
        evaluated: shadow CFs (evaluated without sending) that the run evaluated.
        would_evaluate: shadow CFs that the policy would evaluate.
    """

    step: int
    ran: Candidate
    would: Candidate
    evaluated: tuple[float, ...]
    would_evaluate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """Decisions of a run and of a policy, up to the first step in which run and policy differ.

    Attributes:
        trace: the recorded run.
        first: candidate that the policy begins with.
        parting: first step in which run and policy differ; ``None``: they never differ.
        forecasts: forecasts of the candidates that the policy could choose from, dense first.
        recorded: the run's decisions that follow from the measurements that the replay used, oldest first.
        replayed: the policy's decisions from the same measurements, oldest first; a record's ``step`` is the first
            training step that the decision holds for.
        notes: texts on other differences between replay and run, such as settings.
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
        """Number of training steps in which the policy would run the same candidates as the run.

        These are the steps before ``parting``, or all steps of the trace if ``parting`` is ``None``.
        """
        return self.trace.trained if self.parting is None else self.parting.step - self.trace.steps[0].step

    @property
    def same(self) -> bool:
        """True if the policy makes the same decisions as the run: the same candidates at the same steps."""
        return self.parting is None and [*map(_compared_fields, self.recorded)] == [
            *map(_compared_fields, self.replayed)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the replay as plain values for JSON; a number that is not finite is ``None``."""
        fields: dict[str, Any] = parse_back(
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
        return fields


def replay(trace: Trace, policy: Policy) -> Replay:
    """Feed a run's measurements to a policy's controller until the controller decides otherwise than the run.

    The controller chooses from the run's own candidates, without those that the policy does not allow.

    Args:
        trace: the recorded run.
        policy: policy whose controller decides. Its base compressor must be the recorded one, since a trace has no
            measurement of another compressor.

    Returns:
        The decisions of run and policy, and the first step in which run and policy differ.

    Raises:
        SettingsError: the policy has another base compressor, decides by norms of single tensors, does not choose how
            often ranks exchange although the run did, or runs candidates that the run could not choose; or steps are
            missing in the trace.
    """
    if not trace.steps:
        raise SettingsError(
            "trace: no step is recorded, so there is nothing to replay; give a trace of a run with steps"
        )
    for record, following_record in pairwise(trace.steps):
        if record.step + record.steps != following_record.step:
            raise SettingsError(
                f"trace: the record after step {record.step + record.steps - 1} is of step {following_record.step}; "
                "give a gravac.jsonl that has every step once"
            )
    steps_per_epoch = trace.number("steps_per_epoch")
    whole_steps_per_epoch = None if steps_per_epoch is None else int(steps_per_epoch)
    policy = RunSettings(steps_per_epoch=whole_steps_per_epoch, policy=policy).policy
    notes = _notes_on_settings(trace, policy)
    forecasts, missing_notes = _allowed_forecasts(trace.run, policy)
    allowed_forecasts = {number: _allowed_forecasts(record, policy)[0] for number, record in trace.admitted_forecasts}
    controller = adapt_to_latency(policy.controller, trace.latency)
    state, first_decision = controller.start(forecasts)
    decisions, effective_count = [first_decision], 0  # decisions[n] follows from the first n measurements
    indexed_decisions, mode_change = list[tuple[int, DecisionRecord]](), _ModeChange()
    parting: Parting | None = None
    previous_candidate: Candidate | None = None
    for index, (record, decided_candidate) in enumerate(zip(trace.steps, trace.decided_candidates(), strict=True)):
        effective_count = max(effective_count, index + 1 - trace.latency)
        decision_in_force = decisions[effective_count]
        _check_measurements_recorded(controller, decision_in_force)
        parting = mode_change.compare_step(index, record, decided_candidate, decision_in_force, previous_candidate)
        if parting is not None:
            break
        previous_candidate = replace(decided_candidate, every=record.every)
        measurement = _measurement_of(trace, index, previous_candidate)
        state, decision = controller.observe(state, measurement)
        has_changed = decision.runs != decisions[-1].runs
        if has_changed or decision.summary is not None:
            gain_of_step, step = gain(measurement.error, measurement.energy), holds_from(measurement, trace.latency)
            decision_with_cost = with_cost(decision, forecasts, controller) if has_changed else decision
            indexed_decisions.append(
                (index, decision_record(step, decision_with_cost, has_changed, gain_of_step, steps_per_epoch))
            )
        if index + 1 in allowed_forecasts:
            forecasts = allowed_forecasts[index + 1]
            state, decision = controller.restore(controller.dump(state), forecasts)
        decisions.append(decision)
        if record.mode == "native":
            effective_count = index + 1
    measurement_count = len(trace.steps) if parting is None else mode_change.began_index
    end_step = math.inf if parting is None else _end_step_of_decisions(trace, measurement_count)
    recorded = tuple(decision for decision in trace.decisions if decision.step < end_step)
    comparable_decisions = tuple(decision for index, decision in indexed_decisions if index < measurement_count)
    return Replay(
        trace, first_decision.candidate, parting, forecasts, recorded, comparable_decisions, (*notes, *missing_notes)
    )


def _end_step_of_decisions(trace: Trace, measurement_count: int) -> int:
    """Return a training step: decisions that take effect before it need only ``measurement_count`` measurements.

    Decisions that take effect at this step or later need further measurements.

    Args:
        trace: the recorded run.
        measurement_count: number of measurements, from the first on; each is a step record of the trace.
    """
    if measurement_count == 0:
        return trace.steps[0].step
    newest_record = trace.steps[measurement_count - 1]
    return newest_record.step + (1 if newest_record.mode == "native" else trace.latency) * newest_record.steps + 1


LONGEST_MODE_CHANGE = 3
"""Largest number of steps that ranks still make in the old mode after the controller decided for another mode.

The ranks change the mode when the exchanges in flight have ended. A round of outer steps counts as one step."""


@dataclass(slots=True)
class _ModeChange:
    """Compares a policy with the run step by step, and tolerates the few steps that ranks need to change the mode.

    Attributes:
        began_index: index of the first step record in which run and policy differ in mode; if their modes agree, index
            of the record compared last.
    """

    began_index: int = 0
    _mode_parting: Parting | None = None

    def compare_step(
        self,
        index: int,
        record: StepRecord,
        decided_candidate: Candidate,
        decision_in_force: Decision,
        previous_candidate: Candidate | None,
    ) -> Parting | None:
        """Return how run and policy differ in a step; ``None`` if they agree, or if ranks may still be changing modes.

        Called for each step record, in order.

        Args:
            index: index of the step's record in the trace, counted from 0.
            record: the trace's record of the step.
            decided_candidate: candidate that the run's controller had decided for the step.
            decision_in_force: the policy's decision for the step.
            previous_candidate: candidate of the previous step; ``None`` in the first step.
        """
        if decision_in_force.candidate.mode == record.mode:
            self._mode_parting, self.began_index = None, index
            return _parting_in_step(record, decided_candidate, decision_in_force)
        same_mode = previous_candidate is not None and previous_candidate.mode == record.mode
        same_candidate = (
            previous_candidate is not None
            and replace(decided_candidate, every=previous_candidate.every) == previous_candidate
        )
        if self._mode_parting is None:
            self._mode_parting, self.began_index = _parting_in_step(record, decided_candidate, decision_in_force), index
        is_early = index - self.began_index < LONGEST_MODE_CHANGE
        if same_mode and (same_candidate or decided_candidate.dense) and not record.shadow and is_early:
            return None
        return self._mode_parting


def _allowed_forecasts(run: RunRecord | ForecastsRecord, policy: Policy) -> tuple[tuple[Forecast, ...], list[str]]:
    """Return forecasts of the run's candidates that a policy allows, and notes on candidates that the run did not have.

    Args:
        run: record with the forecasts of the candidates that the run's controller could choose from.
        policy: policy whose controller, CF range and formats limit the candidates.

    Raises:
        SettingsError: the policy's controller runs candidates that the run could not choose (``keeps_all``), or does
            not choose how often ranks exchange although the run did; or the run's first candidate is not dense.
    """
    controller, base = policy.controller, policy.base
    forecasts = run.forecasts
    if not (policy.native and has_flag(controller, "chooses_native")):
        forecasts = _without_native(forecasts)
    candidates = [forecast.candidate for forecast in forecasts]
    if not (candidates and candidates[0].dense):
        raise SettingsError(
            "trace: the run's first candidate is not dense, but controllers need dense as first candidate; give "
            "a gravac.jsonl that was not changed"
        )
    first_candidate = candidates[0]
    every_values = [candidate.every for candidate in candidates]
    check_chooses_every(controller, min(every_values), max(every_values))
    proposed_cfs = controller.propose(policy.cf_range, base.candidates(policy.cf_range)) if base.compresses else ()
    dense_cfs = {first_candidate.cf, *(dense_format.cf for dense_format in policy.dense_formats)}
    allowed_candidates = [
        candidate for candidate in candidates[1:] if candidate.cf in (dense_cfs if candidate.dense else proposed_cfs)
    ]
    dropped_candidates = () if controller.keeps_all else (dropped.forecast.candidate for dropped in run.dropped)
    known_cfs = {candidate.cf for candidate in (*candidates, *dropped_candidates) if not candidate.dense}
    unknown_cfs = {*proposed_cfs} - {1.0, first_candidate.cf} - known_cfs
    names_text = ", ".join(f"{base.name} {cf:g}x" for cf in sorted(unknown_cfs))
    if unknown_cfs and controller.keeps_all:
        raise SettingsError(
            f"controller: {controller.name} would run {names_text}, but the recorded run had no such candidate, so the "
            "trace has no measurement of it; give a policy that chooses from the recorded run's candidates"
        )
    note = f"the policy could also choose {names_text}, which the run did not have, and might then decide otherwise"
    selected_forecasts = tuple(
        forecast for forecast in forecasts if forecast.candidate in (first_candidate, *allowed_candidates)
    )
    return selected_forecasts, [note] if unknown_cfs else []


def _without_native(forecasts: Sequence[Forecast]) -> tuple[Forecast, ...]:
    """Return forecasts without native candidates: native float32 becomes a dense hook candidate, float16 is dropped."""
    remaining_forecasts = (
        forecast for forecast in forecasts if forecast.candidate.mode != "native" or forecast.candidate.cf == 1
    )
    return tuple(
        replace(forecast, candidate=forecast.candidate.in_hook) if forecast.candidate.mode == "native" else forecast
        for forecast in remaining_forecasts
    )


def _parting_in_step(record: StepRecord, decided_candidate: Candidate, decision_in_force: Decision) -> Parting | None:
    """Return how a recorded step and the policy's decision for that step differ; ``None`` if they agree.

    Args:
        record: the trace's record of the step.
        decided_candidate: candidate that the run's controller had decided for the step.
        decision_in_force: the policy's decision for the step.
    """
    evaluated_cfs = tuple(cf for cf, _ in record.shadow)
    if decided_candidate == decision_in_force.candidate and evaluated_cfs == decision_in_force.shadow:
        return None
    return Parting(record.step, decided_candidate, decision_in_force.candidate, evaluated_cfs, decision_in_force.shadow)


def _measurement_of(trace: Trace, index: int, candidate: Candidate) -> Measurement:
    """Return the measurement that the run's controller got for a recorded step.

    ``seconds`` is computed from the throughput, since the record does not contain the mean of the ranks' step times.

    Args:
        trace: the recorded run.
        index: index of the record in ``trace.steps``.
        candidate: candidate that ran.
    """
    record = trace.steps[index]
    samples_per_step = trace.number("samples_per_step") or float(trace.run.world_size)
    has_throughput = math.isfinite(record.t_system) and record.t_system > 0
    energy = math.nan if record.energy is None else record.energy
    return Measurement(
        step=trace.steps[0].step + index,
        first=record.step,
        steps=record.steps,
        candidate=candidate,
        seconds=samples_per_step / record.t_system if has_throughput else record.seconds,
        samples=samples_per_step,
        error=math.nan if record.gain is None else energy * (1 - record.gain),
        energy=energy,
        shadow=tuple((cf, energy * (1 - shadow_gain)) for cf, shadow_gain in record.shadow),
        waited=record.waited_seconds,
        coded=record.coded_seconds,
        exchanged=record.exchanged_seconds,
        **record.agreed_numbers(),
    )


def _check_measurements_recorded(controller: Controller[Any], decision: Decision) -> None:
    """Check that step records contain all measurements that a decision of ``controller`` requests.

    Raises:
        SettingsError: the decision sets CFs of single tensors, or requests their norms.
    """
    if decision.sums != "none" or decision.tensors:
        raise SettingsError(
            f"controller: {controller.name} decides by norms of single tensors, which a trace does not contain; give "
            "a policy with another controller"
        )


def _notes_on_settings(trace: Trace, policy: Policy) -> Sequence[str]:
    """Return texts on settings in which run and policy differ, if they affect the gain, and on a resumed run.

    Raises:
        SettingsError: the policy has another base compressor.
    """
    recorded_settings = trace.run.settings
    recorded_base = recorded_settings.get("base", policy.base.name)
    if policy.base.name not in (recorded_base, DENSE):
        raise SettingsError(
            f"base: the policy has {policy.base.name}, but the trace was recorded with {recorded_base} and has no "
            f"measurement of another compressor; give a policy with base {recorded_base}"
        )
    notes = []
    for name, setting in policy.as_dict().items():
        affects_gain = name.startswith(("base.", "dense")) or name in ("error_feedback", "release")
        if affects_gain and name in recorded_settings and str(recorded_settings[name]) != str(setting):
            notes.append(
                f"{name}: recorded with {recorded_settings[name]}, but the policy has {setting}; the replay uses the "
                "gains of the recorded run"
            )
    if trace.steps[0].step:
        notes.append(
            f"the run was resumed at step {trace.steps[0].step}; the replayed controller starts there without earlier "
            "measurements"
        )
    return notes


def _compared_fields(record: DecisionRecord) -> tuple[Any, ...]:
    """Return the fields of a decision that must be equal in run and policy: step, candidate, and whether it changed."""
    return record.step, record.changed, record.mode, record.compressor, record.cf, record.every, record.delay
