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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.controllers.base import Controller, Decision, Measurement, at_latency
from gravac.engine.agreement import gain
from gravac.engine.records import decided
from gravac.measurement import LAST
from gravac.modes.outer.candidates import check_chosen
from gravac.policy import Policy, RunSettings
from gravac.replay.trace import Trace
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import finite
from gravac.telemetry.records import DecisionRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step in which a policy would run something else than was recorded.

    Attributes:
        step: number of the step, counted from 0.
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
        """Number of steps in which the policy would run what ran: all that were recorded, or those before they part."""
        return len(self.trace.steps) if self.parting is None else self.parting.step - self.trace.steps[0].step

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
                "steps_recorded": len(self.trace.steps),
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
    numbers = [record.step for record in trace.steps]
    if numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
        raise SettingsError("trace: steps are missing in between; a controller must see every step")
    steps_per_epoch = trace.number("steps_per_epoch")
    epoch = None if steps_per_epoch is None else int(steps_per_epoch)
    policy = RunSettings(steps_per_epoch=epoch, policy=policy).policy
    notes = _settings_noted(trace, policy)
    forecasts, left_out = _forecasts(trace, policy)
    controller = at_latency(policy.controller, trace.latency)
    state, first = controller.start(forecasts)
    coming, decision = deque([first] * trace.latency), first
    parting, replayed = None, list[DecisionRecord]()
    for record, ran in zip(trace.steps, trace.choices(), strict=True):
        holds = coming.popleft()
        _check_recorded(controller, holds)
        if (parting := _parting(record, ran, holds)) is not None:
            break
        measured = _measurement(trace, record, holds.candidate)
        before = decision.runs
        state, decision = controller.observe(state, measured)
        changed = decision.runs != before
        if changed or decision.summary is not None:
            last = gain(measured.error, measured.energy)
            replayed.append(decided(record.step + trace.latency, decision, changed, last, steps_per_epoch))
        coming.append(decision)
    end = math.inf if parting is None else parting.step + trace.latency
    recorded = tuple(decision for decision in trace.decisions if decision.step < end)
    return Replay(trace, first.candidate, parting, forecasts, recorded, tuple(replayed), (*notes, *left_out))


def _forecasts(trace: Trace, policy: Policy) -> tuple[tuple[Forecast, ...], list[str]]:
    """Return forecasts of the run's candidates that a policy allows, and a note of choices that the run did not have.

    Raises:
        SettingsError: the policy's choices are fixed, and the run did not have one of them; or its controller does not
            choose how often ranks exchange, although the run's did; or the run has no candidates.
    """
    controller, base, run = policy.controller, policy.base, trace.run
    candidates = [forecast.candidate for forecast in run.forecasts]
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
    chosen = tuple(forecast for forecast in run.forecasts if forecast.candidate in (first, *allowed))
    return chosen, [left_out] if unknown else []


def _parting(record: StepRecord, ran: Candidate, holds: Decision) -> Parting | None:
    """Return how a recorded step and the decision that holds in the step differ; ``None``: they do not."""
    evaluated = tuple(cf for cf, _ in record.shadow)
    if ran == holds.candidate and evaluated == holds.shadow:
        return None
    return Parting(record.step, ran, holds.candidate, evaluated, holds.shadow)


def _measurement(trace: Trace, record: StepRecord, candidate: Candidate) -> Measurement:
    """Return the measurement that a record was made of.

    The record has no mean of the ranks' step times: throughput gives the mean back.
    """
    samples = trace.number("samples_per_step") or float(trace.run.world_size)
    timed = math.isfinite(record.t_system) and record.t_system > 0
    energy = math.nan if record.energy is None else record.energy
    return Measurement(
        step=record.step,
        candidate=replace(candidate, every=record.every),  # a round may be shorter or longer than was decided
        seconds=samples / record.t_system if timed else record.seconds / record.every,
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
    return record.step, record.changed, record.compressor, record.cf, record.every, record.delay
