# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps among the choices: those that gravac would admit with ``every=(1, 100)``, with what a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.collectives import wire_ratio
from gravac.compressors import Compressor
from gravac.costmodel import Load, Machine, Network, crossing
from gravac.engine.admission import Admission, efficiency_belief
from gravac.lab.advise.option import Option
from gravac.modes.outer.candidates import at_every, choices, widened

MOST_EVERY = 100
"""Largest number of steps from one exchange to the next."""

EVERY = choices(1, MOST_EVERY)[1:]
"""Numbers of steps from one exchange to the next: those that ``every=(1, 100)`` chooses from, besides 1."""

MOST = 32.0
"""Highest CF that is taken into account: that of one bit, the least that was measured at more than one step
(``docs/evidence/outer.md``)."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One way of exchanging what a model has, and what it puts on machine and network.

    Attributes:
        compressor: what compresses; a ``Dense`` for none.
        cf: compression factor.
        load: load of a step that exchanges.
    """

    compressor: Compressor
    cf: float
    load: Load

    def forecast(self, full: int, network: Network, machine: Machine) -> Forecast:
        """Return the forecast of an exchange in each step, which backward does not hide.

        Args:
            full: wire bytes of a dense float32 all-reduce of the model.
            network: network between the workers.
            machine: speed of each worker.
        """
        predicted, profile = self.load.over(network, machine), self.compressor.profile(self.cf)
        belief = efficiency_belief(profile)
        return Forecast(
            Candidate("hook", self.compressor.name if self.compressor.compresses else DENSE, self.cf),
            wire_ratio(full, predicted.wire_bytes),
            belief.efficiency,
            profile.family,
            coding_s=predicted.compress_s,
            exchange_s=predicted.exchange_s,
            apart=profile.efficiency_apart,
            deviation=belief.deviation,
        )

    def step_s(self, every: int, delay: int, network: Network, machine: Machine) -> float:
        """Return the seconds of a step where it is exchanged every so many, and taken up so many later."""
        seconds = at_every(self.forecast(1, network, machine), every, self.load.compute_s, delay).step_s
        assert seconds is not None
        return seconds


def outer_steps(
    dense: Sequence[Exchanged],
    compressed: Sequence[Exchanged],
    full: int,
    network: Network,
    machine: Machine,
    workers: int,
) -> list[tuple[Exchanged, Forecast]]:
    """Return all that gravac would choose from up to ``MOST``, over all bases, each with its forecast.

    Args:
        dense: float32 and 16 bit.
        compressed: compressors at compression factors.
        full: wire bytes of a dense float32 all-reduce of the model.
        network: network between the workers.
        machine: speed of each worker.
        workers: number of ranks.
    """
    outer: dict[tuple[str, float, int], tuple[Exchanged, Forecast]] = {}
    for base in dict.fromkeys(one.compressor.name for one in (*compressed, *dense)):
        ways = [*dense, *(one for one in compressed if one.compressor.name == base and one.cf <= MOST)]
        forecasts = [way.forecast(full, network, machine) for way in ways]
        way_of = {forecast.candidate: way for forecast, way in zip(forecasts, ways, strict=True)}
        fewest = max(forecast.wire_ratio for forecast in forecasts if forecast.candidate.dense)
        compute_s = ways[0].load.compute_s
        fewer = tuple(forecast for forecast in forecasts if forecast.candidate.dense or forecast.wire_ratio > fewest)
        apart = widened(Admission(fewer), EVERY, compute_s, "auto", keep_all=False, chooses=False, world=workers)
        for forecast in apart.forecasts:
            chosen = forecast.candidate
            way = way_of[Candidate("hook", chosen.compressor, chosen.cf)]
            outer[chosen.compressor, chosen.cf, chosen.every] = way, forecast
    return list(outer.values())


def bandwidth_below(
    one: Exchanged, every: int, delay: int, sixteen: Load, network: Network, machine: Machine
) -> float | None:
    """Return the bandwidth below which its step is shorter than one of DDP's in 16 bit; see ``break_even``."""

    def wins(bandwidth: float) -> bool:
        at = Network(network.alpha, bandwidth)
        return one.step_s(every, delay, at, machine) < sixteen.over(at, machine).step_s

    return crossing(wins)


def code(option: Option, dense: str) -> str:
    """Return the line that makes just that choice, and no other.

    Args:
        option: the choice.
        dense: the 16-bit format.

    Example:
        >>> numbers = dict(step_s=1, compress_s=0, exposed_s=0, speed_up=1, wire_ratio=1, break_even=0, efficiency=1)
        >>> code(Option("topk", 100.0, cost=None, every=20, **numbers), "bfloat16")
        'AdaptiveCompressor(base="topk", controller=Static(cf=100), every=20).attach(ddp, optimizer)'
    """
    if option.mode == "native":
        short = {"bfloat16": "bf16", "float16": "fp16"}.get(dense)
        return f"ddp.register_comm_hook(None, {short}_compress_hook)" if option.cf == 2 and short else "DDP, no hook"
    base = f'base="{option.compressor}"'
    if option.compressor == DENSE:
        base = f'base=dense(dtype="{"float32" if option.cf == 1 else dense}"), cf_range=(1, 2)'
    often = f"every={option.every}" if option.every > 1 else "native=False"
    return f"AdaptiveCompressor({base}, controller=Static(cf={option.cf:.6g}), {often}).attach(ddp, optimizer)"
