# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Parts of the reasons for Goodput's decisions, as text: times of steps, and what a candidate costs in steps.

Texts name a candidate by ``str``; ``gravac.telemetry.descriptions`` puts method and bytes in its place for readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gravac.controllers.base import BELIEVED, cost_at_equal_samples
from gravac.controllers.goodput_state import GoodputEntry, GoodputState


class Finding(NamedTuple):
    """What the steps just made showed, as text for the reason of a decision.

    Attributes:
        text: the text.
        repeated: whether a reason that keeps or chooses the candidate that ran says the same.
    """

    text: str
    repeated: bool = False


def missing_text(missing: Sequence[str]) -> str:
    """Return as text that candidates of a checkpoint cannot be chosen any more; the text names at most three."""
    others = len(missing) - 3
    names = ", ".join(missing[:3]) + (f" and {others} more" if others > 0 else "")
    return f"restored with other candidates, without {names or 'none of its own'}"


def milliseconds(seconds: float) -> str:
    """Return seconds as text, in milliseconds.

    Example:
        >>> milliseconds(0.20123)
        '201.2 ms'
    """
    return f"{1000 * seconds:.4g} ms"


def step_text(state: GoodputState, entry: GoodputEntry) -> str:
    """Return as text a measured candidate, the time of its step, and what it costs in steps."""
    candidate = state.forecasts[entry.position].candidate
    return f"{candidate}: {milliseconds(entry.seconds)} a step{cost_text(state, entry.position)}"


def switch_text(state: GoodputState, best: GoodputEntry, earlier: GoodputEntry) -> str:
    """Return as text the best candidate beside the one that was best before its trial."""
    instead = f"instead of {milliseconds(earlier.seconds)}"
    candidate, other = (state.forecasts[entry.position].candidate for entry in (best, earlier))
    took, cost = f"{candidate}: {milliseconds(best.seconds)} a step", cost_text(state, best.position)
    if best.seconds < earlier.seconds:
        return f"{took} {instead}{cost}"
    return f"{took}{cost}, {instead} at {other}{cost_text(state, earlier.position)}"


def trials_made(number: int) -> str:
    """Return a number of trials as text.

    Example:
        >>> trials_made(1), trials_made(4)
        ('1 trial', '4 trials')
    """
    return "1 trial" if number == 1 else f"{number} trials"


def cost_text(state: GoodputState, position: int) -> str:
    """Return as text how many more steps than dense averaging a candidate takes to reach the same loss."""
    results = state.learned_of(position)
    source = f"{trials_made(results.trials)} here" if results and results.trials else BELIEVED
    belief = state.belief(position)
    return cost_at_equal_samples(belief.efficiency, belief.lower_bound, source)
