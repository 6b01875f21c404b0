# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the step time of every compressor and CF for a model, and says whether compressing is worth it.

What is predicted is time, by ``gravac.costmodel``. What a compressed step loses in progress is a prior only, from what
was measured before; a run of ``gravac bench tta`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gravac.beliefs import Belief
from gravac.candidate import DENSE, Forecast, Mode, Span
from gravac.collectives import AllReduce, wire_ratio
from gravac.compressors import COMPRESSORS, Compressor, Dense, ladder
from gravac.costmodel import Format, Machine, Network, Prediction, break_even, load
from gravac.engine.admission import efficiency_belief
from gravac.lab.advise.option import Option
from gravac.lab.advise.outer_steps import Exchanged, bandwidth_below, code, outer_steps
from gravac.lab.advise.verdict import expected, in_each_step, line, with_outer_steps
from gravac.lab.shapes import MODELS, Shape

REACH = (1.0, 1000.0)
"""Lowest and highest CF considered."""

TRIED = (10.0, 100.0, 1000.0)
"""CFs predicted for a compressor that can do any, unless the user says otherwise."""

LATENCY = 50e-6
"""Seconds that a message takes where nothing was calibrated: TCP in one data centre."""

COPY = 14e9
"""Bytes per second of a copy where nothing was calibrated: one core of the CPU that coding costs were measured on."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Predictions for a model, and the verdict that follows from them.

    Attributes:
        choices: float32 and 16 bit by DDP itself, then every compressor and CF in each step, then outer steps.
        each_step: which choice is best with an exchange of gradients in each step, in words.
        outer: which choice is best with outer steps, in words.
        verdict: which mode gravac is expected to run, and why, in words.
        mode: that mode.
        reason: what a step takes with an exchange in each, and what else comes near, in words.
        code: the line to paste, by which gravac decides while training.
        fixed: the line that makes the expected choice without deciding.
        workers: number of ranks.
        network: network between the workers.
        machine: speed of each worker.
        batch_s: seconds of forward, backward and optimizer.
        elements: number of elements of the model.
    """

    choices: tuple[Option, ...]
    each_step: str
    outer: str
    verdict: str
    mode: Mode
    reason: str
    code: str
    fixed: str
    workers: int
    network: Network
    machine: Machine
    batch_s: float
    elements: int

    @property
    def by_progress(self) -> tuple[Option, ...]:
        """All choices, those by which the same accuracy is expected soonest first."""
        return tuple(sorted(self.choices, key=lambda choice: -choice.progress))

    def best(self, count: int) -> tuple[Option, ...]:
        """The first ``count`` of them; among them DDP's own, and the best that compresses in each step."""
        always = [choice for choice in self.by_progress if choice.reference]
        always += [choice for choice in self.by_progress if choice.mode == "hook"][:1]
        others = [choice for choice in self.by_progress if choice not in always][: max(0, count - len(always))]
        return tuple(choice for choice in self.by_progress if choice in (*always, *others))


def shapes_of(model: str | torch.nn.Module | Sequence[Shape]) -> list[Shape]:
    """Return parameter shapes: of a model by name, of a module's parameters that are trained, or as given.

    Raises:
        ValueError: the name is unknown, or there is nothing to train; names it.
    """
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"model: {model!r} is unknown; known: {', '.join(MODELS)}")
        return MODELS[model]()
    if isinstance(model, torch.nn.Module):
        shapes = [tuple(p.shape) for p in model.parameters() if p.requires_grad]
    else:
        shapes = [tuple(shape) for shape in model]
    if not shapes:
        raise ValueError(f"model: {type(model).__name__} has no parameter to train; give a model that has")
    return shapes


def candidates(
    names: Sequence[str] | None, cfs: Sequence[float] | None, machine: Machine
) -> list[tuple[Compressor, float]]:
    """Return the compressors and CFs to predict.

    Args:
        names: names of compressors; ``None`` for all whose cost the machine knows, without ``ladder``, whose members
            are among them.
        cfs: wanted compression factors; a compressor that has but a few takes part with those within a tenth of a
            wanted one. ``None`` for ``TRIED``, or for all that it has.
        shapes: parameter shapes of the model.
        machine: machine that knows the costs.

    Raises:
        ValueError: a compressor is unknown, a CF below 1, or no compressor does any of the CFs.
    """
    measured = {name: one for name, one in COMPRESSORS.items() if one.compresses and machine.coding(one, 1.0)}
    for name in names or ():
        if COMPRESSORS.get(name) is None or name not in measured:
            known = ", ".join(measured)
            raise ValueError(f"compressors: {name!r} is unknown or its cost was never measured; known: {known}")
    for cf in cfs or ():
        if not (math.isfinite(cf) and cf >= 1):
            raise ValueError(f"cf: {cf!r} is no compression factor; give 1 or more, such as 10")
    chosen: list[tuple[Compressor, float]] = []
    for name, compressor in measured.items():
        if name not in (names or measured) or (name == ladder.name and not names):
            continue
        low, high = min(REACH[0], *(cfs or REACH)), max(REACH[1], *(cfs or REACH))
        reach = compressor.candidates((low, high))
        if isinstance(reach, Span):
            chosen += [(compressor, cf) for cf in sorted(cfs or TRIED) if reach.low <= cf <= reach.high]
        else:
            near = [cf for cf in reach if cfs is None or any(abs(cf / wanted - 1) <= 0.1 for wanted in cfs)]
            chosen += [(compressor, cf) for cf in near]
    if not chosen:
        raise ValueError(f"cf: none of the compressors does any of {list(cfs or TRIED)}; try --cf 10 32 100")
    return chosen


def advise(
    model: str | torch.nn.Module | Sequence[Shape],
    batch_s: float,
    workers: int,
    network: Network,
    machine: Machine | None = None,
    compressors: Sequence[str] | None = None,
    cfs: Sequence[float] | None = None,
    price_per_hour: float | None = None,
    dense: Format = "bfloat16",
) -> Advice:
    """Predict the step time of every choice, and say which is best.

    Args:
        model: a name of ``gravac.lab.shapes.MODELS``, a module, or shapes.
        batch_s: seconds of forward, backward and optimizer of one batch on one worker.
        workers: number of ranks, 1 or more.
        network: network between the workers.
        machine: speed of each worker; ``None`` for one CPU core.
        compressors: names of compressors; ``None`` for all.
        cfs: compression factors; ``None`` for some usual ones.
        price_per_hour: price of one worker's hour, in any currency.
        dense: the 16-bit format that is compared with.

    Raises:
        ValueError: an argument is out of range or unknown; names it.
    """
    machine = machine or Machine(COPY)
    if not (math.isfinite(batch_s) and batch_s > 0):
        raise ValueError(f"batch_seconds: {batch_s!r} is out of range; give seconds, above 0")
    if workers < 1:
        raise ValueError(f"workers: {workers!r} is out of range; give 1 or more")
    if price_per_hour is not None and not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise ValueError(f"price_per_hour: {price_per_hour!r} is out of range; give the price of one worker, 0 or more")
    shapes = shapes_of(model)
    elements = sum(math.prod(shape) for shape in shapes)
    full = AllReduce.wire_bytes(4 * elements, workers)

    def cost(step_s: float) -> float | None:
        return None if price_per_hour is None else 1000 * step_s / 3600 * workers * price_per_hour

    def choice(name: str, cf: float, predicted: Prediction, belief: Belief, even: float | None = None) -> Option:
        return Option(
            compressor=name,
            cf=cf,
            step_s=predicted.step_s,
            compress_s=predicted.compress_s,
            exposed_s=predicted.exposed_s,
            speed_up=sixteen.step_s / predicted.step_s,
            wire_ratio=wire_ratio(full, predicted.wire_bytes),
            break_even=even,
            efficiency=belief.efficiency,
            deviation=belief.deviation,
            cost=cost(predicted.step_s),
        )

    def outer_choice(way: Exchanged, forecast: Forecast) -> Option:
        assert forecast.step_s is not None
        assert forecast.coding_s is not None
        candidate = forecast.candidate
        even = bandwidth_below(way, candidate.every, candidate.delay, in_sixteen, network, machine)
        return Option(
            compressor=candidate.compressor,
            cf=candidate.cf,
            step_s=forecast.step_s,
            compress_s=forecast.coding_s,
            exposed_s=forecast.step_s - forecast.coding_s - batch_s,
            speed_up=sixteen.step_s / forecast.step_s,
            wire_ratio=forecast.wire_ratio,
            break_even=_always_or_never(even, forecast.step_s < sixteen.step_s),
            efficiency=forecast.efficiency,
            deviation=forecast.deviation,
            cost=cost(forecast.step_s),
            every=candidate.every,
        )

    in_single = load(shapes, None, 1, batch_s, workers, machine, dense="float32")
    in_sixteen = load(shapes, None, 1, batch_s, workers, machine, dense=dense)
    sixteen = in_sixteen.over(network, machine)
    denses = [Exchanged(Dense(), 1.0, in_single), Exchanged(Dense(dtype=dense), 2.0, in_sixteen)]
    in_each = [
        choice(DENSE, way.cf, way.load.over(network, machine), efficiency_belief(way.compressor.profile(way.cf)))
        for way in denses
    ]
    ways: list[Exchanged] = []
    for compressor, cf in candidates(compressors, cfs, machine):
        ways.append(Exchanged(compressor, cf, load(shapes, compressor, cf, batch_s, workers, machine, dense=dense)))
        predicted = ways[-1].load.over(network, machine)
        even = break_even(shapes, compressor, cf, batch_s, workers, machine, network.alpha, dense=dense)
        even = _always_or_never(even, predicted.step_s < sixteen.step_s)
        in_each.append(choice(compressor.name, cf, predicted, efficiency_belief(compressor.profile(cf)), even))
    apart = outer_steps(denses, ways, full, network, machine, workers) if workers > 1 else []
    outer = [outer_choice(way, forecast) for way, forecast in apart]
    best, reason = in_each_step(in_each[2:], sixteen)
    chosen, verdict = expected(in_each, outer)
    return Advice(
        choices=(*in_each, *outer),
        each_step=best,
        outer=with_outer_steps(outer),
        verdict=verdict,
        mode=chosen.mode,
        reason=reason,
        code=line(chosen),
        fixed=code(chosen, dense),
        workers=workers,
        network=network,
        machine=machine,
        batch_s=batch_s,
        elements=elements,
    )


def _always_or_never(even: float | None, wins: bool) -> float:
    """Return a bandwidth of ``break_even``; where there is none, what holds at all of them."""
    return even if even is not None else math.inf if wins else 0.0
