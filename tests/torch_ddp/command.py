# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command: runs what was asked for, tells how it goes, judges, and keeps the table."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.measure.results import keep
from tests.torch_ddp import cases
from tests.torch_ddp.reasons import NATIVE, WITH_GRAVAC
from tests.torch_ddp.runs import Outcome, outcomes

HOOK = "registers a communication hook itself; torch allows one"


@dataclass
class Row:
    """A test, natively and with gravac; ``None`` is not run."""

    native: Outcome
    gravac: Outcome | None = None

    @property
    def counts(self) -> bool:
        """Whether gravac has to pass it."""
        return self.native.passed and self.native.made > 0 and not self.native.own_hooks

    @property
    def left_out(self) -> str:
        """Why gravac need not pass it; empty when it has to."""
        name = self.native.name
        if self.native.skipped:
            return NATIVE.get(name, f"torch skips it: {self.native.text}")
        if not self.native.passed:
            return NATIVE.get(name, _last(self.native.text))
        if self.native.own_hooks:
            return HOOK
        if not self.native.made:
            return "makes no DistributedDataParallel on this path"
        return WITH_GRAVAC.get(name, "")

    @property
    def wrong(self) -> bool:
        """Whether it passes natively, fails with gravac, and nothing says why."""
        return self.gravac is not None and not self.gravac.passed and not self.left_out

    def plain(self) -> dict[str, Any]:
        """As a row of the JSON file."""
        told: dict[str, Any] = {"test": self.native.name, "native": _word(self.native)}
        told["gravac"] = _word(self.gravac) if self.gravac else "not run"
        told["reason"] = self.left_out or (_last(self.gravac.text) if self.gravac and not self.gravac.passed else "")
        if self.gravac:
            told |= {"ddp": self.gravac.attached, "steps": self.gravac.steps}
        if self.native.own_hooks:
            told["own_hooks"] = self.native.own_hooks
        return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_ddp", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tests")
    parser.add_argument("--native", action="store_true", help="without gravac only")
    parser.add_argument("--list", action="store_true", help="names of the tests, and run none")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--json", metavar="FILE", help="keep the table")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of all failures")
    asked = parser.parse_args(arguments)
    names = cases.candidates()
    unknown = set(asked.only or ()) - set(names)
    if unknown:
        parser.error(f"--only: torch has no such test that makes a DDP: {', '.join(sorted(unknown))}; see --list")
    names = [name for name in names if asked.only is None or name in asked.only]
    if asked.list:
        print("\n".join(names))
        return 0
    rows = run(names, asked.native, asked.jobs)
    print(table(rows))
    for row in rows:
        for outcome in (row.native, row.gravac):
            if outcome and outcome.text and not outcome.skipped and (asked.verbose or (row.wrong and outcome.gravac)):
                print(f"\n{outcome.name} {'with gravac' if outcome.gravac else 'natively'}\n{outcome.text}")
    if asked.json:
        keep([row.plain() for row in rows], asked.json)
    wrong = [row.native.name for row in rows if row.wrong]
    counted = [row for row in rows if row.counts]
    passing = [row for row in counted if row.gravac and row.gravac.passed]
    native = sum(row.native.passed and row.native.made > 0 for row in rows)
    print(f"\n{native} of {len(rows)} make a DDP and pass natively; {len(counted)} of them register no hook", end="")
    print("" if asked.native else f"; {len(passing)} of those pass with gravac, {len(wrong)} fail for no stated reason")
    return 1 if wrong else 0


def run(names: Sequence[str], native_only: bool, jobs: int) -> list[Row]:
    """Every test natively, then with gravac those that it has to pass or is known to fail."""
    rows: dict[str, Row] = {}
    for done, outcome in enumerate(outcomes([(name, False) for name in names], jobs), 1):
        rows[outcome.name] = Row(outcome)
        _tell(done, len(names), outcome)
    wanted = [] if native_only else [name for name in names if rows[name].counts]
    for done, outcome in enumerate(outcomes([(name, True) for name in wanted], jobs), 1):
        rows[outcome.name].gravac = outcome
        _tell(done, len(wanted), outcome)
    return [rows[name] for name in names]


def table(rows: Sequence[Row]) -> str:
    """For the terminal."""
    width = max((len(row.native.name) for row in rows), default=4)
    lines = [f"\n{'test':{width}}  {'native':8}{'gravac':8}  reason"]
    for row in rows:
        plain = row.plain()
        lines.append(f"{plain['test']:{width}}  {plain['native']:8}{plain['gravac']:8}  {plain['reason'][:150]}")
    return "\n".join(lines)


def _tell(done: int, of: int, outcome: Outcome) -> None:
    how = "gravac" if outcome.gravac else "native"
    print(f"{done:3}/{of} {how} {_word(outcome):7} {outcome.seconds:5.1f} s  {outcome.name}", file=sys.stderr, flush=True)


def _word(outcome: Outcome) -> str:
    return "passed" if outcome.passed else "skipped" if outcome.skipped else "failed"


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith((" ", "\t", "To execute"))]
    return next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[-1] if lines else "")
