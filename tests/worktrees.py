# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""An earlier commit's code beside the present one: its hash, and a git worktree of it for as long as it is needed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit(name: str) -> str:
    """Return the full hash of a commit.

    Raises:
        ValueError: git knows no such commit.
    """
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise ValueError(f"BEFORE: git knows no commit {name!r}; name one, such as BEFORE=HEAD~3")
    return answer.stdout.strip()


@contextmanager
def worktree(folder: Path, of: str) -> Iterator[Path]:
    """Check a commit out into a new folder; afterwards the folder is gone, also from git's list."""
    git = ["git", "-C", str(ROOT), "worktree"]
    try:
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), of], check=True)
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=False)
