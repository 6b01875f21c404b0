# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of a step: every number has its slot, whatever the shadow CFs."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement
from gravac.engine.agreement import agreed_measurement, slot_numbers
from gravac.exchange.lockstep import Lockstep
from gravac.measurement import SLOTS_AFTER_ERRORS, SLOTS_BEFORE_ERRORS, LocalMeasurement, slots

shadows = st.lists(st.floats(1, 1e6), unique=True, max_size=12).map(lambda cfs: tuple(sorted(cfs)))
numbers = st.floats(allow_nan=False, allow_infinity=False)

TOPK = Candidate("topk", 10.0, 5.0)


def measured(shadow: tuple[float, ...], learning_rate: float = 0.01, **given: Any) -> LocalMeasurement:
    """A rank's numbers of a step of 0.5 s that waited for 0.05 s of the exchange's 0.1 s, and coded for 0.2 s."""
    errors = [float(at) for at in range(len(shadow))]
    given = {"errors": [1.0, 2.0], "energies": [4.0], "shadow_errors": [errors], **given}
    moments: dict[str, Any] = {"backward_ended": 0.45, "exchange_ended": 0.5, "ended": 0.5, "spent": lambda: (0.2, 0.1)}
    moments["previous"] = LocalMeasurement(6, TOPK, exchange_ended=0.0, ended=0.0)
    local = LocalMeasurement(7, TOPK, shadow=shadow, learning_rate=learning_rate, **moments, **given)
    local.read(Lockstep(1).executors[0])
    return local


def agreed(local: LocalMeasurement, world: int) -> Measurement:
    """What ranks agree on that all have the same numbers."""
    sums = [[world * float(number) for number in vector] for vector in local.vectors()]
    return agreed_measurement(local, sums, world, 16.0)


@given(shadows, st.data())
def test_a_vector_and_its_names_are_one(shadow: tuple[float, ...], data: st.DataObject) -> None:
    names = slots(shadow)
    assert len(set(names)) == len(names) == len(SLOTS_BEFORE_ERRORS) + len(shadow) + len(SLOTS_AFTER_ERRORS)
    given = {slot: data.draw(numbers) for slot in names}
    (vector,) = LocalMeasurement(7, TOPK, shadow=shadow, numbers={**given}).vectors()
    assert slot_numbers(shadow, [*map(float, vector)]) == given


@given(shadows, st.integers(1, 64))
def test_all_of_a_step_is_agreed_on_whatever_its_shadows(shadow: tuple[float, ...], world: int) -> None:
    shared = agreed(measured(shadow), world)
    assert (shared.step, shared.candidate, shared.samples) == (7, TOPK, 16.0)
    assert (shared.error, shared.energy) == (world * 3.0, world * 4.0)
    assert shared.shadow == tuple((cf, world * float(at)) for at, cf in enumerate(shadow))
    times = (shared.seconds, shared.waited, shared.coded, shared.learning_rate, shared.exchanged)
    assert times == pytest.approx((0.5, 0.05, 0.2, 0.01, 0.1))


def test_only_what_is_not_known_is_nan() -> None:
    shared = agreed(measured((10.0, 20.0, 40.0), learning_rate=math.nan, verdicts=[True, False]), 1)
    assert math.isnan(shared.learning_rate) and math.isnan(shared.error)
    assert math.isfinite(sum((shared.seconds, shared.energy, shared.waited, shared.coded, shared.exchanged)))
    assert all(math.isfinite(error) for _, error in shared.shadow)


def test_a_step_that_evaluated_nothing_tells_errors_of_0() -> None:
    assert agreed(measured((10.0, 20.0), shadow_errors=[]), 1).shadow == ((10.0, 0.0), (20.0, 0.0))


@pytest.mark.parametrize("world", [1, 3])
def test_norms_of_tensors_are_of_gradients_without_their_loss_scale(world: int) -> None:
    shared = agreed(measured((10.0,), norms={"b": 4.0, "a": 64.0}, loss_scale=2.0), world)
    assert shared.norms == (("a", 4.0), ("b", 1.0))


@pytest.mark.parametrize("size", [0, len(slots((10.0,))) - 1, len(slots((10.0,))) + 1])
def test_a_vector_of_another_layout_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"vector: has {size} numbers; give one for each of seconds, error, energy"):
        agreed_measurement(measured((10.0,)), [[0.0] * size], 2, 16.0)


def test_fewer_errors_than_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        measured((10.0, 20.0), shadow_errors=[[1.0]])
