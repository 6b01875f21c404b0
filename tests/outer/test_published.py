# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How what is published of outer steps is read off runs."""

import pytest

from gravac.lab.training.methods import MATCHED_PREFIX
from tests.lab.made_up_runs import made_up
from tests.measure import tables_of_outer
from tests.measure.judgement import interval, student
from tests.measure.outer_long import final, pairs, worse
from tests.measure.tables_of_outer import CHANGING

SYNCHRONOUS = {"task": "charlm", "ranks": 2, "seed": 0, "every": 0, "label": "dense"}


def test_runs_are_held_against_the_synchronous_one_of_their_task_ranks_and_seed() -> None:
    same = {**SYNCHRONOUS, "curve": [[step, 9.0] for step in range(4)] + [[step, 2.0] for step in range(4, 9)]}
    ours = {**same, "every": 10, "curve": [[step, 2.02] for step in range(9)]}
    others = [{**ours, "seed": 1}, {**ours, "ranks": 4}, {**ours, "task": "lstm"}]
    assert final(same) == 2.0  # of the last evaluations alone
    assert pairs([same, ours, *others]) == {("charlm", 2, 10, "dense"): [(ours, same)]}
    assert worse(ours, same) == pytest.approx(0.01)
    decibels = [{**one, "task": "denoise"} for one in (ours, same)]
    assert worse(*decibels) == pytest.approx(-0.01)  # more of them is better


def test_an_interval_is_of_the_mean_of_logarithms() -> None:
    assert interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))
    mean, low, high = interval([1.0, 4.0])
    assert (mean, low * high) == pytest.approx((2.0, 4.0))
    assert interval([1.5])[1] == 0.0  # one alone says nothing of it
    assert student(13) == student(12) > student(15)


def test_a_race_is_told_over_the_free_network_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [made_up("fp32", link="unthrottled", seed=seed, tta_s=tta) for seed, tta in enumerate((10.0, 20.0))]
    runs += [made_up("outer:ladder@2-1000", link="20mbit", seed=seed, tta_s=20.0) for seed in range(2)]
    runs += [made_up("outer(every=10):dense", link="20mbit", seed=0, tta_s=10.0)]
    runs += [made_up("torchft-diloco", link="20mbit", seed=0, tta_s=None, seconds=40.0)]
    monkeypatch.setattr(tables_of_outer, "runs", lambda name: runs)
    *_, cell = tables_of_outer.outer_race().splitlines()
    assert cell.endswith("20 Mbit/s | 1.00 | 1.41 [1.00-2.00] | over 4.00 |")
    *_, over_fixed, over_torchft = tables_of_outer.outer_judged().splitlines()
    assert over_fixed.endswith("| 1 | 2.00 |  | 2.00, 2.00 |  |")
    assert over_torchft.endswith("| 0 |  |  |  | 1 |"), "a run that was given up has no ratio"


def test_random_times_are_told_apart_by_whether_the_link_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [made_up("outer:ladder@2-1000", link=link, seed=seed) for link in ("20mbit", CHANGING) for seed in range(2)]
    runs += [made_up(MATCHED_PREFIX + "outer:ladder@2-1000", link="20mbit", seed=seed, tta_s=40.0) for seed in range(2)]
    runs += [made_up(MATCHED_PREFIX + "outer:ladder@2-1000", link=CHANGING, seed=seed, tta_s=80.0) for seed in range(2)]
    monkeypatch.setattr(tables_of_outer, "runs", lambda name: runs)
    *_, changes, does_not = tables_of_outer.outer_judged().splitlines()
    assert "| 1 | 0.25 |  | 0.25, 0.25 |" in changes
    assert "| 1 | 0.50 |" in does_not
