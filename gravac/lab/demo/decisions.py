# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes the decisions of a demo's run as text."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.compressors import ladder
from gravac.lab.demo.outcome import DemoOutcome
from gravac.telemetry.descriptions import describe_candidate, describe_reason


def change_words(change: dict[str, Any]) -> str:
    """Return a line about a change of candidate: its first step, the new candidate and the reason.

    Args:
        change: an entry of ``DemoOutcome.cf_path``.
    """
    reason = describe_reason(change["reason"], _choices())
    return f"  step {change['step']:>5}  {runs_words(change)}: {reason}"


def runs_words(change: dict[str, Any]) -> str:
    """Return a text about the candidate that runs after a change, an entry of ``DemoOutcome.cf_path``."""
    return describe_candidate(_forecast_of(change))


def running_words(event: dict[str, Any]) -> str:
    """Return a text about the candidate that runs, by a worker's ``step`` event; ``"-"`` while unknown."""
    cf, mode = event["cf"], event["mode"]
    if cf is None:
        return "-"
    every = event["every"] if mode == "outer" else 1
    return describe_candidate(
        _forecast_of({"mode": mode, "compressor": _name(cf), "cf": cf, "every": every, "delay": 0})
    )


def longest_running(outcome: DemoOutcome) -> str:
    """Return a text about the candidate that made most of a run's steps; empty if the run reported no candidate."""
    ends = [*(change["step"] for change in outcome.cf_path[1:]), outcome.steps]
    steps: Counter[str] = Counter()
    for change, end in zip(outcome.cf_path, ends, strict=True):
        steps[describe_candidate(_forecast_of({**change, "delay": 0}))] += max(0, end - change["step"])
    return steps.most_common(1)[0][0] if steps else ""


def _forecast_of(change: dict[str, Any]) -> Forecast:
    """Return the forecast of a candidate by its fields; the ladder's CF is the wire ratio of an exchange."""
    candidate = Candidate(change["mode"], change["compressor"], change["cf"], change["every"], change["delay"])
    dense = {1.0: "dense float32", 2.0: "dense in 16 bit"}
    method = dense.get(candidate.cf, "dense") if candidate.dense else ladder.method_at(candidate.cf)
    return Forecast(candidate, wire_ratio=candidate.cf * candidate.every, method=method)


def _name(cf: float) -> str:
    return DENSE if cf in (1.0, 2.0) else ladder.name


@functools.cache
def _choices() -> tuple[Forecast, ...]:
    """Return forecasts of the candidates that may run in each step: dense, and the ladder.

    They serve outer steps, too: a reason names the steps between two exchanges after the candidate's name.
    """
    rungs = [Candidate("hook", ladder.name, cf) for cf in ladder.candidates((2.0, 1000.0))]
    dense = [Candidate(mode, DENSE, cf) for mode in ("hook", "native") for cf in (1.0, 2.0)]
    fields = ("mode", "compressor", "cf", "every", "delay")
    return tuple(_forecast_of({name: getattr(candidate, name) for name in fields}) for candidate in (*dense, *rungs))
