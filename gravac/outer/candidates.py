# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller chooses from where ranks exchange every so many steps: (how often, compressor, CF)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from gravac.candidate import Candidate
from gravac.compressors.profile import MEASURED_WORLD
from gravac.controllers.base import Controller
from gravac.outer.efficiency import efficiency
from gravac.settings import SettingsError
from gravac.stepping.admission import Admission

STEPS = (1, 2, 5)
"""Leading digits of the numbers of steps that are tried from one exchange to the next."""

SPARE = 1.25
"""Steps behind which an exchange travels, over those that it is predicted to take."""

MOST = 0.5
"""Largest share of a round behind which an exchange travels: beyond, ``denoise`` with one bit may never get there."""

Delay = int | Literal["auto"]
"""Number of steps behind which an exchange travels; ``"auto"``: none, or as many as it takes."""


Offered = Mapping[tuple[str, float, int], tuple[int, ...]]
"""Numbers of steps behind which a candidate may travel, ascending, by its compressor, CF and ``every``."""

NOTHING: Offered = MappingProxyType({})


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


def check_chosen(controller: Controller[Any], low: int, high: int) -> None:
    """Refuse a controller that does not choose how often, where that is to be chosen.

    Raises:
        SettingsError: there are several numbers of steps, and it decides between compression factors alone.
    """
    if low < high and not getattr(controller, "chooses_every", False):
        raise SettingsError(
            f"every: {controller.name} decides between compression factors alone, and not between {low} and {high} "
            'steps; give one number, such as every=10, or controller="goodput"'
        )


def widened(
    admission: Admission,
    every: Sequence[int],
    compute_s: float | None,
    delay: Delay,
    keep_all: bool,
    fragments: int = 1,
    chooses: bool = True,
    world: int = MEASURED_WORLD,
    before: Offered = NOTHING,
) -> Admission:
    """Return an admission with each candidate at each number of steps between two exchanges, less those ``screened``.

    Args:
        admission: candidates of an exchange in every step.
        every: numbers of steps from one exchange to the next, ascending.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: see ``Delay``; ``"auto"`` makes two candidates of one, of which a controller chooses.
        keep_all: whether to leave nothing out.
        fragments: number of parts that the model is exchanged in.
        chooses: whether the controller chooses between candidates that differ in when they are exchanged alone; where
            not, it gets the one that promises more.
        world: number of ranks.
        before: delays of candidates of the run that is continued, which stay as they are: others would be other
            candidates, since times are never measured alike twice.
    """
    found: list[Candidate] = []
    known = before if delay == "auto" else NOTHING
    for number in every:
        for one in admission.candidates:
            behind = known.get((one.compressor, one.cf, number)) or delays(one, number, compute_s, delay, fragments)
            ways = [at_every(one, number, compute_s, it, world) for it in behind]
            found += ways if chooses else [most_promising(ways)]
    return Admission(screened(found, keep_all), admission.dropped)


def offered(identities: Iterable[Sequence[Any]]) -> Offered:
    """Return the delays of candidates that are given as compressor, CF, ``every`` and delay.

    Example:
        >>> offered([["topk", 10.0, 50, 25], ["topk", 10.0, 50, 0]])
        {('topk', 10.0, 50): (0, 25)}
    """
    delays: dict[tuple[str, float, int], tuple[int, ...]] = {}
    for compressor, cf, every, delay in identities:
        candidate = compressor, cf, every
        delays[candidate] = tuple(sorted({*delays.get(candidate, ()), delay}))
    return delays


def delays(
    candidate: Candidate, every: int, compute_s: float | None, delay: Delay, fragments: int = 1
) -> tuple[int, ...]:
    """Return the numbers of steps behind which the exchange of a candidate may travel, ascending.

    Args:
        candidate: one of an exchange in every step.
        every: number of steps from one exchange to the next.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps; ``"auto"``: none, and as many as a fragment's exchange takes, at most half of ``every``.
        fragments: number of parts that the model is exchanged in.

    Example:
        >>> one = Candidate("topk", 10.0, 6.4, coding_s=0.01, exchange_s=0.2)
        >>> delays(one, 10, 0.1, "auto"), delays(one, 2, 0.1, "auto"), delays(one, 10, None, "auto")
        ((0, 3), (0, 1), (0,))
    """
    if delay != "auto":
        return (delay,)
    most = int(MOST * every)
    if not most or not compute_s or candidate.coding_s is None or candidate.exchange_s is None:
        return (0,)
    takes = SPARE * (candidate.coding_s + candidate.exchange_s) / fragments / compute_s
    return (0, min(most, max(1, math.ceil(takes))))


def screened(candidates: Sequence[Candidate], keep_all: bool) -> tuple[Candidate, ...]:
    """Return the first of candidates, then the others by bytes, less those that none would choose.

    Left out is a compressed one that sends no less than another of at least its efficiency; those that are waited for
    and those that travel behind steps each among themselves. Dense ones stay: where bytes are cheap, coding is what
    costs.

    Args:
        candidates: all that there are.
        keep_all: whether to leave nothing out.
    """
    first, *others = candidates
    kept = [one for one in others if keep_all or one.dense or not any(_better(other, one) for other in candidates)]
    return (first, *sorted(kept, key=lambda one: (one.wire_ratio, one.cf, one.delay)))


def at_every(
    candidate: Candidate, every: int, compute_s: float | None, delay: int, world: int = MEASURED_WORLD
) -> Candidate:
    """Return a candidate of an exchange in every step as it is in every so many; see ``widened``."""
    coding, exchange = (None if s is None else s / every for s in (candidate.coding_s, candidate.exchange_s))
    behind, step = min(delay, every) / every, None
    if compute_s is not None and coding is not None and exchange is not None:
        step = compute_s + coding + max(0.0, exchange - compute_s * behind)
    return replace(
        candidate,
        every=every,
        delay=delay,
        wire_ratio=candidate.wire_ratio * every,
        efficiency=efficiency(candidate, every, delay, world),
        family=candidate.family + f" every {every}" * (every > 1) + " behind steps" * (delay > 0),
        by_gain=(),  # what a gain stands for was measured on gradients
        apart=(),
        coding_s=coding,
        exchange_s=exchange,
        step_s=step,
        compute_s=compute_s,
        behind=behind,
    )


def _better(one: Candidate, other: Candidate) -> bool:
    """Tell whether one candidate is no worse than another in bytes and efficiency, and better in one."""
    mine, others = ((c.wire_ratio, c.efficiency) for c in (one, other))
    alike = (one.delay > 0) == (other.delay > 0)
    return alike and mine != others and mine[0] >= others[0] and mine[1] >= others[1]


def most_promising(ways: Sequence[Candidate]) -> Candidate:
    """Return the candidate of the most progress per second as predicted; by efficiency where no time is known."""
    return max(ways, key=lambda one: one.efficiency / (one.step_s or 1.0))
