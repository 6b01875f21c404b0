# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step would have measured: as it was recorded, or filled in from what ran near it."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import Decision, Measurement
from gravac.replay.trace import Trace, same
from gravac.settings import SettingsError
from gravac.stepping.agreement import LAST
from gravac.telemetry.records import StepRecord

NEAREST = 9
"""Number of values, nearest in time, whose median stands in for one that was not recorded."""


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class _Series:
    """Values over steps, ascending."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def near(self, step: int) -> float:
        """Median of the values nearest in time; there must be one."""
        middle = bisect.bisect_left(self.steps, step)
        low = max(0, min(middle - NEAREST // 2, len(self.steps) - NEAREST))
        return statistics.median(self.values[low : low + NEAREST])


Ran = tuple[str, float, int, int]
"""What ran: a compressor by name, its CF, the number of steps from one exchange to the next, and that behind which it
travels."""


class Recording:
    """A run's measurements, and estimates of those it does not have.

    Args:
        trace: the recorded run.
        base: name of the compressor that it ran.
        forecasts: forecasts of what may be chosen; none: the run's own.
    """

    def __init__(self, trace: Trace, base: str, forecasts: Sequence[Forecast] = ()) -> None:
        self._base = base
        self._wire_ratios = {one.candidate: one.wire_ratio for one in forecasts or trace.run.forecasts}
        samples = trace.number("samples_per_step")
        self._samples = float(trace.run.world_size if samples is None else samples)
        self._gains: dict[int, dict[float, _Series]] = {}
        self._dense_bytes = statistics.median(record.dense_wire_bytes / record.every for record in trace.steps)
        shadows: dict[tuple[int, float], _Series] = {}
        wire: dict[Ran, list[float]] = {}
        clean: dict[Ran, _Series] = {}
        rough: dict[Ran, _Series] = {}
        for record in trace.steps:
            key = record.compressor, record.cf, record.every, record.delay
            wire.setdefault(key, []).append(record.wire_bytes / record.every)
            _add(rough if record.shadow else clean, key, record.step, self._seconds(record))
            if record.compressor == base:
                _add(self._gains.setdefault(record.every, {}), record.cf, record.step, record.gain)
            for cf, gain in record.shadow:
                _add(shadows, (record.every, cf), record.step, gain)
        for (every, cf), series in shadows.items():
            gains = self._gains.setdefault(every, {})
            if not any(same(cf, ran) for ran in gains):
                gains[cf] = series
        self._gains = {every: gains for every, gains in self._gains.items() if gains}
        self._times = rough | clean
        self._bytes = {key: statistics.median(sent) for key, sent in wire.items()}
        self._chosen = _chosen(trace)

    def measure(self, record: StepRecord, holds: Decision) -> tuple[Measurement, bool]:
        """What would have been measured in a recorded step under a decision, and whether any of it is estimated."""
        ran = holds.candidate
        as_recorded = ran.compressor == record.compressor and same(ran.cf, record.cf)
        as_recorded = as_recorded and ran.every == self._chosen(record.step) and ran.delay == record.delay
        if as_recorded and ran.every != record.every:  # a round may be shorter or longer than was decided
            ran = replace(ran, every=record.every)
        energy = 1.0 if record.energy is None else record.energy  # all 1: a window's gain is the mean of its steps'
        seconds, guessed_time = self._seconds(record), False
        if not as_recorded or (record.shadow and not holds.shadow):
            seconds, guessed_time = self._time_at(record.step, ran, holds.candidate), True
        gain = record.gain  # None when a gradient was not finite: it would not have been with any CF
        if gain is not None and not as_recorded:
            gain = 1.0 if ran.dense else self._gain_of(record.step, ran)
        seen = {cf: next((value for at, value in record.shadow if same(at, cf)), None) for cf in holds.shadow}
        gains = {
            cf: self._gain_of(record.step, replace(ran, cf=cf)) if told is None else told for cf, told in seen.items()
        }
        measured = Measurement(
            step=record.step,
            candidate=ran,
            seconds=seconds,
            samples=self._samples,
            error=math.nan if gain is None else energy * (1 - gain),
            energy=energy,
            shadow=tuple((cf, energy * (1 - one)) for cf, one in gains.items()),
            **{slot: getattr(record, told) for slot, told in LAST.items() if as_recorded or slot == "learning_rate"},
        )
        return measured, not as_recorded or guessed_time or None in seen.values()

    def _seconds(self, record: StepRecord) -> float:
        """The mean over ranks: throughput is from that, ``seconds`` is the recording rank's own."""
        if math.isfinite(record.t_system) and record.t_system > 0:
            return self._samples / record.t_system
        return record.seconds / record.every

    def _gain_of(self, step: int, ran: Candidate) -> float:
        if not self._gains:
            raise SettingsError(
                f"trace: no step ran {self._base} or had it as shadow, so the gain at {ran.cf:g}x cannot be estimated; "
                "record a run that compresses"
            )
        nearest = min(self._gains, key=lambda every: (abs(math.log(every / ran.every)), every))
        gains = self._gains[nearest]
        cfs = sorted(gains)
        return float(np.interp(np.log(ran.cf), np.log(cfs), [gains[at].near(step) for at in cfs]))

    def _time_at(self, step: int, ran: Candidate, decided: Candidate) -> float:
        what = ran.compressor, ran.every, ran.delay
        key = next((key for key in self._times if (key[0], *key[2:]) == what and same(key[1], ran.cf)), None)
        if key is not None:
            return self._times[key].near(step)
        if not self._times:
            return math.nan
        keys = sorted(self._times, key=lambda key: (self._bytes[key], key))
        sent = self._dense_bytes / self._wire_ratios.get(decided, math.nan)
        return float(np.interp(sent, [self._bytes[key] for key in keys], [self._times[key].near(step) for key in keys]))


def _chosen(trace: Trace) -> Callable[[int], int]:
    """Tell how many steps from one exchange to the next were decided for a step of the trace.

    Until the first decision those of the second round are it: the first is longer where steps were timed before it.
    """
    first = trace.steps[:2][-1].every
    steps, every = [one.step for one in trace.decisions], [one.every for one in trace.decisions]
    return lambda step: [first, *every][bisect.bisect_right(steps, step)]


def _add(known: dict[Key, _Series], key: Key, step: int, value: float | None) -> None:
    """Add a step's value to a series, unless it is not known."""
    if value is not None and math.isfinite(value):
        series = known.setdefault(key, _Series())
        series.steps.append(step)
        series.values.append(value)
