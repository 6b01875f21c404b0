# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run of the demo decided, in words."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.compressors import ladder
from gravac.lab.demo.outcome import DemoOutcome
from gravac.telemetry.words import described, reason_words


def change_words(change: dict[str, Any]) -> str:
    """Return a change of what runs as a line: from which step on, what, and why; see ``DemoOutcome.cf_path``."""
    reason = reason_words(change["reason"], _choices())
    return f"  step {change['step']:>5}  {runs_words(change)}: {reason}"


def runs_words(change: dict[str, Any]) -> str:
    """Return what runs after a change, in words; see ``DemoOutcome.cf_path``."""
    return described(_forecast_of(change))


def running_words(event: dict[str, Any]) -> str:
    """Return what runs, by a progress line of a worker; of the first steps nothing is known."""
    cf, mode = event["cf"], event["mode"]
    if cf is None:
        return "-"
    every = event["every"] if mode == "outer" else 1
    return described(_forecast_of({"mode": mode, "compressor": _name(cf), "cf": cf, "every": every, "delay": 0}))


def mostly(outcome: DemoOutcome) -> str:
    """Return what a run's longest-running candidate is, in words; empty if the run told of none."""
    ends = [*(change["step"] for change in outcome.cf_path[1:]), outcome.steps]
    made: Counter[str] = Counter()
    for change, end in zip(outcome.cf_path, ends, strict=True):
        made[described(_forecast_of({**change, "delay": 0}))] += max(0, end - change["step"])
    return made.most_common(1)[0][0] if made else ""


def _forecast_of(change: dict[str, Any]) -> Forecast:
    """Return the forecast of a candidate by its fields; of the ladder a CF is the wire ratio of an exchange."""
    candidate = Candidate(change["mode"], change["compressor"], change["cf"], change["every"], change["delay"])
    dense = {1.0: "dense float32", 2.0: "dense in 16 bit"}
    method = dense.get(candidate.cf, "dense") if candidate.dense else ladder.method_at(candidate.cf)
    return Forecast(candidate, wire_ratio=candidate.cf * candidate.every, method=method)


def _name(cf: float) -> str:
    return DENSE if cf in (1.0, 2.0) else ladder.name


@functools.cache
def _choices() -> tuple[Forecast, ...]:
    """Forecasts of what may run in each step: dense, and the ladder. How often stands behind their names in reasons."""
    rungs = [Candidate("hook", ladder.name, cf) for cf in ladder.candidates((2.0, 1000.0))]
    dense = [Candidate(mode, DENSE, cf) for mode in ("hook", "native") for cf in (1.0, 2.0)]
    fields = ("mode", "compressor", "cf", "every", "delay")
    return tuple(_forecast_of({name: getattr(one, name) for name in fields}) for one in (*dense, *rungs))
