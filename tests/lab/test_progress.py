# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How the progress of a step is measured without a clock: schedules, rules, and how curves are compared."""

import math
from typing import Any

import pytest

from tests.measure.programs import PROGRAMS, shortened
from tests.measure.progress import (
    BELIEFS,
    NATIVE,
    OUTER,
    RANKS,
    Case,
    Way,
    best_rates,
    efficiency,
    factor,
    key,
    steps_apart,
    steps_to,
    train,
)


def test_the_learning_rate_rises_and_then_stays_or_falls_to_a_tenth() -> None:
    for schedule in ("constant", "cosine"):
        factors = [factor(schedule, step, 200) for step in range(200)]
        assert max(factors) <= 1 and factors[0] == pytest.approx(1 / 20) and factors[19] == 1
        assert factors[:20] == sorted(factors[:20])
        assert factors[20:] == sorted(factors[20:], reverse=True)
        assert factors[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)


def test_rules_exchange_more_rarely_or_more_often_as_the_learning_rate_falls() -> None:
    fixed, grows, falls = (Way(every=10, rule=rule) for rule in ("fixed", "grows", "falls"))
    rates = [1.0, 0.7, 0.5, 0.3, 0.1]
    assert [steps_apart(fixed, at, 0.5) for at in rates] == [10] * 5
    assert [steps_apart(grows, at, 0.5) for at in rates] == [10, 10, 10, 27, 250]
    assert [steps_apart(falls, at, 0.5) for at in rates] == [20, 14, 10, 6, 2]
    assert steps_apart(falls, 1.0, 0.8) == 1


def row(curve: list[tuple[int, float]], way: Way = NATIVE, rate: float = 0.1, **more: Any) -> dict[str, Any]:
    case = Case("glyphs", "cosine", rate, way, 0, curve[-1][0])
    return {**case._asdict(), "way": way._asdict(), "curve": curve, "higher_is_better": False, **more}


NATIVE_ROW = row([(step, 4.0 - step / 100) for step in range(10, 101, 10)])


def test_efficiency_is_native_steps_to_the_same_loss_without_those_of_settling() -> None:
    apart = row([(80, 3.4), (100, 3.3)], Way(every=10))
    assert efficiency(apart, NATIVE_ROW, settled=False) == pytest.approx(60 / 80)
    assert efficiency(apart, NATIVE_ROW) == pytest.approx((70 - 20) / (100 - 20))


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
    for way in (*OUTER, *BELIEFS):
        case = Case("glyphs", "cosine", 0.1, way, 0, 100)
        assert key({**case._asdict(), "way": way._asdict(), "seconds": 1}) == case
    names = [str(way) for way in dict.fromkeys((*OUTER, *BELIEFS))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "way",
    [NATIVE, Way("topk", 10.0), Way(every=5, delay=2), Way(every=5, rate=0.7), Way(every=5, rule="falls")],
    ids=str,
)
def test_each_kind_of_way_trains_and_settles(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.measure.progress.POINTS", 4)
    program = shortened(PROGRAMS["tokens"], 20)
    came = train((Case("tokens", "cosine", program.rates[1], way, 0, program.steps), None))
    steps = [step for step, _ in came["curve"]]
    assert steps == sorted(steps) and steps[-1] == 20 and all(math.isfinite(value) for _, value in came["curve"])
    assert way == NATIVE or len(steps) == 2
    assert "exchanges" not in came or came["exchanges"] >= 3


def test_a_delay_of_no_steps_and_a_rule_that_is_fixed_train_alike() -> None:
    """Outer steps by the product, and by averaging weights with two lines, are the same training."""
    program = shortened(PROGRAMS["tokens"], 20)
    fixed, by_rule = (
        train((Case("tokens", "constant", program.rates[1], way, 0, program.steps), None))["curve"]
        for way in (Way(every=6), Way(every=6, rule="grows"))
    )
    assert [step for step, _ in fixed] == [step for step, _ in by_rule]
    for (_, one), (_, other) in zip(fixed, by_rule, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_every_program_trains_two_ranks_on_other_data() -> None:
    for name, program in PROGRAMS.items():
        if name == "nanogpt":
            with pytest.raises(ValueError, match="clone"):
                program.make(0, program.rates[2], None)
            continue
        task = program.make(0, program.rates[2], None)
        first, second = (task.batch(0, rank) for rank in range(RANKS))
        assert not all(map(_equal, _tensors(first), _tensors(second)))


def _tensors(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, tuple) else [batch]


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all())
