# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes texts for the reasons of ``Goodput``'s decisions: step times, and how many more steps a candidate takes.

Texts name a candidate by ``str(candidate)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gravac.controllers.base import cost_at_equal_samples
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.step_times import StepTiming


class Finding(NamedTuple):
    """Text with which the reason of a decision begins: what the newest steps showed.

    Attributes:
        text: what the steps showed about time, link or progress, such as ``"dense float32 takes 80.1 ms a step"``.
        omit_if_best: whether the rest of the reason states the same facts if the candidate that ran stays or becomes
            the best; the text is then left out.
    """

    text: str
    omit_if_best: bool = False


LONGEST_MILLISECONDS = 10_000.0
"""Time in milliseconds from which texts state a time in seconds."""

SHORTEST_MILLISECONDS = 0.001
"""Time in milliseconds below which texts only say that a time is shorter."""


def missing_text(missing_names: Sequence[str]) -> str:
    """Return a text that names up to three candidates of a checkpoint that are missing in this run.

    Args:
        missing_names: names of the missing candidates; empty: none of the checkpoint's candidates is missing.
    """
    if not missing_names:
        return "this run has candidates that the checkpoint lacks"
    more = [f"{len(missing_names) - 3} more"] if len(missing_names) > 3 else []
    *first_names, last_name = [*missing_names[:3], *more]
    joined_names = f"{', '.join(first_names)} and {last_name}" if first_names else last_name
    noun = "candidate" if len(missing_names) == 1 else "candidates"
    return f"this run lacks the checkpoint's {noun} {joined_names}, whose measurements are dropped"


def milliseconds(seconds: float) -> str:
    """Return a text that states a time, in milliseconds if it is shorter than 10 seconds.

    Args:
        seconds: the time, in seconds.

    Example:
        >>> milliseconds(0.20123), milliseconds(1.2345), milliseconds(12.3), milliseconds(1e-9)
        ('201.2 ms', '1234 ms', '12.3 s', 'less than 0.001 ms')
    """
    time_ms = 1000 * seconds
    if time_ms >= LONGEST_MILLISECONDS:
        return f"{seconds:.1f} s"
    if 0 < time_ms < SHORTEST_MILLISECONDS:
        return f"less than {SHORTEST_MILLISECONDS:g} ms"
    return f"{time_ms:.0f} ms" if time_ms >= 1000 else f"{time_ms:.4g} ms"


def took_text(state: GoodputState, position: int, seconds: float, verb: str = "took") -> str:
    """Return a sentence about a candidate: the time of a step, and in short how many more steps than dense are needed.

    Args:
        state: state of the search.
        position: index of the candidate in ``state.forecasts``.
        seconds: time of a step, in seconds.
        verb: ``"took"`` for the steps of a trial, ``"takes"`` for steps of the chosen candidate.
    """
    cost = cost_text(state, position, in_short=True)
    needs = f" and needs {cost}" if cost else ""
    return f"{state.forecasts[position].candidate} {verb} {milliseconds(seconds)} a step{needs}"


def exchange_text(state: GoodputState) -> str:
    """Return a text that compares the exchange of the running candidate with its earlier measurement.

    Empty if one of the two times is not known.
    """
    timing, median_times = state.timing(state.position), state.window.median_exchange_times
    if timing is None or timing.saved is None or median_times is None:
        return ""
    return f"its exchange takes {milliseconds(median_times[2])} (before: {milliseconds(timing.saved[2])})"


def given_up_text(limit_s: float, incumbent_name: str) -> str:
    """Return a text that says why a trial ended early.

    Args:
        limit_s: longest step time with which the tried candidate would be the best, in seconds.
        incumbent_name: name of the best candidate so far.
    """
    return (
        f"given up early, since only a step of less than {milliseconds(limit_s)} would be better than {incumbent_name}"
    )


def step_text(state: GoodputState, timing: StepTiming) -> str:
    """Return a text that states a measured candidate, its step time, and how many more steps than dense are needed."""
    candidate, cost = state.forecasts[timing.position].candidate, cost_text(state, timing.position)
    return f"{candidate}: {milliseconds(timing.seconds)} a step" + (f", {cost}" if cost else "")


def switch_text(state: GoodputState, best_timing: StepTiming, previous_timing: StepTiming) -> str:
    """Return a text about a switch to a new best candidate: step times, and how many more steps than dense are needed.

    Args:
        state: state of the search.
        best_timing: measurement of the new best candidate.
        previous_timing: measurement of the candidate that it replaces.
    """
    candidate, previous_candidate = (
        state.forecasts[timing.position].candidate for timing in (best_timing, previous_timing)
    )
    cost, previous_cost = (
        cost_text(state, best_timing.position),
        cost_text(state, previous_timing.position, in_short=True),
    )
    cost = f", {cost}" if cost else ""
    from_to_text, previous_time_text = (
        f"from {previous_candidate} to {candidate}",
        milliseconds(previous_timing.seconds),
    )
    step_time_text = f"{milliseconds(best_timing.seconds)} a step"
    if best_timing.seconds < previous_timing.seconds:
        return f"{from_to_text}: {step_time_text} instead of {previous_time_text}{cost}"
    return f"{from_to_text}: {step_time_text}{cost}, instead of {previous_time_text}" + (
        f" with {previous_cost}" if previous_cost else ""
    )


def trial_text(
    state: GoodputState, position: int, goodput_ratio: float, incumbent_text: str, expire: int, just_ran: bool = False
) -> str:
    """Return a text that names a candidate to be tried, and says how much better than the best it may be at most.

    Args:
        state: state of the search.
        position: index, in ``state.forecasts``, of the candidate to be tried.
        goodput_ratio: upper bound of that candidate's goodput / goodput of the best candidate so far; above 1.
        incumbent_text: name of the best candidate so far, with an explanation if the reason has not named it before.
        expire: age in windows from which the text states the age of the candidate's last measurement. The text also
            states the lower bound of the step time (``StepTimeBounds.shortest_step_seconds``), from which
            ``goodput_ratio`` follows.
        just_ran: whether the candidate ran in the window that has ended, so that the finding states time and cost.
    """
    candidate, limit_text = (
        state.forecasts[position].candidate,
        f"at most {ratio_text(goodput_ratio)} the progress per second of",
    )
    if just_ran:
        shortest_text = milliseconds(state.step_time_bounds.shortest_step_seconds(position, expire))
        return (
            f"time {candidate} for another window, since a step may take only {shortest_text}: {limit_text} "
            f"{incumbent_text}"
        )
    timing, again_text = state.timing(position), ""
    if timing is not None:
        age = state.windows - timing.window
        time_text = milliseconds(timing.seconds)
        shortest_text = milliseconds(state.step_time_bounds.shortest_step_seconds(position, expire))
        is_old = state.is_old(timing, expire)
        if is_old:
            timed_text = f"last timed {age} windows ago: {time_text} a step"
        elif timing.times > 1:
            timed_text = f"{time_text} a step in the mean of {timing.times} windows"
        else:
            timed_text = f"{time_text} a step so far"
        if shortest_text != time_text:
            timed_text += f", now perhaps only {shortest_text}" if is_old else f", perhaps only {shortest_text}"
        again_text = f" again ({timed_text})"
    cost = cost_text(state, position)
    cost = f", with {cost}" if cost else ""
    return f"try {candidate}{again_text}{cost}: {limit_text} {incumbent_text}"


def ratio_text(ratio: float) -> str:
    """Return a ratio above 1 as text, such as ``"1.30 times"``.

    Example:
        >>> ratio_text(1.3), ratio_text(1.0004), ratio_text(1e9)
        ('1.30 times', '1.001 times', '1e+09 times')
    """
    if ratio >= 1000:
        return f"{ratio:.3g} times"
    return f"{ratio:.2f} times" if ratio >= 1.005 else f"{math.ceil(1000 * ratio) / 1000:.3f} times"


def cost_text(state: GoodputState, position: int, in_short: bool = False) -> str:
    """Return a text that says how many more steps a candidate needs to the same loss than dense averaging.

    The text names the source, other programs, and is empty for a candidate that certainly needs as many steps as dense.

    Args:
        state: state of the search.
        position: index of the candidate in ``state.forecasts``.
        in_short: whether to leave the source out, for a candidate beside the one that is chosen.
    """
    belief = state.belief(position)
    return cost_at_equal_samples(belief.efficiency, belief.lower_bound, in_short)
