# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which candidate's progress a run measures, if any: only where what that may change is worth its price.

The price is progress lost against going on with the candidate that is held, in steps of it: steps of another candidate
take more time, or make less progress. All trials of a run cost at most ``BUDGET`` of the steps to come; steps of
candidates under trial are at most ``SHARE`` of all steps; and at most ``CANDIDATES`` candidates are tried.
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
"""Largest share of the steps to come that all trials of a run may cost."""

SHARE = 0.15
"""Largest share of a run's steps that candidates under trial may have."""

CANDIDATES = 2
"""Largest number of candidates whose progress a run measures."""

AHEAD = 6
"""Number of trials that are looked ahead to: a single one may change nothing, and several may."""

WRONG = 3.0
"""Factor of a belief's deviation by which the first trial is planned: a belief may be further off than it says. The
factor falls with the root of the number of trials."""

EARLY = 0.03
"""Share of a run's steps in which nothing is measured yet: the loss falls too unevenly."""


class TrialPlan(NamedTuple):
    """Trials that could be made.

    Attributes:
        candidate: place of the candidate.
        reference: place of what it is compared with.
        length: number of steps of a stretch of the reference.
        gain: progress that they are expected to gain beyond their price, in steps of the held candidate.
    """

    candidate: int
    reference: int
    length: int
    gain: float


def next_trials(state: GoodputState, total_steps: int | None, expire: int) -> Trials | None:
    """Return the trials that are worth most, ready to begin; ``None``: none are worth their price.

    Args:
        state: state of the search, which holds a candidate.
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.
    """
    if state.warming_up or state.steps < EARLY * _total(state, total_steps):
        return None
    held = state.forecasts[state.best].candidate
    if held.mode == "outer":
        together = [entry for entry in state.entries if state.forecasts[entry.position].candidate.mode != "outer"]
        if not together:
            return None
        reference = max(together, key=state.goodput).position
        pairs = [(state.best, reference)]
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
    best = max(plans, key=lambda plan: (plan.gain, -plan.candidate, plan.length))
    steps = steps_of_trial(state.forecasts[best.candidate].candidate)
    made = SETTLE if best.reference == state.position else 0
    earlier = next((learned for learned in state.learned if learned.candidate == best.candidate), None)
    return Trials(best.candidate, best.reference, best.length, steps, made=made, earlier=earlier)


def steps_of_trial(candidate: Candidate) -> int:
    """Return the number of a candidate's steps in a trial: at least two rounds, where ranks exchange in rounds."""
    return max(TRIAL, 2 * candidate.every)


def expected_gain(
    state: GoodputState, candidate: int, reference: int, length: int, total_steps: int | None, expire: int
) -> float:
    """Return what further trials of a candidate are expected to gain beyond their price, in steps; 0 if nothing.

    Args:
        state: state of the search; what trials showed so far is in ``learned``.
        candidate: place of the candidate.
        reference: place of what it is compared with.
        length: number of steps of a stretch of the reference.
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.
    """
    before = next((learned for learned in state.learned if learned.candidate == candidate), None)
    if before is None and sum(learned.trials > 0 for learned in state.learned) >= CANDIDATES:
        return 0.0
    if before is not None and (before.reference != reference or not before.trials):
        return 0.0
    total = _total(state, total_steps)
    to_come = total - state.steps
    steps = steps_of_trial(state.forecasts[candidate].candidate)
    beliefs = state.belief(candidate), state.belief(reference)
    wrong = WRONG / math.sqrt(1 if before is None else 1 + before.trials)
    deviation = math.hypot(*(belief.deviation for belief in beliefs)) * max(1.0, wrong)
    seconds = {at: _seconds(state, at, expire) for at in (candidate, reference)}
    ratio = beliefs[0].efficiency / beliefs[1].efficiency
    advantage = math.log(ratio * seconds[reference] / seconds[candidate])
    bounds = {at: belief.lower_bound / seconds[at] for at, belief in zip((candidate, reference), beliefs, strict=True)}
    chosen = bounds[candidate] > bounds[reference]
    first, each = prices(state, candidate, reference, length, expire)
    scatter = expected_scatter(before, length) / max(0.3, ratio)
    best = 0.0
    for trials in range(1, AHEAD + 1):
        price = (first if before is None else 0.0) + trials * each
        made = sum(learned.steps for learned in state.learned) + trials * steps
        if state.booked + price > BUDGET * to_come or made > SHARE * total:
            break
        value = value_of_trials(advantage, deviation, scatter, trials, chosen)
        best = max(best, value * (to_come - trials * (steps + SETTLE + length)) - price)
    return best


def prices(state: GoodputState, candidate: int, reference: int, length: int, expire: int) -> tuple[float, float]:
    """Return what a first stretch of the reference costs, and each trial with the stretch after it, in held steps."""
    held = state.entry(state.best)
    assert held is not None
    steps = steps_of_trial(state.forecasts[candidate].candidate)
    stretch = (SETTLE + length) * lost_in_a_step(state, reference, expire)
    changes = state.leaving(state.forecasts[candidate]) / held.seconds
    return stretch, steps * lost_in_a_step(state, candidate, expire) + stretch + changes


def lost_in_a_step(state: GoodputState, position: int, expire: int) -> float:
    """Return what a step of a candidate loses against the held one, in steps of that: time less progress; 0 or more."""
    held = state.entry(state.best)
    assert held is not None
    progress = state.belief(position).efficiency / state.belief(state.best).efficiency
    return max(0.0, _seconds(state, position, expire) / held.seconds - progress)


def progress_of(state: GoodputState, learned: Learned) -> Progress:
    """Return what trials have shown of a candidate, and what is believed by them."""
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
    """Return the state with what trials have shown so far, and their price booked."""
    others = tuple(other for other in state.learned if other.candidate != trials.candidate)
    return replace(state, learned=(*others, trials.learned), booked=state.booked + price)


def _total(state: GoodputState, total_steps: int | None) -> int:
    """Return the number of steps of the run; as many again as were made, if it is not known."""
    return 2 * state.steps if total_steps is None else max(total_steps, state.steps)


def _seconds(state: GoodputState, position: int, expire: int) -> float:
    """Return the seconds of a candidate's step: as measured, or halfway between the least and the most it may take."""
    measured = state.entry(position)
    if measured is not None:
        return measured.seconds
    least, most = state.fastest(position, expire), state.slowest(position)
    return (least + most) / 2 if least < most < math.inf else least
