# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run measures moves beliefs towards it: those of the same kind less, those of other kinds not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.beliefs import Belief, MeasuredRatio, posterior

DENSE, KINDS = Belief(1.0), ("native", "outer", "outer", "quantize")


@given(
    believed=st.floats(0.3, 1.0),
    doubt=st.floats(0.01, 0.6),
    ratio=st.floats(0.1, 1.2),
    error=st.floats(0.01, 0.5),
)
def test_a_belief_moves_towards_what_was_measured_and_no_further(
    believed: float, doubt: float, ratio: float, error: float
) -> None:
    before = (DENSE, Belief(believed, doubt), Belief(believed, doubt), Belief(0.9, 0.1))
    dense, tried, relative, other = posterior(before, KINDS, (MeasuredRatio(1, 0, ratio, error),))
    low, high = sorted((believed, ratio))
    assert low * (1 - 1e-9) <= tried.efficiency <= high * (1 + 1e-9)
    assert low * (1 - 1e-9) <= relative.efficiency <= high * (1 + 1e-9)
    assert abs(relative.efficiency - believed) <= abs(tried.efficiency - believed) + 1e-9
    assert tried.deviation <= error / ratio + 1e-9
    assert (dense.efficiency, dense.deviation) == (1.0, 0.0)
    assert other == before[3]


def test_a_belief_that_a_run_contradicts_gives_way() -> None:
    (_, tried) = posterior((DENSE, Belief(0.99, 0.05)), KINDS[:2], (MeasuredRatio(1, 0, 0.6, 0.06),))
    assert tried.efficiency == pytest.approx(0.6, abs=0.03)


def test_a_certain_belief_stays() -> None:
    assert posterior((DENSE, DENSE), ("a", "b"), (MeasuredRatio(1, 0, 0.5, 0.1),)) == (DENSE, DENSE)


def test_nothing_measured_changes_nothing() -> None:
    beliefs = (DENSE, Belief(0.8, 0.1))
    assert posterior(beliefs, KINDS[:2], ()) is beliefs
