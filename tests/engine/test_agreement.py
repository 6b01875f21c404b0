# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of a step: each number of a rank's own measurement becomes one that all share."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.exchange.lockstep import Lockstep
from gravac.measurement import OVER_RANKS, Measurement, vectors
from gravac.measurement import agreed as agreed_on

shadows = st.lists(st.floats(1, 1e6), unique=True, max_size=12).map(lambda cfs: tuple(sorted(cfs)))
numbers = st.floats(-1e100, 1e100)

TOPK = Candidate("topk", 10.0, 5.0)


def measured(shadow: tuple[float, ...], learning_rate: float = 0.01, **given: Any) -> StepRecording:
    """A rank's numbers of a step of 0.5 s that waited for 0.05 s of the exchange's 0.1 s, and coded for 0.2 s."""
    errors = [float(at) for at in range(len(shadow))]
    given = {"errors": [1.0, 2.0], "energies": [4.0], "shadow_errors": [errors], **given}
    moments: dict[str, Any] = {"backward_ended": 0.45, "exchange_ended": 0.5, "ended": 0.5, "spent": lambda: (0.2, 0.1)}
    moments["previous"] = StepRecording(6, TOPK, exchange_ended=0.0, ended=0.0)
    local = StepRecording(7, TOPK, shadow=shadow, learning_rate=learning_rate, **moments, **given)
    local.read(Lockstep(1).executors[0])
    return local


def agreed(local: StepRecording, world: int) -> Measurement:
    """What ranks agree on that all have the same numbers."""
    assert local.own is not None
    sums = [[world * float(number) for number in vector] for vector in vectors(local.own)]
    return agreed_on(local.own, sums, world, 16.0)


@given(shadows, st.integers(1, 5), st.data())
def test_every_number_is_summed_or_averaged_over_ranks(
    shadow: tuple[float, ...], world: int, data: st.DataObject
) -> None:
    own = []
    for _ in range(world):
        given = {name: data.draw(numbers) for name in OVER_RANKS}
        errors = tuple((cf, data.draw(numbers)) for cf in shadow)
        own.append(Measurement(7, TOPK, samples=math.nan, shadow=errors, **given))
    sums = [[math.fsum(column) for column in zip(*(vectors(one)[0] for one in own), strict=True)]]
    shared = agreed_on(own[0], sums, world, 16.0)
    for name, how in OVER_RANKS.items():
        total = math.fsum(getattr(one, name) for one in own)
        expected = total if how == "sum" else total / world
        if name == "drift":
            expected = 1 / expected if expected else math.nan
        assert getattr(shared, name) == pytest.approx(expected, nan_ok=True)
    assert shared.shadow == tuple((cf, math.fsum(one.shadow[at][1] for one in own)) for at, cf in enumerate(shadow))


@given(shadows, st.integers(1, 64))
def test_all_of_a_step_is_agreed_on_whatever_its_shadows(shadow: tuple[float, ...], world: int) -> None:
    shared = agreed(measured(shadow), world)
    assert (shared.step, shared.candidate, shared.samples) == (7, TOPK, 16.0)
    assert (shared.error, shared.energy) == (world * 3.0, world * 4.0)
    assert shared.shadow == tuple((cf, world * float(at)) for at, cf in enumerate(shadow))
    times = (shared.seconds, shared.waited, shared.coded, shared.learning_rate, shared.exchanged)
    assert times == pytest.approx((0.5, 0.05, 0.2, 0.01, 0.1))


def test_only_what_is_not_known_is_nan() -> None:
    shared = agreed(
        measured((10.0, 20.0, 40.0), learning_rate=math.nan, verdicts=[torch.tensor(True), torch.tensor(False)]), 1
    )
    assert math.isnan(shared.learning_rate) and math.isnan(shared.error)
    assert math.isfinite(sum((shared.seconds, shared.energy, shared.waited, shared.coded, shared.exchanged)))
    assert all(math.isfinite(error) for _, error in shared.shadow)


def test_a_step_that_evaluated_nothing_tells_errors_of_0() -> None:
    assert agreed(measured((10.0, 20.0), shadow_errors=[]), 1).shadow == ((10.0, 0.0), (20.0, 0.0))


@pytest.mark.parametrize("world", [1, 3])
def test_norms_of_tensors_are_of_gradients_without_their_loss_scale(world: int) -> None:
    shared = agreed(measured((10.0,), norms={"b": 4.0, "a": 64.0}, loss_scale=2.0), world)
    assert shared.norms == (("a", 4.0), ("b", 1.0))


@pytest.mark.parametrize("extra", [-1, 1])
def test_sums_of_another_layout_are_refused(extra: int) -> None:
    own = measured((10.0,)).own
    assert own is not None
    size = len(OVER_RANKS) + 1 + extra
    with pytest.raises(ValueError, match=rf"sums: have {size} numbers and 0 norms; give one for each of .*seconds"):
        agreed_on(own, [[0.0] * size], 2, 16.0)


@pytest.mark.parametrize(("mode", "seconds"), [("outer", 0.1), ("native", 0.5)])
def test_seconds_are_those_of_a_training_step(mode: str, seconds: float) -> None:
    """A round's five steps are timed together, native steps one by one."""
    native_step_s = 0.5 if mode == "native" else None
    assert measured((), steps=5, native_step_s=native_step_s).own.seconds == pytest.approx(seconds)  # type: ignore[union-attr]


def test_fewer_errors_than_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        measured((10.0, 20.0), shadow_errors=[[1.0]])
