# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the steps of a window come to."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.controllers import Measurement
from gravac.controllers.window import GAP_MEDIANS, SETTLING, Window
from tests.controllers.script import topk

pytestmark = pytest.mark.timeout(60)

RAN = topk(10.0)


def measured(
    seconds: float = 0.1, error: float = 1.0, energy: float = 2.0, shadow: tuple[tuple[float, float], ...] = ()
) -> Measurement:
    return Measurement(0, RAN, seconds, 10.0, error, energy, shadow)


def window(*steps: Measurement, settling: int = 0) -> Window:
    full = Window(RAN, settling=settling)
    for step in steps:
        full = full.add(step)
    return full


def test_throughput_is_from_the_median_not_the_mean() -> None:
    assert window(*(measured(s) for s in (0.1, 0.1, 0.1, 0.2, 0.4))).t_system == pytest.approx(100)


def test_settling_steps_count_but_are_not_timed_and_not_in_the_gain() -> None:
    slow = [measured(9.0, error=2.0)] * SETTLING
    full = window(*slow, measured(0.1), settling=SETTLING)
    assert full.steps == SETTLING + 1
    assert full.t_system == pytest.approx(100)
    assert full.gain == 0.5


def test_settling_steps_are_used_when_there_is_nothing_else() -> None:
    full = window(measured(0.1, error=0.5), settling=SETTLING)
    assert full.gain == 0.75
    assert full.t_system == pytest.approx(100)


def test_shadow_steps_are_not_timed_unless_there_is_nothing_else() -> None:
    assert window(measured(9.0, shadow=((20.0, 1.0),)), measured(0.1)).t_system == pytest.approx(100)
    assert window(measured(0.2, shadow=((20.0, 1.0),))).t_system == pytest.approx(50)


def test_without_a_step_time_there_is_no_throughput() -> None:
    assert window(measured(float("nan"))).t_system is None


def test_gaps_are_left_out_of_the_median() -> None:
    # with the gaps the median would be 0.2, without them 0.15
    times = (0.1, 0.15, 0.2, 0.2 * GAP_MEDIANS + 1, 0.2 * GAP_MEDIANS + 2)
    assert window(*(measured(s) for s in times)).t_system == pytest.approx(10 / 0.15)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_impossible_times_are_left_out(seconds: float) -> None:
    assert window(measured(seconds), measured(0.1)).t_system == pytest.approx(100)


def test_steps_of_another_candidate_do_not_count() -> None:
    other = Measurement(0, topk(20.0), 9.0, 10.0, 2.0, 2.0)
    assert window(other, measured()) == window(measured())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_steps_whose_gradient_was_not_finite_do_not_count(bad: float) -> None:
    assert window(measured(error=bad), measured(energy=bad), measured()) == window(measured())


def test_gain_is_a_ratio_of_sums() -> None:
    full = window(measured(error=0.0, energy=9.0), measured(error=1.0, energy=1.0))
    assert full.gain == pytest.approx(0.9)  # the mean of the ratios would be 0.5
    summary = full.summary("x")
    assert (summary.gain_low, summary.gain_high) == (0.0, 1.0)


def test_gain_is_1_when_there_was_nothing_to_send() -> None:
    assert window(measured(error=0.0, energy=0.0)).gain == 1


def test_a_negative_gain_is_told_and_gives_no_throughput() -> None:
    summary = window(measured(error=6.0)).summary("x")
    assert summary.gain == -2
    assert summary.t_compression == 0


def test_shadow_gain_is_a_ratio_of_sums_of_the_steps_that_had_it() -> None:
    full = window(
        measured(shadow=((20.0, 1.0), (40.0, math.nan))),
        measured(energy=8.0, shadow=((20.0, 4.0), (40.0, 6.0))),
        measured(),
    )
    assert full.shadow_gain(20.0) == 0.5
    assert full.shadow_gain(40.0) == 0.25
    assert full.shadow_gain(160.0) is None


def test_doubt_is_the_standard_error_of_a_median() -> None:
    """Against medians of many windows of the same law."""
    draw = random.Random(0)
    windows = [window(*(measured(draw.gauss(0.1, 0.005)) for _ in range(25))) for _ in range(400)]
    medians = [statistics.median(full.seconds) for full in windows]
    assert statistics.fmean(full.standard_error_s for full in windows) == pytest.approx(
        statistics.stdev(medians), rel=0.15
    )


def test_steps_that_are_alike_or_too_few_leave_no_doubt() -> None:
    assert window(*(measured(0.1) for _ in range(5))).standard_error_s == 0
    assert window(measured(0.1), measured(0.2)).standard_error_s == 0


def test_of_two_unclean_steps_the_faster_counts() -> None:
    """The first step of a trial may contain an evaluation; a trial may be given up after its second step."""
    assert window(measured(9.0), measured(0.1), settling=SETTLING).t_system == pytest.approx(100)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.floats(0.1, 10))
def test_times_above_a_limit_are_dropped_unless_all_are(times: list[float], limit_s: float) -> None:
    some = window(*(measured(seconds) for seconds in times))
    kept = [seconds for seconds in times if seconds <= limit_s]
    assert some.without_times_above(limit_s).seconds == tuple(kept or times)
    assert some.without_times_above(math.inf) == some
