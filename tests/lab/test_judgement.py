# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How an adaptive method is judged against the best static one."""

import pytest

from tests.lab.made_up_runs import made_up
from tests.measure.judgement import best_static, table, verdicts


def test_the_best_is_that_of_the_lowest_median_and_misses_count_as_never() -> None:
    runs = [made_up("fp16", seed=seed, tta_s=30.0) for seed in range(3)]
    runs += [made_up("topk@10", seed=seed, tta_s=tta) for seed, tta in enumerate((10.0, None, None))]
    runs += [made_up("gravac:topk", seed=0, tta_s=1.0)]
    (found,) = best_static(runs).values()
    assert found == "fp16"
    (found,) = best_static(runs, among=("topk@10",)).values()
    assert found == "topk@10"


def test_ratios_are_paired_by_seed_and_a_run_that_missed_counts_with_its_time() -> None:
    runs = [made_up("fp16", seed=seed, tta_s=20.0) for seed in (10, 11, 12)]
    runs += [made_up("gravac:topk", seed=10, tta_s=20.0), made_up("gravac:topk", seed=11, tta_s=22.0)]
    runs += [made_up("gravac:topk", seed=12, tta_s=None, seconds=40.0), made_up("gravac:topk", seed=13, tta_s=1.0)]
    runs += [made_up(method, seed=14, tta_s=None) for method in ("fp16", "gravac:topk")]
    (cell,) = {(run.task, run.link) for run in runs}
    (told,) = verdicts(runs, {cell: "fp16"}, "gravac:topk")
    assert told.ratios == pytest.approx((1.0, 1.1, 2.0))
    assert told.ratio == pytest.approx(2.2 ** (1 / 3))
    assert told.low < told.ratio < told.high
    assert "1.00 1.10 2.00" in table([told])
    assert "of all 1 cells is 1.301. Number of cells whose whole interval lies above 1.05: 0." in table([told])
    assert verdicts(runs, {cell: "fp32"}, "gravac:topk") == []
