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

from gravac.controllers.goodput_state import FAR_SLOWER_RATIO, FEW_STEPS, SEARCH, GoodputState
from gravac.controllers.step_times import GoodputEntry

LARGEST_FIRST_STEP_RATIO = 3.0
"""Largest ratio of a trial's first step time to the longest step time with which the candidate would be best. A higher
ratio ends the trial."""


def trial_is_hopeless(state: GoodputState, hopeless: float) -> bool:
    """True if a trial should end early, since the candidate's steps are too slow to make it the best candidate.

    The longest step time with which the candidate would be best is called the limit. A trial ends early if one of these
    holds:

    - The fastest step after the first takes more than ``hopeless`` times the limit. The fastest step counts, since a
      shared machine delays a step now and then.
    - The last ``FEW_STEPS`` steps each take more than ``FAR_SLOWER_RATIO`` times the limit: the link broke down.
    - The first step takes more than ``LARGEST_FIRST_STEP_RATIO`` times the limit; tested before ``FEW_STEPS`` steps are
      made. If earlier measurements do not explain a time that long, an evaluation or a checkpoint may lie in the first
      step. The second step must then take as long.

    Args:
        state: state of the search, with the trial's window.
        hopeless: largest ratio of the fastest step's time to the limit; see ``Goodput``.
    """
    best = state.entry(state.best)
    seconds = (*state.window.rough, *state.window.seconds)
    if best is None or state.position == state.best or not seconds:
        return False
    allowed_s = longest_useful_seconds(state, best)
    if state.window.steps < FEW_STEPS or len(seconds) == 1:
        is_explained = seconds[0] <= explained_seconds(state)
        if not is_explained and len(seconds) == 1:
            return False
        return min(seconds[: 1 if is_explained else 2]) > LARGEST_FIRST_STEP_RATIO * allowed_s
    return min(seconds[1:]) > hopeless * allowed_s or _all_exceed(FAR_SLOWER_RATIO * allowed_s, seconds)


def longest_useful_seconds(state: GoodputState, best: GoodputEntry) -> float:
    """Return the longest step time, in seconds, with which the running candidate would be better than the best.

    Args:
        state: state of the search.
        best: measurement of the best candidate.
    """
    return state.least_efficiency(state.position) / state.goodput(best)


def chosen_is_far_slower(state: GoodputState) -> bool:
    """True if each of the last ``FEW_STEPS`` steps took far longer than the chosen candidate's measured step time.

    Far longer means more than ``FAR_SLOWER_RATIO`` times as long.
    """
    current_entry = state.entry(state.position)
    return current_entry is not None and _all_exceed(FAR_SLOWER_RATIO * current_entry.seconds, state.window.seconds)


def window_may_be_paused(state: GoodputState, change: float) -> bool:
    """True if a window of outer steps has fewer than ``FEW_STEPS`` times, all so long that a pause may lie in them.

    A pause is an evaluation or a checkpoint between two steps.

    Args:
        state: state of the search, with the window.
        change: relative change of step time that starts a new search; see ``Goodput``.
    """
    seconds = state.window.seconds
    return 0 < len(seconds) < FEW_STEPS and min(seconds) > longest_expected_seconds(state, change)


def longest_expected_seconds(state: GoodputState, change: float) -> float:
    """Return the step time, in seconds, above which a round of outer steps may contain a pause.

    A round is the outer steps up to an exchange; a pause is an evaluation or a checkpoint. A window of outer steps may
    have only one measured time, the time of one round. A window of native or hook steps has many measured times, so
    that the median leaves a pause out. If such steps run, the result is infinite.

    Args:
        state: state of the search.
        change: relative change of step time that starts a new search; see ``Goodput``.
    """
    if state.running.mode != "outer":
        return math.inf
    if state.phase == SEARCH:
        return explained_seconds(state)
    entry = state.entry(state.position)
    return math.inf if entry is None else (1 + 2 * change) * entry.seconds


def explained_seconds(state: GoodputState) -> float:
    """Return the longest time, in seconds, that a step of the running candidate may take on an unchanged link.

    The result is ``FAR_SLOWER_RATIO`` times the upper bound that follows from earlier measurements. A longer time shows
    that the link became slower, or that an evaluation or a checkpoint lies in the step. The result is infinite if no
    candidate was measured.
    """
    return FAR_SLOWER_RATIO * state.step_time_bounds.longest_step_seconds(state.position) or math.inf


def _all_exceed(limit_s: float, seconds: Sequence[float]) -> bool:
    """True if each of the last ``FEW_STEPS`` times exceeds ``limit_s``, in seconds; false if there are fewer times."""
    return len(seconds) >= FEW_STEPS and min(seconds[-FEW_STEPS:]) > limit_s
