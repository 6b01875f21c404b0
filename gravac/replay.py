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
- predicted wire ratio of a candidate that the run did not admit: interpolated, log on log, between those that it
  did and those it dropped; beyond them, in proportion to CF.

A window's gain is a ratio of sums, so it needs each step's energy (``Σ‖g_ef‖²``). Where step records hold none, every
step counts the same, and a decision near a threshold may differ from the run's; the replay then says so in its notes.

Nothing is filled in for what another history would have done to the gradients: every gain is one of this training run.
A step that ran what the policy would have run, with the same shadow CFs, is fed as it was recorded.
"""

from __future__ import annotations

import bisect
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gravac.admission import alike
from gravac.candidate import DENSE, Candidate
from gravac.compressors import Dense
from gravac.controllers.base import Decision, Measurement
from gravac.policy import Policy
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import read_jsonl
from gravac.telemetry.records import DecisionRecord, RunRecord, StepRecord

NEAREST = 9
"""Values, nearest in time, whose median stands in for one that was not recorded."""

SAME_CF = 1e-5
"""Relative difference under which two CFs are one: records write them with six digits."""

_ADMITTED = re.compile(
    r"^(?P<name>\S+) (?P<cf>[0-9.e+-]+)x "
    r"\(predicted wire ratio (?P<ratio>[0-9.e+-]+)(?:, worth (?P<worth>[0-9.e+-]+))?\)"
)
_DROPPED = re.compile(
    r"^(?P<name>\S+) (?P<cf>[0-9.e+-]+)x: "
    r"would send (?P<times>[0-9.e+-]+) times the bytes of dense (?P<other>[0-9.e+-]+)x"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """One run of a trace.

    Attributes:
        run: its settings, ranks and candidates.
        steps: every step recorded, in order, without a gap.
        decisions: every decision recorded.
    """

    run: RunRecord
    steps: tuple[StepRecord, ...]
    decisions: tuple[DecisionRecord, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What was decided, and what the policy would have decided.

    Attributes:
        steps: which steps were recorded, counted from 0.
        ran: CF of each step as recorded.
        would: CF of each step as the policy would have had it.
        estimated: of each step, whether what the policy was fed rests on an estimate.
        candidates: what the policy could choose from, dense first.
        dropped: what it could not, each with the reason.
        recorded: the run's decisions.
        replayed: the policy's, in the same form; ``step`` is the first step the decision holds for.
        notes: what else keeps the replay from being the run itself.
    """

    steps: tuple[int, ...]
    ran: tuple[float, ...]
    would: tuple[float, ...]
    estimated: tuple[bool, ...]
    candidates: tuple[Candidate, ...]
    dropped: tuple[str, ...]
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
        """As plain values for JSON; a number that is not finite is ``None``."""
        return {
            "share_estimated": self.share_estimated,
            "same": self.same,
            "notes": list(self.notes),
            "candidates": [
                {"compressor": c.compressor, "cf": c.cf, "wire_ratio": _finite(c.wire_ratio)} for c in self.candidates
            ],
            "dropped": list(self.dropped),
            "recorded": [_record(record) for record in self.recorded],
            "replayed": [_record(record) for record in self.replayed],
            "steps": [
                {"step": step, "ran": ran, "would": would, "estimated": estimated}
                for step, ran, would, estimated in zip(self.steps, self.ran, self.would, self.estimated, strict=True)
            ],
        }


def read_trace(path: str | Path, run: int = -1) -> Trace:
    """One run of a file that ``JSONLSink`` wrote (``gravac.jsonl`` in ``log_dir``).

    Args:
        path: the file.
        run: which of those with steps, counted from 0; negative from the end.

    Raises:
        SettingsError: there is no such file or run, or a line is not a record; the message names it.
    """
    path = Path(path)
    try:
        records = read_jsonl(path)
    except OSError as error:
        raise SettingsError(f"trace: cannot read {str(path)!r} ({error.strerror}); give a gravac.jsonl") from None
    except ValueError as error:
        raise SettingsError(f"trace: {error}") from None
    runs: list[tuple[RunRecord, list[StepRecord], list[DecisionRecord]]] = []
    for record in records:
        if isinstance(record, RunRecord):
            runs.append((record, [], []))
        elif not runs:
            raise SettingsError(f"trace: {path} does not begin with a run record; give a whole gravac.jsonl")
        elif isinstance(record, StepRecord):
            runs[-1][1].append(record)
        elif isinstance(record, DecisionRecord):
            runs[-1][2].append(record)
    whole = [one for one in runs if one[1]]
    if not whole:
        raise SettingsError(
            f"trace: {path} has no step records, so there is nothing to replay; record with log_dir, two steps or more"
        )
    if not -len(whole) <= run < len(whole):
        raise SettingsError(f"run: {run} is not one of the {len(whole)} runs with steps in {path}")
    settings, steps, decisions = whole[run]
    return Trace(settings, tuple(steps), tuple(decisions))


def replay(trace: Trace, policy: Policy) -> Replay:
    """Feed a run's measurements to a policy's controller.

    Args:
        trace: the run.
        policy: gives controller, range and base; its base must be the one recorded, as a trace says nothing of the
            gain of another compressor.

    Raises:
        SettingsError: the policy has another base or decides by single tensors, the trace has no or not all steps, or
            it has no gain of any CF where one is needed.
    """
    if not trace.steps:
        raise SettingsError("trace: it has no step records, so there is nothing to replay")
    numbers = [record.step for record in trace.steps]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise SettingsError("trace: steps are missing in between; a controller must see every step")
    notes = _notes(trace, policy)
    candidates, dropped = admit_recorded(trace.run, policy)
    recording = _Recording(trace, policy.base.name)
    controller = policy.controller
    state, coming = controller.start(candidates)
    if coming.sums != "none":
        raise SettingsError(
            f"controller: {controller.name} decides by norms of single tensors, which a trace does not hold; give a "
            "policy with another"
        )
    holds: Decision = coming
    would, estimated, replayed = [], [], []
    for record in trace.steps:
        measured, guessed = recording.measure(record, holds)
        would.append(holds.candidate.cf)
        estimated.append(guessed)
        state, decision = controller.observe(state, measured)
        changed = decision.candidate != coming.candidate
        if changed or decision.summary is not None:
            replayed.append(_decided(record.step + 2, decision, changed, measured, trace.run))
        holds, coming = coming, decision
    return Replay(
        tuple(numbers),
        tuple(record.cf for record in trace.steps),
        tuple(would),
        tuple(estimated),
        candidates,
        dropped,
        trace.decisions,
        tuple(replayed),
        notes,
    )


def admit_recorded(run: RunRecord, policy: Policy) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The candidates that a policy would have had in a recorded run, and those dropped, in words.

    CFs are what the policy's controller proposes. Their wire ratios are the predictions that the run record holds in
    words, with two digits after the point; where it holds none, see the module's text.
    """
    known, admitted, dense_ratio = _ratios(run)
    dense, *sixteen = (
        Candidate(DENSE, form.cf, dense_ratio.get(form.cf, form.cf), form.worth(form.cf), form.family(form.cf))
        for form in policy.dense_formats
    )
    if isinstance(policy.base, Dense):
        return (dense,), ()
    reach = policy.base.candidates(policy.cf_range, ())
    name = policy.base.name
    proposed = policy.controller.propose(policy.cf_range, reach)
    worth = _worths(run)

    def candidate(cf: float) -> Candidate:
        base, ratio = policy.base, _ratio_at(known.get(name, []), cf)
        expected = worth.get((name, cf), base.worth(cf))
        return Candidate(name, cf, ratio, expected, base.family(cf), base.worth_by_gain(cf))

    wanted = [candidate(cf) for cf in proposed]
    if policy.controller.insists:
        return (dense, *wanted), ()

    before = admitted.get(name, ()) if dense.cf in dense_ratio else ()  # two digits may not tell it from dense
    stay = [dense]
    dropped = []
    for one in (*sixteen, *sorted(wanted, key=lambda one: (one.wire_ratio, one.cf))):
        recorded = not one.dense and any(_same(one.cf, cf) for cf in before)
        twin = next((other for other in stay if alike(one, other)), None)
        least = next(other for other in reversed(stay) if other.dense)
        if not recorded and one.wire_ratio <= least.wire_ratio:
            dropped.append(f"{one}: would send {least.wire_ratio / one.wire_ratio:.2f} times the bytes of {least}")
        elif not recorded and twin is not None:
            dropped.append(f"{one}: would send what {twin} does")
        else:
            stay.append(one)
    return tuple(stay), tuple(dropped)


@dataclass(frozen=True, slots=True)
class _Series:
    """Values over steps, ascending."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self.steps.append(step)
            self.values.append(value)

    def near(self, step: int) -> float:
        """Median of the values nearest in time; there must be one."""
        middle = bisect.bisect_left(self.steps, step)
        low = max(0, min(middle - NEAREST // 2, len(self.steps) - NEAREST))
        return statistics.median(self.values[low : low + NEAREST])


class _Recording:
    """A run's measurements, and estimates of those it does not have."""

    def __init__(self, trace: Trace, base: str) -> None:
        self._base = base
        samples = trace.run.settings.get("samples_per_step")
        self._samples = float(samples) if isinstance(samples, (int, float)) else float(trace.run.world_size)
        self._gains: dict[float, _Series] = {}
        self._times: dict[tuple[str, float], _Series] = {}
        self._bytes: dict[tuple[str, float], float] = {}
        self._dense_bytes = statistics.median(record.dense_wire_bytes for record in trace.steps)
        shadows: dict[float, _Series] = {}
        wire: dict[tuple[str, float], list[int]] = {}
        rough: dict[tuple[str, float], _Series] = {}
        for record in trace.steps:
            key = record.compressor, record.cf
            wire.setdefault(key, []).append(record.wire_bytes)
            times = rough if record.shadow else self._times
            times.setdefault(key, _Series()).add(record.step, self._seconds(record))
            if record.compressor == base:
                self._gains.setdefault(record.cf, _Series()).add(record.step, record.gain)
            for cf, gain in record.shadow:
                shadows.setdefault(cf, _Series()).add(record.step, gain)
        self._gains = {cf: series for cf, series in self._gains.items() if series.steps}
        for cf, series in shadows.items():
            if series.steps and not any(_same(cf, ran) for ran in self._gains):
                self._gains[cf] = series
        self._times = {key: series for key, series in self._times.items() if series.steps}
        for key, series in rough.items():
            if series.steps:
                self._times.setdefault(key, series)
        self._bytes = {key: statistics.median(sent) for key, sent in wire.items()}

    def measure(self, record: StepRecord, holds: Decision) -> tuple[Measurement, bool]:
        """What a decision would have come to in a recorded step, and whether any of it is estimated."""
        ran = holds.candidate
        as_recorded = ran.compressor == record.compressor and _same(ran.cf, record.cf)
        energy = self._energy(record)
        seconds, guessed_time = self._seconds(record), False
        if not as_recorded or (record.shadow and not holds.shadow):
            seconds, guessed_time = self._time_at(record.step, ran), True
        gain = record.gain  # None when a gradient was not finite: it would not have been with any CF
        if gain is not None and not as_recorded:
            gain = 1.0 if ran.dense else self._gain_of(record.step, ran.cf)
        shadow, guessed_shadow = [], False
        for cf in holds.shadow:
            seen = next((value for at, value in record.shadow if _same(at, cf)), None)
            if seen is None:
                seen = self._gain_of(record.step, cf)
                guessed_shadow = True
            shadow.append((cf, energy * (1 - seen)))
        measured = Measurement(
            step=record.step,
            candidate=ran,
            seconds=seconds,
            samples=self._samples,
            error=math.nan if gain is None else energy * (1 - gain),
            energy=energy,
            shadow=tuple(shadow),
            waited=record.waited_seconds if as_recorded else math.nan,
            coded=record.coded_seconds if as_recorded else math.nan,
            exchanged=record.exchanged_seconds if as_recorded else math.nan,
        )
        return measured, not as_recorded or guessed_time or guessed_shadow

    def _seconds(self, record: StepRecord) -> float:
        """The mean over ranks: throughput is from that, ``seconds`` is the recording rank's own."""
        if math.isfinite(record.t_system) and record.t_system > 0:
            return self._samples / record.t_system
        return record.seconds

    @staticmethod
    def _energy(record: StepRecord) -> float:
        """As recorded, where records hold it; else 1, so that a window's gain is the mean of its steps' gains."""
        energy = getattr(record, "energy", None)
        return 1.0 if energy is None else float(energy)

    def _gain_of(self, step: int, cf: float) -> float:
        points = sorted((math.log(at), series) for at, series in self._gains.items())
        if not points:
            raise SettingsError(
                f"trace: no step ran {self._base} or had it as shadow, so the gain at {cf:g}x cannot be estimated; "
                "record a run that compresses"
            )
        return _between(math.log(cf), [at for at, _ in points], lambda index: points[index][1].near(step))

    def _time_at(self, step: int, ran: Candidate) -> float:
        key = next((key for key in self._times if key[0] == ran.compressor and _same(key[1], ran.cf)), None)
        if key is not None:
            return self._times[key].near(step)
        points = sorted((self._bytes[key], key) for key in self._times)
        if not points:
            return math.nan
        sent = self._dense_bytes / ran.wire_ratio
        return _between(sent, [at for at, _ in points], lambda index: self._times[points[index][1]].near(step))


def _between(at: float, points: Sequence[float], value: Callable[[int], float]) -> float:
    """Linear between ascending points, the nearest one's value beyond."""
    right = bisect.bisect_left(points, at)
    if right == len(points):
        return value(right - 1)
    if right == 0 or math.isclose(points[right], at, rel_tol=1e-9):
        return value(right)
    left = right - 1
    share = (at - points[left]) / (points[right] - points[left])
    return (1 - share) * value(left) + share * value(right)


def _ratios(run: RunRecord) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[float]], dict[float, float]]:
    """By compressor, ``(cf, wire ratio)`` that a run record knows and the CFs it admitted; dense ratios by CF."""
    known: dict[str, list[tuple[float, float]]] = {}
    admitted: dict[str, list[float]] = {}
    dense: dict[float, float] = {}
    for words in run.candidates:
        if (found := _ADMITTED.match(words)) is None:
            continue
        name, cf, ratio = found["name"], float(found["cf"]), float(found["ratio"])
        if name == DENSE:
            dense[cf] = ratio
        else:
            known.setdefault(name, []).append((cf, ratio))
            admitted.setdefault(name, []).append(cf)
    for words in run.dropped:
        found = _DROPPED.match(words)
        if found is None or float(found["other"]) not in dense or not float(found["times"]) > 0:
            continue
        name, cf, ratio = found["name"], float(found["cf"]), dense[float(found["other"])] / float(found["times"])
        if name == DENSE:
            dense[cf] = ratio
        else:
            known.setdefault(name, []).append((cf, ratio))
    return {name: sorted(pairs) for name, pairs in known.items()}, admitted, dense


def _worths(run: RunRecord) -> dict[tuple[str, float], float]:
    """By compressor and CF: what a step was expected to be worth on the recorded model."""
    found = [it for it in map(_ADMITTED.match, run.candidates) if it is not None and it["worth"] is not None]
    return {(it["name"], float(it["cf"])): float(it["worth"]) for it in found}


def _ratio_at(known: Sequence[tuple[float, float]], cf: float) -> float:
    """Log on log between known ratios; in proportion to CF beyond them; CF itself when nothing is known."""
    known = [(at, ratio) for at, ratio in known if ratio > 0]
    if not known:
        return cf
    for at, ratio in known:
        if _same(at, cf):
            return ratio
    (lowest, its), (highest, other) = known[0], known[-1]
    if cf < lowest:
        return its * cf / lowest
    if cf > highest:
        return other * cf / highest
    logs = [math.log(at) for at, _ in known]
    return math.exp(_between(math.log(cf), logs, lambda index: math.log(known[index][1])))


def _decided(step: int, decision: Decision, changed: bool, measured: Measurement, run: RunRecord) -> DecisionRecord:
    """As ``gravac.steps`` writes it."""
    summary = decision.summary
    last = 1 - measured.error / measured.energy if measured.energy else 1.0
    last = last if math.isfinite(last) else 0.0
    epoch = run.settings.get("steps_per_epoch")
    dated = f" (epoch {step / epoch:.2f})" if isinstance(epoch, (int, float)) and epoch else ""
    return DecisionRecord(
        step=step,
        compressor=decision.candidate.compressor,
        cf=decision.candidate.cf,
        changed=changed,
        gain=summary.gain if summary else last,
        gain_low=summary.gain_low if summary else last,
        gain_high=summary.gain_high if summary else last,
        t_system=summary.t_system if summary else None,
        t_compression=summary.t_compression if summary else None,
        phase=summary.phase if summary else "",
        reason=decision.reason + dated,
    )


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
    if all(getattr(record, "energy", None) is None for record in trace.steps):
        notes.append(
            "the trace has no energies, so every step counts the same in a window's gain; decisions may differ for that"
        )
    return tuple(notes)


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME_CF)


def _gist(record: DecisionRecord) -> tuple[int, str, float, bool]:
    return record.step, record.compressor, float(f"{record.cf:.5g}"), record.changed


def _record(record: DecisionRecord) -> dict[str, Any]:
    names = DecisionRecord.__dataclass_fields__
    return {name: _finite(getattr(record, name)) for name in names}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
