# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A candidate is shown by its method, the method's own setting and the bytes it saves; never by a bare CF."""

import math
from dataclasses import replace

import pytest
import torch

from gravac import Policy, dense, ladder, powersgd, quantize, topk, topkc
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.candidate import Candidate, Forecast
from gravac.controllers import Goodput
from gravac.engine.admission import admit
from gravac.telemetry import DecisionRecord, RunRecord
from gravac.telemetry.descriptions import (
    describe_candidate,
    describe_decision,
    describe_reason,
    describe_run,
    forecast_of,
)

RANK = Forecast(Candidate("hook", "ladder", 32.0), 15.2, method="low rank 16")
BIT = Forecast(Candidate("hook", "ladder", 28.44), 23.4, method="1 bit")


def decision(cf: float, every: int = 1, delay: int = 0) -> DecisionRecord:
    """A decision for a CF of the ladder."""
    reason = "start at ladder 32x: the best goodput"
    return DecisionRecord(8, "ladder", cf, True, math.nan, math.nan, math.nan, None, None, "", reason, every, delay)


@pytest.mark.parametrize(
    ("compressor", "cf", "words"),
    [
        (dense, 1.0, "dense float32"),
        (dense(dtype="float16"), 2.0, "dense float16"),
        (topk, 10.0, "topk 10x"),
        (quantize, 32.0, "1 bit"),
        (quantize(4), 8.0, "4 bits"),
        (powersgd, 64.0, "low rank at 64x"),
        (powersgd(4), 128.0, "low rank 4"),
        (topkc(values=quantize(1)), 4.0, "topkc 4x of 1 bit"),
        (ladder, 2.0, "dense bfloat16"),
        (ladder, 32.0, "low rank 16"),
        (ladder, 28.44444, "1 bit"),
    ],
)
def test_a_method_is_named_with_the_setting_that_users_know_it_by(compressor: object, cf: float, words: str) -> None:
    assert compressor.method_at(cf) == words  # type: ignore[attr-defined]


def test_every_candidate_of_a_run_is_shown_by_method_and_bytes() -> None:
    policy = Policy(base=ladder, controller=Goodput(), cf_range=(2, 1000))
    averager = Averager(policy.base, policy.dense_format, policy.error_feedback, policy.dense_below, Feedback())
    averager.world = 2
    forecasts, dropped, _ = admit(policy, averager, [((1024, 1024), torch.float32)])
    shown = [describe_candidate(forecast) for forecast in forecasts]
    assert shown[:3] == ["dense float32", "dense bfloat16, 2x fewer bytes", "8 bits, 3.9x fewer bytes"]
    assert {"1 bit, 28x fewer bytes", "low rank 16, 32x fewer bytes"} <= set(shown)
    assert not any("ladder" in words for words in shown)
    assert "ladder" not in describe_run(RunRecord({}, 2, forecasts, dropped))


def test_a_decision_and_its_reason_name_methods_and_bytes() -> None:
    words = describe_decision(decision(32.0), decision(28.44), [RANK, BIT])
    assert words == (
        "**1 bit, 23x fewer bytes → low rank 16, 15x fewer bytes**: "
        "start at low rank 16 (15x fewer bytes): the best goodput"
    )
    assert decision(32.0).reason == "start at ladder 32x: the best goodput", "records stay data"


def test_a_decision_of_outer_steps_counts_bytes_by_its_own_number_of_steps() -> None:
    ran = forecast_of(decision(28.44, every=10, delay=5), [RANK, BIT])
    assert describe_candidate(ran) == "1 bit, 234x fewer bytes, every 10 steps, applied 5 steps later"


def test_what_a_record_does_not_know_is_left_out() -> None:
    assert describe_candidate(forecast_of(decision(32.0), [])) == "ladder 32x"
    assert describe_reason("down to ladder 320x, from ladder 32x", [RANK]) == (
        "down to ladder 320x, from low rank 16 (15x fewer bytes)"
    )
    assert describe_reason("hold", []) == "hold"


def test_a_reason_names_the_pace_of_outer_steps_so_that_the_sentence_stays_whole() -> None:
    outer = Candidate("outer", "ladder", 32.0, every=20, delay=5)
    reason = f"{outer} took 70.6 ms a step; back to ladder 32x: 60 ms a step"
    assert describe_reason(reason, [RANK, Forecast(outer, 302.0, method="low rank 16")]) == (
        "low rank 16 (302x fewer bytes) every 20 steps (applied 5 steps later) took 70.6 ms a step; back to low "
        "rank 16 (15x fewer bytes): 60 ms a step"
    )


def test_the_mode_is_named_where_it_changes() -> None:
    native = Forecast(Candidate("native", "dense", 1.0), 1.0)
    rank = Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16")
    before = DecisionRecord(0, "dense", 1.0, True, 1, 1, 1, None, None, "", "", mode="native")
    after = replace(before, step=9, compressor="ladder", cf=32.0, mode="hook", reason="try ladder 32x")
    assert describe_decision(after, before, (native, rank)).startswith(
        "**native float32 → low rank 16, 15x fewer bytes (DDP exchanges by itself → gravac exchanges gradients in each "
        "step)**: try low rank 16 (15x fewer bytes)"
    )
