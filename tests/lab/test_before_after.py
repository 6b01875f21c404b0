# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A commit against HEAD: what is made of pairs of turns. Taking them takes minutes."""

from pathlib import Path

import pytest

from tests.measure import before_after

ECHO = """
import json, os, sys
print(json.dumps({"package": os.path.abspath("x"), "workloads": ["a step"]}), flush=True)
for line in sys.stdin:
    word, number = line.split() if " " in line else sys.exit("no such word")
    print(json.dumps({"seconds": int(number)}), flush=True)
"""

PAIRS = [{"before": 0.1, "after": 0.2}, {"before": 0.2, "after": 0.2}, {"before": 0.1, "after": 0.15}]


def tree_with(driver: str, tree: Path) -> Path:
    """Return a worktree with a driver of its own."""
    package = (tree / before_after.DRIVER).parent
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (tree / before_after.DRIVER).write_text(driver)
    return tree


def test_turns_alternate_so_that_drift_meets_both_sides() -> None:
    sides = [side for sides in before_after.order(4) for side in sides]
    assert sides == ["before", "after", "after", "before"] * 2


def test_what_is_compared_is_each_pair_of_turns() -> None:
    found = before_after.summarize("a step", PAIRS, [1.0, 2.0])
    assert (found["what"], found["before_ms"], found["after_ms"], found["pairs"]) == ("a step", 100.0, 200.0, 3)
    assert found["ratio"] == 1.5, "the median of 2, 1 and 1.5, not 200 / 100"
    assert (found["low"], found["high"]) == (1.0, 2.0)
    assert found["wire_ratios"] == [1.0, 2.0]


def test_sides_take_turns_and_a_rank_that_fails_is_told_of(tmp_path: Path) -> None:
    tree = tree_with(ECHO, tmp_path / "tree")
    with before_after.Side(tree, tmp_path) as side:
        assert side.workloads() == ["a step"]
        assert side.tell("run 3") == {"seconds": 3}
        with pytest.raises(RuntimeError, match="rank 0 failed or hung; end of its output:\nno such word"):
            side.tell("fail")


def test_each_side_runs_the_driver_of_its_own_worktree(tmp_path: Path) -> None:
    for name in before_after.SIDES:
        tree = tree_with(ECHO.replace("a step", f"a step of {name}"), tmp_path / name)
        with before_after.Side(tree, tmp_path) as side:
            assert side.workloads() == [f"a step of {name}"]


def test_a_driver_that_imports_the_package_of_another_commit_is_refused(tmp_path: Path) -> None:
    tree = tree_with(ECHO.replace('os.path.abspath("x")', '"/elsewhere/gravac"'), tmp_path / "tree")
    with (
        before_after.Side(tree, tmp_path) as side,
        pytest.raises(RuntimeError, match="a rank imported /elsewhere/gravac"),
    ):
        side.workloads()


def test_a_commit_without_a_driver_is_refused(tmp_path: Path) -> None:
    before_after.check_drivers({"after": tree_with(ECHO, tmp_path / "after")})
    with pytest.raises(ValueError, match=r"BEFORE: the commit has no tests/measure/one_side\.py"):
        before_after.check_drivers({"before": tmp_path})


def test_a_workload_that_only_one_side_knows_is_skipped_with_a_word() -> None:
    workloads = {"before": ["dense", "by gain", "topk"], "after": ["topk", "outer", "dense"]}
    assert before_after.shared(workloads) == (
        ["topk", "dense"],
        ["skipped by gain: only the driver of before knows it", "skipped outer: only the driver of after knows it"],
    )
    with pytest.raises(ValueError, match="no workload in common"):
        before_after.shared({"before": ["by gain"], "after": ["outer"]})
