# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden against COMMIT``: whether the present code makes the same five runs, bit for bit.

It records them with that commit's code, in a worktree of its own, and with the present one, which takes every run up
again from the checkpoint of before. ``record`` and ``compare`` do one part of it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.compare import compare
from tests.golden.runs import record


def against(commit: str) -> int:
    """Record both and compare; the number of differences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            command = [sys.executable, "-m", "tests.golden", "record", str(folder / "before")]
            subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)
        record(folder / "after", folder / "before")
        return compare(folder / "before", folder / "after")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    recording = what.add_parser("record", help="make all runs")
    recording.add_argument("out", type=Path)
    recording.add_argument(
        "--checkpoints", type=Path, help="go on from the checkpoints of this recording, not one's own"
    )
    comparing = what.add_parser("compare", help="whether two recordings are the same; exit status 1 where not")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    what.add_parser("against", help="both, with a commit's code and the present one").add_argument("commit")
    arguments = parser.parse_args()
    if arguments.what == "against":
        return 1 if against(arguments.commit) else 0
    if arguments.what == "record":
        record(arguments.out, arguments.checkpoints)
        return 0
    return 1 if compare(arguments.before, arguments.after) else 0


if __name__ == "__main__":
    sys.exit(main())
