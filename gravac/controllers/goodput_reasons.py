# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes texts for the reasons of ``Goodput``'s decisions: step times, and how many more steps a candidate takes.

Texts name a candidate by ``str(candidate)``. Before users see a text, ``gravac.telemetry.descriptions`` replaces each
name by the candidate's method and bytes.
"""

from __future__ import annotations

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


def missing_text(missing: Sequence[str]) -> str:
    """Return a text that names up to three candidates of a checkpoint that are missing in this run.

    Args:
        missing: names of the missing candidates; empty: none of the checkpoint's candidates is missing.
    """
    unnamed_count = len(missing) - 3
    names = ", ".join(missing[:3]) + (f" and {unnamed_count} more" if unnamed_count > 0 else "")
    return f"restored without {names}, which this run cannot use" if names else "restored with further candidates"


def milliseconds(seconds: float) -> str:
    """Return a text that states a time in milliseconds; ``seconds`` is the time in seconds.

    Example:
        >>> milliseconds(0.20123)
        '201.2 ms'
    """
    return f"{1000 * seconds:.4g} ms"


def step_text(state: GoodputState, entry: GoodputEntry) -> str:
    """Return a text that states a measured candidate, its step time, and how many more steps than dense are needed."""
    candidate = state.forecasts[entry.position].candidate
    return f"{candidate}: {milliseconds(entry.seconds)} a step{cost_text(state, entry.position)}"


def switch_text(state: GoodputState, best: GoodputEntry, previous_best: GoodputEntry) -> str:
    """Return a text about a switch to a new best candidate: step times, and how many more steps than dense are needed.

    Args:
        state: state of the search.
        best: measurement of the new best candidate.
        previous_best: measurement of the candidate that it replaces.
    """
    instead_text = f"instead of {milliseconds(previous_best.seconds)}"
    candidate, previous_candidate = (state.forecasts[entry.position].candidate for entry in (best, previous_best))
    took_text, cost_suffix = f"{candidate}: {milliseconds(best.seconds)} a step", cost_text(state, best.position)
    if best.seconds < previous_best.seconds:
        return f"{took_text} {instead_text}{cost_suffix}"
    return f"{took_text}{cost_suffix}, {instead_text} at {previous_candidate}{cost_text(state, previous_best.position)}"


def trial_text(state: GoodputState, position: int, ratio: float, incumbent: str, expire: int) -> str:
    """Return a text that names a candidate to be tried, and says how much better than the best it may be at most.

    Args:
        state: state of the search.
        position: index, in ``state.forecasts``, of the candidate to be tried.
        ratio: upper bound of that candidate's goodput / goodput of the best candidate so far.
        incumbent: name of the best candidate so far; empty if the reason has just named that candidate.
        expire: age in windows from which the text calls the last measurement of the candidate old.
    """
    entry, again = state.entry(position), ""
    if entry is not None:
        is_old = state.windows - entry.window >= expire
        again = " again, since it was last timed long ago" if is_old else " again"
    than = f" of {incumbent}, the best so far" if incumbent else ""
    cost = cost_text(state, position).replace(",", ", with", 1)
    return f"{state.forecasts[position].candidate}{again}: up to {ratio:.2f} times the progress per second{than}{cost}"


def trials_made(number: int) -> str:
    """Return a text that states a number of switchback trials.

    Example:
        >>> trials_made(1), trials_made(4)
        ('1 switchback trial', '4 switchback trials')
    """
    return "1 switchback trial" if number == 1 else f"{number} switchback trials"


def cost_text(state: GoodputState, position: int) -> str:
    """Return a text that says how many more steps a candidate takes to the same loss than dense averaging.

    The text begins with a comma, and says whether trials measured that number or gravac assumes it (``BELIEVED``).
    The text is empty for a candidate that certainly takes as many steps as dense.
    """
    results = state.trial_results(position)
    source = f"measured by {trials_made(results.trials)}" if results and results.trials else BELIEVED
    belief = state.belief(position)
    return cost_at_equal_samples(belief.efficiency, belief.lower_bound, source)
