# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes texts for the reasons of ``Goodput``'s decisions: step times, and how many more steps a candidate takes.

Texts name a candidate by ``str(candidate)``. Before users see a text, ``gravac.telemetry.descriptions`` replaces each
name by the candidate's method and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gravac.controllers.base import BELIEVED, cost_at_equal_samples
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.step_times import GoodputEntry


class Finding(NamedTuple):
    """Text with which the reason of a decision begins: what the newest steps showed.

    Attributes:
        text: what the steps showed about time, link or progress, such as ``"dense 1x takes 80.1 ms a step"``.
        repeated: whether the rest of the reason states the same facts if the candidate that ran stays or becomes the
            best; the text is then left out.
    """

    text: str
    repeated: bool = False


LONGEST_MILLISECONDS = 10_000.0
"""Time in milliseconds from which texts state a time in seconds."""

SHORTEST_MILLISECONDS = 0.001
"""Time in milliseconds below which texts only say that a time is shorter."""


def missing_text(missing: Sequence[str]) -> str:
    """Return a text that names up to three candidates of a checkpoint that are missing in this run.

    Args:
        missing: names of the missing candidates; empty: none of the checkpoint's candidates is missing.
    """
    if not missing:
        return "this run has candidates that the checkpoint lacks"
    more = [f"{len(missing) - 3} more"] if len(missing) > 3 else []
    *first_names, last_name = [*missing[:3], *more]
    names = f"{', '.join(first_names)} and {last_name}" if first_names else last_name
    noun = "candidate" if len(missing) == 1 else "candidates"
    return f"this run lacks the checkpoint's {noun} {names}, whose measurements are dropped"


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
    entry, medians = state.entry(state.position), state.window.median_times
    if entry is None or entry.saved is None or medians is None:
        return ""
    return f"its exchange takes {milliseconds(medians[2])} (before: {milliseconds(entry.saved[2])})"


def given_up_text(limit_s: float, incumbent: str) -> str:
    """Return a text that says why a trial ended early.

    Args:
        limit_s: longest step time with which the tried candidate would be the best, in seconds.
        incumbent: name of the best candidate so far.
    """
    return f"given up early, since only a step of less than {milliseconds(limit_s)} would be better than {incumbent}"


def step_text(state: GoodputState, entry: GoodputEntry) -> str:
    """Return a text that states a measured candidate, its step time, and how many more steps than dense are needed."""
    candidate, cost = state.forecasts[entry.position].candidate, cost_text(state, entry.position)
    return f"{candidate}: {milliseconds(entry.seconds)} a step" + (f", {cost}" if cost else "")


def switch_text(state: GoodputState, best: GoodputEntry, previous_best: GoodputEntry) -> str:
    """Return a text about a switch to a new best candidate: step times, and how many more steps than dense are needed.

    Args:
        state: state of the search.
        best: measurement of the new best candidate.
        previous_best: measurement of the candidate that it replaces.
    """
    candidate, previous_candidate = (state.forecasts[entry.position].candidate for entry in (best, previous_best))
    cost, previous_cost = cost_text(state, best.position), cost_text(state, previous_best.position, in_short=True)
    cost = f", {cost}" if cost else ""
    switch, previous_time = f"from {previous_candidate} to {candidate}", milliseconds(previous_best.seconds)
    step = f"{milliseconds(best.seconds)} a step"
    if best.seconds < previous_best.seconds:
        return f"{switch}: {step} instead of {previous_time}{cost}"
    return f"{switch}: {step}{cost}, instead of {previous_time}" + (f" with {previous_cost}" if previous_cost else "")


def trial_text(
    state: GoodputState, position: int, ratio: float, incumbent: str, expire: int, just_ran: bool = False
) -> str:
    """Return a text that names a candidate to be tried, and says how much better than the best it may be at most.

    Args:
        state: state of the search.
        position: index, in ``state.forecasts``, of the candidate to be tried.
        ratio: upper bound of that candidate's goodput / goodput of the best candidate so far; above 1.
        incumbent: name of the best candidate so far, with an explanation if the reason has not named it before.
        expire: age in windows from which the text states the age of the candidate's last measurement. The text also
            states the lower bound of the step time (``StepTimeBounds.shortest_step_seconds``), from which ``ratio``
            follows.
        just_ran: whether the candidate ran in the window that has ended, so that the finding states time and cost.
    """
    candidate, limit = state.forecasts[position].candidate, f"at most {times_text(ratio)} the progress per second of"
    if just_ran:
        shortest_text = milliseconds(state.step_time_bounds.shortest_step_seconds(position, expire))
        return f"time {candidate} for another window, since a step may take only {shortest_text}: {limit} {incumbent}"
    entry, again = state.entry(position), ""
    if entry is not None:
        age = state.windows - entry.window
        time_text = milliseconds(entry.seconds)
        shortest_text = milliseconds(state.step_time_bounds.shortest_step_seconds(position, expire))
        is_old = age >= expire
        if is_old:
            timed_text = f"last timed {age} windows ago: {time_text} a step"
        elif entry.times > 1:
            timed_text = f"{time_text} a step in the mean of {entry.times} windows"
        else:
            timed_text = f"{time_text} a step so far"
        if shortest_text != time_text:
            timed_text += f", now perhaps only {shortest_text}" if is_old else f", perhaps only {shortest_text}"
        again = f" again ({timed_text})"
    cost = cost_text(state, position)
    cost = f", with {cost}" if cost else ""
    return f"try {candidate}{again}{cost}: {limit} {incumbent}"


def times_text(ratio: float) -> str:
    """Return a ratio above 1 as text, such as ``"1.30 times"``.

    Example:
        >>> times_text(1.3), times_text(1.0004), times_text(1e9)
        ('1.30 times', '1.001 times', '1e+09 times')
    """
    if ratio >= 1000:
        return f"{ratio:.3g} times"
    return f"{ratio:.2f} times" if ratio >= 1.005 else f"{math.ceil(1000 * ratio) / 1000:.3f} times"


def trials_made(number: int) -> str:
    """Return a text that states a number of switchback trials.

    Example:
        >>> trials_made(1), trials_made(4)
        ('1 switchback trial', '4 switchback trials')
    """
    return "1 switchback trial" if number == 1 else f"{number} switchback trials"


def cost_text(state: GoodputState, position: int, in_short: bool = False) -> str:
    """Return a text that says how many more steps a candidate needs to the same loss than dense averaging.

    The text says whether trials measured that number or gravac assumes it (``BELIEVED``). The text is empty for a
    candidate that certainly needs as many steps as dense.

    Args:
        state: state of the search.
        position: index of the candidate in ``state.forecasts``.
        in_short: whether to leave the source out, for a candidate beside the one that is chosen.
    """
    results = state.trial_results(position)
    source = f"measured by {trials_made(results.trials)}" if results and results.trials else BELIEVED
    belief = state.belief(position)
    return cost_at_equal_samples(belief.efficiency, belief.lower_bound, None if in_short else source)
