# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Forecasts the outer steps (several training steps for each exchange) that ``every=(1, 100)`` may choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.collectives import wire_ratio
from gravac.compressors import Compressor
from gravac.costmodel import Load, Machine, Network, crossing
from gravac.engine.admission import Admission, efficiency_belief
from gravac.lab.advise.option import Option
from gravac.lab.advise.wrapping import IN_DDP, Wrapping
from gravac.modes.outer.candidates import every_choices, forecast_at_every, with_outer_candidates

MAX_EVERY = 100
"""Largest number of steps from one exchange to the next."""

EVERY_CHOICES = every_choices(1, MAX_EVERY)[1:]
"""Numbers of steps from one exchange to the next that ``every=(1, 100)`` chooses from, except 1."""

MAX_CF = 32.0
"""Highest compression factor that is considered for outer steps: 32, which is one bit per element.

Fewer bits were never measured with several steps between exchanges (record outer_efficiency.json of commit 43b3fe07).
"""


@dataclass(frozen=True, slots=True)
class CompressorLoad:
    """A compressor at a CF, and the load that its exchange of a model puts on machine and network.

    Attributes:
        compressor: the compressor; a ``Dense`` if nothing is compressed.
        cf: compression factor.
        load: work of a step with an exchange: seconds of compute, bytes to encode and bytes to send.
    """

    compressor: Compressor
    cf: float
    load: Load

    def forecast(self, dense_wire_bytes: int, network: Network, machine: Machine) -> Forecast:
        """Return predicted efficiency, wire ratio, seconds of coding and seconds of exchange of a hook step.

        Args:
            dense_wire_bytes: wire bytes of a dense float32 all-reduce of the model.
            network: network between the workers.
            machine: speed of each worker.
        """
        prediction, profile = self.load.over(network, machine), self.compressor.profile(self.cf)
        belief = efficiency_belief(profile)
        return Forecast(
            Candidate("hook", self.compressor.name if self.compressor.compresses else DENSE, self.cf),
            wire_ratio(dense_wire_bytes, prediction.wire_bytes),
            belief.efficiency,
            profile.family,
            coding_s=prediction.compress_s,
            exchange_s=prediction.exchange_s,
            apart=profile.efficiency_apart,
            deviation=belief.deviation,
        )

    def step_s(self, every: int, delay: int, network: Network, machine: Machine) -> float:
        """Return the mean seconds of a training step if ranks exchange every ``every`` steps.

        Args:
            every: number of steps from one exchange to the next.
            delay: number of steps that an exchange is in flight before its mean is applied.
            network: network between the workers.
            machine: speed of each worker.
        """
        seconds = forecast_at_every(self.forecast(1, network, machine), every, self.load.compute_s, delay).step_s
        assert seconds is not None
        return seconds


def forecast_outer_steps(
    dense_loads: Sequence[CompressorLoad],
    compressed_loads: Sequence[CompressorLoad],
    dense_wire_bytes: int,
    network: Network,
    machine: Machine,
    workers: int,
) -> list[tuple[CompressorLoad, Forecast]]:
    """Return ``(load, forecast)`` for each candidate with outer steps that gravac may choose, over all compressors.

    Candidates with a CF above ``MAX_CF`` are left out.

    Args:
        dense_loads: loads of dense float32 and 16 bit.
        compressed_loads: loads of the compressors, each at each of its compression factors.
        dense_wire_bytes: wire bytes of a dense float32 all-reduce of the model.
        network: network between the workers.
        machine: speed of each worker.
        workers: number of ranks.
    """
    load_and_forecast_of: dict[tuple[str, float, int], tuple[CompressorLoad, Forecast]] = {}
    for compressor_name in dict.fromkeys(load.compressor.name for load in (*compressed_loads, *dense_loads)):
        loads = [
            *dense_loads,
            *(load for load in compressed_loads if load.compressor.name == compressor_name and load.cf <= MAX_CF),
        ]
        forecasts = [load.forecast(dense_wire_bytes, network, machine) for load in loads]
        load_by_candidate = {forecast.candidate: load for forecast, load in zip(forecasts, loads, strict=True)}
        dense_wire_ratio = max(forecast.wire_ratio for forecast in forecasts if forecast.candidate.dense)
        compute_s = loads[0].load.compute_s
        admissible_forecasts = tuple(
            forecast for forecast in forecasts if forecast.candidate.dense or forecast.wire_ratio > dense_wire_ratio
        )
        admission = with_outer_candidates(
            Admission(admissible_forecasts),
            EVERY_CHOICES,
            compute_s,
            "auto",
            keep_dominated=False,
            chooses=False,
            world=workers,
        )
        for forecast in admission.forecasts:
            candidate = forecast.candidate
            load = load_by_candidate[Candidate("hook", candidate.compressor, candidate.cf)]
            load_and_forecast_of[candidate.compressor, candidate.cf, candidate.every] = load, forecast
    return list(load_and_forecast_of.values())


def crossing_bandwidth_of_outer_steps(
    compressor_load: CompressorLoad, every: int, delay: int, sixteen_bit_load: Load, network: Network, machine: Machine
) -> float | None:
    """Return the bandwidth, bits per second, below which outer steps are shorter than DDP's steps in 16 bit.

    ``None`` if outer steps are shorter at every bandwidth, or at none.

    Args:
        compressor_load: compressor and CF of the outer steps.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied.
        sixteen_bit_load: load of DDP's step in 16 bit.
        network: network between the workers, whose latency is used at every bandwidth.
        machine: speed of each worker.
    """

    def is_faster(bandwidth: float) -> bool:
        varied_network = Network(network.alpha, bandwidth)
        return (
            compressor_load.step_s(every, delay, varied_network, machine)
            < sixteen_bit_load.over(varied_network, machine).step_s
        )

    return crossing(is_faster)


def fixed_code(option: Option, sixteen_bit_format: str, wrapping: Wrapping = IN_DDP) -> str:
    """Return the line of code that runs an option in all steps, without decisions while training.

    Args:
        option: option to run.
        sixteen_bit_format: name of the 16-bit format.
        wrapping: texts that differ between a model in DDP and a model in shards.

    Example:
        >>> numbers = dict(step_s=1, compress_s=0, exposed_s=0, speed_up=1, wire_ratio=1, break_even=0, efficiency=1)
        >>> fixed_code(Option("topk", 100.0, cost=None, every=20, **numbers), "bfloat16")
        'AdaptiveCompressor(base="topk", controller=Static(cf=100), every=20).attach(ddp, optimizer)'
    """
    if option.mode == "native":
        short_name = {"bfloat16": "bf16", "float16": "fp16"}.get(sixteen_bit_format)
        native_cf = 2.0 if option.cf == 2 and short_name else 1.0
        return wrapping.native_code[native_cf].format(short=short_name, dtype=sixteen_bit_format)
    base_argument = f'base="{option.compressor}"'
    if option.compressor == DENSE:
        base_argument = f'base=dense(dtype="{"float32" if option.cf == 1 else sixteen_bit_format}"), cf_range=(1, 2)'
    mode_argument = f"every={option.every}" if option.every > 1 else "native=False"
    arguments = f"{base_argument}, controller=Static(cf={option.cf:.6g}), {mode_argument}"
    return f"AdaptiveCompressor({arguments}).attach({wrapping.model_variable}, optimizer)"
