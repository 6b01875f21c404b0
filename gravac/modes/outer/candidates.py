# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes a controller's candidates of outer steps: number of steps between exchanges, delay, compressor and CF."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from gravac.beliefs import Belief, beliefs_in_force, power_at
from gravac.candidate import Candidate, Forecast
from gravac.compressors.profile import MEASURED_WORLD
from gravac.engine.admission import Admission

LEADING_DIGITS = (1, 2, 5)
"""Leading digits of the candidates' numbers of steps between exchanges: 1, 2, 5, 10, 20, 50, ..."""

DELAY_MARGIN = 1.25
"""A candidate's delay / the number of steps that its exchange is predicted to take."""

MAX_DELAY_FRACTION = 0.5
"""Largest delay / number of steps of a round. With longer delays, a measured run that sent 1 bit for each element did
not reach its target loss."""

Delay = int | Literal["auto"]
"""Number of steps that an exchange is in flight before its mean is applied. ``"auto"``: 0, or as many steps as the
exchange takes; the controller chooses."""


DelaysByCandidate = Mapping[tuple[str, float, int], tuple[int, ...]]
"""Delays of candidates, in steps, ascending, by compressor, CF, and number of steps between exchanges."""

NO_DELAYS: DelaysByCandidate = MappingProxyType({})


def every_choices(lowest: int, highest: int) -> tuple[int, ...]:
    """Return the numbers of steps between exchanges from which a controller chooses, ascending.

    These are the two bounds, and all of 1, 2, 5, 10, 20, 50, ... that lie between the bounds.

    Args:
        lowest: lowest number of steps.
        highest: highest number of steps.

    Example:
        >>> every_choices(1, 100)
        (1, 2, 5, 10, 20, 50, 100)
        >>> every_choices(4, 30)
        (4, 5, 10, 20, 30)
    """
    decades = range(int(math.log10(highest)) + 1)
    listed_numbers = {digit * 10**decade for decade in decades for digit in LEADING_DIGITS}
    return tuple(sorted({lowest, highest, *(number for number in listed_numbers if lowest <= number <= highest)}))


def with_outer_candidates(
    admission: Admission,
    every: Sequence[int],
    compute_s: float | None,
    delay: Delay,
    keep_dominated: bool,
    chooses: bool = True,
    world: int = MEASURED_WORLD,
    checkpointed: DelaysByCandidate = NO_DELAYS,
    leaving_s: float | None = None,
) -> Admission:
    """Return an admission with forecasts of outer steps: of each admitted candidate, for each number in ``every``.

    Forecasts of an exchange in each step stay if ``every`` begins with 1. Outer candidates that no controller would
    choose are left out (``without_dominated``).

    Args:
        admission: forecasts of the candidates that may be chosen; all of these exchange in each step.
        every: numbers of steps from one exchange to the next, ascending.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: steps that an exchange is in flight; ``"auto"`` makes two candidates, with and without a delay, between
            which a controller chooses.
        keep_dominated: whether to keep also candidates that no controller would choose.
        chooses: whether the controller can choose between candidates that differ only in ``every`` and delay. If not,
            only the most promising of such candidates stays.
        world: number of ranks.
        checkpointed: delays of the candidates in the checkpoint from which the run continues. The run keeps these
            delays, since delays from new measurements would make other candidates.
        leaving_s: seconds that it takes to make ranks equal again after outer steps; ``None``: not known.
    """
    each_step_forecasts, outer_forecasts_so_far = admission.forecasts if every[0] == 1 else (), list[Forecast]()
    fixed_delays = checkpointed if delay == "auto" else NO_DELAYS
    for step_count in every:
        if step_count == 1:
            continue
        for forecast in admission.forecasts:
            measured_delays = delays(forecast, step_count, compute_s, delay)
            candidate_delays = delays_if_continued(fixed_delays, forecast, step_count, measured_delays)
            outer_forecasts = [
                forecast_at_every(forecast, step_count, compute_s, delay_steps, world)
                for delay_steps in candidate_delays
            ]
            if each_step_forecasts:
                outer_forecasts = [replace(outer_forecast, leaving_s=leaving_s) for outer_forecast in outer_forecasts]
            outer_forecasts_so_far += outer_forecasts if chooses else [most_promising(outer_forecasts)]
    if not each_step_forecasts:
        return admission._replace(forecasts=without_dominated(outer_forecasts_so_far, keep_dominated))
    remaining_forecasts = without_dominated((*each_step_forecasts, *outer_forecasts_so_far), keep_dominated)
    return admission._replace(
        forecasts=(
            *each_step_forecasts,
            *(forecast for forecast in remaining_forecasts if forecast.candidate.mode == "outer"),
        )
    )


def delays_by_candidate(candidates: Iterable[Candidate]) -> DelaysByCandidate:
    """Return the delays of outer candidates, by compressor, CF, and number of steps between exchanges.

    Args:
        candidates: candidates of any mode.

    Example:
        >>> delays_by_candidate([Candidate("outer", "topk", 10.0, 50, 25), Candidate("outer", "topk", 10.0, 50)])
        {('topk', 10.0, 50): (0, 25)}
    """
    delays_by_key: dict[tuple[str, float, int], tuple[int, ...]] = {}
    for candidate in candidates:
        if candidate.mode != "outer":
            continue
        key = candidate.compressor, candidate.cf, candidate.every
        delays_by_key[key] = tuple(sorted({*delays_by_key.get(key, ()), candidate.delay}))
    return delays_by_key


def delays_if_continued(
    checkpointed: DelaysByCandidate, forecast: Forecast, every: int, measured_delays: tuple[int, ...]
) -> tuple[int, ...]:
    """Return a candidate's delays in steps, ascending, in a new run or in a run that continues from a checkpoint.

    A candidate in the checkpoint keeps its delays. The earlier run dropped all other candidates, since one in the
    checkpoint was at least as good. For such a candidate to be dropped again, each of its measured delays above 0 is
    raised to the longest delay that the checkpoint has for this ``every``: efficiency falls with the delay.

    Args:
        checkpointed: delays of the checkpoint's candidates; empty in a new run.
        forecast: forecast of the candidate's compressor and CF, for an exchange in each step.
        every: number of steps from one exchange to the next.
        measured_delays: delays that follow from the times that this run has measured.

    Example:
        >>> from gravac.candidate import Candidate
        >>> topk = Forecast(Candidate("hook", "topk", 10.0), 6.4)
        >>> checkpointed = {("topk", 10.0, 20): (0, 4), ("topk", 50.0, 50): (0, 9)}
        >>> [delays_if_continued(checkpointed, topk, every, (0, 2)) for every in (20, 50, 100)]
        [(0, 4), (0, 9), (0, 2)]
    """
    checkpointed_delays = checkpointed.get((forecast.candidate.compressor, forecast.candidate.cf, every))
    longest_delay = max(
        (max(candidate_delays) for (_, _, step_count), candidate_delays in checkpointed.items() if step_count == every),
        default=0,
    )
    return checkpointed_delays or tuple(max(longest_delay, delay) if delay else 0 for delay in measured_delays)


def delays(forecast: Forecast, every: int, compute_s: float | None, delay: Delay) -> tuple[int, ...]:
    """Return the delays that a candidate of outer steps may have, in steps, ascending.

    Args:
        forecast: forecast of the candidate's compressor and CF, for an exchange in each step.
        every: number of steps from one exchange to the next.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps; ``"auto"``: 0, and as many as the exchange takes, at most half of ``every``.

    Example:
        >>> from gravac.candidate import Candidate
        >>> topk = Forecast(Candidate("hook", "topk", 10.0), 6.4, coding_s=0.01, exchange_s=0.2)
        >>> delays(topk, 10, 0.1, "auto"), delays(topk, 2, 0.1, "auto"), delays(topk, 10, None, "auto")
        ((0, 3), (0, 1), (0,))
    """
    if delay != "auto":
        return (delay,)
    longest_delay = int(MAX_DELAY_FRACTION * every)
    if not longest_delay or not compute_s or forecast.coding_s is None or forecast.exchange_s is None:
        return (0,)
    exchange_steps = DELAY_MARGIN * (forecast.coding_s + forecast.exchange_s) / compute_s
    return (0, min(longest_delay, max(1, math.ceil(exchange_steps))))


def without_dominated(forecasts: Sequence[Forecast], keep_dominated: bool) -> tuple[Forecast, ...]:
    """Return the first forecast, then the rest by ascending wire ratio, without candidates that no controller chooses.

    A compressed candidate is dropped if another candidate sends no more bytes and has at least the same efficiency.
    Candidates with and without a delay are not compared with each other. Dense candidates stay: on a fast link they
    save the time of coding.

    Args:
        forecasts: forecasts of all candidates.
        keep_dominated: whether to drop no candidate.
    """
    first_forecast, *other_forecasts = forecasts
    remaining_forecasts = [
        forecast
        for forecast in other_forecasts
        if keep_dominated or forecast.candidate.dense or not any(_dominates(other, forecast) for other in forecasts)
    ]
    return (
        first_forecast,
        *sorted(
            remaining_forecasts,
            key=lambda forecast: (forecast.wire_ratio, forecast.candidate.cf, forecast.candidate.delay),
        ),
    )


def forecast_at_every(
    forecast: Forecast, every: int, compute_s: float | None, delay: int, world: int = MEASURED_WORLD
) -> Forecast:
    """Return the forecast of outer steps, from the forecast of the same compressor and CF in each step.

    Args:
        forecast: forecast of an exchange in each step; seconds are those of one exchange.
        every: number of steps from one exchange to the next.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps that an exchange is in flight before its mean is applied.
        world: number of ranks.
    """
    coding_s, exchange_s = (
        None if seconds is None else seconds / every for seconds in (forecast.coding_s, forecast.exchange_s)
    )
    overlap_fraction, step_s = min(delay, every) / every, None
    belief = outer_efficiency(forecast, every, delay, world)
    if compute_s is not None and coding_s is not None and exchange_s is not None:
        step_s = compute_s + coding_s + max(0.0, exchange_s - compute_s * overlap_fraction)
    return replace(
        forecast,
        candidate=replace(forecast.candidate, mode="outer", every=every, delay=delay),
        wire_ratio=forecast.wire_ratio * every,
        efficiency=belief.efficiency,
        deviation=belief.deviation,
        family=forecast.family + f" every {every}" * (every > 1) + " behind steps" * (delay > 0),
        by_gain=(),  # efficiencies by gain, which were measured on gradients, not on pseudo-gradients
        apart=(),
        coding_s=coding_s,
        exchange_s=exchange_s,
        step_s=step_s,
        compute_s=compute_s,
        behind=overlap_fraction,
    )


def outer_efficiency(forecast: Forecast, every: int, delay: int = 0, world: int = MEASURED_WORLD) -> Belief:
    """Return the belief about an outer step's efficiency: a median and its deviation, rounded to four decimals.

    Args:
        forecast: forecast of the same compressor and CF, for an exchange in each step.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied.
        world: number of ranks.
    """
    exponent = power_at(forecast.apart, every) if forecast.apart else 1.0
    compression_belief = Belief(forecast.efficiency, forecast.deviation).power(exponent)
    belief = beliefs_in_force().of_outer(every, delay, world).times(compression_belief)
    return Belief(round(belief.efficiency, 4), round(belief.deviation, 4))


def _dominates(forecast: Forecast, other: Forecast) -> bool:
    """True if a candidate is no worse than another in any respect, and better in one.

    The respects are wire ratio, median of the efficiency, and lower bound of the efficiency. A candidate
    with a delay and a candidate without a delay never dominate each other.
    """
    scores, other_scores = (
        (scored_forecast.wire_ratio, scored_forecast.efficiency, scored_forecast.least_efficiency)
        for scored_forecast in (forecast, other)
    )
    no_worse, equal = (
        all(score >= other_score for score, other_score in zip(scores, other_scores, strict=True)),
        scores == other_scores,
    )
    both_or_neither_delayed = (forecast.candidate.delay > 0) == (other.candidate.delay > 0)
    return both_or_neither_delayed and no_worse and not equal


def most_promising(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast with the highest ratio: lower bound of the efficiency / seconds of a step.

    If a forecast has no seconds of a step, its lower bound alone counts.
    """
    return max(forecasts, key=lambda forecast: forecast.least_efficiency / (forecast.step_s or 1.0))
