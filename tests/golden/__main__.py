# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden against COMMIT``: whether the present code makes the same runs as a commit, bit for bit.

Both record in processes of their own: the commit in a worktree, by the driver that it has there, and the present code
by the present one. ``record`` and ``compare`` do one part each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gravac
from tests.golden.cases import CASES
from tests.golden.compare import compare
from tests.golden.ranks import OuterRank
from tests.golden.runs import record
from tests.worktrees import ROOT, commit, worktree

FORM = 1
"""Number of what a recording holds and of the commands that make it; a driver of another number is refused."""


IN_ROUNDS = tuple(name for name, case in CASES.items() if case.rank is OuterRank)


def against(name: str) -> int:
    """Have a commit and the present code record, compare, and return the number of differences.

    Raises:
        ValueError: git knows no such commit, or its driver makes recordings of another form.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with worktree(folder / "tree", commit(name)) as tree:
            check_driver(tree, name)
            drive(tree, "record", str(folder / "before"))
        drive(ROOT, "record", str(folder / "after"))
        return compare(folder / "before", folder / "after", IN_ROUNDS)


def check_driver(tree: Path, name: str) -> None:
    """Refuse a commit whose driver cannot record what is compared here.

    Raises:
        ValueError: there is no driver of this form, or it would drive another package.
    """
    asked = drive(tree, "form", check=False)
    answer = json.loads(asked.stdout) if asked.returncode == 0 else {}
    if answer.get("form") != FORM:
        raise ValueError(
            f"BEFORE: tests/golden of {name!r} makes no recordings of form {FORM}, which hold what outlives formats; "
            "name a commit whose tests/golden does"
        )
    if not Path(answer["package"]).is_relative_to(tree):
        raise ValueError(f"BEFORE: {name!r} imported {answer['package']}, which is not below {tree}")


def drive(tree: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the driver of a tree, with the package of that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.golden", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, check=check, text=True, capture_output=arguments == ("form",)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("form", help="say what recordings this driver makes, and of which package, as JSON")
    recording = what.add_parser("record", help="make recordings")
    recording.add_argument("out", type=Path, help="folder for them")
    recording.add_argument("cases", nargs="*", metavar="case", help=f"any of {', '.join(CASES)} (default: all)")
    comparing = what.add_parser("compare", help="compare two folders of recordings; exit status 1 if they differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    what.add_parser("against", help="record with a commit and with the present code, and compare").add_argument(
        "commit"
    )
    options = parser.parse_args()
    if options.what == "form":
        print(json.dumps({"form": FORM, "package": gravac.__file__}))
        return 0
    if options.what == "record":
        record(options.out, options.cases or CASES)
        return 0
    if options.what == "compare":
        return 1 if compare(options.before, options.after, IN_ROUNDS) else 0
    try:
        return 1 if against(options.commit) else 0
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
