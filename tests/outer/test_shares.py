# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks of unequal speed: each one's steps and weight, by what the ranks agreed on."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gravac import SettingsError, merge_states
from gravac.modes.outer.shares import EQUAL_SPEED, steps_of, weights_of
from gravac.telemetry import page
from gravac.telemetry.records import Record, StepRecord
from gravac.telemetry.tensorboard import TensorBoardSink
from tests.outer.ranks import (
    FOUR_BITS,
    MOMENTUM,
    SGD,
    Ranks,
    equal,
    flat,
    inner_step,
    network,
    saved,
    with_statistics,
)

TIMES = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=8)


@given(length=st.integers(1, 100), seconds=TIMES, each=st.data())
def test_weights_sum_to_the_number_of_ranks(length: int, seconds: list[float], each: Any) -> None:
    steps = steps_of(length, seconds)
    samples = each.draw(st.lists(st.integers(1, 512), min_size=len(steps), max_size=len(steps)))
    weights = weights_of(steps, samples)
    assert sum(weights) == pytest.approx(len(seconds))
    assert all(weight > 0 for weight in weights)


@given(length=st.integers(1, 100), seconds=TIMES)
def test_steps_are_in_proportion_to_speed(length: int, seconds: list[float]) -> None:
    steps = steps_of(length, seconds)
    mean = sum(1 / one for one in seconds) / len(seconds)
    for number, each in zip(steps, seconds, strict=True):
        assert number == length or number == max(1, round(length / each / mean))


@given(
    length=st.integers(1, 100),
    noise=st.lists(st.floats(1 - EQUAL_SPEED / 3, 1 + EQUAL_SPEED / 3), min_size=1, max_size=8),
)
def test_speeds_that_are_about_equal_count_as_equal(length: int, noise: list[float]) -> None:
    assert steps_of(length, noise) == (length,) * len(noise)
    assert weights_of(steps_of(length, noise), [32] * len(noise)) == (1.0,) * len(noise)


def test_a_rank_of_a_third_of_the_speed_makes_a_third_of_the_steps_two_rounds_later() -> None:
    trained = Ranks(2, every=10, by_speed=True, **FOUR_BITS).at_speeds([0.1, 0.3])
    assert trained.train_rounds(2).outer[0].steps_of_ranks == (10, 10)
    assert trained.train_rounds(1).outer[1].steps_of_ranks == (15, 5)
    assert trained.steps == [35, 25]
    assert [outer._state.shares.weight for outer in trained.outer] == [1.5, 0.5]
    assert equal(trained.anchors)


def test_steps_of_each_rank_are_told_and_drawn(tmp_path: Path) -> None:
    told: list[Record] = []
    trained = Ranks(2, every=10, by_speed=True, sinks=[told.append], **FOUR_BITS).at_speeds([0.1, 0.3])
    for outer in trained.train_rounds(5).outer:
        outer.close()
    rounds = [record for record in told if isinstance(record, StepRecord)]
    assert {record.steps_of_ranks for record in rounds if record.step < 20} == {(10, 10)}
    assert {record.steps_of_ranks for record in rounds if record.step >= 20} == {(15, 5)}
    sink = TensorBoardSink(tmp_path)
    for record in {record.step: record for record in rounds}.values():  # of one rank
        sink(record)
    sink.close()
    drawn = EventAccumulator(str(tmp_path)).Reload()
    lines = [[point.value for point in drawn.Scalars(f"{page.STEPS_OF_RANKS}{rank}")] for rank in range(2)]
    assert (lines[0][0], lines[0][-1], lines[1][0], lines[1][-1]) == (10, 15, 10, 5)
    (_, chart) = page.layout(may_run_outer=True)["gravac: compression factor and gain"]["Steps of each rank in a round"]
    assert all(re.match(chart[0], f"{page.STEPS_OF_RANKS}{rank}") for rank in (0, 1, 12))


def test_the_anchor_goes_to_the_mean_over_samples() -> None:
    trained = Ranks(2, every=4, samples=16)
    for outer, samples in zip(trained.outer, (24, 8), strict=True):
        outer._state.shares._samples_per_step = samples
    weights = trained.train(8).anchors[0]
    own = [_alone(weights, rank, 8) for rank in range(2)]
    trained.train(4)
    torch.testing.assert_close(trained.anchors[0], 0.75 * own[0] + 0.25 * own[1])


def _alone(weights: torch.Tensor, rank: int, first: int) -> torch.Tensor:
    module = network()
    torch.nn.utils.vector_to_parameters(weights.clone(), module.parameters())
    inner = SGD(module.parameters())
    for step in range(first, first + 4):
        inner_step(module, inner, step, rank)
    return flat(module)


@example(seconds=[0.1, 0.3], every=4, fragments=3, delay=2, make=with_statistics)
@example(seconds=[0.1, 0.12, 0.55], every=6, fragments=1, delay=3, make=network)
@given(
    seconds=st.lists(st.sampled_from([0.1, 0.12, 0.3, 0.55]), min_size=1, max_size=3),
    every=st.integers(1, 6),
    fragments=st.integers(1, 3),
    delay=st.integers(0, 3),
    make=st.sampled_from([network, with_statistics]),
)
def test_anchors_are_the_same_on_all_ranks(
    seconds: list[float], every: int, fragments: int, delay: int, make: Any
) -> None:
    how: dict[str, Any] = {"every": every, "fragments": fragments, "delay": delay, "outer": MOMENTUM, "make": make}
    trained = Ranks(len(seconds), by_speed=True, **how, **FOUR_BITS).at_speeds(seconds).train_rounds(5)
    for outer in trained.outer:
        outer._rounds.wait_for_exchanges()
    anchors = [{**outer._anchors, **outer._buffers.anchors}.values() for outer in trained.outer]
    assert all(map(equal, zip(*anchors, strict=True)))
    assert {outer.rounds for outer in trained.outer} == {5}
    assert len({outer.steps_of_ranks for outer in trained.outer}) == 1


@pytest.mark.parametrize("delay", [0, 2])
def test_equally_fast_ranks_come_to_the_same_bits_as_without(delay: int) -> None:
    how: dict[str, Any] = {"every": 5, "fragments": 2, "delay": delay, **FOUR_BITS}
    without = Ranks(3, **how).train(20)
    by_speed = Ranks(3, by_speed=True, samples=16, **how).at_speeds([0.1, 0.105, 0.1]).train_rounds(4)
    assert all(map(torch.equal, without.weights, by_speed.weights))
    assert all(map(torch.equal, without.anchors, by_speed.anchors))


@example(at=3, delay=2)
@given(at=st.integers(1, 5), delay=st.integers(0, 2))
def test_a_run_taken_up_is_the_run_that_went_on(at: int, delay: int) -> None:
    how: dict[str, Any] = {"every": 4, "delay": delay, "by_speed": True, "samples": 16, **FOUR_BITS}
    whole = Ranks(2, **how).at_speeds([0.1, 0.3]).train_rounds(at)
    states = [saved(outer.state_dict()) for outer in whole.outer]
    made = [*whole.steps]
    whole.at_speeds([0.3, 0.1]).train_rounds(4)
    again = Ranks(2, **how).at_speeds([0.3, 0.1])
    again.steps = made
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.train_rounds(4)
    assert again.steps == whole.steps
    assert all(map(torch.equal, whole.weights, again.weights))


def test_another_number_of_ranks_begins_with_equal_shares() -> None:
    before = Ranks(2, every=6, by_speed=True, **FOUR_BITS).at_speeds([0.1, 0.3]).train_rounds(4)
    merged = merge_states([saved(outer.state_dict()) for outer in before.outer])
    after = Ranks(3, every=6, by_speed=True, **FOUR_BITS).at_speeds([0.1, 0.1, 0.3])
    for outer in after.outer:
        outer.load_state_dict(merged)
    assert after.train_rounds(2).outer[0].steps_of_ranks == (6, 6, 6)
    assert after.train_rounds(1).outer[0].steps_of_ranks == (8, 8, 3)
    assert equal(after.anchors)


def test_within_a_round_nothing_is_saved_or_synchronized() -> None:
    (one,) = Ranks(1, every=4, by_speed=True).train(6).outer
    for wrong in (one.state_dict, one.synchronize):
        with pytest.raises(RuntimeError, match=r"by_speed: this rank is 2 steps into round 1.*compressor.outer.ended"):
            wrong()


def test_wrong_samples_are_named() -> None:
    with pytest.raises(SettingsError, match=r"samples: .*greater than or equal to 1.*0"):
        Ranks(1, samples=0)
