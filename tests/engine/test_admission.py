# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller may choose from, and what candidates know of the model."""

import math
from typing import Any

import pytest
import torch

from gravac import Policy, ladder, powersgd, quantize, topk
from gravac.averaging.average import Averager
from gravac.candidate import Candidate, Forecast
from gravac.compressors import dense
from gravac.controllers import Goodput, GraVAC, Static, Warmup
from gravac.engine.admission import Admission, admit
from gravac.telemetry.descriptions import describe_dropped

Shapes = list[tuple[int, ...]]

SQUARE: Shapes = [(512, 512), (512,)]
WIDE: Shapes = [(16, 1, 3, 3), (768, 768), (768, 768), (768,)]


def topk_policy(**settings: Any) -> Policy:
    """GraVAC over top-k from 10x on, but for what is given."""
    return Policy(**{"base": topk, "cf_range": (10, 1000), "controller": GraVAC(), **settings})


def admitted(policy: Policy, shapes: Shapes, world: int = 2, dtype: torch.dtype = torch.float32) -> Admission:
    averager = Averager(policy.base, policy.dense_format, policy.error_feedback, policy.dense_below)
    averager.world = world
    forms = [(shape, dtype) for shape in shapes]
    return admit(policy, averager, forms)


def test_dense_is_first_and_the_others_ascend_by_what_they_send() -> None:
    forecasts, *_ = admitted(Policy(base=ladder, controller=Goodput(), cf_range=(2, 1000)), WIDE)
    ratios = [forecast.wire_ratio for forecast in forecasts]
    assert forecasts[0].candidate.dense
    assert ratios == sorted(ratios)


def test_what_would_send_more_than_dense_is_dropped_and_said() -> None:
    forecasts, dropped, _ = admitted(Policy(base=topk, cf_range=(2, 64)), SQUARE, world=16)
    assert all(forecast.wire_ratio > 1 for forecast in forecasts[1:])
    assert dropped and {(one.cause, one.other.candidate.compressor) for one in dropped} == {
        ("not_fewer_bytes", "dense")
    }
    assert all(one.ratio == one.other.wire_ratio / one.forecast.wire_ratio >= 1 for one in dropped)


def test_what_sends_the_same_as_another_is_dropped_and_said() -> None:
    """Rank 1 is the least there is: higher CFs of PowerSGD send the same."""
    forecasts, dropped, _ = admitted(Policy(base=powersgd, controller=Goodput(), cf_range=(64, 4096)), SQUARE)
    assert [forecast.candidate.cf for forecast in forecasts] == [1, 2, 64, 128, 256]
    assert dropped and {(one.cause, str(one.other.candidate)) for one in dropped} == {
        ("same_bytes", "low rank at 256x (171x fewer bytes)")
    }
    assert all(one.ratio == pytest.approx(1, rel=0.01) for one in dropped)


def test_low_rank_has_the_efficiency_of_its_rank_whatever_the_cf() -> None:
    small, large = ([(side, side)] for side in (128, 2048))
    four, by_cf = powersgd(4), powersgd.profile(16.0, shapes=small)
    assert four.profile(128.0, shapes=small).efficiency == four.profile(128.0, shapes=large).efficiency
    assert four.profile(128.0, shapes=small).efficiency == by_cf.efficiency
    one, eight = powersgd(1).profile(512.0, shapes=small), powersgd(8).profile(64.0, shapes=small)
    assert one.efficiency < eight.efficiency < 1


def test_shapes_tell_candidates_apart_that_the_cf_does_not() -> None:
    """On wide layers rank 4 sends a hundredth; on narrow ones a twelfth, and its efficiency is no higher."""
    policy = Policy(base=ladder, controller=Goodput(), cf_range=(2, 1000))
    (wide, *_), (narrow, *_) = admitted(policy, WIDE), admitted(policy, [(96, 96)] * 8)
    four = [next(c for c in found if c.candidate.cf == 128) for found in (wide, narrow)]
    assert four[0].efficiency == four[1].efficiency
    assert four[0].wire_ratio > 50 and four[1].wire_ratio < 15


def test_a_gain_that_was_measured_corrects_the_efficiency() -> None:
    points = quantize.profile(32.0).efficiency_by_gain
    one = Forecast(Candidate("hook", "quantize", 32.0), 28.0, 0.81, "quantize", points)
    assert one.efficiency_at(1.0) == 1.0
    assert one.efficiency_at(0.39) < one.efficiency_at(0.64) < one.efficiency_at(0.88)
    assert one.efficiency_at(-3.0) == points[0][1]
    assert one.efficiency_at(math.nan) == 0.81
    assert Forecast(Candidate("hook", "topk", 10.0), 5.0, 0.7).efficiency_at(0.2) == 0.7


def names(policy: Policy, shapes: Shapes = SQUARE, world: int = 2, dtype: torch.dtype = torch.float32) -> list[str]:
    return [str(forecast.candidate) for forecast in admitted(policy, shapes, world, dtype).forecasts]


@pytest.mark.parametrize("controller", [GraVAC(), Goodput()], ids=str)
def test_16_bit_stands_between_dense_and_the_base(controller: GraVAC | Goodput) -> None:
    forecasts, *_ = admitted(topk_policy(controller=controller), SQUARE)
    assert [str(forecast.candidate) for forecast in forecasts[:3]] == [
        "dense float32",
        "dense bfloat16",
        "topk 10x (5x fewer bytes)",
    ]
    half = forecasts[1]
    assert half.candidate.dense
    assert (half.wire_ratio, half.efficiency, half.family) == (2.0, 1.0, "bfloat16")


@pytest.mark.parametrize(
    "policy",
    [
        topk_policy(sixteen_bit=False),
        topk_policy(controller=GraVAC(paper_literal=True)),
        topk_policy(controller=Static(cf=10)),
        topk_policy(controller=Warmup()),
        topk_policy(dense="bfloat16"),
        topk_policy(dense="float16"),
        Policy(base=dense, cf_range=(1, 2)),
    ],
    ids=["off", "as printed", "static", "by a clock", "bfloat16", "float16", "dense base"],
)
def test_there_is_no_16_bit_beside_the_base(policy: Policy) -> None:
    assert not {"dense bfloat16", "dense float16"} & {*names(policy)[1:]}


def test_a_ladders_own_16_bit_is_sent_whole_where_a_controller_may_choose() -> None:
    policy = Policy(base=ladder, cf_range=(2, 1000))
    assert names(policy)[:3] == ["dense float32", "dense bfloat16", "8 bits (3.9x fewer bytes)"]
    half = Policy(base=ladder(dense(dtype="float16"), quantize(2)), cf_range=(2, 1000))
    assert [form.dtype for form in half.dense_formats] == ["float32", "float16"]
    alone = Policy(base=ladder, cf_range=(2, 1000), sixteen_bit=False)
    assert names(alone)[:2] == ["dense float32", "dense bfloat16 (2x fewer bytes)"]


def test_a_ladder_without_16_bit_in_its_range_gets_it() -> None:
    assert names(Policy(base=ladder, controller=Goodput(), cf_range=(8, 1000)))[:2] == [
        "dense float32",
        "dense bfloat16",
    ]


def test_gradients_of_16_bit_have_no_other_16_bit_beside_them() -> None:
    forecasts, (first, *_), _ = admitted(topk_policy(), SQUARE, dtype=torch.bfloat16)
    assert [forecast.candidate.cf for forecast in forecasts[:2]] == [1, 10]
    assert (str(first.forecast.candidate), str(first.other.candidate), first.ratio) == (
        "dense bfloat16",
        "dense float32",
        1.0,
    )


def test_what_sends_no_less_than_16_bit_is_dropped() -> None:
    """Over six ranks top-k 10x, of values and indices, sends 0.6 of what float32 does."""
    words = "topk 10x: would send 1.20 times the bytes of dense bfloat16 over 6 ranks"
    assert words in [describe_dropped(one, 6) for one in admitted(topk_policy(), SQUARE, world=6).dropped]
    assert "topk 10x (1.7x fewer bytes)" in names(topk_policy(sixteen_bit=False), world=6)
