# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials: which steps are whose, and what is estimated of made-up losses whose truth is known."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.measure.programs import PROGRAMS
from tests.measure.switchback import WAYS, Case, Plan, estimates, key, run, spread

PLANS = st.builds(Plan, st.integers(10, 100), st.integers(0, 40), st.integers(1, 5))


@given(PLANS)
def test_a_run_alternates_and_ends_in_the_reference(plan: Plan) -> None:
    candidate = [plan.of_candidate(step) for step in range(plan.steps)]
    assert sum(candidate) == plan.trials * plan.trial
    starts = [step for step in range(1, plan.steps) if candidate[step] and not candidate[step - 1]]
    assert len(starts) == plan.trials
    for start in starts:
        assert not any(candidate[start - plan.stretch : start])
        assert not any(candidate[start + plan.trial : start + plan.trial + plan.settle + plan.stretch])
    assert max(plan.read_after()) == plan.steps


def made_up(plan: Plan, worth: float, slows: float = 0.0) -> dict[str, Any]:
    """A run whose loss falls by what its steps are worth, the more slowly the further it is."""
    progress, loss, losses, probes = 0.0, 10.0, [], []
    for step in range(plan.steps):
        progress += worth if plan.of_candidate(step) else 1.0
        loss = 10 - progress / 1000 if not slows else 10 - math.log1p(slows * progress)
        losses.append(loss)
        if step + 1 in plan.read_after():
            probes.append((step + 1, loss))
    return {"plan": plan._asdict(), "losses": losses, "probes": probes}


@given(PLANS, st.floats(0.0, 1.2))
def test_of_a_loss_that_falls_steadily_each_trial_tells_what_steps_are_worth(plan: Plan, worth: float) -> None:
    row = made_up(plan, worth)
    assert estimates(row, plan.settle) == pytest.approx([worth] * plan.trials, abs=1e-6)


@pytest.mark.parametrize("worth", [0.5, 0.8, 1.0])
def test_of_a_loss_that_falls_ever_more_slowly_trials_tell_nearly_that(worth: float) -> None:
    plan = Plan(100, 30, 4)
    mean, _ = spread(estimates(made_up(plan, worth, slows=0.01), 30))
    assert mean == pytest.approx(worth, abs=0.12)


def test_a_loss_that_rises_in_the_reference_tells_nothing() -> None:
    plan = Plan(20, 10, 1)
    row = made_up(plan, 1.0)
    row["probes"] = [(step, -loss) for step, loss in row["probes"]]
    assert all(map(math.isnan, estimates(row, 10)))


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
def test_each_candidate_is_tried(way: Any) -> None:
    case = Case("tokens", PROGRAMS["tokens"].rates[1], way, Plan(5, 10, 1), 0)
    row = run((case, None))
    assert key(row) == case and len(row["losses"]) == case.plan.steps
    assert [step for step, _ in row["probes"]] == case.plan.read_after()
    (told,), (by_training,) = estimates(row, 10), estimates(row, 10, last=10)
    assert math.isfinite(told) and math.isfinite(by_training)
