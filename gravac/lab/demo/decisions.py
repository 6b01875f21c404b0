# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Texts that say which candidates (ways to run steps) ran in a run of the demo, and why."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.compressors import ladder
from gravac.lab.demo.outcome import DemoOutcome
from gravac.telemetry.descriptions import describe_candidate, describe_reason


def describe_change(change: dict[str, Any]) -> str:
    """Return a line that says at which step a new candidate (way to run steps) began, which one, and why.

    Args:
        change: an entry of ``DemoOutcome.cf_path``, which describes the new candidate.
    """
    reason = describe_reason(change["reason"], _known_forecasts())
    return f"  step {change['step']:>5}  {describe_new_candidate(change)}: {reason}"


def describe_new_candidate(change: dict[str, Any]) -> str:
    """Return a description of the candidate (way to run steps) that a change begins.

    Args:
        change: an entry of ``DemoOutcome.cf_path``.
    """
    return describe_candidate(_forecast_of(change))


def describe_running_candidate(event: dict[str, Any]) -> str:
    """Return a description of the candidate (way to run steps) that runs; ``"-"`` if it is not known yet.

    Args:
        event: event ``step`` that rank 0 reported.
    """
    cf, mode = event["cf"], event["mode"]
    if cf is None:
        return "-"
    steps_per_exchange = event["every"] if mode == "outer" else 1
    return describe_candidate(
        _forecast_of(
            {"mode": mode, "compressor": _compressor_name(cf), "cf": cf, "every": steps_per_exchange, "delay": 0}
        )
    )


def describe_longest_running(outcome: DemoOutcome) -> str:
    """Return a description of the candidate (way to run steps) that ran for the most steps of a run.

    Empty if no candidate of the run was recorded.

    Args:
        outcome: result of the run.
    """
    end_steps = [*(change["step"] for change in outcome.cf_path[1:]), outcome.steps]
    steps_by_candidate: Counter[str] = Counter()
    for change, end_step in zip(outcome.cf_path, end_steps, strict=True):
        steps_by_candidate[describe_candidate(_forecast_of({**change, "delay": 0}))] += max(
            0, end_step - change["step"]
        )
    return steps_by_candidate.most_common(1)[0][0] if steps_by_candidate else ""


def _forecast_of(change: dict[str, Any]) -> Forecast:
    """Return a forecast with which the candidate of a change can be described.

    The forecast's wire ratio is a simple estimate: compression factor x steps from one exchange to the next.

    Args:
        change: an entry of ``DemoOutcome.cf_path``.
    """
    candidate = Candidate(change["mode"], change["compressor"], change["cf"], change["every"], change["delay"])
    dense_methods = {1.0: "dense float32", 2.0: "dense in 16 bit"}
    method = dense_methods.get(candidate.cf, "dense") if candidate.dense else ladder.method_at(candidate.cf)
    return Forecast(candidate, wire_ratio=candidate.cf * candidate.every, method=method)


def _compressor_name(cf: float) -> str:
    """Return the name of the demo's compressor at a compression factor: ``dense`` at 1 and 2, ``ladder`` at others."""
    return DENSE if cf in (1.0, 2.0) else ladder.name


@functools.cache
def _known_forecasts() -> tuple[Forecast, ...]:
    """Return forecasts of all candidates of the demo that exchange in each step: dense, and the ladder at all its CFs.

    ``describe_reason`` replaces the names of these candidates in a decision's reason by descriptions. The name of a
    candidate with outer steps begins with the name of such a candidate; the number of steps between exchanges follows.
    """
    ladder_candidates = [Candidate("hook", ladder.name, cf) for cf in ladder.candidates((2.0, 1000.0))]
    dense_candidates = [Candidate(mode, DENSE, cf) for mode in ("hook", "native") for cf in (1.0, 2.0)]
    candidate_fields = ("mode", "compressor", "cf", "every", "delay")
    return tuple(
        _forecast_of({field_name: getattr(candidate, field_name) for field_name in candidate_fields})
        for candidate in (*dense_candidates, *ladder_candidates)
    )
