# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Selects the candidates that a controller may choose from, once the model and the number of ranks are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.averaging.residuals import Residuals
from gravac.beliefs import Belief, beliefs_in_force
from gravac.candidate import Candidate, Dropped, Forecast, describe_exchange
from gravac.collectives import AllReduce, wire_ratio
from gravac.compressors import Compressor, Profile, ladder
from gravac.controllers import Goodput
from gravac.costmodel import Machine, Network, predict
from gravac.exchange.link_probe import LinkProbe
from gravac.policy import Policy

LEAST_HOOK_EFFICIENCY = 0.45
"""Lower bound of efficiency below which Goodput does not run a method of the default ladder in hook steps.

Nobody named these methods, and Goodput assumes that steps lost to compression can be made up for by more steps. Of low
rank 2 (lower bound 0.37) that is not so: with AdamW it raised a loss that dense steps had reached, to five times.
"""

SAME_RATIO = 1.01
"""Two candidates count as sending the same bytes if their wire ratios differ by at most this factor."""

NOT_TIMED: Mapping[float, float] = MappingProxyType({})
"""Default of the seconds of encode and decode by CF: empty, since nothing was timed."""

Predict = Callable[[Compressor, float], Forecast]
"""A function that gets a compressor and a CF, and returns the forecast of this compressor at this CF."""


class Admission(NamedTuple):
    """Candidates that a controller may choose, and candidates that were dropped.

    Attributes:
        forecasts: forecasts of the candidates that may be chosen, ascending by wire ratio; dense first, then 16 bit.
        dropped: candidates that may not be chosen, with the reasons, in the order in which they were dropped.
        lacks_compute_time: whether candidates of outer steps are missing because a step's compute time is not known
            yet. Candidates are then selected again when that time is known.
    """

    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...] = ()
    lacks_compute_time: bool = False


def averager_of(policy: Policy) -> Averager:
    """Return an averager with a policy's settings, as rank 0 of 1; ``Engine.use`` sets rank and number of ranks."""
    residuals = Residuals(policy.overflow_safety)
    return Averager(
        base=policy.base,
        dense=policy.dense_format,
        strength=policy.error_feedback,
        dense_below=policy.dense_below,
        residuals=residuals,
        seed=policy.seed,
    )


def admit(
    policy: Policy,
    averager: Averager,
    forms: Sequence[Form],
    link: LinkProbe | None = None,
    coding: Mapping[float, float] = NOT_TIMED,
) -> Admission:
    """Return the candidates that a run's controller may choose, and those that are dropped, with forecasts.

    Args:
        policy: policy with controller, compressor and CF range.
        averager: decides which tensors are compressed, and predicts wire bytes over its ranks.
        forms: shapes and dtypes of all the model's gradients.
        link: measured speed of the link; ``None``: not known.
        coding: seconds of encode and decode on the gradients' device for each byte of a float32 tensor, by CF of the
            compressor. If a CF is missing, costs that were measured on a CPU are used.
    """
    world, shapes = averager.world, [shape for shape, _ in forms]
    dense_bytes = AllReduce.wire_bytes(4 * sum(torch.Size(shape).numel() for shape in shapes), world)
    compressed_shapes = [shape for shape in shapes if averager.compresses(shape)]

    def expected_seconds(compressor: Compressor, cf: float) -> tuple[float | None, float | None]:
        """Return predicted seconds of a step's coding, and of its exchange; both ``None`` if not known."""
        if link is None:
            return None, None
        network, machine = Network(link.latency, link.bandwidth), Machine(link.copy_bytes_per_s)
        if compressor.compresses and cf in coding:
            coding_in_copies = coding[cf] * link.copy_bytes_per_s
            machine = replace(machine, costs={compressor.name: ((cf, coding_in_copies, 0.0),)}, per_rank=False)
        if machine.coding(compressor, cf) is None:
            return None, None
        dense_dtype, dense_below = policy.dense_format.dtype, policy.dense_below
        predicted_step = predict(
            shapes, compressor, cf, 1.0, world, network, machine, dense=dense_dtype, dense_below=dense_below
        )
        return float(f"{predicted_step.compress_s:.3g}"), float(f"{predicted_step.exchange_s:.3g}")

    def forecast(compressor: Compressor, cf: float) -> Forecast:
        """Return the forecast of a compressor at a CF, for a candidate that exchanges in each step (mode ``hook``)."""
        profile = compressor.profile(cf, world=world, shapes=compressed_shapes)
        belief = efficiency_belief(profile)
        coding_s, exchange_s = expected_seconds(compressor, cf)
        method, ratio = compressor.method_at(cf), wire_ratio(dense_bytes, averager.wire_bytes(forms, compressor, cf))
        sends = describe_exchange(method, ratio) if compressor.compresses else method
        return Forecast(
            candidate=Candidate("hook", compressor.name, cf, sends=sends),
            wire_ratio=ratio,
            efficiency=belief.efficiency,
            family=profile.family,
            by_gain=profile.efficiency_by_gain,
            coding_s=coding_s,
            exchange_s=exchange_s,
            apart=profile.efficiency_apart,
            deviation=belief.deviation,
            method=method,
        )

    return select(policy, forecast)


def efficiency_belief(profile: Profile) -> Belief:
    """Return the belief (median and deviation, to four decimals) about a step's efficiency with a compressor.

    Args:
        profile: the compressor's profile at a CF.
    """
    efficiency = round(profile.efficiency, 4)
    if profile.kind is None:
        return Belief(efficiency)
    belief = beliefs_in_force().belief(efficiency, profile.kind)
    return Belief(efficiency, round(belief.deviation, 4))


def select(policy: Policy, predict_forecast: Predict) -> Admission:
    """Select a run's candidates; drop those that send no fewer bytes than dense, or about the same as another.

    For example, top-k at CF 10 sends 3.2 times as many bytes as dense at 32 ranks, since each rank of an all-gather
    sends its payload N - 1 times. If 16 bit is a candidate, the others must send fewer bytes than 16 bit.

    Args:
        policy: policy with controller, compressor and CF range.
        predict_forecast: function that returns the forecast of a compressor at a CF, see ``Predict``.
    """
    dense_forecast, *sixteen_bit_forecasts = (
        predict_forecast(number_format, number_format.cf) for number_format in policy.dense_formats
    )
    if not policy.base.compresses:
        return Admission((dense_forecast,))
    supported_cfs = policy.base.candidates(policy.cf_range)
    proposed_forecasts = [
        predict_forecast(policy.base, cf) for cf in policy.controller.propose(policy.cf_range, supported_cfs)
    ]
    if policy.controller.keeps_all:
        return Admission((dense_forecast, *proposed_forecasts))
    forecasts = [dense_forecast]
    dropped = []
    by_wire_ratio = sorted(proposed_forecasts, key=lambda forecast: (forecast.wire_ratio, forecast.candidate.cf))
    for forecast in (*sixteen_bit_forecasts, *by_wire_ratio):
        same_bytes_forecast = next((other for other in forecasts if sends_about_same_bytes(forecast, other)), None)
        smallest_dense_forecast = next(other for other in reversed(forecasts) if other.candidate.dense)
        if same_bytes_forecast is None and forecast.wire_ratio > smallest_dense_forecast.wire_ratio:
            forecasts.append(forecast)
        elif same_bytes_forecast is not None:
            dropped.append(
                Dropped(
                    forecast, "same_bytes", same_bytes_forecast, same_bytes_forecast.wire_ratio / forecast.wire_ratio
                )
            )
        else:
            ratio = smallest_dense_forecast.wire_ratio / forecast.wire_ratio
            dropped.append(Dropped(forecast, "not_fewer_bytes", smallest_dense_forecast, ratio))
    return Admission(tuple(forecasts), tuple(dropped))


def drop_below_efficiency(admission: Admission, policy: Policy) -> Admission:
    """Return an admission without the candidates that may make too little progress in a step.

    A candidate stays in two cases. The lower bound of its efficiency (progress of a step / progress of a dense step) is
    at least as high as required. Or the candidate averages dense gradients in each step, in float32 or 16 bit.

    Args:
        admission: forecasts of all candidates, and candidates that were dropped before.
        policy: its ``least_efficiency`` is required of all candidates. If that is ``None``, only hook steps must reach
            ``LEAST_HOOK_EFFICIENCY``, and only if Goodput chooses from the default ladder.
    """
    required = hook_required = policy.least_efficiency or 0.0
    if policy.least_efficiency is None and isinstance(policy.controller, Goodput) and policy.base == ladder:
        hook_required = LEAST_HOOK_EFFICIENCY
    forecasts, dropped = list[Forecast](), [*admission.dropped]
    for forecast in admission.forecasts:
        least_efficiency = hook_required if forecast.candidate.mode == "hook" else required
        lower_bound = forecast.least_efficiency
        if _synchronous_and_dense(forecast) or lower_bound >= least_efficiency:
            forecasts.append(forecast)
        else:
            dropped.append(
                Dropped(forecast, "too_little_progress", admission.forecasts[0], lower_bound / least_efficiency)
            )
    return Admission(tuple(forecasts), tuple(dropped))


def _synchronous_and_dense(forecast: Forecast) -> bool:
    """True if a candidate averages dense gradients in each step."""
    return forecast.candidate.dense and forecast.candidate.mode != "outer"


def with_native(admission: Admission, native_cfs: Sequence[float]) -> Admission:
    """Add dense candidates whose gradients DDP averages by itself (native steps) to an admission; return the result.

    In float32, the native candidate replaces the hook's dense candidate, since both send the same. In 16 bit, both
    stay: the hook may use another number format, and hook steps measure gradient norms.

    Args:
        admission: forecasts of candidates that exchange in each step, and perhaps of outer steps.
        native_cfs: CFs that DDP's own exchange may use: 1 (float32) or 2 (float16).
    """
    forecasts: list[Forecast] = []
    for forecast in admission.forecasts:
        candidate = forecast.candidate
        if candidate.mode != "hook" or not candidate.dense or candidate.cf not in native_cfs:
            forecasts.append(forecast)
            continue
        format_name = f"float{32 / candidate.cf:.0f}"
        native_candidate = Candidate("native", candidate.compressor, candidate.cf, sends=f"dense {format_name}")
        family = "native" if candidate.cf == 1 else f"native {format_name}"
        coding_s = None if forecast.coding_s is None else 0.0
        native_forecast = replace(
            forecast, candidate=native_candidate, family=family, coding_s=coding_s, method=str(native_candidate)
        )
        forecasts += [native_forecast] if candidate.cf == 1 else [forecast, native_forecast]
    return admission._replace(forecasts=tuple(forecasts))


def sends_about_same_bytes(forecast: Forecast, other: Forecast) -> bool:
    """True if two candidates encode in the same way and the first sends at least about as many bytes as the second.

    For example, at high CFs top-k may send about the same bytes at two CFs, if the model is small.

    Args:
        forecast: forecast of the first candidate.
        other: forecast of the second candidate.
    """
    return forecast.family == other.family and forecast.wire_ratio <= SAME_RATIO * other.wire_ratio
