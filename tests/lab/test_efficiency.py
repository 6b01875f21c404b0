# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How efficiency is measured without a clock: schedules, how curves are compared, and each kind of way."""

import math
from typing import Any

import pytest

from gravac.lab.tasks import TASKS
from tests.measure.efficiency import (
    BELIEFS,
    NATIVE,
    RANKS,
    Case,
    Way,
    best_rates,
    efficiency,
    factor,
    key,
    steps_to,
    tidy,
    train,
)
from tests.measure.programs import PROGRAMS, shortened


def test_the_learning_rate_rises_and_then_stays_or_falls_to_a_tenth() -> None:
    for schedule in ("constant", "cosine"):
        factors = [factor(schedule, step, 200) for step in range(200)]
        assert max(factors) <= 1 and factors[0] == pytest.approx(1 / 20) and factors[19] == 1
        assert factors[:20] == sorted(factors[:20])
        assert factors[20:] == sorted(factors[20:], reverse=True)
        assert factors[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)


def row(curve: list[tuple[int, float]], way: Way = NATIVE, rate: float = 0.1, **more: Any) -> dict[str, Any]:
    case = Case("glyphs", "cosine", rate, way, 0, curve[-1][0])
    return {**case._asdict(), "way": way._asdict(), "curve": curve, "higher_is_better": False, **more}


NATIVE_ROW = row([(step, 4.0 - step / 100) for step in range(10, 101, 10)])


def test_efficiency_is_native_steps_to_the_same_loss_without_those_of_settling() -> None:
    apart = row([(80, 3.4), (100, 3.3)], Way(every=10))
    assert efficiency(apart, NATIVE_ROW) == pytest.approx((70 - 20) / (100 - 20))


def test_the_csv_has_a_line_for_each_run_beside_native_training_of_its_learning_rate() -> None:
    apart, elsewhere = (row([(80, 3.4), (100, 3.3)], Way(every=10), rate) for rate in (0.1, 0.3))
    (line,) = tidy([NATIVE_ROW, apart, elsewhere])
    assert (line["program"], line["label"], line["every"], line["gain"]) == ("glyphs", "dense", 10, "")
    assert line["efficiency"] == efficiency(apart, NATIVE_ROW)


def test_efficiency_lies_between_nothing_and_a_native_step() -> None:
    assert efficiency(row([(80, 3.0), (100, 2.5)], Way(every=10)), NATIVE_ROW) == 1
    assert efficiency(row([(80, 3.9), (100, 3.95)], Way(every=10)), NATIVE_ROW) == 0
    assert efficiency(row([(80, 3.0), (100, math.nan)], Way(every=10)), NATIVE_ROW) == 0


def test_a_metric_that_rises_is_compared_the_other_way() -> None:
    native = row([(50, 10.0), (100, 20.0)], higher_is_better=True)
    assert efficiency(row([(80, 12.0), (100, 14.0)], Way(every=10), higher_is_better=True), native) == pytest.approx(
        (70 - 20) / 80
    )


def test_a_noisy_curve_is_taken_at_its_lowest_so_far() -> None:
    noisy = [(10, 3.0), (20, 2.0), (30, 2.4), (40, 1.0)]
    reached = [steps_to(noisy, value) for value in (3.0, 2.5, 2.2, 1.5, 0.5)]
    assert reached == sorted(reached) and reached[3] == 30 and reached[-1] == math.inf


def test_the_best_rate_is_of_the_last_loss_and_has_a_neighbour_on_each_side() -> None:
    program = PROGRAMS["glyphs"]
    rows = [row([(90, 1.0), (100, last)], rate=rate) for rate, last in zip(program.rates, (3, 2, 1, 2, 3), strict=True)]
    assert best_rates(rows, program, "glyphs", "cosine") == program.rates[1:4]
    rows = [row([(90, 1.0), (100, last)], rate=rate) for rate, last in zip(program.rates, (1, 2, 3, 4, 5), strict=True)]
    assert best_rates(rows, program, "glyphs", "cosine") == program.rates[:3]
    diverged = [row([(90, 1.0), (100, math.nan if rate > 0.05 else 2.0)], rate=rate) for rate in program.rates]
    assert best_rates(diverged, program, "glyphs", "cosine")[1] <= 0.05


def test_a_record_says_which_case_it_is_of() -> None:
    for way in BELIEFS:
        case = Case("glyphs", "cosine", 0.1, way, 0, 100)
        assert key({**case._asdict(), "way": way._asdict(), "seconds": 1}) == case
    assert len(set(map(str, BELIEFS))) == len(BELIEFS)


@pytest.mark.parametrize(
    "way",
    [NATIVE, Way("dense", 2.0), Way("topk", 10.0), Way(every=2), Way("quantize(2)", 16.0, every=2, delay=1)],
    ids=str,
)
def test_each_kind_of_way_trains_and_settles(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.measure.efficiency.POINTS", 4)
    program = shortened(PROGRAMS["tokens"], 8)
    came = train((Case("tokens", "cosine", program.rates[1], way, 0, program.steps), None))
    steps = [step for step, _ in came["curve"]]
    assert steps == sorted(steps) and steps[-1] == 8 and all(math.isfinite(value) for _, value in came["curve"])
    assert way == NATIVE or len(steps) == 2


def test_every_program_trains_two_ranks_on_other_data() -> None:
    for name, program in PROGRAMS.items():
        if name == "nanogpt":
            with pytest.raises(ValueError, match="clone"):
                program.make(0, program.rates[2], None)
            continue
        task = program.make(0, program.rates[2], None)
        if name in TASKS:  # whose batches are tested with the tasks
            assert (task.name, task.seed, task.learning_rate) == (name, 0, program.rates[2])
            continue
        first, second = (task.batch(0, rank) for rank in range(RANKS))
        assert not all(map(_equal, _tensors(first), _tensors(second)))


def _tensors(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, tuple) else [batch]


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all())
