# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command: runs FSDP2's tests, tells how it goes, judges, and keeps the table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.measure.results import Rows, keep, read
from tests.torch_ddp.driving import run, status, tracebacks
from tests.torch_ddp.rows import table
from tests.torch_fsdp import cases
from tests.torch_fsdp.counts import counts, failed_import
from tests.torch_fsdp.fsdp2 import FSDPSuite

AT_LEAST = 10
"""Tests that a whole run has to pass with gravac: fewer, and it is the harness that is broken."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_fsdp",
        description="torch's FSDP2 tests on gloo and the CPU, natively and with gravac attached to all with replicas",
    )
    parser.add_argument("sources", type=Path, help="a clone of pytorch, of the installed version")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tests, as --list names them")
    parser.add_argument("--native", action="store_true", help="without gravac only")
    parser.add_argument("--list", action="store_true", help="names of the tests, and run none")
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time (1)")
    parser.add_argument("--json", metavar="FILE", help="keep the table; rows of tests that are not run stay")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of all failures, native ones too")
    asked = parser.parse_args(arguments)
    if not (asked.sources / cases.FOLDER).is_dir():
        parser.error(f"sources: {asked.sources} has no {cases.FOLDER}; give the root of a clone of pytorch")
    collection = cases.collect(asked.sources.resolve())
    unknown = set(asked.only or ()) - set(collection.origins)
    if unknown:
        parser.error(f"--only: the sources have no such test: {', '.join(sorted(unknown))}; see --list")
    names = [name for name in collection.origins if asked.only is None or name in asked.only]
    for path, error in collection.failed_imports.items():
        print(f"{path} is left out, since the installed torch cannot import it: {error}")
    if asked.list:
        print("\n".join(names))
        return 0
    rows = run(FSDPSuite(collection), names, asked.native, asked.jobs)
    print(f"\n{table(rows)}")
    tracebacks(rows, asked.verbose)
    plain = [row.plain() for row in rows] + [failed_import(*pair) for pair in collection.failed_imports.items()]
    print(f"\n{counts(plain)}")
    if asked.json:
        keep(_with_older(plain, asked.json), asked.json)
    return status(rows, AT_LEAST if asked.only is None and not asked.native else 0)


def _with_older(rows: Rows, path: str) -> Rows:
    """Return rows, after those of a file that are of other tests, so that a long run can be made in parts."""
    names = [(row["file"], row.get("test")) for row in rows]
    older = read(path) if Path(path).exists() else []
    return [row for row in older if (row["file"], row.get("test")) not in names] + rows
