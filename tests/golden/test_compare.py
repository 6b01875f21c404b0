# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Two recordings are the same only if every bit, every decision and every case is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.__main__ import FORM, check_driver
from tests.golden.compare import compare, differences

DRIVER = "import json; print(json.dumps({'form': %d, 'package': %r}))"


def recording(steps: int = 4) -> dict[str, Any]:
    """Return what a driver records of a rank, of made-up numbers."""
    decision = {"step": 0, "method": "topk", "cf": 10.0, "every": 1, "delay": 0}
    run = {
        "losses": torch.linspace(2, 1, steps),
        "model": {"w": torch.zeros(2, 3), "steps": torch.tensor(steps)},
        "optimizer": {"state": {0: {"momentum": torch.full((2, 3), float("nan"))}}, "param_groups": [{"lr": 0.1}]},
        "decided": [{**decision, "changed": False}],
        "ran": [{**decision, "step": step} for step in range(steps)],
    }
    return {"rank 0": {"uninterrupted": run}}


def run_of(made: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = made["rank 0"]["uninterrupted"]
    return run


def other_bit(run: dict[str, Any]) -> None:
    run["model"]["w"][1, 2] = -0.0


def other_format(run: dict[str, Any]) -> None:
    run["model"]["w"] = run["model"]["w"].bfloat16()


def other_decision(run: dict[str, Any]) -> None:
    run["decided"][0]["cf"] = 20.0


def other_learning_rate(run: dict[str, Any]) -> None:
    run["optimizer"]["param_groups"][0]["lr"] = 0.1 + 2**-50


def no_momentum(run: dict[str, Any]) -> None:
    run["optimizer"]["state"].clear()


def test_equal_recordings_do_not_differ_nan_included() -> None:
    assert differences(recording(), recording()) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (other_bit, "model/w: 1 of 6 elements differ"),
        (other_format, "model/w: torch.float32 [2, 3] before, torch.bfloat16 [2, 3] after"),
        (other_decision, "decided[0]/cf: 10.0 before, 20.0 after"),
        (other_learning_rate, "optimizer/param_groups[0]/lr: 0.1 before, 0.1000000000000009 after"),
        (no_momentum, "optimizer/state/0: before only"),
    ],
)
def test_a_change_is_a_difference_with_its_path(change: Callable[[dict[str, Any]], None], line: str) -> None:
    after = recording()
    change(run_of(after))
    assert differences(recording(), after) == [f"rank 0/uninterrupted/{line}"]


def test_where_steps_may_be_counted_otherwise_candidates_are_compared_in_their_order(tmp_path: Path) -> None:
    other_steps, other_cf = recording(), recording()
    for made in (other_steps, other_cf):
        for candidate in run_of(made)["ran"]:
            candidate["step"] *= 5
    run_of(other_cf)["ran"][2]["cf"] = 20.0
    for folder, made in (("before", recording()), ("steps", other_steps), ("cf", other_cf)):
        (tmp_path / folder).mkdir()
        torch.save(made, tmp_path / folder / "outer.pt")
    assert compare(tmp_path / "before", tmp_path / "steps", ["outer"]) == 0
    assert compare(tmp_path / "before", tmp_path / "steps") == 3
    assert compare(tmp_path / "before", tmp_path / "cf", ["outer"]) == 1


def test_another_number_of_steps_is_a_difference_of_losses_and_of_what_ran() -> None:
    lines = differences(recording(4), recording(5))
    assert "rank 0/uninterrupted/losses: torch.float32 [4] before, torch.float32 [5] after" in lines
    assert "rank 0/uninterrupted/ran: 4 entries before, 5 after" in lines


def test_a_missing_rank_is_a_difference() -> None:
    assert differences({**recording(), "rank 1": {}}, recording()) == ["rank 1: before only"]


def test_a_case_that_is_gone_is_a_difference_and_a_new_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, cases in (("before", ["topk", "ladder"]), ("after", ["topk"])):
        (tmp_path / side).mkdir()
        for case in cases:
            torch.save(recording(), tmp_path / side / f"{case}.pt")
    assert compare(tmp_path / "before", tmp_path / "before") == 0
    assert compare(tmp_path / "before", tmp_path / "after") == 1
    assert "recorded before only" in capsys.readouterr().out
    assert compare(tmp_path / "after", tmp_path / "before") == 0
    assert "ladder: new" in capsys.readouterr().out


def test_two_folders_without_recordings_are_not_the_same(tmp_path: Path) -> None:
    assert compare(tmp_path, tmp_path) == 1


def tree_with(driver: str, tree: Path) -> Path:
    """Return a tree whose ``python -m tests.golden`` is a program."""
    package = tree / "tests" / "golden"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text(driver)
    return tree


@pytest.mark.parametrize(
    ("driver", "fault"),
    [
        ("raise SystemExit(2)", f"tests/golden of 'HEAD~9' makes no recordings of form {FORM}"),
        (DRIVER % (FORM + 1, "gravac/__init__.py"), f"no recordings of form {FORM}"),
        (DRIVER % (FORM, "/elsewhere/gravac/__init__.py"), "imported /elsewhere/gravac/__init__.py"),
    ],
)
def test_a_commit_whose_driver_cannot_record_this_is_refused(driver: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=fault):
        check_driver(tree_with(driver, tmp_path), "HEAD~9")


def test_a_driver_of_this_form_and_its_own_package_is_accepted(tmp_path: Path) -> None:
    check_driver(tree_with(DRIVER % (FORM, str(tmp_path / "gravac" / "__init__.py")), tmp_path), "HEAD")
