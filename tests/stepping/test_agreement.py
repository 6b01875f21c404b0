# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of a step: every number has its slot, whatever the shadow CFs."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gravac.averaging.stats import StepStats
from gravac.candidate import Candidate
from gravac.stepping.agreement import FIRST, LAST, Layout, StepReport
from gravac.stepping.clock import StepCosts

shadows = st.lists(st.floats(1, 1e6), unique=True, max_size=12).map(lambda cfs: tuple(sorted(cfs)))
numbers = st.floats(allow_nan=False, allow_infinity=False)


def report(cfs: tuple[float, ...], learning_rate: float = 0.01, **stats: Any) -> StepReport:
    errors = [float(at) for at in range(len(cfs))]
    costs = StepCosts(1.0, 0, 0, 0, seconds=0.5, compute=0.3, compress=0.2, exchange=0.1, input_wait=0.0, waited=0.05)
    measured = StepStats(**{"errors": [1.0, 2.0], "energies": [4.0], "shadows": [errors], **stats})
    return StepReport.of(7, Candidate("hook", "topk", 10.0), cfs, costs, measured, learning_rate)


@given(shadows, st.data())
def test_a_vector_and_its_names_are_one(shadow: tuple[float, ...], data: st.DataObject) -> None:
    layout = Layout(shadow)
    assert len(set(layout.slots)) == len(layout.slots) == len(FIRST) + len(shadow) + len(LAST) + 1
    given = {slot: data.draw(numbers) for slot in layout.slots}
    vector = layout.vector(given)
    assert layout.numbers(vector) == given


@given(shadows, st.integers(1, 64))
def test_all_of_a_step_is_agreed_on_whatever_its_shadows(shadow: tuple[float, ...], world: int) -> None:
    one = report(shadow)
    measured = one.agreed([world * float(number) for number in one.vector()], world, 16.0)
    assert (measured.step, measured.candidate, measured.samples) == (7, one.candidate, 16.0)
    assert (measured.error, measured.energy) == (world * 3.0, world * 4.0)
    assert measured.shadow == tuple((cf, world * float(at)) for at, cf in enumerate(shadow))
    told = (measured.seconds, measured.waited, measured.coded, measured.learning_rate, measured.exchanged)
    assert told == pytest.approx((0.5, 0.05, 0.2, 0.01, 0.1))


def test_only_what_is_not_known_is_nan() -> None:
    one = report((10.0, 20.0, 40.0), learning_rate=math.nan, verdicts=[True, False])
    measured = one.agreed([*map(float, one.vector())], 1, 16.0)
    assert math.isnan(measured.learning_rate) and math.isnan(measured.error)
    assert math.isfinite(sum((measured.seconds, measured.energy, measured.waited, measured.coded, measured.exchanged)))
    assert all(math.isfinite(error) for _, error in measured.shadow)


def test_a_step_that_evaluated_nothing_tells_errors_of_0() -> None:
    one = report((10.0, 20.0), shadows=[])
    assert one.agreed([*map(float, one.vector())], 1, 16.0).shadow == ((10.0, 0.0), (20.0, 0.0))


@pytest.mark.parametrize("size", [0, len(Layout((10.0,)).slots) - 1, len(Layout((10.0,)).slots) + 1])
def test_a_vector_of_another_layout_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"vector: {size} numbers, and the layout has slots seconds, error, energy"):
        report((10.0,)).agreed([0.0] * size, 2, 16.0)


def test_fewer_errors_than_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        report((10.0, 20.0), shadows=[[1.0]])
