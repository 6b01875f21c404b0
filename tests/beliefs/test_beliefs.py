# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is believed to be worth, how sure that is, and what decisions make of it."""

import itertools
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac import SettingsError, powersgd, quantize, topk
from gravac.beliefs import SURE, Belief, Beliefs, beliefs_in_force, shipped_beliefs, use_beliefs
from gravac.beliefs.tables import CompressorBeliefs, Doubt
from gravac.candidate import Candidate, Forecast
from gravac.compressors import COMPRESSORS
from gravac.engine.admission import efficiency_belief
from gravac.modes.outer import candidates

EFFICIENCY = st.floats(0.05, 1.0)
DEVIATION = st.floats(0.0, 1.0)

CERTAIN = Beliefs(outer={2: ((1.0, 1.0),)}, delay=((1.0, 1.0),))


def test_a_step_makes_its_least_progress_or_more_as_often_as_is_said() -> None:
    draw = random.Random(0)
    belief = Belief(0.8, 0.3)
    drawn = [belief.efficiency * math.exp(draw.gauss(0, belief.deviation)) for _ in range(20_000)]
    assert sum(one >= belief.lower_bound for one in drawn) / len(drawn) == pytest.approx(SURE, abs=0.01)


@given(EFFICIENCY, DEVIATION, DEVIATION)
def test_the_less_sure_a_belief_is_the_less_it_counts(efficiency: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert Belief(efficiency, more).lower_bound <= Belief(efficiency, less).lower_bound <= efficiency
    assert Belief(efficiency).lower_bound == efficiency


@given(EFFICIENCY, DEVIATION, EFFICIENCY, DEVIATION, st.floats(0.0, 4.0))
def test_products_and_powers_keep_medians_and_are_no_surer(
    first: float, doubt: float, second: float, other: float, power: float
) -> None:
    product = Belief(first, doubt).times(Belief(second, other))
    assert product.efficiency == first * second
    assert max(doubt, other) <= product.deviation <= doubt + other + 1e-9
    raised = Belief(first, doubt).power(power)
    assert raised.efficiency == pytest.approx(first**power) and raised.deviation == pytest.approx(power * doubt)


@given(st.floats(0, 1), st.floats(0, 2), EFFICIENCY, EFFICIENCY)
def test_the_more_is_believed_to_be_lost_the_more_is_doubted(
    least: float, of_loss: float, one: float, two: float
) -> None:
    doubt, (low, high) = Doubt(least=least, of_loss=of_loss), sorted((one, two))
    assert doubt.deviation(low) >= doubt.deviation(high) >= least * (1 - 1e-12)


def test_every_compressor_has_a_belief_and_what_is_lossy_is_doubted() -> None:
    for name, compressor in COMPRESSORS.items():
        for cf in (2.0, 8.0, 32.0, 100.0):
            belief = efficiency_belief(compressor.profile(cf, shapes=[(256, 512)]))
            assert 0 < belief.lower_bound <= belief.efficiency <= 1, name
            assert belief.deviation > 0 or compressor.profile(cf).kind is None, name


def test_float32_is_certain_and_16_bit_nearly() -> None:
    single, half = (
        efficiency_belief(COMPRESSORS["dense"](dtype=dtype).profile(1.0)) for dtype in ("float32", "bfloat16")
    )
    assert single == Belief(1.0) and 0.95 < half.lower_bound < 1


def test_beliefs_that_come_with_gravac_are_data_that_says_where_it_is_from() -> None:
    assert shipped_beliefs().source
    folder = Path(shipped_beliefs.__wrapped__.__code__.co_filename).parent
    assert (folder / "shipped.json").is_file()
    assert set(shipped_beliefs().compressors) <= set(COMPRESSORS)
    assert {"16 bit", "quantized", "sparse", "low rank", "not measured", "outer", "delay"} == set(
        shipped_beliefs().doubts
    )


def test_a_class_may_say_what_its_steps_are_worth_and_is_doubted_as_what_was_not_measured() -> None:
    class Own(type(topk)):  # type: ignore[misc]
        efficiency_points = ((1.0, 1.0), (10.0, 0.9))

    profile = Own().profile(10.0)
    assert (profile.efficiency, profile.kind) == (0.9, "not measured")
    assert profile.efficiency_apart == topk.profile(10.0).efficiency_apart


def test_a_compressor_that_nothing_is_known_of_is_guessed_with_care() -> None:
    guessed = shipped_beliefs().of_compressor("no such compressor")
    assert guessed == CompressorBeliefs() and guessed.kind == "not measured"


def test_low_rank_is_believed_by_its_rank() -> None:
    ranks = [powersgd(rank).profile(32.0, shapes=[(512, 512)]).efficiency for rank in (1, 2, 4, 8, 16, 32)]
    assert ranks == sorted(ranks) and ranks[0] < 0.5 < ranks[-1]


@given(st.integers(2, 100), st.integers(0, 50), st.integers(2, 64), st.floats(0.2, 1.0), DEVIATION)
def test_outer_steps_are_believed_less_than_dense_ones_and_are_doubted_more(
    every: int, delay: int, world: int, efficiency: float, deviation: float
) -> None:
    forecast = Forecast(Candidate("hook", "any", 10.0), 10.0, efficiency, deviation=deviation)
    outer = candidates.outer_efficiency(forecast, every, delay, world)
    assert 0 <= outer.efficiency <= efficiency + 1e-4 and outer.deviation >= deviation - 1e-4
    assert outer.lower_bound < forecast.least_efficiency + 1e-4


def test_other_beliefs_may_be_in_force_for_a_while() -> None:
    before = beliefs_in_force()
    with use_beliefs(CERTAIN):
        assert beliefs_in_force() is CERTAIN
        assert quantize.profile(10.0).efficiency == pytest.approx(0.4), "a careful guess, since nothing is known of it"
        assert efficiency_belief(quantize.profile(8.0)).deviation == 0
        with pytest.raises(RuntimeError, match="stop"), use_beliefs(before):
            raise RuntimeError("stop")
        assert beliefs_in_force() is CERTAIN
    assert beliefs_in_force() is before


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"outer": {}}, r"outer: give points \(number of steps, efficiency\) for at least one number of ranks"),
        ({"outer": {2: ((5.0, 1.0), (2.0, 1.0))}}, r"outer: the first numbers of \(\(5.0, 1.0\), .* do not ascend"),
        (
            {"outer": {2: ((5.0, 0.0),)}},
            "or a second number is not above 0; sort the points",
        ),
        ({"doubts": {"quantized": {"least": -1.0}}}, "doubts.quantized: least: Input should be greater"),
        ({"doubts": {"guessed": {"least": 1.0}}}, "doubts.guessed"),
        ({"compressors": {"topk": {"by_cf": ((1.0, 1.0),), "colour": 1}}}, "compressors.topk: colour: unknown setting"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_wrong_tables_are_refused_by_field(wrong: dict[str, object], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        Beliefs(**{"outer": {2: ((1.0, 1.0),)}, "delay": ((1.0, 1.0),), **wrong})


def test_points_between_are_between() -> None:
    for points in (shipped_beliefs().delay, *shipped_beliefs().outer.values()):
        shares = [share for _, share in points]
        assert all(0 < share <= 1 for share in shares)
        for (low, _), (high, _) in itertools.pairwise(points):
            assert low < high
