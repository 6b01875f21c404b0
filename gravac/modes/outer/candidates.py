# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Candidates of outer steps: number of steps between exchanges, delay, compressor and CF."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from gravac.beliefs import Belief, beliefs_in_force, power_at
from gravac.candidate import Forecast
from gravac.compressors.profile import MEASURED_WORLD
from gravac.controllers.base import Controller
from gravac.engine.admission import Admission
from gravac.settings import SettingsError

STEPS = (1, 2, 5)
"""Leading digits of the numbers of steps between exchanges that are tried: 1, 2, 5, 10, 20, 50, ..."""

DELAY_MARGIN = 1.25
"""Ratio of a candidate's delay to the number of steps that its exchange is predicted to take."""

MAX_DELAY = 0.5
"""Largest delay as a fraction of a round; with longer delays, a measured run with 1 bit never reached its target."""

Delay = int | Literal["auto"]
"""Number of steps that an exchange is in flight before its mean is applied; ``"auto"``: 0, or as many as needed."""


Offered = Mapping[tuple[str, float, int], tuple[int, ...]]
"""Delays of candidates in steps, ascending, by their compressor, CF and ``every``."""

NONE_OFFERED: Offered = MappingProxyType({})


def choices(lowest: int, highest: int) -> tuple[int, ...]:
    """Return the candidates' numbers of steps between two exchanges, ascending: 1, 2, 5, 10 ... and the bounds.

    Args:
        lowest: lowest number of steps.
        highest: highest number of steps.

    Example:
        >>> choices(1, 100)
        (1, 2, 5, 10, 20, 50, 100)
        >>> choices(4, 30)
        (4, 5, 10, 20, 30)
    """
    decades = range(int(math.log10(highest)) + 1)
    rounded = {digit * 10**decade for decade in decades for digit in STEPS}
    return tuple(sorted({lowest, highest, *(number for number in rounded if lowest <= number <= highest)}))


def check_chooses_every(controller: Controller[Any], low: int, high: int) -> None:
    """Refuse a controller that cannot choose the number of steps between exchanges, if there is a choice.

    Args:
        controller: controller of the run.
        low: lowest number of steps.
        high: highest number of steps.

    Raises:
        SettingsError: there are several numbers of steps, and the controller decides between compression factors only.
    """
    if low < high and not getattr(controller, "chooses_every", False):
        raise SettingsError(
            f"every: {controller.name} decides between compression factors alone, and not between {low} and {high} "
            'steps; give one number, such as every=10, or controller="goodput"'
        )


def with_outer(
    admission: Admission,
    every: Sequence[int],
    compute_s: float | None,
    delay: Delay,
    keep_all: bool,
    fragments: int = 1,
    chooses: bool = True,
    world: int = MEASURED_WORLD,
    checkpointed: Offered = NONE_OFFERED,
    leaving_s: float | None = None,
) -> Admission:
    """Return an admission with each candidate at each number of steps between exchanges, then ``screened``.

    Candidates that exchange in each step stay as they are.

    Args:
        admission: forecasts of an exchange in each step.
        every: numbers of steps from one exchange to the next, ascending.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: see ``Delay``; ``"auto"`` makes two candidates, with and without a delay, between which a controller
            chooses.
        keep_all: whether to keep all candidates.
        fragments: number of fragments that the model is exchanged in.
        chooses: whether the controller can choose between candidates that differ in ``every`` and delay only. If not,
            it gets only the most promising of them.
        world: number of ranks.
        checkpointed: delays of the candidates in the checkpoint from which the run continues. They are kept, since new
            measurements would give other delays, and thus other candidates.
        leaving_s: seconds that it takes to make ranks equal again after outer steps; ``None``: not known.
    """
    in_each_step, outer = admission.forecasts if every[0] == 1 else (), list[Forecast]()
    fixed_delays = checkpointed if delay == "auto" else NONE_OFFERED
    for number in every:
        if number == 1:
            continue
        for forecast in admission.forecasts:
            measured = delays(forecast, number, compute_s, delay, fragments)
            of_forecast = delays_if_continued(fixed_delays, forecast, number, measured)
            outer_forecasts = [at_every(forecast, number, compute_s, steps, world) for steps in of_forecast]
            if in_each_step:
                outer_forecasts = [replace(outer_forecast, leaving_s=leaving_s) for outer_forecast in outer_forecasts]
            outer += outer_forecasts if chooses else [most_promising(outer_forecasts)]
    if not in_each_step:
        return admission._replace(forecasts=screened(outer, keep_all))
    remaining = screened((*in_each_step, *outer), keep_all)
    return admission._replace(
        forecasts=(*in_each_step, *(forecast for forecast in remaining if forecast.candidate.mode == "outer"))
    )


def offered(identities: Iterable[Sequence[Any]]) -> Offered:
    """Return the delays of candidates, each as ``gravac.controllers.state_dicts.identify`` returns it.

    Example:
        >>> offered([["outer", "topk", 10.0, 50, 25], ["outer", "topk", 10.0, 50, 0]])
        {('topk', 10.0, 50): (0, 25)}
    """
    delays: dict[tuple[str, float, int], tuple[int, ...]] = {}
    for mode, compressor, cf, every, delay in identities:
        if mode != "outer":
            continue
        key = compressor, cf, every
        delays[key] = tuple(sorted({*delays.get(key, ()), delay}))
    return delays


def delays_if_continued(
    checkpointed: Offered, forecast: Forecast, every: int, measured: tuple[int, ...]
) -> tuple[int, ...]:
    """Return a candidate's delays in steps, ascending, in a new run or in one that continues from a checkpoint.

    A candidate of the checkpoint keeps its delays. Any other candidate had been dropped, because a candidate in the
    checkpoint with the same ``every`` was better. It gets no shorter delay than these, so that it is dropped again.

    Args:
        checkpointed: delays of the checkpoint's candidates; empty in a new run.
        forecast: forecast of an exchange in each step.
        every: number of steps from one exchange to the next.
        measured: delays by the times that this run has measured.

    Example:
        >>> from gravac.candidate import Candidate
        >>> topk = Forecast(Candidate("hook", "topk", 10.0), 6.4)
        >>> checkpointed = {("topk", 10.0, 20): (0, 4), ("topk", 50.0, 50): (0, 9)}
        >>> [delays_if_continued(checkpointed, topk, every, (0, 2)) for every in (20, 50, 100)]
        [(0, 4), (0, 9), (0, 2)]
    """
    of_candidate = checkpointed.get((forecast.candidate.compressor, forecast.candidate.cf, every))
    longest = max((max(of) for (_, _, number), of in checkpointed.items() if number == every), default=0)
    return of_candidate or tuple(max(longest, delay) if delay else 0 for delay in measured)


def delays(
    forecast: Forecast, every: int, compute_s: float | None, delay: Delay, fragments: int = 1
) -> tuple[int, ...]:
    """Return the delays that a candidate of outer steps may have, in steps, ascending.

    Args:
        forecast: forecast of an exchange in each step.
        every: number of steps from one exchange to the next.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps; ``"auto"``: 0, and as many as a fragment's exchange takes, at most half of ``every``.
        fragments: number of fragments that the model is exchanged in.

    Example:
        >>> from gravac.candidate import Candidate
        >>> topk = Forecast(Candidate("hook", "topk", 10.0), 6.4, coding_s=0.01, exchange_s=0.2)
        >>> delays(topk, 10, 0.1, "auto"), delays(topk, 2, 0.1, "auto"), delays(topk, 10, None, "auto")
        ((0, 3), (0, 1), (0,))
    """
    if delay != "auto":
        return (delay,)
    longest = int(MAX_DELAY * every)
    if not longest or not compute_s or forecast.coding_s is None or forecast.exchange_s is None:
        return (0,)
    steps = DELAY_MARGIN * (forecast.coding_s + forecast.exchange_s) / fragments / compute_s
    return (0, min(longest, max(1, math.ceil(steps))))


def screened(forecasts: Sequence[Forecast], keep_all: bool) -> tuple[Forecast, ...]:
    """Return the first forecast, then the others by bytes, without candidates that no controller would choose.

    A compressed candidate is dropped if another candidate sends no more bytes and has at least the same efficiency.
    Candidates with and without a delay are not compared with each other. Dense candidates stay: on a fast link they
    save the time of coding.

    Args:
        forecasts: forecasts of all candidates.
        keep_all: whether to keep all candidates.
    """
    first, *others = forecasts
    remaining = [
        forecast
        for forecast in others
        if keep_all or forecast.candidate.dense or not any(_better(other, forecast) for other in forecasts)
    ]
    return (
        first,
        *sorted(remaining, key=lambda forecast: (forecast.wire_ratio, forecast.candidate.cf, forecast.candidate.delay)),
    )


def at_every(
    forecast: Forecast, every: int, compute_s: float | None, delay: int, world: int = MEASURED_WORLD
) -> Forecast:
    """Return the forecast of outer steps, from the forecast of the same compressor and CF in each step.

    Args:
        forecast: forecast of an exchange in each step.
        every: number of steps from one exchange to the next.
        compute_s: seconds that a step takes without exchange; ``None``: not known.
        delay: number of steps that an exchange is in flight before its mean is applied.
        world: number of ranks.
    """
    coding, exchange = (
        None if seconds is None else seconds / every for seconds in (forecast.coding_s, forecast.exchange_s)
    )
    overlap, step = min(delay, every) / every, None
    belief = outer_efficiency(forecast, every, delay, world)
    if compute_s is not None and coding is not None and exchange is not None:
        step = compute_s + coding + max(0.0, exchange - compute_s * overlap)
    return replace(
        forecast,
        candidate=replace(forecast.candidate, mode="outer", every=every, delay=delay),
        wire_ratio=forecast.wire_ratio * every,
        efficiency=belief.efficiency,
        deviation=belief.deviation,
        family=forecast.family + f" every {every}" * (every > 1) + " behind steps" * (delay > 0),
        by_gain=(),  # which efficiency a gain stands for was measured on gradients
        apart=(),
        coding_s=coding,
        exchange_s=exchange,
        step_s=step,
        compute_s=compute_s,
        behind=overlap,
    )


def outer_efficiency(forecast: Forecast, every: int, delay: int = 0, world: int = MEASURED_WORLD) -> Belief:
    """Return the belief about an outer step's efficiency, both numbers rounded to four decimals.

    Args:
        forecast: forecast of an exchange in each step.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied.
        world: number of ranks.
    """
    exponent = power_at(forecast.apart, every) if forecast.apart else 1.0
    compressed = Belief(forecast.efficiency, forecast.deviation).power(exponent)
    belief = beliefs_in_force().of_outer(every, delay, world).times(compressed)
    return Belief(round(belief.efficiency, 4), round(belief.deviation, 4))


def _better(forecast: Forecast, other: Forecast) -> bool:
    """True if a candidate is no worse than another in bytes, efficiency and lower bound, and better in one of them."""
    ours, theirs = (
        (compared.wire_ratio, compared.efficiency, compared.least_efficiency) for compared in (forecast, other)
    )
    no_worse, equal = all(our >= their for our, their in zip(ours, theirs, strict=True)), ours == theirs
    both_or_neither_delayed = (forecast.candidate.delay > 0) == (other.candidate.delay > 0)
    return both_or_neither_delayed and no_worse and not equal


def most_promising(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast with the highest lower bound of progress per second; per step if seconds are not known."""
    return max(forecasts, key=lambda forecast: forecast.least_efficiency / (forecast.step_s or 1.0))
