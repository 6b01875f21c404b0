# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Texts that say which candidates (ways to run steps) ran in a run of the demo, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gravac.candidate import Candidate, describe_exchange
from gravac.compressors import ladder
from gravac.lab.demo.outcome import DemoOutcome


def describe_change(change: dict[str, Any]) -> str:
    """Return a line that says at which step a new candidate (way to run steps) began, which one, and why.

    Args:
        change: an entry of ``DemoOutcome.cf_path``, which describes the new candidate.
    """
    return f"  step {change['step']:>5}  {describe_new_candidate(change)}: {change['reason']}"


def describe_new_candidate(change: dict[str, Any]) -> str:
    """Return the name of the candidate (way to run steps) that a change begins.

    Args:
        change: an entry of ``DemoOutcome.cf_path``.
    """
    return str(_candidate_of(change))


def describe_longest_running(outcome: DemoOutcome) -> str:
    """Return the name of the candidate (way to run steps) that ran for the most steps of a run.

    Candidates that differ only in their delay count as one, which is named without a delay. Empty if no candidate of
    the run was recorded.

    Args:
        outcome: result of the run.
    """
    end_steps = [*(change["step"] for change in outcome.cf_path[1:]), outcome.steps]
    steps_by_candidate: Counter[str] = Counter()
    for change, end_step in zip(outcome.cf_path, end_steps, strict=True):
        steps_by_candidate[describe_new_candidate({**change, "delay": 0})] += max(0, end_step - change["step"])
    return steps_by_candidate.most_common(1)[0][0] if steps_by_candidate else ""


def _candidate_of(change: dict[str, Any]) -> Candidate:
    """Return the candidate of a change.

    If the change does not say what the candidate sends, as in older files of results, the ladder's method does. The
    compression factor of a ladder is a wire ratio.

    Args:
        change: an entry of ``DemoOutcome.cf_path``.
    """
    candidate_fields = {name: change[name] for name in ("mode", "compressor", "cf", "every", "delay")}
    sends = change.get("sends", "")
    if not sends and change["compressor"] == ladder.name:
        sends = describe_exchange(ladder.method_at(change["cf"]), change["cf"])
    return Candidate(**candidate_fields, sends=sends)
