# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Decides for ``Goodput`` when to end a trial or a window early, since its steps are far too slow.

A link that broke down makes every step slow. An evaluation or a checkpoint between two steps makes only one measured
time long: the time of one step, or of one round (outer steps up to an exchange). Therefore a single time that is longer
than earlier measurements allow (``explained_seconds``) ends no trial or window. The next time must be as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravac.controllers.goodput_state import EARLY_END_STEPS, FAR_SLOWER_RATIO, SEARCH, GoodputState
from gravac.controllers.step_times import StepTiming

LARGEST_FIRST_STEP_RATIO = 3.0
"""Largest ratio of a trial's first step time to the longest step time with which the candidate would be best. A higher
ratio ends the trial."""


def trial_is_hopeless(state: GoodputState, hopeless_ratio: float) -> bool:
    """True if a trial should end early, since the candidate's steps are too slow to make it the best candidate.

    The longest step time with which the candidate would be best is called the limit. A trial ends early if one of these
    holds:

    - The fastest step after the first takes more than ``hopeless_ratio`` times the limit. The fastest step counts,
      since a shared machine delays a step now and then.
    - The last ``EARLY_END_STEPS`` steps each take more than ``FAR_SLOWER_RATIO`` times the limit: the link broke down.
    - The first step takes more than ``LARGEST_FIRST_STEP_RATIO`` times the limit; tested before
      ``EARLY_END_STEPS`` steps are made. If earlier measurements do not explain a time that long, an evaluation or a
      checkpoint may lie in the first step. The second step must then take as long.

    Args:
        state: state of the search, with the trial's window.
        hopeless_ratio: largest ratio of the fastest step's time to the limit; see ``Goodput``.
    """
    best_timing = state.timing(state.best)
    step_times_s = (*state.window.rough, *state.window.seconds)
    if best_timing is None or state.position == state.best or not step_times_s:
        return False
    limit_s = longest_useful_seconds(state, best_timing)
    if state.window.steps < EARLY_END_STEPS or len(step_times_s) == 1:
        first_is_explained = step_times_s[0] <= explained_seconds(state)
        if not first_is_explained and len(step_times_s) == 1:
            return False
        return min(step_times_s[: 1 if first_is_explained else 2]) > LARGEST_FIRST_STEP_RATIO * limit_s
    return min(step_times_s[1:]) > hopeless_ratio * limit_s or _newest_all_exceed(
        FAR_SLOWER_RATIO * limit_s, step_times_s
    )


def longest_useful_seconds(state: GoodputState, best_timing: StepTiming) -> float:
    """Return the longest step time, in seconds, with which the running candidate would be better than the best.

    Args:
        state: state of the search.
        best_timing: measurement of the best candidate.
    """
    return state.least_efficiency(state.position) / state.goodput(best_timing)


def chosen_is_far_slower(state: GoodputState) -> bool:
    """True if each of the last ``EARLY_END_STEPS`` steps took far longer than measured before for the chosen candidate.

    Far longer means more than ``FAR_SLOWER_RATIO`` times as long.
    """
    current_timing = state.timing(state.position)
    return current_timing is not None and _newest_all_exceed(
        FAR_SLOWER_RATIO * current_timing.seconds, state.window.seconds
    )


def window_may_be_paused(state: GoodputState, search_change: float) -> bool:
    """True if a window of outer steps has fewer than ``EARLY_END_STEPS`` times, so long that a pause may lie in each.

    A pause is an evaluation or a checkpoint between two steps.

    Args:
        state: state of the search, with the window.
        search_change: relative change of step time that starts a new search; see ``Goodput``.
    """
    step_times_s = state.window.seconds
    return 0 < len(step_times_s) < EARLY_END_STEPS and min(step_times_s) > longest_expected_seconds(
        state, search_change
    )


def longest_expected_seconds(state: GoodputState, search_change: float) -> float:
    """Return the step time, in seconds, above which a round of outer steps may contain a pause.

    A round is the outer steps up to an exchange; a pause is an evaluation or a checkpoint. A window of outer steps may
    have only one measured time, the time of one round. A window of native or hook steps has many measured times, so
    that the median leaves a pause out. If such steps run, the result is infinite.

    Args:
        state: state of the search.
        search_change: relative change of step time that starts a new search; see ``Goodput``.
    """
    if state.running.mode != "outer":
        return math.inf
    if state.phase == SEARCH:
        return explained_seconds(state)
    timing = state.timing(state.position)
    return math.inf if timing is None else (1 + 2 * search_change) * timing.seconds


def explained_seconds(state: GoodputState) -> float:
    """Return the longest time, in seconds, that a step of the running candidate may take on an unchanged link.

    The result is ``FAR_SLOWER_RATIO`` times the upper bound that follows from earlier measurements. A longer time shows
    that the link became slower, or that an evaluation or a checkpoint lies in the step. The result is infinite if no
    candidate was measured.
    """
    return FAR_SLOWER_RATIO * state.step_time_bounds.longest_step_seconds(state.position) or math.inf


def _newest_all_exceed(limit_s: float, step_times_s: Sequence[float]) -> bool:
    """True if each of the last ``EARLY_END_STEPS`` times exceeds ``limit_s``, in seconds; false for fewer times."""
    return len(step_times_s) >= EARLY_END_STEPS and min(step_times_s[-EARLY_END_STEPS:]) > limit_s
