# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The demo's link suits the machine, and what is expected on other links follows from the time that a step computes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.lab.advise import shapes_of
from gravac.lab.demo.usual_links import SLOW_RATES_BPS, StepWork
from gravac.lab.tasks import make

pytestmark = pytest.mark.timeout(60)

SHAPES = tuple(shapes_of(make("charlm").model()))

RATIO = re.compile(r"gravac (\d\S*) ")
"""How many times as fast as float16 a line expects gravac to be."""


def step_work(compute_s: float, workers: int = 2) -> StepWork:
    return StepWork(SHAPES, compute_s, workers, 14e9)


@given(st.floats(0.001, 10), st.integers(2, 8))
def test_float16_is_exchanged_about_three_times_as_long_as_a_step_computes(compute_s: float, workers: int) -> None:
    work = step_work(compute_s, workers)
    ratio = work.exchange_ratio(work.suitable_rate)
    assert work.suitable_rate in SLOW_RATES_BPS
    if work.exchange_ratio(min(SLOW_RATES_BPS)) < 3:
        assert work.suitable_rate == min(SLOW_RATES_BPS), "a very slow machine gets the slowest link"
    elif work.exchange_ratio(max(SLOW_RATES_BPS)) > 3:
        assert work.suitable_rate == max(SLOW_RATES_BPS)
    else:
        assert 3 / 1.6 < ratio < 3 * 1.6


def test_a_slower_machine_gets_a_slower_link() -> None:
    assert [step_work(compute_s).suitable_rate for compute_s in (0.05, 0.11, 0.32, 0.7)] == [200e6, 100e6, 50e6, 20e6]


def test_the_line_says_which_link_and_why() -> None:
    work = step_work(0.32)
    assert work.describe_choice(work.suitable_rate, paced=False, is_given=False) == (
        "A step computes 320 ms here; over 50 Mbit/s float16's exchange takes 2.0 times as long, so the demo emulates "
        "50 Mbit/s."
    )
    assert "so the demo imitates 50 Mbit/s" in work.describe_choice(work.suitable_rate, paced=True, is_given=False)
    assert work.describe_choice(1e8, paced=False, is_given=True) == (
        "A step computes 320 ms here; over 100 Mbit/s, the given rate, float16's exchange takes 1.0 times as long."
    )


def test_other_links_are_predicted_and_dense_is_named_if_dense_is_best() -> None:
    heading, *lines = step_work(0.1).describe_expectations(100e6)
    assert "predicted and not measured" in heading and "100 ms" in heading
    rates = [line.split(":")[0].strip() for line in lines]
    assert rates == ["10 Mbit/s", "20 Mbit/s", "50 Mbit/s", "200 Mbit/s", "1 Gbit/s"]
    assert re.search(r"gravac \d\S* \(\d\S* to \d\S*\) times as fast as float16, with \S.* fewer bytes\)$", lines[0])
    assert re.search(r"dense float(16|32) is best", lines[-1])
    assert all("is best" in line for line in step_work(30.0).describe_expectations(10e6)[1:])


def test_the_slower_the_link_the_more_gravac_is_expected_to_bring() -> None:
    ratios = [float(found[1]) for line in step_work(0.1).describe_expectations(1e9) if (found := RATIO.search(line))]
    assert len(ratios) >= 3 and ratios == sorted(ratios, reverse=True)
