# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The watch of native steps: what the ranks agree on, and how soon they notice that something broke."""

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.controllers.base import Decision
from gravac.engine.inputs import StepInputs
from gravac.engine.run_state import NativeState
from gravac.modes.native import CHECK_INTERVAL_S, SLOW_END_RATIO, UNTIMED_STEPS, NativeWatch, steps_that_count
from tests.modes.scripted import NATIVE


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=60))
def test_what_a_stretch_tells_lies_within_its_steps_and_only_a_break_shows_the_last_ones(seconds: list[float]) -> None:
    told, middle = statistics.median(seconds[steps_that_count(seconds)]), statistics.median(seconds)
    assert min(seconds) <= told <= max(seconds)
    assert told == middle or told > SLOW_END_RATIO * middle or len(seconds) < 2
    falling = sorted(seconds, reverse=True)
    assert falling[steps_that_count(falling)] == falling


class AgreesAlone:
    """An engine of one rank: its answers are this rank's own, and it decides for a stretch of a thousand steps."""

    def __init__(self, seconds: float) -> None:
        self.state = SimpleNamespace(native=NativeState(), trained=0)
        self.deciding = SimpleNamespace(agreed_step_s=seconds)
        self.decision = Decision(NATIVE, watch=1000)
        self.told: list[float] = []
        """What each stretch told of its steps, in seconds."""
        self.told_of_forward: list[float] = []

    def sum_over_ranks(self, what: str, numbers: Sequence[float]) -> Any:
        return SimpleNamespace(receive=lambda: None, result=lambda: list(numbers))

    def begin(self, inputs: StepInputs) -> None:
        """Nothing is to be prepared."""

    def end(self, fill: Callable[[StepRecording], None]) -> None:
        measurement = StepRecording(step=0, candidate=NATIVE)
        fill(measurement)
        assert measurement.native_step_s is not None
        self.told.append(measurement.native_step_s)
        self.told_of_forward.append(measurement.forward_s)

    def conclude(self) -> None:
        """All is known already."""

    def concluded(self) -> "Future[Candidate]":
        done: Future[Candidate] = Future()
        done.set_result(NATIVE)
        return done


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([0.1] * 20 + [0.9] + [0.1] * 20, 0.1),  # a pause
        ([0.1] * 20 + [0.9, 0.15] + [0.1] * 20, 0.1),
        ([0.1] * 20 + [0.5] + [0.9] * 20, 0.9),  # a link that broke within a step
        ([0.1] * 20 + [0.9] * 20, 0.9),
    ],
)
def test_a_single_slow_step_tells_of_nothing_and_two_tell_what_the_last_took(seconds: list[float], told: float) -> None:
    engine, now = AgreesAlone(0.1), 0.0
    watch = NativeWatch(engine, lambda: math.nan, lambda: now)  # type: ignore[arg-type]
    watch.start()
    watch.forward_starts(averaged=False)
    for step, each in enumerate([0.1] * 3 + seconds):
        now += each
        watch.forward_ended(each / 4)
        decided = watch.forward_starts(averaged=True)
        if decided is not None:
            assert 1 <= step - (3 + 20) <= round(CHECK_INTERVAL_S / 0.1)  # soon after the slow one
            break
    assert engine.told == [pytest.approx(told)]
    assert engine.told_of_forward == [pytest.approx(told / 4)]  # of the same steps


@pytest.mark.parametrize("paused", range(8))
@pytest.mark.parametrize("seconds", [0.05, 0.075, 0.1, 0.15, 0.3])
def test_a_pause_soon_after_a_change_of_mode_is_not_told_as_the_time_of_a_step(paused: int, seconds: float) -> None:
    """Rank 0 evaluated alone, in the only step that another rank had timed: that looked like a link that broke."""
    engine, now = AgreesAlone(seconds), 0.0
    watch = NativeWatch(engine, lambda: math.nan, lambda: now)  # type: ignore[arg-type]
    watch.start()
    watch.forward_starts(averaged=False)
    for step in range(40):
        now += 6.0 if step == UNTIMED_STEPS + paused else seconds
        watch.forward_starts(averaged=True)
    assert engine.told == [pytest.approx(seconds)]


@pytest.mark.parametrize("deciding", [0.0, 0.5])
def test_the_time_of_deciding_ends_no_stretch(deciding: float) -> None:
    """A decision that took longer than a step once looked like a slow step, which led to the next decision."""
    clock = SimpleNamespace(now=0.0)

    class Decides(AgreesAlone):
        def concluded(self) -> "Future[Candidate]":
            clock.now += deciding
            return super().concluded()

    engine = Decides(0.1)
    engine.decision = Decision(NATIVE, watch=20)
    watch = NativeWatch(engine, lambda: math.nan, lambda: clock.now)  # type: ignore[arg-type]
    watch.start()
    watch.forward_starts(averaged=False)
    for _ in range(100):
        clock.now += 0.1
        watch.forward_starts(averaged=True)
    assert engine.told == [pytest.approx(0.1)] * 5
