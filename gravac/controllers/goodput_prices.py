# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What trials and changes of candidate cost, and whether ``Goodput`` may try or choose a candidate at that price.

A trial costs the seconds by which it takes longer than as many steps of the best candidate. Trials have a budget of
such seconds, which grows with the run's time. A change of candidate may cost progress or, when outer steps end, time.
"""

from __future__ import annotations

from gravac.candidate import Forecast
from gravac.controllers.base import DEFAULT_STRETCH_STEPS
from gravac.controllers.early_end import LARGEST_FIRST_STEP_RATIO
from gravac.controllers.goodput_state import EARLY_END_STEPS, GoodputState
from gravac.controllers.step_times import StepTiming

STARTING_BUDGET_STEPS = 25.0
"""Budget for trials at the start of a run, and again after each change of the link, in steps of the best candidate. The
fraction ``explore`` of the time since then is added to that budget."""

FEWEST_TRIAL_ROUNDS = 3
"""Smallest number of rounds (outer steps up to an exchange) in a trial. A decision after the first round takes effect
only after this many rounds."""

SETBACK_STEPS, SETTLED_STEPS = 15.0, 100
"""``SETBACK_STEPS``: progress, in steps, that a switch from 1-bit compression to a candidate of higher efficiency may
cost. ``SETTLED_STEPS``: smallest number of steps over which the cost of a switch is spread. The controller assumes that
as many steps will follow as the run has made, and spreads the cost over that number if larger.

After 1-bit steps, AdamW's second moments are too small for other candidates. On the task ``charlm``, a switch raises
the loss by 0.014 to 0.024 nats for 40 steps. That is the progress of 10 to 20 steps
(``docs/evidence/decisions.md``)."""

COARSE_EFFICIENCY = 0.8
"""Efficiency below which the controller assumes that a quantizer leaves AdamW's second moments as small as 1-bit
compression does; see ``SETBACK_STEPS``."""

OUTER_HYSTERESIS = 0.1
"""Relative gain in goodput below which outer steps are not tried or chosen. The efficiency of outer steps differs more
from task to task than that of other candidates (``docs/evidence/results.md``). Also, many outer steps give only a
single measurement."""

LEAST_WAITING_FRACTION = 0.03
"""Time that a step waits for its exchange / time of the step, below which no candidate that sends fewer bytes is tried.
Fewer bytes can save no more than that wait."""

FULL_BUDGET_FRACTION = 0.5
"""Fraction of a step's time that another candidate could save, above which trials get their whole budget (``explore``,
``STARTING_BUDGET_STEPS``). Below, the budget shrinks in proportion to the fraction that could be saved. If native steps
(DDP exchanges by itself) are best so far, the budget for trials of hook steps shrinks with the square. On a fast link,
such trials seldom find a better candidate."""


def price_of_steps(slowest_s: float, best_s: float, every: int = 1) -> float:
    """Return an upper bound of the cost of a trial, in seconds: the time beyond that of steps of the best candidate.

    A trial whose steps are far too slow ends after two steps, any other trial after four or more.

    Args:
        slowest_s: upper bound of the time of a step of the trial, in seconds.
        best_s: time of a step of the best candidate so far, in seconds.
        every: number of steps from one exchange to the next; if above 1, a trial lasts at least
            ``FEWEST_TRIAL_ROUNDS * every`` steps.

    Example:
        >>> price_of_steps(slowest_s=0.2, best_s=0.1)  # four steps, each 0.1 s too long
        0.4
        >>> price_of_steps(slowest_s=2.0, best_s=0.1)  # two steps, each 1.9 s too long
        3.8
    """
    steps, excess_s = EARLY_END_STEPS + 1, slowest_s - best_s
    if every > 1:
        return max(steps, FEWEST_TRIAL_ROUNDS * every) * excess_s
    return min(steps * excess_s, max(2 * excess_s, steps * (LARGEST_FIRST_STEP_RATIO - 1) * best_s))


def may_try(state: GoodputState, best_timing: StepTiming, position: int, goodput_bound: float, explore: float) -> bool:
    """True if a trial of a candidate promises more than it costs, and the budget for trials still covers the cost.

    Args:
        state: state of the search.
        best_timing: measurement of the best candidate.
        position: index, in ``state.forecasts``, of the candidate to be tried.
        goodput_bound: upper bound of the candidate's goodput, in steps per second.
        explore: largest fraction of the run's time that trials may cost.
    """
    forecast, best_forecast = state.forecasts[position], state.forecasts[best_timing.position]
    mode, best_mode = forecast.candidate.mode, best_forecast.candidate.mode
    spares_hook = mode == "native" and best_mode == "hook"  # gravac's hook itself may cost more than it saves
    if (
        not spares_hook
        and forecast.wire_ratio >= best_forecast.wire_ratio
        and state.step_time_bounds.waiting_fraction(best_timing) < LEAST_WAITING_FRACTION
    ):
        return False
    trial_price_s = price_of_trial(state, best_timing, position, state.step_time_bounds.longest_step_seconds(position))
    spendable_fraction = min(1.0, state.largest_improvement(best_timing) / FULL_BUDGET_FRACTION)
    if best_mode == "native" and mode == "hook":
        spendable_fraction **= 2
    budget_s = explore * state.elapsed + STARTING_BUDGET_STEPS * best_timing.seconds
    if trial_price_s > spendable_fraction * budget_s - state.spent:
        return False
    if mode != "outer" or best_mode == "outer":
        return True
    gained_s = max(state.steps, SETTLED_STEPS) * best_timing.seconds * (goodput_bound / state.goodput(best_timing) - 1)
    return max(0.0, trial_price_s) + state.step_time_bounds.leaving_seconds(forecast) <= gained_s


def may_time_again(state: GoodputState, best_timing: StepTiming, explore: float) -> bool:
    """True if the suspect may run again to be timed, since a trial of it costs little enough.

    The suspect is the candidate whose few slow steps were the only sign that the link became slower
    (``GoodputState.suspect``). Perhaps the machine had only paused. The trial may cost at most the fraction
    ``explore`` of the time since the link changed.
    """
    if state.suspect is None or state.suspect == best_timing.position or not state.may_run(state.suspect):
        return False
    suspect_timing = state.timing(state.suspect)
    if suspect_timing is None:
        return False
    return price_of_trial(state, best_timing, state.suspect, suspect_timing.seconds) <= explore * state.elapsed


def goodput_to_beat(state: GoodputState, incumbent_timing: StepTiming, position: int, hysteresis: float) -> float:
    """Return the goodput, in steps per second, that a candidate must exceed to be tried or to become the best.

    Args:
        state: state of the search.
        incumbent_timing: measurement of the candidate that is best so far.
        position: index, in ``state.forecasts``, of the candidate that may be tried or become the best.
        hysteresis: relative gain in goodput below which no other candidate is tried or chosen.
    """
    margin = hysteresis
    is_coarse = state.forecasts[incumbent_timing.position].by_gain and incumbent_timing.efficiency < COARSE_EFFICIENCY
    if is_coarse and state.efficiency(position) > incumbent_timing.efficiency:
        margin = max(margin, SETBACK_STEPS / max(state.steps, SETTLED_STEPS))
    forecast, incumbent_forecast = state.forecasts[position], state.forecasts[incumbent_timing.position]
    if forecast.behind is not None:
        margin = max(margin, OUTER_HYSTERESIS)
    if forecast.candidate.mode == "native" and incumbent_forecast.candidate.mode == "hook":
        margin = 0.0
    return (
        state.goodput(incumbent_timing) * (1 + margin) * (1 + _relative_leaving_cost(state, incumbent_timing, forecast))
    )


def _relative_leaving_cost(state: GoodputState, incumbent_timing: StepTiming, forecast: Forecast) -> float:
    """Return what a change of candidate costs if it begins or ends outer steps; 0 for any other change.

    The cost is the time to make the ranks' models equal again when outer steps end, divided by the time of the steps
    made so far (``SETTLED_STEPS`` if fewer).

    Args:
        state: state of the search.
        incumbent_timing: measurement of the candidate that is best so far.
        forecast: forecast of the candidate that may replace the incumbent.
    """
    incumbent_forecast = state.forecasts[incumbent_timing.position]
    if (forecast.candidate.mode == "outer") == (incumbent_forecast.candidate.mode == "outer"):
        return 0.0
    leaving_s = state.step_time_bounds.leaving_seconds(
        forecast if forecast.candidate.mode == "outer" else incumbent_forecast
    )
    return leaving_s / (max(state.steps, SETTLED_STEPS) * incumbent_timing.seconds)


def price_of_trial(state: GoodputState, best_timing: StepTiming, position: int, slowest_s: float) -> float:
    """Return an upper bound of the seconds by which a trial takes longer than as many steps of the best candidate.

    If the best candidate makes outer steps, the time to leave these for the trial is included.

    Args:
        state: state of the search.
        best_timing: measurement of the best candidate.
        position: index, in ``state.forecasts``, of the candidate to be tried.
        slowest_s: upper bound of the time of a step of the candidate, in seconds.
    """
    forecast, best_forecast = state.forecasts[position], state.forecasts[best_timing.position]
    price_s = price_of_steps(slowest_s, best_timing.seconds, forecast.candidate.every)
    if forecast.candidate.mode == "native":
        price_s = DEFAULT_STRETCH_STEPS * (slowest_s - best_timing.seconds)
    if ends_outer_steps(best_forecast, forecast):
        price_s = max(0.0, price_s) + state.step_time_bounds.leaving_seconds(best_forecast)
    return price_s


def ends_outer_steps(current: Forecast, following: Forecast) -> bool:
    """True if the current candidate makes outer steps, and the following candidate does not."""
    return current.candidate.mode == "outer" and following.candidate.mode != "outer"
