# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the records of a trace may hold: ranges of numbers that are computed with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from gravac.candidate import Candidate, Forecast
from gravac.telemetry.records import DecisionRecord, Record, RunRecord, StepRecord

Range = tuple[Callable[[Any], bool], str]
"""Whether a value lies in a range, and the range in words."""

COUNT: Range = (lambda value: value >= 0, "0 or more")
POSITIVE: Range = (lambda value: value >= 1, "1 or more")
FACTOR: Range = (lambda value: 1e-9 <= value <= 1e9, "a compression factor")
ABOVE_0: Range = (lambda value: 0 < value < math.inf, "a finite number above 0")
RATIO: Range = (lambda value: not value <= 0, "a number above 0")  # nan where a record in words did not say
SECONDS: Range = (lambda value: value is None or 0 <= value < math.inf, "seconds, 0 or more")
SHARE: Range = (lambda value: value is None or 0 <= value <= 1, "a share between 0 and 1")

CANDIDATE: Mapping[str, Range] = {
    "cf": FACTOR,
    "every": POSITIVE,
    "delay": COUNT,
}
FORECAST: Mapping[str, Range] = {
    "wire_ratio": RATIO,
    "coding_s": SECONDS,
    "exchange_s": SECONDS,
    "step_s": SECONDS,
    "compute_s": SECONDS,
    "behind": SHARE,
    "by_gain": (lambda points: all(low[0] < high[0] for low, high in pairwise(points)), "ascending gains"),
}
STEP: Mapping[str, Range] = {
    "step": COUNT,
    "cf": FACTOR,
    "every": POSITIVE,
    "delay": COUNT,
    "wire_bytes": COUNT,
    "dense_wire_bytes": COUNT,
    "seconds": (lambda value: not (value < 0 or value > 1e12), "seconds"),
    "t_system": (lambda value: not (value < 0 or value > 1e18), "samples per second"),
    "energy": (lambda value: value is None or not value < 0, "0 or more"),
    "shadow": (lambda pairs: all(FACTOR[0](cf) for cf, _ in pairs), "compression factors and their gains"),
}
DECISION: Mapping[str, Range] = {"step": COUNT, "cf": FACTOR, "every": POSITIVE, "delay": COUNT}
SETTINGS: Mapping[str, Range] = {
    "samples_per_step": (lambda value: isinstance(value, str) or 1e-6 <= value <= 1e18, "samples, or a word"),
    "steps_per_epoch": (lambda value: isinstance(value, str) or 1 <= value < math.inf, "steps, or a word"),
    "outer.delay": (lambda value: value == "auto" or (type(value) is int and value >= 0), "a number of steps, or auto"),
    "outer.fragments": (lambda value: type(value) is int and value >= 1, "1 or more"),
}


def check_record(record: Record) -> None:
    """Check that a record's values can be computed with.

    Raises:
        ValueError: one cannot; the message names field and value.
    """
    if isinstance(record, StepRecord):
        _check(record, STEP, "")
    elif isinstance(record, DecisionRecord):
        _check(record, DECISION, "")
    elif isinstance(record, RunRecord):
        _check(record, {"world_size": POSITIVE}, "")
        for name, (fits, words) in SETTINGS.items():
            if name in record.settings and not fits(record.settings[name]):
                raise ValueError(f"settings/{name}: {record.settings[name]!r:.80}, {words} expected")
        for at, forecast in enumerate(record.forecasts):
            _check_forecast(forecast, f"forecasts/{at}/")
        for at, dropped in enumerate(record.dropped):
            _check_forecast(dropped.forecast, f"dropped/{at}/forecast/")
            _check_forecast(dropped.other, f"dropped/{at}/other/")


def _check_forecast(forecast: Forecast, path: str) -> None:
    _check(forecast.candidate, CANDIDATE, f"{path}candidate/")
    _check(forecast, FORECAST, path)


def _check(part: Record | Candidate | Forecast, ranges: Mapping[str, Range], path: str) -> None:
    for name, (fits, words) in ranges.items():
        if not fits(value := getattr(part, name)):
            raise ValueError(f"{path}{name}: {value!r:.80}, {words} expected")
