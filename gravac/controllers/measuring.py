# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Decides which candidate's progress a run measures by switchback trials, and when the trials end.

Trials cost progress: steps of another candidate take more time, or make less progress, than steps of the candidate that
is held. So trials are made only if better decisions are expected to gain more than the trials cost. All trials of a run
cost at most ``BUDGET`` of the steps to come; candidates under trial make at most ``SHARE`` of all steps; and at most
``CANDIDATES`` are tried.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from gravac.candidate import Candidate
from gravac.controllers.base import Progress
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.progress import (
    LENGTHS,
    OUTER_OVERSTATED,
    SETTLE,
    TRIAL,
    Learned,
    Trials,
    expected_scatter,
    value_of_trials,
)

BUDGET = 0.02
"""Largest cost of all trials of a run, as a fraction of the steps to come."""

SHARE = 0.15
"""Largest fraction of a run's steps that candidates under trial make."""

CANDIDATES = 2
"""Largest number of candidates that a run tries."""

LOOKAHEAD = 6
"""Largest number of further trials whose joint gain is computed: a single trial may be too inexact to pay."""

PRIOR_FACTOR = 3.0
"""Factor of a belief's deviation in the decision whether to make a first trial: a belief may be further off than its
deviation says. The factor falls with the root of the number of trials."""

FIRST_TRIAL_FRACTION = 0.03
"""Fraction of a run's steps before the first trial: at first the loss falls too fast to compare stretches."""

SMALLEST_DIVISOR = 0.3
"""Lower limit of the ratio of efficiencies by which a trial's standard deviation is divided. The quotient is the
standard deviation of the ratio's logarithm."""

NO_TRIALS = "switchback trials would cost more progress than they can gain"
"""Reason, as text, for a run with a probe to decide by its beliefs: too few steps to come, or too little to gain."""


class TrialPlan(NamedTuple):
    """Possible trials.

    Attributes:
        candidate: position of the candidate.
        reference: position of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        gain: see ``expected_gain``.
    """

    candidate: int
    reference: int
    length: int
    gain: float


def next_trials(state: GoodputState, total_steps: int | None, expire: int) -> Trials | None:
    """Return the trials with the largest expected gain, ready to begin; ``None`` if no trials pay.

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
        pairs = [
            (position, state.best)
            for position in range(len(state.forecasts))
            if position != state.best and state.allowed(position)
        ]
    plans = [
        TrialPlan(candidate, reference, length, gain)
        for candidate, reference in pairs
        for length in LENGTHS
        if (gain := expected_gain(state, candidate, reference, length, total_steps, expire)) > 0
    ]
    if not plans:
        return None
    plan = max(plans, key=lambda plan: (plan.gain, -plan.candidate, plan.length))
    candidate = state.forecasts[plan.candidate].candidate
    return Trials(
        candidate=plan.candidate,
        reference=plan.reference,
        length=plan.length,
        steps=steps_of_trial(candidate),
        made=SETTLE if plan.reference == state.position else 0,
        earlier=state.learned_of(plan.candidate),
        overstated=OUTER_OVERSTATED if candidate.mode == "outer" else 1.0,
    )


def trials_may_begin(state: GoodputState, total_steps: int | None) -> bool:
    """True once the run may make trials: after the warm-up and ``FIRST_TRIAL_FRACTION`` of the run's steps."""
    return not state.warming_up and state.steps >= FIRST_TRIAL_FRACTION * _total(state, total_steps)


def steps_of_trial(candidate: Candidate) -> int:
    """Return the number of a candidate's steps in a trial: at least two rounds of outer steps."""
    return max(TRIAL, 2 * candidate.every)


def expected_gain(
    state: GoodputState, candidate: int, reference: int, length: int, total_steps: int | None, expire: int
) -> float:
    """Return the progress that further trials are expected to gain, less their price.

    The unit is a step of the candidate that is held.

    Args:
        state: state of the search, with the results of trials so far.
        candidate: position of the candidate.
        reference: position of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.

    Returns:
        The largest gain of 1 to ``LOOKAHEAD`` trials; 0 if no trial pays, or none is allowed.
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
    seconds, reference_seconds = (_seconds(state, position, expire) for position in (candidate, reference))
    if not all(0 < number < math.inf for number in (seconds, reference_seconds)):
        return 0.0  # the bounds on the time of a candidate that has not run may be 0 or infinite
    ratio = belief.efficiency / reference_belief.efficiency
    advantage = math.log(ratio * reference_seconds / seconds)
    factor = max(1.0, PRIOR_FACTOR / math.sqrt(1 if earlier is None else 1 + earlier.trials))
    deviation = factor * math.hypot(belief.deviation, reference_belief.deviation)
    preferred = belief.lower_bound / seconds > reference_belief.lower_bound / reference_seconds
    first_price, trial_price = prices(state, candidate, reference, length, expire)
    scatter = expected_scatter(earlier, length) / max(SMALLEST_DIVISOR, ratio)
    steps_tried = sum(learned.steps for learned in state.learned)
    largest = 0.0
    for trials in range(1, LOOKAHEAD + 1):
        price = (first_price if earlier is None else 0.0) + trials * trial_price
        if state.booked + price > BUDGET * steps_to_come or steps_tried + trials * steps > SHARE * total:
            break
        gain = value_of_trials(advantage, deviation, scatter, trials, preferred)
        largest = max(largest, gain * (steps_to_come - trials * (steps + SETTLE + length)) - price)
    return largest


def prices(state: GoodputState, candidate: int, reference: int, length: int, expire: int) -> tuple[float, float]:
    """Return the price of the first stretch of the reference, and of a trial with the reference's stretch after it.

    Both are progress lost compared with steps of the best candidate, in steps of that candidate.
    """
    best = state.entry(state.best)
    assert best is not None
    steps = steps_of_trial(state.forecasts[candidate].candidate)
    stretch_price = (SETTLE + length) * progress_lost_per_step(state, reference, expire)
    mode_changes = state.leaving(state.forecasts[candidate]) / best.seconds
    trial_price = steps * progress_lost_per_step(state, candidate, expire) + stretch_price + mode_changes
    return stretch_price, trial_price


def progress_lost_per_step(state: GoodputState, position: int, expire: int) -> float:
    """Return the progress lost by a step of a candidate, compared with the best candidate in the same time; 0 or more.

    The unit is a step of the best candidate.
    """
    best = state.entry(state.best)
    assert best is not None
    progress = state.belief(position).efficiency / state.belief(state.best).efficiency
    return max(0.0, _seconds(state, position, expire) / best.seconds - progress)


def progress_of(state: GoodputState, learned: Learned) -> Progress:
    """Return the results of a candidate's trials, with the belief after the trials."""
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
    """Return the state with the results of the trials so far, and with ``price`` added to the booked cost."""
    others = tuple(other for other in state.learned if other.candidate != trials.candidate)
    return replace(state, learned=(*others, trials.learned), booked=state.booked + price)


def _total(state: GoodputState, total_steps: int | None) -> int:
    """Return the number of steps of the run; if not known, twice the number of steps so far."""
    return 2 * state.steps if total_steps is None else max(total_steps, state.steps)


def _seconds(state: GoodputState, position: int, expire: int) -> float:
    """Return the seconds of a candidate's step: as measured, otherwise the mean of its lower and upper bound."""
    measured = state.entry(position)
    if measured is not None:
        return measured.seconds
    lower, upper = state.fastest(position, expire), state.slowest(position)
    return (lower + upper) / 2 if lower < upper < math.inf else lower
