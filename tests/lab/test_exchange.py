# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the lab counts of a run whose mode changes: exchanges, native steps, seconds in hooks; and typical numbers."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.lab.training.exchange import ExchangeTally, HookStopwatch, weighted_mean, weighted_median
from gravac.lab.training.run import TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg


def test_exchanges_are_steps_together_and_rounds_apart_and_native_steps_are_told_by_cf() -> None:
    compressor: Any = SimpleNamespace(mode="hook", cf=10.0, outer=None, changes=[])
    tally = ExchangeTally(compressor)

    def steps(number: int, **now: Any) -> None:
        vars(compressor).update(now)
        for _ in range(number):
            tally.count_step()

    steps(3)
    steps(4, mode="native", cf=2.0, changes=["hook to native"])
    assert (tally.exchange_count, dict(tally.native_steps)) == (7, {2.0: 4})
    first = SimpleNamespace(ended=0)
    steps(5, mode="outer", cf=32.0, outer=first, changes=[1, 2])
    first.ended = 2
    assert tally.exchange_count == 9
    first.ended = 3  # on the way out a round ends
    steps(1, mode="native", cf=1.0, outer=None, changes=[1, 2, 3])
    assert (tally.exchange_count, dict(tally.native_steps)) == (11, {2.0: 4, 1.0: 1})
    steps(1, mode="outer", outer=SimpleNamespace(ended=1), changes=[1, 2, 3, 4])
    assert tally.exchange_count == 12


def test_seconds_in_hooks_registered_between_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def takes(seconds: float) -> Any:
        return lambda *_: now.__setitem__(0, now[0] + seconds)

    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    watch = HookStopwatch()
    module.register_forward_pre_hook(takes(100.0))
    watch.start_before_hooks(module, optimizer)
    module.register_forward_pre_hook(takes(1.0))
    optimizer.register_step_post_hook(takes(2.0))
    watch.stop_after_hooks(module, optimizer)
    optimizer.register_step_post_hook(takes(100.0))
    module(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    assert watch.read_and_reset() == 3.0 and watch.read_and_reset() == 0.0
    with watch.timed_block():
        takes(5.0)()
    assert watch.read_and_reset() == 5.0


NUMBERS = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=6)


@given(NUMBERS)
def test_mean_and_median_over_steps_are_those_of_each_step(numbers: list[tuple[float, int]]) -> None:
    each = torch.tensor([number for number, steps in numbers for _ in range(steps)], dtype=torch.float64)
    assert weighted_mean(numbers) == pytest.approx(float(each.mean()))
    assert weighted_median(numbers) == float(each.median())


def test_of_nothing_known_nothing_is_told() -> None:
    assert weighted_mean([]) is None and weighted_median([]) is None and weighted_mean([(float("nan"), 3)]) is None


@pytest.mark.usefixtures("forks")
def test_methods_of_all_modes_report_their_bytes_split_and_decisions(tmp_path: Any) -> None:
    words = ("fp32", "adaptive", "adaptive(every=(1, 4))", "outer(every=4):quantize(2)")
    legs = [Leg(text, text, steps=18, every_steps=10) for text in words]
    settings = TrainingSettings(
        workers=2, link="loopback", lowest_rate_bps=None, task="lstm", scale=0.05, log_dir=tmp_path
    )
    with TrainingRun(legs, settings, None) as run:
        ends = [event for event in run.events() if event["event"] == "end"]
    dense, *ours, outer = ends
    for end in ends:
        assert end["step"] == 18 and 0 < end["wire_bytes"] <= 1.05 * dense["wire_bytes"]
        steps = [turn["step"] for turn in end["turns"]]
        assert steps[0] == 0 and steps == sorted(steps)
        assert {turn["mode"] for turn in end["turns"]} <= {"native", "hook", "outer"}
        split = end["split"]
        assert split["exposed"] >= 0 and split["compute"] > 0
    assert dense["every"] is None and ours[0]["every"] is None
    assert 1 <= ours[1]["every"] <= 4 and outer["every"] == 18 / 5
    assert [turn["mode"] for turn in outer["turns"][:1]] == ["outer"]
    assert 8 * outer["wire_bytes"] < dense["wire_bytes"]
