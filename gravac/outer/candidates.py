# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller chooses from where ranks exchange every so many steps: (how often, compressor, CF)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from gravac.candidate import Candidate
from gravac.outer.efficiency import efficiency
from gravac.stepping.admission import Admission

STEPS = (1, 2, 5)
"""Leading digits of the numbers of steps that are tried from one exchange to the next."""


def choices(least: int, most: int) -> tuple[int, ...]:
    """Return the numbers of steps between two exchanges to choose from, ascending: 1, 2, 5, 10 ... and the bounds.

    Example:
        >>> choices(1, 100)
        (1, 2, 5, 10, 20, 50, 100)
        >>> choices(4, 30)
        (4, 5, 10, 20, 30)
    """
    decades = range(int(math.log10(most)) + 1)
    between = {digit * 10**decade for decade in decades for digit in STEPS}
    return tuple(sorted({least, most, *(one for one in between if least <= one <= most)}))


def widened(
    admission: Admission, every: Sequence[int], compute_s: float | None, delay: int, keep_all: bool
) -> Admission:
    """Return an admission with each candidate at each number of steps between two exchanges.

    Left out is a compressed one that sends no less than another of at least its efficiency. Dense ones stay: where
    bytes are cheap, coding is what costs.

    Args:
        admission: candidates of an exchange in every step.
        every: numbers of steps from one exchange to the next, ascending.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps behind which an exchange may travel.
        keep_all: whether to leave nothing out.
    """
    first, *others = (_every(one, number, compute_s, delay) for number in every for one in admission.candidates)
    kept = [
        one for one in others if keep_all or one.dense or not any(_better(other, one) for other in (first, *others))
    ]
    return Admission((first, *sorted(kept, key=lambda one: (one.wire_ratio, one.cf))), admission.dropped)


def _every(candidate: Candidate, every: int, compute_s: float | None, delay: int) -> Candidate:
    coding, exchange = (None if s is None else s / every for s in (candidate.coding_s, candidate.exchange_s))
    step = None
    if compute_s is not None and coding is not None and exchange is not None:
        step = compute_s + max(0.0, coding + exchange - compute_s * min(delay, every) / every)
    return replace(
        candidate,
        every=every,
        wire_ratio=candidate.wire_ratio * every,
        efficiency=efficiency(candidate, every),
        family=f"{candidate.family} every {every}" if every > 1 else candidate.family,
        by_gain=(),  # what a gain stands for was measured on gradients
        coding_s=coding,
        exchange_s=exchange,
        step_s=step,
    )


def _better(one: Candidate, other: Candidate) -> bool:
    """Tell whether one candidate is no worse than another in bytes and efficiency, and better in one."""
    mine, others = ((c.wire_ratio, c.efficiency) for c in (one, other))
    return mine != others and mine[0] >= others[0] and mine[1] >= others[1]
