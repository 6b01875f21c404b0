# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which candidates a controller may choose from, once the model and the number of ranks are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Form
from gravac.beliefs import Belief, beliefs_in_force
from gravac.candidate import Candidate, Dropped, Forecast
from gravac.collectives import AllReduce, wire_ratio
from gravac.compressors import Compressor, Profile
from gravac.costmodel import Machine, Network, predict
from gravac.exchange.link_probe import LinkProbe
from gravac.policy import Policy

SAME = 1.01
"""Two candidates whose wire ratios differ by less, relatively, are one."""

NOT_TIMED: Mapping[float, float] = MappingProxyType({})
"""Seconds of coding by CF: none was timed."""

Predicted = Callable[[Compressor, float], Forecast]
"""A function that forecasts a compressor at a CF: bytes sent of the model, seconds taken, efficiency."""


class Admission(NamedTuple):
    """The candidates that a controller may choose, and those that it may not.

    Attributes:
        forecasts: forecasts of the candidates that may be chosen, ascending by wire ratio; dense first, then 16 bit.
        dropped: candidates that may not be chosen, in the order in which they were dropped.
    """

    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...] = ()


def averager_of(policy: Policy) -> Averager:
    """Return an averager made by a policy, which knows no other ranks yet: it is rank 0 of 1."""
    feedback = Feedback(policy.release, policy.overflow_safety, policy.residual_dtype)
    return Averager(
        base=policy.base,
        dense=policy.dense_format,
        strength=policy.error_feedback,
        dense_below=policy.dense_below,
        feedback=feedback,
        seed=policy.seed,
    )


def admit(
    policy: Policy,
    averager: Averager,
    forms: Sequence[Form],
    link: LinkProbe | None = None,
    coding: Mapping[float, float] = NOT_TIMED,
) -> Admission:
    """The forecasts of a run's candidates, once its model and its ranks are known.

    Args:
        policy: gives controller, base and range.
        averager: tells what is compressed at all, and predicts wire bytes over its ranks.
        forms: shapes and dtypes of all the model's gradients.
        link: what the link was probed at; ``None``: nothing is known.
        coding: seconds that coding takes for each byte of a float32 tensor, by CF of the base, where the gradients lie;
            for what is not in it the compressors' own costs are taken, which were measured on a CPU.
    """
    world, shapes = averager.world, [shape for shape, _ in forms]
    full = AllReduce.wire_bytes(4 * sum(torch.Size(shape).numel() for shape in shapes), world)
    compressed = [shape for shape in shapes if averager.compresses(shape)]

    def expected(compressor: Compressor, cf: float) -> tuple[float | None, float | None]:
        """Seconds that coding and exchange of a step should take, by what the link was probed at."""
        if link is None:
            return None, None
        network, machine = Network(link.latency, link.bandwidth), Machine(link.copy_bytes_per_s)
        if compressor.compresses and cf in coding:
            copies = coding[cf] * link.copy_bytes_per_s
            machine = replace(machine, costs={compressor.name: ((cf, copies, 0.0),)}, per_rank=False)
        if machine.coding(compressor, cf) is None:
            return None, None
        dense, below = policy.dense_format.dtype, policy.dense_below
        step = predict(shapes, compressor, cf, 1.0, world, network, machine, dense=dense, dense_below=below)
        return float(f"{step.compress_s:.3g}"), float(f"{step.exchange_s:.3g}")

    def predicted(compressor: Compressor, cf: float) -> Forecast:
        ratio = wire_ratio(full, averager.wire_bytes(forms, compressor, cf))
        profile = compressor.profile(cf, world=world, shapes=compressed)
        belief, by_gain = efficiency_belief(profile), profile.efficiency_by_gain
        coding, exchange = expected(compressor, cf)
        return Forecast(
            Candidate("hook", compressor.name, cf),
            ratio,
            belief.efficiency,
            profile.family,
            by_gain,
            coding,
            exchange,
            apart=profile.efficiency_apart,
            deviation=belief.deviation,
            method=compressor.method_at(cf),
        )

    return admitted(policy, predicted)


def efficiency_belief(profile: Profile) -> Belief:
    """Return the belief about a step's efficiency with a compressor, both numbers rounded to four decimals."""
    efficiency = round(profile.efficiency, 4)
    if profile.kind is None:
        return Belief(efficiency)
    belief = beliefs_in_force().belief(efficiency, profile.kind)
    return Belief(efficiency, round(belief.deviation, 4))


def admitted(policy: Policy, predicted: Predicted) -> Admission:
    """Admit a run's candidates: drop those that would send no less than dense, or what another does.

    Top-k by all-gather sends (N-1) times its payload: at 10x and 32 ranks, 3.2 times more than dense. Where 16 bit is a
    candidate, less than that is what counts.

    Args:
        policy: gives controller, base and range.
        predicted: forecasts what the policy proposes.
    """
    dense, *sixteen = (predicted(form, form.cf) for form in policy.dense_formats)
    if not policy.base.compresses:
        return Admission((dense,))
    reach = policy.base.candidates(policy.cf_range)
    wanted = [predicted(policy.base, cf) for cf in policy.controller.propose(policy.cf_range, reach)]
    if policy.controller.keeps_all:
        return Admission((dense, *wanted))
    forecasts = [dense]
    dropped = []
    ascending = sorted(wanted, key=lambda forecast: (forecast.wire_ratio, forecast.candidate.cf))
    for forecast in (*sixteen, *ascending):
        twin = next((other for other in forecasts if alike(forecast, other)), None)
        least = next(other for other in reversed(forecasts) if other.candidate.dense)
        if twin is None and forecast.wire_ratio > least.wire_ratio:
            forecasts.append(forecast)
        elif twin is not None:
            dropped.append(Dropped(forecast, "same_bytes", twin, twin.wire_ratio / forecast.wire_ratio))
        else:
            dropped.append(Dropped(forecast, "not_fewer_bytes", least, least.wire_ratio / forecast.wire_ratio))
    return Admission(tuple(forecasts), tuple(dropped))


def drop_below_efficiency(admission: Admission, least_efficiency: float | None) -> Admission:
    """Return an admission without the candidates whose lower bound of efficiency is too low.

    Dense gradients averaged in each step, in float32 or 16 bit, stay.

    Args:
        admission: forecasts of all candidates.
        least_efficiency: lowest bound that is allowed; ``None``: any.
    """
    if least_efficiency is None:
        return admission
    forecasts, dropped = list[Forecast](), [*admission.dropped]
    for forecast in admission.forecasts:
        bound = forecast.least_efficiency
        if _synchronous_and_dense(forecast) or bound >= least_efficiency:
            forecasts.append(forecast)
        else:
            dropped.append(Dropped(forecast, "too_little_progress", admission.forecasts[0], bound / least_efficiency))
    return Admission(tuple(forecasts), tuple(dropped))


def _synchronous_and_dense(forecast: Forecast) -> bool:
    return forecast.candidate.dense and forecast.candidate.mode != "outer"


def with_native(admission: Admission, native: Sequence[float]) -> Admission:
    """Return an admission with dense candidates that DDP exchanges by itself.

    In float32 that takes the place of the hook's: it sends the same. In 16 bit it is beside the hook's, which may have
    another number format, and tells how large gradients are.

    Args:
        admission: forecasts of an exchange in each step, and perhaps of outer steps.
        native: CFs that DDP's own exchange may run at, 1 or 2.
    """
    forecasts: list[Forecast] = []
    for forecast in admission.forecasts:
        candidate = forecast.candidate
        if candidate.mode != "hook" or not candidate.dense or candidate.cf not in native:
            forecasts.append(forecast)
            continue
        twin = Candidate("native", candidate.compressor, candidate.cf)
        bits = f"float{32 / candidate.cf:.0f}"
        family = "native" if candidate.cf == 1 else f"native {bits}"
        instead = replace(forecast, candidate=twin, family=family, coding_s=_none_of(forecast), method=str(twin))
        forecasts += [instead] if candidate.cf == 1 else [forecast, instead]
    return admission._replace(forecasts=tuple(forecasts))


def _none_of(forecast: Forecast) -> float | None:
    """Return that nothing is coded; ``None`` if nothing is known of the forecast's coding."""
    return None if forecast.coding_s is None else 0.0


def alike(forecast: Forecast, other: Forecast) -> bool:
    """Whether two candidates send the same on this model: it is too small for the higher CF."""
    return forecast.family == other.family and forecast.wire_ratio <= SAME * other.wire_ratio
