# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reads a recorded run (a trace) from ``gravac.jsonl``; rejects records whose numbers a controller cannot use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import LATENCY
from gravac.settings import SettingsError
from gravac.telemetry.descriptions import forecast_of
from gravac.telemetry.jsonl import read_jsonl
from gravac.telemetry.records import DecisionRecord, ForecastsRecord, Record, RunRecord, StepRecord

LONGEST_LATENCY = 16
"""Largest ``Trace.latency`` that is accepted: steps from a measurement until its decision applies; usually 2 or 3."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Records of a run.

    Attributes:
        run: settings, ranks and candidates of the run.
        steps: all recorded steps, in order.
        decisions: all recorded decisions, in order.
        latency: number of steps from a measurement until the decision that follows from the measurement applies; a
            round of outer steps counts as one step. After native steps (DDP exchanges by itself) a decision applies to
            the next step.
        admitted_forecasts: ``(number of earlier step records in the file, record)`` for each record of forecasts that
            replaced earlier forecasts during training.
    """

    run: RunRecord
    steps: tuple[StepRecord, ...]
    decisions: tuple[DecisionRecord, ...]
    latency: int = LATENCY
    admitted_forecasts: tuple[tuple[int, ForecastsRecord], ...] = ()

    @property
    def trained(self) -> int:
        """Number of training steps recorded."""
        return sum(record.steps for record in self.steps)

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """The newest forecast of each candidate that the run could choose at some time."""
        forecasts = [*self.run.forecasts]
        for _, record in self.admitted_forecasts:
            forecasts += record.forecasts
        return tuple({forecast.candidate: forecast for forecast in forecasts}.values())

    def decided_candidates(self) -> list[Candidate]:
        """Return the candidate that the controller had decided for each recorded step.

        A recorded round (outer steps up to an exchange) may have more or fewer steps than the controller decided. So
        ``every`` of its candidate is the decided number of steps. Before the first decision, ``every`` is the number of
        steps of the second round, since the first round also contains steps that were made to measure compute time.
        """
        decided_candidates: list[Candidate] = []
        forecasts, decided_every, decision_index = self.forecasts, self.steps[:2][-1].every, 0
        for record in self.steps:
            while decision_index < len(self.decisions) and self.decisions[decision_index].step <= record.step:
                decision, decision_index = self.decisions[decision_index], decision_index + 1
                decided_every = decision.every if decision.mode == "outer" else record.every
            decided_record = replace(record, every=decided_every) if record.mode == "outer" else record
            decided_candidates.append(forecast_of(decided_record, forecasts).candidate)
        return decided_candidates

    def number(self, setting: str) -> float | None:
        """Return a setting of the run if it is a number; ``None`` if it is missing, or text such as ``"auto"``."""
        number = self.run.settings.get(setting)
        return number if isinstance(number, (int, float)) else None


@dataclass(slots=True)
class _PartialTrace:
    """Records of a run while the file is read; the attributes are those of ``Trace``.

    ``latency`` is ``None`` until a decision shows it.
    """

    run: RunRecord
    steps: list[StepRecord] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    latency: int | None = None
    admitted_forecasts: list[tuple[int, ForecastsRecord]] = field(default_factory=list)

    def add_decision(self, decision: DecisionRecord) -> None:
        """Add a decision that followed from the last added step's measurement; set ``latency`` by the first decision.

        A decision after native steps does not set ``latency``.
        """
        self.decisions.append(decision)
        if self.latency is None and self.steps and (measured_step := self.steps[-1]).mode != "native":
            self.latency = (decision.step - measured_step.step) // measured_step.steps

    @property
    def trace(self) -> Trace:
        """The records as a ``Trace``.

        Raises:
            SettingsError: the latency is not 1 to ``LONGEST_LATENCY``.
        """
        latency = LATENCY if self.latency is None else self.latency
        if not 1 <= latency <= LONGEST_LATENCY:
            raise SettingsError(
                f"trace: the first decision takes effect {latency} steps after its measurement, but decisions of a run "
                f"take effect after 1 to {LONGEST_LATENCY} steps; give a gravac.jsonl that was not changed"
            )
        return Trace(self.run, tuple(self.steps), tuple(self.decisions), latency, tuple(self.admitted_forecasts))


def read_trace(path: str | Path, run: int = -1) -> Trace:
    """Read a run from a file that ``JSONLSink`` wrote (``gravac.jsonl`` in ``log_dir``).

    Args:
        path: file to read.
        run: number of the run among the file's runs that have steps, counted from 0; a negative number counts from the
            end.

    Returns:
        The run's records.

    Raises:
        SettingsError: the file or the run does not exist, or a line is not a record or has content that is not allowed;
            the message names file, line, field and content.
    """
    path = Path(path)
    try:
        records = read_jsonl(path, check_record)
    except OSError as error:
        raise SettingsError(f"trace: cannot read {str(path)!r} ({error.strerror}); give a gravac.jsonl") from None
    except ValueError as error:
        raise SettingsError(f"trace: {error}") from None
    partial_traces: list[_PartialTrace] = []
    for record in records:
        if isinstance(record, RunRecord):
            partial_traces.append(_PartialTrace(record))
        elif not partial_traces:
            raise SettingsError(f"trace: {path} does not begin with a run record; give a whole gravac.jsonl")
        elif isinstance(record, ForecastsRecord):
            partial_traces[-1].admitted_forecasts.append((len(partial_traces[-1].steps), record))
        elif isinstance(record, StepRecord):
            partial_traces[-1].steps.append(record)
        elif isinstance(record, DecisionRecord):
            partial_traces[-1].add_decision(record)
    runs_with_steps = [run for run in partial_traces if run.steps]
    if not runs_with_steps:
        raise SettingsError(
            f"trace: {path} has no step records, so there is nothing to replay; record with log_dir, two steps or more"
        )
    if not -len(runs_with_steps) <= run < len(runs_with_steps):
        raise SettingsError(
            f"run: {run} is not one of the {len(runs_with_steps)} runs with steps in {path}; give a number from "
            f"{-len(runs_with_steps)} to {len(runs_with_steps) - 1}"
        )
    return runs_with_steps[run].trace


# ranges of the recorded numbers that controllers use

Range = tuple[Callable[[Any], bool], str]
"""A range of numbers: a function that returns True if a number is in the range, and the range as text for messages."""

NOT_NEGATIVE: Range = (lambda number: number >= 0, "0 or more")
AT_LEAST_1: Range = (lambda number: number >= 1, "1 or more")
VALID_CF: Range = (lambda number: 1e-9 <= number <= 1e9, "a compression factor, 1e-9 to 1e9")
ABOVE_0: Range = (lambda number: 0 < number < math.inf, "a finite number above 0")
SECONDS_OR_NONE: Range = (lambda number: number is None or 0 <= number < math.inf, "seconds, 0 or more")
FRACTION_OR_NONE: Range = (lambda number: number is None or 0 <= number <= 1, "a fraction, 0 to 1")

CANDIDATE_RANGES: Mapping[str, Range] = {"cf": VALID_CF, "every": AT_LEAST_1, "delay": NOT_NEGATIVE}
FORECAST_RANGES: Mapping[str, Range] = {
    "wire_ratio": ABOVE_0,
    "efficiency": (lambda number: 0 <= number < math.inf, "a finite number, 0 or more"),
    "coding_s": SECONDS_OR_NONE,
    "exchange_s": SECONDS_OR_NONE,
    "step_s": SECONDS_OR_NONE,
    "compute_s": SECONDS_OR_NONE,
    "behind": FRACTION_OR_NONE,
    "deviation": (lambda number: 0 <= number < math.inf, "a finite number, 0 or more"),
    "leaving_s": SECONDS_OR_NONE,
    "by_gain": (lambda points: all(low[0] < high[0] for low, high in pairwise(points)), "points with ascending gains"),
}
STEP_RANGES: Mapping[str, Range] = {
    "step": NOT_NEGATIVE,
    "steps": AT_LEAST_1,
    "cf": VALID_CF,
    "every": AT_LEAST_1,
    "delay": NOT_NEGATIVE,
    "seconds": (lambda number: not (number < 0 or number > 1e12), "seconds, 0 to 1e12"),
    "t_system": (lambda number: not (number < 0 or number > 1e18), "samples per second, 0 to 1e18"),
    "energy": (lambda number: number is None or not number < 0, "0 or more"),
    "shadow": (
        lambda pairs: all(VALID_CF[0](cf) for cf, _ in pairs),
        "pairs of a compression factor, 1e-9 to 1e9, and its gain",
    ),
}
DECISION_RANGES: Mapping[str, Range] = {
    "step": NOT_NEGATIVE,
    "cf": VALID_CF,
    "every": AT_LEAST_1,
    "delay": NOT_NEGATIVE,
}
SETTINGS_RANGES: Mapping[str, Range] = {
    "samples_per_step": (
        lambda number: isinstance(number, str) or 1e-6 <= number <= 1e18,
        "from 1e-6 to 1e18 samples, or text",
    ),
    "steps_per_epoch": (
        lambda number: isinstance(number, str) or 1 <= number <= 1e18,
        "from 1 to 1e18 steps, or text",
    ),
}


def check_record(record: Record) -> None:
    """Check that a record's numbers are in the ranges that controllers can compute with.

    Args:
        record: record of a trace.

    Raises:
        ValueError: a number is out of its range; the message names field and number.
    """
    if isinstance(record, StepRecord):
        _check_ranges(record, STEP_RANGES, "")
        if record.gain is not None and record.energy is None:
            raise ValueError("energy: None beside a gain; a record with a gain must have an energy")
    elif isinstance(record, DecisionRecord):
        _check_ranges(record, DECISION_RANGES, "")
    elif isinstance(record, RunRecord):
        _check_ranges(record, {"world_size": AT_LEAST_1}, "")
        for name, (is_in_range, range_text) in SETTINGS_RANGES.items():
            if name in record.settings and not is_in_range(record.settings[name]):
                raise ValueError(
                    f"settings/{name}: {record.settings[name]!r:.80} is out of range; must be {range_text}"
                )
        _check_forecasts(record)
    elif isinstance(record, ForecastsRecord):
        _check_ranges(record, {"step": NOT_NEGATIVE}, "")
        _check_forecasts(record)


def _check_forecasts(record: RunRecord | ForecastsRecord) -> None:
    for index, forecast in enumerate(record.forecasts):
        _check_ranges(forecast.candidate, CANDIDATE_RANGES, f"forecasts/{index}/candidate/")
        _check_ranges(forecast, FORECAST_RANGES, f"forecasts/{index}/")


def _check_ranges(record: Record | Candidate | Forecast, ranges: Mapping[str, Range], path_prefix: str) -> None:
    for field_name, (is_in_range, range_text) in ranges.items():
        if not is_in_range(number := getattr(record, field_name)):
            raise ValueError(f"{path_prefix}{field_name}: {number!r:.80} is out of range; must be {range_text}")
