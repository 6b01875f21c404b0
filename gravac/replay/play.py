# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What another policy would have decided in a recorded run.

A controller is a pure function of measurements, so a run's records can be fed to another one, step by step, with the
two steps of latency that training has. A trace has measurements only of what ran, and the gain of shadow CFs. What did
not run is filled in, and the step counts as estimated:

- gain: interpolated in log CF between the CFs of that compressor that ran or were shadows, at the median of their
  ``NEAREST`` gains nearest in time; beyond the lowest and the highest, theirs. Shadow gains are optimistic.
- step time: interpolated in wire bytes between the candidates that ran, at the median of their ``NEAREST`` clean step
  times nearest in time; beyond the fewest and the most bytes, theirs. A clean step evaluates no shadow CFs.
- where ranks made outer steps, a step here is a round; gains are those of the number of steps from one exchange to the
  next that is nearest among those that ran, and bytes are those of one of a round's steps.
- predicted wire ratio of a candidate that the run did not admit: interpolated, log on log, between those that it
  did and those it dropped; beyond them, in proportion to CF.

A window's gain is a ratio of sums, so it needs each step's energy (``Σ‖g_ef‖²``). Where step records hold none, every
step counts the same, and a decision near a threshold may differ from the run's; the replay then says so in its notes.

Nothing is filled in for what another history would have done to the gradients: every gain is one of this training run.
A step that ran what the policy would have run, with the same shadow CFs, is fed as it was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gravac.candidate import DENSE, Candidate, Dropped, Forecast
from gravac.controllers.base import Decision
from gravac.outer.candidates import check_chosen, choices
from gravac.policy import Policy
from gravac.replay.admission import admit_recorded
from gravac.replay.recording import Recording
from gravac.replay.trace import Trace
from gravac.settings import SettingsError
from gravac.stepping.agreement import gain
from gravac.stepping.step_records import decided
from gravac.telemetry.jsonl import finite
from gravac.telemetry.records import DecisionRecord


@dataclass(frozen=True, slots=True)
class Replay:
    """What was decided, and what the policy would have decided.

    Attributes:
        steps: numbers of the steps that were recorded, counted from 0.
        ran: CF of each step as recorded.
        would: CF of each step as the policy would have had it.
        ran_every: number of steps that each stands for, as recorded: 1, but for a round of outer steps.
        would_every: that number as the policy would have had it.
        estimated: whether what the policy was fed in each step rests on an estimate.
        forecasts: forecasts of what the policy could choose from, dense first.
        dropped: what the policy could not choose, each with the cause.
        recorded: the run's decisions.
        replayed: the policy's decisions, in the same form; ``step`` is the first step that one holds for.
        notes: what else keeps the replay from being the run itself.
    """

    steps: tuple[int, ...]
    ran: tuple[float, ...]
    would: tuple[float, ...]
    ran_every: tuple[int, ...]
    would_every: tuple[int, ...]
    estimated: tuple[bool, ...]
    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...]
    recorded: tuple[DecisionRecord, ...]
    replayed: tuple[DecisionRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def share_estimated(self) -> float:
        """Share of the steps that rest on estimates, in [0, 1]."""
        return sum(self.estimated) / len(self.estimated)

    @property
    def same(self) -> bool:
        """Whether every decision fell at the same step, for the same candidate, as in the run."""
        return [_gist(record) for record in self.recorded] == [_gist(record) for record in self.replayed]

    def plain(self) -> dict[str, Any]:
        """The replay as plain values for JSON; a number that is not finite is ``None``."""
        names = ("step", "ran", "would", "ran_every", "would_every", "estimated")
        steps = zip(self.steps, self.ran, self.would, self.ran_every, self.would_every, self.estimated, strict=True)
        plain: dict[str, Any] = finite(
            {
                "share_estimated": self.share_estimated,
                "same": self.same,
                "notes": self.notes,
                "candidates": [_candidate(one) for one in self.forecasts],
                "dropped": [
                    {
                        **_candidate(one.forecast),
                        "cause": one.cause,
                        "other": _candidate(one.other),
                        "ratio": one.ratio,
                    }
                    for one in self.dropped
                ],
                "recorded": self.recorded,
                "replayed": self.replayed,
                "steps": [dict(zip(names, step, strict=True)) for step in steps],
            }
        )
        return plain


def replay(trace: Trace, policy: Policy, every: tuple[int, int] | None = None) -> Replay:
    """Feed a run's measurements to a policy's controller.

    Args:
        trace: the recorded run.
        policy: gives controller, range and base; its base must be the one recorded, as a trace says nothing of the
            gain of another compressor.
        every: lowest and highest number of steps from one exchange to the next, of outer steps; ``None``: as recorded.

    Raises:
        SettingsError: ``every`` is not for this run or this controller, the policy has another base or decides by
            single tensors, the trace has no or not all steps, or it has no gain of any CF where one is needed.
    """
    if not trace.steps:
        raise SettingsError("trace: it has no step records, so there is nothing to replay")
    numbers = [record.step for record in trace.steps]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise SettingsError("trace: steps are missing in between; a controller must see every step")
    notes = _notes(trace, policy)
    forecasts, dropped = admit_recorded(trace.run, policy, _every(trace, policy, every))
    recording = Recording(trace, policy.base.name, forecasts)
    controller = policy.controller
    state, coming = controller.start(forecasts)
    if coming.sums != "none":
        raise SettingsError(
            f"controller: {controller.name} decides by norms of single tensors, which a trace does not hold; give a "
            "policy with another"
        )
    holds: Decision = coming
    steps_per_epoch = trace.number("steps_per_epoch")
    would: list[Candidate] = []
    estimated, replayed = [], []
    for record in trace.steps:
        measured, guessed = recording.measure(record, holds)
        would.append(measured.candidate)
        estimated.append(guessed)
        state, decision = controller.observe(state, measured)
        changed = decision.runs != coming.runs
        if changed or decision.summary is not None:
            last = gain(measured.error, measured.energy)
            replayed.append(decided(record.step + 2, decision, changed, last, steps_per_epoch))
        holds, coming = coming, decision
    return Replay(
        tuple(numbers),
        tuple(record.cf for record in trace.steps),
        tuple(one.cf for one in would),
        tuple(record.every for record in trace.steps),
        tuple(one.every for one in would),
        tuple(estimated),
        forecasts,
        dropped,
        trace.decisions,
        tuple(replayed),
        notes,
    )


def _every(trace: Trace, policy: Policy, every: tuple[int, int] | None) -> tuple[int, ...]:
    """Numbers of steps of a round to choose from; none where the run exchanged gradients.

    Raises:
        SettingsError: they are not for the run, or the controller does not choose between them.
    """
    if every is not None and not trace.every:
        raise SettingsError("every: the run exchanged in every step, and a trace of it says nothing of rounds")
    numbers = trace.every if every is None else choices(*every)
    if numbers:
        check_chosen(policy.controller, numbers[0], numbers[-1])
    return numbers


def _notes(trace: Trace, policy: Policy) -> tuple[str, ...]:
    """What differs between run and replay; refuses another base."""
    recorded = trace.run.settings
    base = recorded.get("base", next((r.compressor for r in trace.steps if r.compressor != DENSE), policy.base.name))
    if policy.base.name not in (base, DENSE):
        raise SettingsError(
            f"base: the policy's is {policy.base.name}, the trace was recorded with {base}, and says nothing of "
            f"another compressor's gain; give a policy with base {base}"
        )
    notes = []
    for name, value in policy.plain().items():
        matters = name.startswith(("base.", "dense")) or name in ("error_feedback", "release", "allocation")
        if matters and name in recorded and str(recorded[name]) != str(value):
            notes.append(f"{name}: recorded with {recorded[name]}, the policy has {value}; gains are the recording's")
    if trace.steps[0].step:
        notes.append(f"the run was resumed at step {trace.steps[0].step}; the controller starts afresh there")
    if all(record.energy is None for record in trace.steps):
        notes.append(
            "the trace has no energies, so every step counts the same in a window's gain; decisions may differ for that"
        )
    return tuple(notes)


def _candidate(forecast: Forecast) -> dict[str, Any]:
    one = forecast.candidate
    return {"compressor": one.compressor, "cf": one.cf, "every": one.every, "wire_ratio": forecast.wire_ratio}


def _gist(record: DecisionRecord) -> tuple[int, str, float, int, bool]:
    return record.step, record.compressor, float(f"{record.cf:.5g}"), record.every, record.changed
