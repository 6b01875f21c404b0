# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The candidates that a policy would have had in a recorded run, from what the run says of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gravac.candidate import Candidate, Forecast
from gravac.compressors import Compressor
from gravac.compressors.profile import MEASURED_WORLD
from gravac.controllers.base import Controller
from gravac.outer.candidates import Delay, at_every, delays, most_promising, screened
from gravac.outer.efficiency import in_each_step as efficiency_in_each_step
from gravac.policy import Policy
from gravac.replay.trace import same
from gravac.stepping.admission import Admission, admitted
from gravac.telemetry.records import RunRecord

ALIKE = 1.01
"""Ratio of bytes, and of efficiency, by which an estimated candidate must beat recorded ones to be one besides them."""


def admit_recorded(run: RunRecord, policy: Policy, every: Sequence[int] = ()) -> Admission:
    """The admission that a policy would have had in a recorded run.

    What the record knows of a compressor at a CF, admitted or dropped, is taken from there; of others the wire ratio
    is estimated, see ``gravac.replay.play``. What the run admitted stays: a record in words rounds wire ratios, so that
    they may not tell a candidate from another.

    Args:
        run: record of the run.
        policy: gives controller, base and range.
        every: numbers of steps from one exchange to the next, ascending, where the run made outer steps.
    """
    world = run.world_size
    single = [in_each_step(one, policy.base, world) for one in run.forecasts] if every else list(run.forecasts)
    recorded = [*sorted(single, key=lambda one: one.candidate.every), *(dropped.forecast for dropped in run.dropped)]
    start = policy.dense_format.cf
    as_then = any(one.candidate.dense and same(one.candidate.cf, start) for one in recorded)

    def predicted(compressor: Compressor, cf: float) -> Forecast:
        candidate = Candidate("hook", compressor.name, cf)
        ours = [one for one in recorded if one.candidate.compressor == compressor.name]
        it = next((one for one in ours if same(one.candidate.cf, cf)), Forecast(candidate, math.nan, math.nan))
        ratio, efficiency = it.wire_ratio, it.efficiency
        if not (math.isfinite(ratio) and ratio > 0):
            ratio = _ratio_at([(one.candidate.cf, one.wire_ratio) for one in ours], cf) if compressor.compresses else cf
        profile = compressor.profile(cf)
        known = efficiency if math.isfinite(efficiency) else profile.efficiency
        by_gain = profile.efficiency_by_gain
        family, apart = profile.family, profile.efficiency_apart
        return Forecast(
            candidate,
            ratio,
            known,
            family,
            by_gain,
            it.coding_s,
            it.exchange_s,
            apart=apart,
            method=it.method or compressor.method_at(cf),
        )

    def stays(one: Forecast) -> bool:
        then = (it.candidate for it in run.forecasts)
        ours = (it for it in then if it.compressor == one.candidate.compressor and not it.dense)
        return as_then and any(same(it.cf, one.candidate.cf) for it in ours)

    admission = admitted(policy, predicted, stays)
    return _at_each(admission, run, every, policy.controller) if every else admission


def _at_each(admission: Admission, run: RunRecord, every: Sequence[int], controller: Controller[Any]) -> Admission:
    """Return an admission at each number of steps, as ``gravac.outer`` makes it, with what the run had where it had it.

    What the run had at other numbers of steps alone, it had left out at this one.
    """
    keep_all, chooses = controller.keeps_all, bool(getattr(controller, "chooses_every", False))
    told, fragments = run.settings.get("outer.delay", 0), run.settings.get("outer.fragments", 1)
    assert isinstance(fragments, int)
    delay: Delay = told if isinstance(told, int) else "auto"
    compute_s = _compute(max(run.forecasts, key=lambda one: one.candidate.every))
    then = {one.candidate.every for one in run.forecasts}
    found: list[Forecast] = []
    for number in every:
        for one in admission.forecasts:
            ours = [it for it in run.forecasts if it.candidate.compressor == one.candidate.compressor]
            alike = [it for it in ours if same(it.candidate.cf, one.candidate.cf)]
            ways = [it for it in alike if it.candidate.every == number]
            if not ways and (keep_all or number not in then or not alike):
                behind = delays(one, number, compute_s, delay, fragments)
                ways = [at_every(one, number, compute_s, it, run.world_size) for it in behind]
            found += ways if chooses or not ways else [most_promising(ways)]

    recorded = {one.candidate for one in run.forecasts}

    def stays(one: Forecast) -> bool:
        return keep_all or one.candidate in recorded

    def worse(one: Forecast) -> bool:
        sends, makes = one.wire_ratio / ALIKE, one.efficiency / ALIKE
        return any(it.wire_ratio >= sends and it.efficiency >= makes for it in run.forecasts)

    kept = [one for one in found if one.candidate.dense or stays(one) or not worse(one)]
    return Admission(screened(kept, stays), admission.dropped)


def in_each_step(forecast: Forecast, base: Compressor, world: int = MEASURED_WORLD) -> Forecast:
    """Return a forecast of outer steps as it is where each step is exchanged; its ``every`` stays.

    Its efficiency is right to the digits that a record has.

    Args:
        forecast: one of outer steps.
        base: compressor that it is of, where it is not dense.
        world: number of ranks.

    Example:
        >>> from gravac import topk
        >>> from gravac.outer.candidates import at_every
        >>> one = Forecast(Candidate("hook", "topk", 10.0), 6.4, 0.9, coding_s=1e-3, exchange_s=2e-3)
        >>> again = in_each_step(at_every(one, 5, None, 0), topk)
        >>> again.candidate.every, round(again.wire_ratio, 6), round(again.efficiency, 2), round(again.exchange_s, 6)
        (5, 6.4, 0.9, 0.002)
    """
    candidate, every = forecast.candidate, forecast.candidate.every
    apart = () if candidate.dense else base.profile(candidate.cf).efficiency_apart
    coding, exchange = (None if s is None else s * every for s in (forecast.coding_s, forecast.exchange_s))
    return replace(
        forecast,
        wire_ratio=forecast.wire_ratio / every,
        efficiency=efficiency_in_each_step(replace(forecast, apart=apart), world),
        coding_s=coding,
        exchange_s=exchange,
        step_s=None,
        compute_s=None,
        behind=None,
    )


def _compute(forecast: Forecast) -> float | None:
    """Seconds of a step without exchange, by what a candidate's step was expected to take; ``None``: not known."""
    candidate, coding, exchange, step = forecast.candidate, forecast.coding_s, forecast.exchange_s, forecast.step_s
    if coding is None or exchange is None or step is None:
        return None
    hides = min(candidate.delay, candidate.every) / candidate.every
    if exchange <= hides * (step - coding):
        return step - coding
    return (step - coding - exchange) / (1 - hides) if hides < 1 else None


def _ratio_at(known: Sequence[tuple[float, float]], cf: float) -> float:
    """Log on log between known ratios; in proportion to CF beyond them; CF itself when nothing is known."""
    known = sorted((at, ratio) for at, ratio in known if math.isfinite(ratio) and ratio > 0)
    if not known:
        return cf
    (lowest, its), (highest, other) = known[0], known[-1]
    if cf < lowest:
        return its * cf / lowest
    if cf > highest:
        return other * cf / highest
    cfs, ratios = np.log(known).T
    return math.exp(np.interp(np.log(cf), cfs, ratios))
