# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A candidate has one name, of its method, the method's own setting and the bytes it saves; never of a bare CF."""

import math
from dataclasses import asdict, replace

import pytest
import torch

from gravac import Policy, dense, ladder, powersgd, quantize, topk, topkc
from gravac.averaging.average import Averager
from gravac.candidate import Candidate, Forecast, describe_exchange, named
from gravac.compressors import Compressor
from gravac.controllers import Goodput
from gravac.controllers.state_dicts import candidates_of, identify
from gravac.engine.admission import Admission, admit, with_native
from gravac.modes.outer.candidates import with_outer_candidates
from gravac.telemetry import DecisionRecord, RunRecord
from gravac.telemetry.descriptions import describe_decision, describe_end, describe_run
from gravac.telemetry.records import EndRecord


def forecast(method: str, cf: float, wire_ratio: float) -> Forecast:
    """A forecast of a rung of the ladder."""
    candidate = Candidate("hook", "ladder", cf, sends=describe_exchange(method, wire_ratio))
    return Forecast(candidate, wire_ratio, method=method)


RANK = forecast("low rank 16", 32.0, 15.2)
BIT = forecast("1 bit", 28.44, 23.4)


def decision(of: Forecast, reason: str = "") -> DecisionRecord:
    """A decision for a candidate."""
    fields = {"changed": True, "phase": "", "reason": reason, "t_system": None, "t_compression": None}
    return DecisionRecord(step=8, gain=None, gain_low=None, gain_high=None, **fields, **asdict(of.candidate))  # type: ignore[arg-type]


def admission(base: Compressor = ladder) -> Admission:
    """What a run of a large matrix over two ranks may choose."""
    policy = Policy(base=base, controller=Goodput(), cf_range=(2, 1000))
    averager = Averager(policy.base, policy.dense_format, policy.error_feedback, policy.dense_below)
    averager.world = 2
    return admit(policy, averager, [((1024, 1024), torch.float32)])


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


def test_every_candidate_of_a_run_is_named_by_method_and_bytes_where_it_is_admitted() -> None:
    forecasts, dropped, _ = admission()
    names = [str(one.candidate) for one in forecasts]
    assert names[:3] == ["dense float32", "dense bfloat16", "8 bits (3.9x fewer bytes)"]
    assert {"1 bit (28x fewer bytes)", "low rank 16 (32x fewer bytes)"} <= set(names)
    assert not any("ladder" in name for name in names)
    assert len(set(names)) == len(names)
    assert "ladder" not in describe_run(RunRecord({}, 2, forecasts))
    assert "the ladder's dense bfloat16: would send the same bytes as dense bfloat16" in describe_run(
        RunRecord({}, 2, forecasts, dropped)
    )


def test_a_candidate_keeps_its_name_in_other_modes_at_another_pace_and_through_a_checkpoint() -> None:
    native = with_native(admission(), (1.0, 2.0)).forecasts
    assert [str(one.candidate) for one in native[:3]] == ["native float32", "dense bfloat16", "native float16"]
    assert [str(one.candidate.in_hook) for one in native[:3]] == ["dense float32", "dense bfloat16", "dense float16"]
    outer = with_outer_candidates(admission(), (1, 20), 0.1, 5, keep_dominated=True).forecasts
    assert {
        "dense bfloat16",
        "dense float32 every 20 steps (applied 5 steps later)",
        "low rank 16 (32x fewer bytes) every 20 steps (applied 5 steps later)",
    } <= {str(one.candidate) for one in outer}
    for one in (*native, *outer):
        assert str(Candidate(**asdict(one.candidate))) == str(one.candidate)
        (bare,) = candidates_of(identify([one.candidate]))
        assert bare == one.candidate and hash(bare) == hash(one.candidate)
        assert str(named(bare, (*native, *outer))) == str(one.candidate)
        assert str(replace(one.candidate, mode="native")) == f"native float{32 / one.candidate.cf:.0f}"


def test_a_round_shorter_than_decided_and_a_candidate_that_a_controller_made_are_named_like_the_forecasts() -> None:
    assert str(named(Candidate("outer", "ladder", 32.0, every=3), [BIT, RANK])) == (
        "low rank 16 (15x fewer bytes) every 3 steps"
    )
    assert str(named(Candidate("hook", "topk", 10.0), [RANK])) == "topk 10x"
    assert str(named(Candidate("hook", "topk", 10.0), [])) == "topk 10x"


def test_a_decision_is_a_sentence_of_step_name_and_reason() -> None:
    assert str(decision(RANK, "the link became slower")) == (
        "step 8: run low rank 16 (15x fewer bytes): the link became slower"
    )
    assert str(replace(decision(RANK), changed=False)) == "step 8: keep low rank 16 (15x fewer bytes)"
    assert decision(RANK).candidate == RANK.candidate
    assert str(decision(RANK).candidate) == str(RANK.candidate)


def test_a_decision_in_tensorboard_names_candidates_as_its_reason_does() -> None:
    words = describe_decision(decision(RANK, f"start at {RANK.candidate}: the best goodput"), BIT.candidate)
    assert words == (
        "**1 bit (23x fewer bytes) → low rank 16 (15x fewer bytes)**: "
        "start at low rank 16 (15x fewer bytes): the best goodput"
    )


def test_the_mode_is_named_where_it_changes() -> None:
    assert describe_decision(decision(RANK, "why"), Candidate("native", "dense", 1.0)).startswith(
        "**native float32 → low rank 16 (15x fewer bytes) (DDP exchanges by itself → gravac exchanges gradients in "
        "each step)**: why"
    )


def test_the_end_of_a_run_is_a_line_of_what_ran_how_long() -> None:
    end = EndRecord(90, {"wire_ratio": math.nan}, ((RANK.candidate, 30), (BIT.candidate, 60)))
    assert describe_end(end) == (
        "closed after 90 steps: 60 of 1 bit (23x fewer bytes), 30 of low rank 16 (15x fewer bytes)"
    )
    assert describe_end(EndRecord(1, {"wire_ratio": 2.0})) == "closed after 1 step; wire ratio 2"
