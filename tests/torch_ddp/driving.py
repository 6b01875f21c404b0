# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a set's tests natively and with gravac, tells how it goes, and judges."""

import sys
from collections.abc import Sequence

from tests.torch_ddp.rows import Row, word
from tests.torch_ddp.runs import Outcome, outcomes
from tests.torch_ddp.suite import Suite


def run(suite: Suite, names: Sequence[str], native_only: bool, jobs: int) -> list[Row]:
    """Every test natively, then with gravac those that can be."""
    rows = {name: Row(name, suite) for name in names}
    wanted = [name for name in names if name not in suite.reasons.not_run]
    for done, outcome in enumerate(outcomes(suite, [(name, False) for name in wanted], jobs), 1):
        rows[outcome.name].native = outcome
        _tell(done, len(wanted), outcome)
    wanted = [] if native_only else [name for name in names if rows[name].due]
    for done, outcome in enumerate(outcomes(suite, [(name, True) for name in wanted], jobs), 1):
        rows[outcome.name].gravac = outcome
        _tell(done, len(wanted), outcome)
    return [rows[name] for name in names]


def status(rows: Sequence[Row], at_least: int) -> int:
    """0 when every test passes that has to, and ``at_least`` as many as given pass with gravac."""
    wrong = [row.name for row in rows if row.wrong]
    if wrong:
        print(f"{len(wrong)} fail with gravac for no stated reason: {', '.join(wrong)}")
    native = [row.name for row in rows if row.unexplained]
    if native:
        print(f"{len(native)} fail natively for no stated reason, and are left out: {', '.join(native)}")
    passed = sum(row.gravac is not None and row.gravac.passed for row in rows)
    few = passed < at_least
    if few:
        print(f"{passed} pass with gravac; of a whole run at least {at_least} have to")
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
