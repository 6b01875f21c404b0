# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Decides which candidate's progress a run measures by switchback trials, and whether another trial is worth its cost.

A switchback trial runs a stretch (successive steps) of one candidate between two stretches of another candidate, the
reference. The loss is read in the stretches of the reference (``gravac.controllers.progress``). A trial costs progress:
its steps take more time, or make less progress, than steps of the best candidate. Therefore a run makes trials only if
better decisions are expected to gain more than the trials cost. All trials of a run cost at most
``LARGEST_COST_FRACTION`` of the steps to come. Candidates under trial make at most ``LARGEST_STEP_FRACTION`` of all
steps. At most ``MOST_CANDIDATES`` candidates are tried.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from gravac.candidate import Candidate
from gravac.controllers.base import Progress
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.progress import (
    OUTER_OVERSTATEMENT,
    SETTLING_STEPS,
    STRETCH_LENGTHS,
    TRIAL_STEPS,
    TrialResults,
    Trials,
    expected_scatter,
    value_of_trials,
)

LARGEST_COST_FRACTION = 0.02
"""Largest cost of all switchback trials of a run (in steps of the best candidate) / number of steps to come."""

LARGEST_STEP_FRACTION = 0.15
"""Largest fraction of a run's steps that candidates under switchback trial may make."""

MOST_CANDIDATES = 2
"""Largest number of candidates on which a run makes switchback trials. A candidate counts even if no trial of it gave a
result."""

MOST_TRIALS_AHEAD = 6
"""Largest number of further switchback trials that ``expected_gain_steps`` considers together, since several trials may
be worth their cost when a single one is too inexact."""

FIRST_TRIAL_DEVIATION_FACTOR = 3.0
"""Factor by which ``expected_gain_steps`` multiplies the standard deviation of a belief before a candidate's first
switchback trial. The belief may be further off than its deviation says. After n trials, the factor is divided by
√(n + 1), but never below 1."""

LARGEST_WIDENED_DEVIATION = 0.4
"""Largest standard deviation, of the logarithm of an efficiency, that ``FIRST_TRIAL_DEVIATION_FACTOR`` leads to. A
belief of a larger deviation is not widened: that belief already admits almost any efficiency."""

COST_WEIGHT = 2.0
"""Factor by which ``expected_gain_steps`` multiplies the cost of trials of a candidate that would not run without them.
The cost is certain, but the gain is an expectation of beliefs. Trials of a candidate that runs anyway count at their
cost, since they protect the run from a wrong belief. Before this factor, six runs of record programs_links.json of
commit 43b3fe07 made a trial of outer steps, without a limit on the link. After the trial, each run averaged gradients
in each step again."""

FIRST_TRIAL_FRACTION = 0.03
"""Fraction of a run's steps in which no switchback trial begins, since the loss falls too fast at first."""

HIGHEST_EFFICIENCY = 1.0
"""Highest efficiency that ``expected_gain_steps`` counts on, unless trials already measured a higher one: a step of any
candidate makes at most the progress of a dense step. None of the runs in record progress.json of commit 43b3fe07 showed
more. Without this limit, a wide belief makes trials seem worth their cost even if the candidate's steps take longer
than those of the best candidate."""

SMALLEST_RATIO_DIVISOR = 0.3
"""Smallest number by which ``expected_gain_steps`` divides. It estimates the standard deviation of the logarithm of a
ratio of efficiencies as the ratio's standard deviation / the ratio; for a smaller ratio it divides by this number."""

NO_TRIALS_REASON = "switchback trials would cost more progress than they can gain"
"""Text of a decision reason if a run has a probe but makes no switchback trials: too few steps are to come, or there is
too little to gain."""


class TrialPlan(NamedTuple):
    """Switchback trials of one candidate that a run could make, and the gain expected of them.

    Attributes:
        candidate_position: index of the candidate in ``GoodputState.forecasts``.
        reference_position: index of the candidate that this candidate would be compared with.
        stretch_steps: number of successive steps of the reference before the candidate's steps, and again after them.
        gain_steps: expected gain in progress minus the weighted cost, in steps of the best candidate; see
            ``expected_gain_steps``.
    """

    candidate_position: int
    reference_position: int
    stretch_steps: int
    gain_steps: float


def next_trials(state: GoodputState, total_steps: int | None, expire: int) -> Trials | None:
    """Return the switchback trials of largest expected gain, ready to begin; ``None`` if none are worth their cost.

    Args:
        state: state of the search, while the best candidate runs.
        total_steps: number of steps of the run; ``None``: not known, so twice the steps so far are assumed.
        expire: age of a measured step time, in windows, from which only half of the time counts as lower bound; see
            ``StepTimeBounds.shortest_step_seconds``.
    """
    if not trials_may_begin(state, total_steps):
        return None
    if state.forecasts[state.best].candidate.mode == "outer":
        hook_or_native_timings = [
            timing for timing in state.entries if state.forecasts[timing.position].candidate.mode != "outer"
        ]
        compared_positions = (
            [(state.best, max(hook_or_native_timings, key=state.goodput).position)] if hook_or_native_timings else []
        )
    else:
        compared_positions = [
            (position, state.best)
            for position in range(len(state.forecasts))
            if position != state.best and state.may_run(position)
        ]
    plans = [
        TrialPlan(candidate_position, reference_position, stretch_steps, gain_steps)
        for candidate_position, reference_position in compared_positions
        for stretch_steps in STRETCH_LENGTHS
        if (
            gain_steps := expected_gain_steps(
                state, candidate_position, reference_position, stretch_steps, total_steps, expire
            )
        )
        > 0
    ]
    if not plans:
        return None
    plan = max(plans, key=lambda plan: (plan.gain_steps, -plan.candidate_position, plan.stretch_steps))
    candidate = state.forecasts[plan.candidate_position].candidate
    return Trials(
        candidate=plan.candidate_position,
        reference=plan.reference_position,
        length=plan.stretch_steps,
        steps=steps_of_trial(candidate),
        made=SETTLING_STEPS if plan.reference_position == state.position else 0,
        earlier=state.trial_results(plan.candidate_position),
        overstatement=OUTER_OVERSTATEMENT if candidate.mode == "outer" else 1.0,
    )


def trials_may_begin(state: GoodputState, total_steps: int | None) -> bool:
    """True if trials may begin: ``FIRST_TRIAL_FRACTION`` of the steps are made, and the learning rate has warmed up."""
    return not state.warming_up and state.steps >= FIRST_TRIAL_FRACTION * _assumed_total_steps(state, total_steps)


def steps_of_trial(candidate: Candidate) -> int:
    """Return the number of the candidate's steps in a switchback trial.

    The number is ``TRIAL_STEPS``, or the number of steps up to the second exchange if that is larger.
    """
    return max(TRIAL_STEPS, 2 * candidate.every)


def expected_gain_steps(
    state: GoodputState,
    candidate_position: int,
    reference_position: int,
    stretch_steps: int,
    total_steps: int | None,
    expire: int,
) -> float:
    """Return the gain expected of further switchback trials, minus their cost, which is weighted (``COST_WEIGHT``).

    Gain and cost are in steps of the best candidate. The gain is the progress that the rest of the run makes in
    addition, since the trials lead to better decisions.

    Args:
        state: state of the search, with the results of trials so far.
        candidate_position: index, in ``state.forecasts``, of the candidate whose progress trials would measure.
        reference_position: index of the candidate that this candidate would be compared with.
        stretch_steps: number of successive steps of the reference before the candidate's steps, and again after them.
        total_steps: number of steps of the run; ``None``: not known, so twice the steps so far are assumed.
        expire: age of a measured step time, in windows, from which only half of the time counts as lower bound; see
            ``StepTimeBounds.shortest_step_seconds``.

    Returns:
        Gain minus weighted cost for the number of trials, from 1 to ``MOST_TRIALS_AHEAD``, with which that difference
        is largest. 0 if trials cost more than they gain, or are not allowed.
    """
    earlier_results = state.trial_results(candidate_position)
    if earlier_results is None and len(state.learned) >= MOST_CANDIDATES:
        return 0.0
    if earlier_results is not None and (earlier_results.reference != reference_position or not earlier_results.trials):
        return 0.0
    run_steps = _assumed_total_steps(state, total_steps)
    steps_to_come = run_steps - state.steps
    trial_steps = steps_of_trial(state.forecasts[candidate_position].candidate)
    belief, reference_belief = state.belief(candidate_position), state.belief(reference_position)
    candidate_seconds, reference_seconds = (
        _step_seconds(state, position, expire) for position in (candidate_position, reference_position)
    )
    if not all(0 < number < math.inf for number in (candidate_seconds, reference_seconds)):
        return 0.0  # the bounds on the time of a candidate that has not run may be 0 or infinite
    ratio = belief.efficiency / reference_belief.efficiency
    log_goodput_ratio = math.log(ratio * reference_seconds / candidate_seconds)
    highest_efficiency = max(HIGHEST_EFFICIENCY, belief.efficiency)
    largest_log_goodput_ratio = math.log(
        highest_efficiency / reference_belief.efficiency * reference_seconds / candidate_seconds
    )
    deviation_factor = max(
        1.0, FIRST_TRIAL_DEVIATION_FACTOR / math.sqrt(1 if earlier_results is None else 1 + earlier_results.trials)
    )
    believed_deviation = math.hypot(belief.deviation, reference_belief.deviation)
    deviation = max(believed_deviation, min(LARGEST_WIDENED_DEVIATION, deviation_factor * believed_deviation))
    is_preferred = belief.lower_bound / candidate_seconds > reference_belief.lower_bound / reference_seconds
    first_cost_steps, trial_cost_steps = trial_costs_steps(
        state, candidate_position, reference_position, stretch_steps, expire
    )
    scatter = expected_scatter(earlier_results, stretch_steps) / max(SMALLEST_RATIO_DIVISOR, ratio)
    cost_weight = 1.0 if is_preferred else COST_WEIGHT
    tried_steps = sum(results.steps for results in state.learned)
    largest_gain_steps = 0.0
    for trial_count in range(1, MOST_TRIALS_AHEAD + 1):
        price_steps = (first_cost_steps if earlier_results is None else 0.0) + trial_count * trial_cost_steps
        if (
            state.booked + price_steps > LARGEST_COST_FRACTION * steps_to_come
            or tried_steps + trial_count * trial_steps > LARGEST_STEP_FRACTION * run_steps
        ):
            break
        gain_fraction = value_of_trials(
            log_goodput_ratio, deviation, scatter, trial_count, is_preferred, largest_log_goodput_ratio
        )
        largest_gain_steps = max(
            largest_gain_steps,
            gain_fraction * (steps_to_come - trial_count * (trial_steps + SETTLING_STEPS + stretch_steps))
            - cost_weight * price_steps,
        )
    return largest_gain_steps


def trial_costs_steps(
    state: GoodputState, candidate_position: int, reference_position: int, stretch_steps: int, expire: int
) -> tuple[float, float]:
    """Return the cost of the reference's steps before the first switchback trial, and the cost of each trial.

    A trial is a stretch of the candidate, followed by settling steps and a stretch of the reference. A cost is the
    progress lost in comparison with running the best candidate for the same time, in steps of the best candidate.
    ``expected_gain_steps`` explains the arguments.
    """
    best_timing = state.timing(state.best)
    assert best_timing is not None
    candidate_steps = steps_of_trial(state.forecasts[candidate_position].candidate)
    stretch_cost_steps = (SETTLING_STEPS + stretch_steps) * progress_lost_per_step(state, reference_position, expire)
    mode_change_steps = (
        state.step_time_bounds.leaving_seconds(state.forecasts[candidate_position]) / best_timing.seconds
    )
    trial_cost_steps = (
        candidate_steps * progress_lost_per_step(state, candidate_position, expire)
        + stretch_cost_steps
        + mode_change_steps
    )
    return stretch_cost_steps, trial_cost_steps


def progress_lost_per_step(state: GoodputState, position: int, expire: int) -> float:
    """Return the progress that a step of a candidate loses in comparison with the best candidate, in the same time.

    The result is 0 or more, in steps of the best candidate.

    Args:
        state: state of the search.
        position: index of the candidate in ``state.forecasts``.
        expire: age of a measured step time, in windows, from which only half of the time counts as lower bound.
    """
    best_timing = state.timing(state.best)
    assert best_timing is not None
    relative_progress = state.belief(position).efficiency / state.belief(state.best).efficiency
    return max(0.0, _step_seconds(state, position, expire) / best_timing.seconds - relative_progress)


def progress_of(state: GoodputState, results: TrialResults) -> Progress:
    """Return a record of a candidate's switchback trials: their results, and the efficiency believed after them."""
    belief = state.belief(results.candidate)
    return Progress(
        candidate=state.forecasts[results.candidate].candidate,
        reference=state.forecasts[results.reference].candidate,
        ratio=results.ratio,
        error=results.error,
        trials=results.trials,
        efficiency=belief.efficiency,
        low=belief.lower_bound,
        high=belief.upper_bound,
    )


def with_trial_results(state: GoodputState, trials: Trials, price_steps: float) -> GoodputState:
    """Return the state with the results of ``trials``, and ``price_steps`` added to all trials' cost (``booked``).

    Args:
        state: state of the search.
        trials: the current switchback trials.
        price_steps: cost that is not yet in ``booked``, in steps of the best candidate.
    """
    other_results = tuple(results for results in state.learned if results.candidate != trials.candidate)
    return replace(state, learned=(*other_results, trials.results), booked=state.booked + price_steps)


def _assumed_total_steps(state: GoodputState, total_steps: int | None) -> int:
    """Return the number of steps of the run; twice the number of steps so far if ``total_steps`` is ``None``."""
    return 2 * state.steps if total_steps is None else max(total_steps, state.steps)


def _step_seconds(state: GoodputState, position: int, expire: int) -> float:
    """Return the seconds of a candidate's step: as measured, or else the mean of the lower and the upper bound.

    If neither a measurement nor a finite upper bound exists, return the lower bound.
    """
    candidate_timing = state.timing(position)
    if candidate_timing is not None:
        return candidate_timing.seconds
    lower_s, upper_s = (
        state.step_time_bounds.shortest_step_seconds(position, expire),
        state.step_time_bounds.longest_step_seconds(position),
    )
    return (lower_s + upper_s) / 2 if lower_s < upper_s < math.inf else lower_s
