# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How measurements of the three ways to run a step are judged and shown; of made-up rows, nothing is measured."""

import math
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from gravac.lab.links.link import parse_link
from tests.measure import changing_link, fast_links, going_over, nanogpt, nanogpt_links, native, slow_links
from tests.measure.racing import modes_of, runs_of, two_way
from tests.measure.resuming import Book, run_in


def turn(step: int, mode: str, cf: float, every: int = 1) -> dict[str, Any]:
    return {"step": step, "mode": mode, "compressor": "dense", "cf": cf, "every": every, "delay": 0}


def test_steps_are_counted_by_what_ran() -> None:
    turns = [turn(0, "native", 1.0), turn(8, "native", 1.0), turn(10, "outer", 2.0, 10), turn(40, "native", 1.0)]
    assert runs_of(turns, 50) == {"native, dense 1": 20, "outer, dense 2, every 10, delay 0": 30}
    assert modes_of(turns, 30) == {"native": 10, "outer": 20}
    assert modes_of([], 30) == {}  # a method of torch's of which no CF is known


def test_the_two_way_interval_is_a_point_if_all_are_alike_and_wide_if_cells_differ() -> None:
    assert two_way([[math.log(2)] * 3] * 4) == pytest.approx((2, 2, 2))
    mean, low, high = two_way([[0.0] * 5, [math.log(4)] * 5])
    assert mean == pytest.approx(2) and low == pytest.approx(1) and high == pytest.approx(4)


def raced(pair: str, static: bool, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "part": "race", "task": "lstm", "link": "1gbit", "seed": seed, "pair": pair, "static": static,
        "seconds": seconds, "reached": True, "modes": {"native": 30, "hook": 10},
    }  # fmt: skip


def test_each_setting_is_compared_with_its_own_static_run_of_the_seed() -> None:
    rows = [
        {"part": "pick", "task": "lstm", "link": "1gbit", "method": name, "seed": seed, "seconds": s, "reached": there}
        for name, s, there in (("fp32", 2.0, True), ("fp16", 1.0, False))
        for seed in fast_links.PICKING
    ]
    for seed, factor in ((10, 1.1), (11, 1.21)):
        for pair in fast_links.ADAPTIVE:
            rows += [raced(pair, True, seed, 10.0), raced(pair, False, seed, 10.0 * factor)]
    assert fast_links.best_statics(rows) == {("lstm", "1gbit"): "fp32"}
    table = fast_links.table(rows)
    assert "| `adaptive` | lstm | 1gbit | `fp32` | 1.154 |" in table
    assert "1.10 1.21" in table and "native 75 %, hook 25 %" in table
    assert "The static method over itself: 1.000 [1.000-1.000]." in table


def test_on_slow_links_each_cell_is_listed_also_where_the_loss_was_not_reached() -> None:
    rows = [
        {"part": "race", "task": task, "link": "20mbit", "seed": 0, "native": 160, "method": method, "seconds": seconds,
         "reached": task == "lstm" or method == slow_links.HOOK, "modes": {"hook": 10, "outer": 30}}
        for task in ("lstm", "denoise")
        for method, seconds in ((slow_links.HOOK, 10.0), (slow_links.OUTER, 6.0))
    ]  # fmt: skip
    table = slow_links.table([{"part": "target", "task": "lstm"}, *rows])
    assert "| lstm | 20mbit | 0 | 10.0 | 6.0 | 0.60 | outer 75 %, hook 25 % |" in table
    assert "| denoise | 20mbit | 0 | 10.0 | never | never |" in table


def test_native_is_compared_cycle_by_cycle() -> None:
    seconds = {"native": 0.1, "settled": 0.101, "hook": 0.11, "again": 0.1}
    row = {"task": "lstm", "mean_s": seconds, "median_s": seconds}
    assert "| lstm | 100.0 ms | 1.010 [1.010-1.010] |" in native.table([row, row])


def test_thirds_are_those_of_natives_time_on_the_changing_link() -> None:
    link, seconds = changing_link.schedule(0.1, 1.0, 210)
    assert (link, seconds) == ("1gbit,10s:20mbit,20s:1gbit", 30.0)
    assert [phase.at_seconds for phase in parse_link(link).phases] == [0, 10, 20]


def test_the_changing_link_is_judged_by_the_best_fixed_method() -> None:
    times = {"native": 30.0, "hook": 20.0, "outer, every 10": 25.0, "every=1": 21.0, "every=(1, 100)": 20.0}
    change = {"step": 3, "before": "native", "after": "hook", "seconds": 0.01, "wire_bytes": 1200}
    rows = [
        {"part": "race", "program": "charlm", "seed": seed, "name": name, "seconds": seconds, "reached": True,
         "link": "1gbit,10s:20mbit,20s:1gbit", "changes": [change] if name == "every=1" else []}
        for name, seconds in times.items()
        for seed in (0, 1)
    ]  # fmt: skip
    table = changing_link.table(rows)
    assert "| charlm | `every=1` | 21.0 21.0 | 1.05 [1.05-1.05] | 0.70 [0.70-0.70] |" in table
    assert "the best fixed method is `hook`" in table
    assert "| charlm | `every=1` | native to hook | 1 1 | 0.0100 | 0.0100 | 1,200 |" in changing_link.changes_table(
        rows
    )


CURVE = [(0, 4.0, 0.0), (50, 3.0, 5.0), (100, 2.0, 11.0)]


def test_seconds_to_a_loss_are_linear_between_evaluations() -> None:
    assert nanogpt_links.reached(CURVE, 2.5) == (8.0, True)
    assert nanogpt_links.reached(CURVE, 1.0) == (11.0, False)
    assert nanogpt_links.target_of(CURVE, 100) == pytest.approx(2.4)  # after 80 steps
    with pytest.raises(ValueError, match="no evaluation after 160 steps"):
        nanogpt_links.target_of(CURVE, 200)


def test_nanogpt_is_pooled_over_links_and_seeds() -> None:
    about = {"native": 100, "curve": CURVE, "turns": [], "mode": "hook", "changes": []}
    rows = [{"method": nanogpt.NATIVE, "seed": seed, "link": "unthrottled", **about} for seed in (0, 1)]
    for link in nanogpt_links.LINKS:
        for method in (nanogpt_links.EVERY_1, nanogpt_links.EVERY_100):
            rows += [{"method": method.name, "seed": seed, "link": link, **about} for seed in (0, 1)]
    table = nanogpt_links.table(rows)
    assert "| 20mbit | `every=1` | 8.6 8.6 | hook | 0.0 a run |" in table
    assert "pooled over both links: 1.000 [1.000-1.000]" in table


@pytest.mark.parametrize("method", nanogpt_links.METHODS, ids=lambda method: method.name)
def test_the_clock_is_put_where_its_passages_stand_once(method: nanogpt.Method) -> None:
    made = (*nanogpt.edits(method, 0), *nanogpt_links.clock_edits())
    program = "\n".join(edit.old for edit in made if edit.old != nanogpt.MODEL) + f"\n    model = {nanogpt.MODEL}"
    assert "began += time.time() - paused" in nanogpt.patched(program, made)


def test_what_held_of_going_over_is_shown_by_link() -> None:
    change = {"step": 12, "before": "native", "after": "outer", "seconds": 0.01, "bytes": 10, "tensor_bytes": 500}
    rows = [
        {"part": "resume", "link": "5mbit", "resumed_bit_for_bit": True},
        {"part": "changes", "link": "5mbit", "equal_whenever_one": False, "model_bytes": 100, "changes": [change]},
    ]
    table = going_over.held_table(rows)
    assert "| a run resumed within a round has the same bits | yes |" in table
    assert "| ranks are equal in each step of other modes | no |" in table
    assert "| 5mbit | 12 | native to outer | 0.0100 | 0.10 | 5.0 |" in going_over.changes_table(rows)


def test_a_measurement_goes_on_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    Book(path).add({"seed": 0, "seconds": 1.0})
    again = Book(path)
    found = again.find(seed=0)
    assert found is not None and found["seconds"] == 1.0
    assert again.find(seed=1) is None


def test_cases_run_until_time_is_up_and_each_has_its_row_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    for seeds, minutes_are_up, ran_all in (([0, 1, 2], True, False), ([1, 2], False, True)):
        with ThreadPool(1) as pool:
            book = Book(path)
            assert run_in(pool, lambda seed: {"seed": seed}, seeds, book, lambda up=minutes_are_up: up) is ran_all
    assert [row["seed"] for row in Book(path).rows] == [0, 1, 2]
    assert capsys.readouterr().out.splitlines()[-1] == '[2/2, about 0 minutes left] {"seed": 2}'
