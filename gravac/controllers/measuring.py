# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Decides which candidate's progress a run measures by switchback trials, and when it stops.

Trials cost progress: against steps of the held candidate, steps of another one take more time or make less progress. So
they are made only if better decisions are expected to gain more than that. All trials of a run cost at most ``BUDGET``
of the steps to come; candidates under trial make at most ``SHARE`` of all steps; and at most ``CANDIDATES`` are tried.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from gravac.candidate import Candidate
from gravac.controllers.base import Progress
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.progress import LENGTHS, SETTLE, TRIAL, Learned, Trials, expected_scatter, value_of_trials

BUDGET = 0.02
"""Largest cost of all trials of a run, as a share of the steps to come."""

SHARE = 0.15
"""Largest share of a run's steps that candidates under trial make."""

CANDIDATES = 2
"""Largest number of candidates that a run tries."""

LOOKAHEAD = 6
"""Largest number of further trials whose joint gain is computed: one trial alone may be too inexact to pay."""

PRIOR_FACTOR = 3.0
"""Factor of a belief's deviation in the decision whether to make a first trial: a belief may be further off than its
deviation says. The factor falls with the root of the number of trials."""

FIRST_SHARE = 0.03
"""Share of a run's steps before the first trial: at first the loss falls too fast to compare stretches."""

LEAST_RATIO = 0.3
"""Smallest ratio of efficiencies by which a trial's standard deviation is divided, to make it that of a logarithm."""

NO_TRIALS = "switchback trials would cost more progress than they can gain"
"""Why a run with a probe goes by its beliefs, in words: it has too few steps to come, or no trial could change much."""


class TrialPlan(NamedTuple):
    """Trials that could be made.

    Attributes:
        candidate: place of the candidate.
        reference: place of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        gain: see ``expected_gain``.
    """

    candidate: int
    reference: int
    length: int
    gain: float


def next_trials(state: GoodputState, total_steps: int | None, expire: int) -> Trials | None:
    """Return the trials with the largest expected gain, ready to begin; ``None``: no trials pay.

    Args:
        state: state of the search, which holds a candidate.
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.
    """
    if not trials_may_begin(state, total_steps):
        return None
    if state.forecasts[state.best].candidate.mode == "outer":
        synchronous = [entry for entry in state.entries if state.forecasts[entry.position].candidate.mode != "outer"]
        pairs = [(state.best, max(synchronous, key=state.goodput).position)] if synchronous else []
    else:
        pairs = [(at, state.best) for at in range(len(state.forecasts)) if at != state.best and state.allowed(at)]
    plans = [
        TrialPlan(candidate, reference, length, gain)
        for candidate, reference in pairs
        for length in LENGTHS
        if (gain := expected_gain(state, candidate, reference, length, total_steps, expire)) > 0
    ]
    if not plans:
        return None
    plan = max(plans, key=lambda plan: (plan.gain, -plan.candidate, plan.length))
    return Trials(
        plan.candidate,
        plan.reference,
        plan.length,
        steps_of_trial(state.forecasts[plan.candidate].candidate),
        made=SETTLE if plan.reference == state.position else 0,
        earlier=state.learned_of(plan.candidate),
    )


def trials_may_begin(state: GoodputState, total_steps: int | None) -> bool:
    """True once the run may make trials: the learning rate has warmed up, and ``FIRST_SHARE`` of the steps is made."""
    return not state.warming_up and state.steps >= FIRST_SHARE * _total(state, total_steps)


def steps_of_trial(candidate: Candidate) -> int:
    """Return the number of a candidate's steps in a trial: at least two rounds of outer steps."""
    return max(TRIAL, 2 * candidate.every)


def expected_gain(
    state: GoodputState, candidate: int, reference: int, length: int, total_steps: int | None, expire: int
) -> float:
    """Return the progress that further trials are expected to gain, less their price, in steps of the held candidate.

    Args:
        state: state of the search, with the results of trials so far.
        candidate: place of the candidate.
        reference: place of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.

    Returns:
        The largest gain of one to ``LOOKAHEAD`` trials; 0 if none pays, or none is allowed.
    """
    earlier = state.learned_of(candidate)
    if earlier is None and sum(learned.trials > 0 for learned in state.learned) >= CANDIDATES:
        return 0.0
    if earlier is not None and (earlier.reference != reference or not earlier.trials):
        return 0.0
    total = _total(state, total_steps)
    steps_to_come = total - state.steps
    steps = steps_of_trial(state.forecasts[candidate].candidate)
    belief, reference_belief = state.belief(candidate), state.belief(reference)
    seconds, reference_seconds = (_seconds(state, at, expire) for at in (candidate, reference))
    if not all(0 < number < math.inf for number in (seconds, reference_seconds)):
        return 0.0  # a bound on the time of a candidate that has not run may be anything
    ratio = belief.efficiency / reference_belief.efficiency
    advantage = math.log(ratio * reference_seconds / seconds)
    factor = max(1.0, PRIOR_FACTOR / math.sqrt(1 if earlier is None else 1 + earlier.trials))
    deviation = factor * math.hypot(belief.deviation, reference_belief.deviation)
    chosen = belief.lower_bound / seconds > reference_belief.lower_bound / reference_seconds
    first_price, trial_price = prices(state, candidate, reference, length, expire)
    scatter = expected_scatter(earlier, length) / max(LEAST_RATIO, ratio)
    steps_tried = sum(learned.steps for learned in state.learned)
    largest = 0.0
    for trials in range(1, LOOKAHEAD + 1):
        price = (first_price if earlier is None else 0.0) + trials * trial_price
        if state.booked + price > BUDGET * steps_to_come or steps_tried + trials * steps > SHARE * total:
            break
        value = value_of_trials(advantage, deviation, scatter, trials, chosen)
        largest = max(largest, value * (steps_to_come - trials * (steps + SETTLE + length)) - price)
    return largest


def prices(state: GoodputState, candidate: int, reference: int, length: int, expire: int) -> tuple[float, float]:
    """Return the price of the first stretch of the reference, and of a trial with the reference's stretch after it.

    Both are progress lost against going on with the held candidate, in steps of it.
    """
    held = state.entry(state.best)
    assert held is not None
    steps = steps_of_trial(state.forecasts[candidate].candidate)
    stretch = (SETTLE + length) * loss_per_step(state, reference, expire)
    mode_changes = state.leaving(state.forecasts[candidate]) / held.seconds
    return stretch, steps * loss_per_step(state, candidate, expire) + stretch + mode_changes


def loss_per_step(state: GoodputState, position: int, expire: int) -> float:
    """Return the progress lost by a step of a candidate, against steps of the held one in the same time; 0 or more.

    The unit is a step of the held candidate.
    """
    held = state.entry(state.best)
    assert held is not None
    progress = state.belief(position).efficiency / state.belief(state.best).efficiency
    return max(0.0, _seconds(state, position, expire) / held.seconds - progress)


def progress_of(state: GoodputState, learned: Learned) -> Progress:
    """Return the results of a candidate's trials, with the belief that they lead to."""
    belief = state.belief(learned.candidate)
    return Progress(
        candidate=state.forecasts[learned.candidate].candidate,
        reference=state.forecasts[learned.reference].candidate,
        ratio=learned.ratio,
        error=learned.error,
        trials=learned.trials,
        efficiency=belief.efficiency,
        low=belief.lower_bound,
        high=belief.upper_bound,
    )


def with_trials(state: GoodputState, trials: Trials, price: float) -> GoodputState:
    """Return the state with the results of the trials so far, and with their price booked."""
    others = tuple(other for other in state.learned if other.candidate != trials.candidate)
    return replace(state, learned=(*others, trials.learned), booked=state.booked + price)


def _total(state: GoodputState, total_steps: int | None) -> int:
    """Return the number of steps of the run; twice those made so far if it is not known."""
    return 2 * state.steps if total_steps is None else max(total_steps, state.steps)


def _seconds(state: GoodputState, position: int, expire: int) -> float:
    """Return the seconds of a candidate's step: as measured, else the middle between its lower and upper bound."""
    measured = state.entry(position)
    if measured is not None:
        return measured.seconds
    lower, upper = state.fastest(position, expire), state.slowest(position)
    return (lower + upper) / 2 if lower < upper < math.inf else lower
