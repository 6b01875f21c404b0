# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command: runs what was asked for, tells how it goes, judges, and keeps the table."""

import argparse
import os
import sys
from collections.abc import Sequence

from tests.measure.results import keep
from tests.torch_ddp import cases, page
from tests.torch_ddp.reasons import NOT_RUN
from tests.torch_ddp.rows import Row, counts, table, word
from tests.torch_ddp.runs import Outcome, outcomes

AT_LEAST = 40
"""Tests that a whole run has to pass with gravac: fewer, and it is the harness that is broken."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_ddp",
        description="torch's DDP tests on gloo and the CPU, natively and with gravac attached to every DDP they make",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tests")
    parser.add_argument("--native", action="store_true", help="without gravac only")
    parser.add_argument(
        "--mode",
        choices=("hook", "switching", "apart"),
        default="hook",
        help="how gravac exchanges (hook); see rank.py",
    )
    parser.add_argument("--list", action="store_true", help="names of the tests, and run none")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--json", metavar="FILE", help="keep the table")
    parser.add_argument("--page", metavar="FILE", help="put the table into a document, between its marks")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of all failures, native ones too")
    asked = parser.parse_args(arguments)
    os.environ["TORCH_DDP_MODE"] = asked.mode
    names = cases.candidates()
    unknown = set(asked.only or ()) - set(names)
    if unknown:
        parser.error(f"--only: torch has no such test that makes a DDP: {', '.join(sorted(unknown))}; see --list")
    names = [name for name in names if asked.only is None or name in asked.only]
    if asked.list:
        print("\n".join(names))
        return 0
    rows = run(names, asked.native, asked.jobs)
    print(f"\n{table(rows)}")
    tracebacks(rows, asked.verbose)
    print(f"\n{counts(rows)}")
    if asked.json:
        keep([row.plain() for row in rows], asked.json)
    if asked.page:
        page.write(rows, asked.page, asked.mode)
    return status(rows, whole=asked.only is None and not asked.native and asked.mode != "apart")


def run(names: Sequence[str], native_only: bool, jobs: int) -> list[Row]:
    """Every test natively, then with gravac those that can be."""
    rows = {name: Row(name) for name in names}
    wanted = [name for name in names if name not in NOT_RUN]
    for done, outcome in enumerate(outcomes([(name, False) for name in wanted], jobs), 1):
        rows[outcome.name].native = outcome
        _tell(done, len(wanted), outcome)
    wanted = [] if native_only else [name for name in names if rows[name].due]
    for done, outcome in enumerate(outcomes([(name, True) for name in wanted], jobs), 1):
        rows[outcome.name].gravac = outcome
        _tell(done, len(wanted), outcome)
    return [rows[name] for name in names]


def status(rows: Sequence[Row], whole: bool) -> int:
    """0 when every test passes that has to; of a whole run, when there are enough of them."""
    wrong = [row.name for row in rows if row.wrong]
    if wrong:
        print(f"{len(wrong)} fail with gravac for no stated reason: {', '.join(wrong)}")
    native = [row.name for row in rows if row.unexplained]
    if native:
        print(f"{len(native)} fail natively for no stated reason, and are left out: {', '.join(native)}")
    passed = sum(row.gravac is not None and row.gravac.passed for row in rows)
    few = whole and passed < AT_LEAST
    if few:
        print(f"{passed} pass with gravac; of a whole run at least {AT_LEAST} have to")
    return 1 if wrong or few else 0


def tracebacks(rows: Sequence[Row], verbose: bool) -> None:
    """Print those of the tests that should have passed; ``verbose``: of all that failed."""
    for row in rows:
        for outcome in (row.native, row.gravac):
            if outcome is None or outcome.passed or outcome.skipped:
                continue
            if verbose or (row.wrong and outcome.gravac):
                print(f"\n{row.name} {'with gravac' if outcome.gravac else 'natively'}\n{outcome.text}")


def _tell(done: int, of: int, outcome: Outcome) -> None:
    how = "gravac" if outcome.gravac else "native"
    print(
        f"{done:3}/{of} {how} {word(outcome):7} {outcome.seconds:5.1f} s  {outcome.name}", file=sys.stderr, flush=True
    )
