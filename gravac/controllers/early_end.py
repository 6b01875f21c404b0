# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""When goodput ends a window early, since the steps are far too slow, and when a slow step may only be a pause.

A link that broke down makes every step slow. An evaluation or a checkpoint lies between two steps: it makes one step
slow, or one round of outer steps. So a single slow time that earlier measurements do not explain ends nothing: the
next one must be as slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravac.controllers.goodput_state import FAR_SLOWER_RATIO, FEW_STEPS, SEARCH, GoodputState

LARGEST_FIRST_STEP_RATIO = 3.0
"""Time of a trial's first step / longest step time with which the candidate would be best: a higher ratio ends the
trial."""


def trial_is_hopeless(state: GoodputState, hopeless: float) -> bool:
    """Return whether a trial can be given up: its fastest step is clearly too slow, or its first step far too slow.

    The fastest step counts, because a shared machine delays a step now and then. A trial can also be given up if its
    last steps are all far too slow: the link broke down. If the first step is far slower than earlier measurements of
    any candidate explain, either the link broke down, or an evaluation or a checkpoint lies in that step. The second
    step then decides.

    Args:
        state: state of the search, with the trial's window.
        hopeless: time of the fastest step / longest step time with which the candidate would be best: a higher ratio
            ends the trial.
    """
    best = state.entry(state.best)
    seconds = (*state.window.rough, *state.window.seconds)
    if best is None or state.position == state.best or not seconds:
        return False
    allowed_s = state.least_efficiency(state.position) / state.goodput(best)
    if state.window.steps < FEW_STEPS or len(seconds) == 1:
        is_explained = seconds[0] <= explained_seconds(state)
        if not is_explained and len(seconds) == 1:
            return False
        return min(seconds[: 1 if is_explained else 2]) > LARGEST_FIRST_STEP_RATIO * allowed_s
    return min(seconds[1:]) > hopeless * allowed_s or _all_exceed(FAR_SLOWER_RATIO * allowed_s, seconds)


def chosen_is_far_slower(state: GoodputState) -> bool:
    """Return whether the last steps of the chosen candidate are far slower than its steps were when measured."""
    current_entry = state.entry(state.position)
    return current_entry is not None and _all_exceed(FAR_SLOWER_RATIO * current_entry.seconds, state.window.seconds)


def window_may_be_paused(state: GoodputState, change: float) -> bool:
    """Return whether all times of a window of outer steps are too long, but too few to rule out a pause.

    Args:
        state: state of the search, with the window.
        change: relative change of step time that starts a new search; see ``Goodput``.
    """
    seconds = state.window.seconds
    return 0 < len(seconds) < FEW_STEPS and min(seconds) > longest_expected_seconds(state, change)


def longest_expected_seconds(state: GoodputState, change: float) -> float:
    """Return the step time above which a round of outer steps may contain a pause; infinite for other steps.

    An evaluation or a checkpoint lies in one step of several, so that the median of hook steps leaves it out. But a
    window of outer steps may have a single time: that of a round.

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
    """Return the longest step time, in seconds, of the running candidate that earlier measurements explain.

    A longer time shows that the link became slower, or that the step contains a pause. Infinite if nothing was
    measured.
    """
    return FAR_SLOWER_RATIO * state.times.longest_step_seconds(state.position) or math.inf


def _all_exceed(limit_s: float, seconds: Sequence[float]) -> bool:
    """Return whether each of the last ``FEW_STEPS`` times, in seconds, exceeds ``limit_s``; not if there are fewer."""
    return len(seconds) >= FEW_STEPS and min(seconds[-FEW_STEPS:]) > limit_s
