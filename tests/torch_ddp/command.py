# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command: runs what was asked for, tells how it goes, judges, and keeps the table."""

import argparse
import os
from collections.abc import Sequence

from tests.measure.results import keep
from tests.torch_ddp import cases
from tests.torch_ddp.counts import counts
from tests.torch_ddp.ddp import MODE, SUITE
from tests.torch_ddp.driving import run, status, tracebacks
from tests.torch_ddp.rows import table

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
        help="how gravac exchanges (hook); see ddp.py",
    )
    parser.add_argument("--list", action="store_true", help="names of the tests, and run none")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--json", metavar="FILE", help="keep the table")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of all failures, native ones too")
    asked = parser.parse_args(arguments)
    os.environ[MODE] = asked.mode
    names = cases.candidates()
    unknown = set(asked.only or ()) - set(names)
    if unknown:
        parser.error(f"--only: torch has no such test that makes a DDP: {', '.join(sorted(unknown))}; see --list")
    names = [name for name in names if asked.only is None or name in asked.only]
    if asked.list:
        print("\n".join(names))
        return 0
    rows = run(SUITE, names, asked.native, asked.jobs)
    print(f"\n{table(rows)}")
    tracebacks(rows, asked.verbose)
    print(f"\n{counts(rows)}")
    if asked.json:
        keep([row.plain() for row in rows], asked.json)
    whole = asked.only is None and not asked.native and asked.mode != "apart"
    return status(rows, AT_LEAST if whole else 0)
