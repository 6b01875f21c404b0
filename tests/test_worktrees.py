# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""An earlier commit's code: named, checked out, and gone afterwards."""

import subprocess
from pathlib import Path

import pytest

from tests.worktrees import ROOT, commit, worktree


def test_an_unknown_commit_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="git knows no commit 'nosuchcommit'"):
        commit("nosuchcommit")


def test_a_worktree_is_gone_also_when_what_it_was_for_is_stopped(tmp_path: Path) -> None:
    place = tmp_path / "code"
    with pytest.raises(KeyboardInterrupt), worktree(place, commit("HEAD")):
        assert (place / "gravac" / "__init__.py").exists()
        raise KeyboardInterrupt
    known = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
    assert not place.exists()
    assert str(place) not in known
