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

from gravac.candidate import Span
from gravac.collectives import AllReduce, wire_ratio
from gravac.compressors import COMPRESSORS, Compressor, ladder
from gravac.costmodel import Format, Machine, Network, Prediction, break_even, load
from gravac.lab.shapes import MODELS, Shape

MARGIN = 1.05
"""Ratio of two predicted step times below which they count as equal: predictions are not more exact than that."""

REACH = (1.0, 1000.0)
"""Lowest and highest CF considered."""

TRIED = (10.0, 100.0, 1000.0)
"""CFs predicted for a compressor that can do any, unless the user says otherwise."""

LATENCY = 50e-6
"""Seconds that a message takes where nothing was calibrated: TCP in one data centre."""

COPY = 14e9
"""Bytes per second of a copy where nothing was calibrated: one core of the CPU that coding costs were measured on."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way of exchanging gradients.

    Attributes:
        compressor: name of the compressor; ``"dense"`` for none.
        cf: compression factor.
        step_s: predicted seconds of a step.
        compress_s: seconds of a step spent on encode and decode.
        exposed_s: seconds of a step spent on exchange that backward does not hide.
        speed_up: step time of 16 bit over this one.
        wire_ratio: wire bytes of dense float32 over those of this choice.
        break_even: bandwidth below which it beats 16 bit, bits per second; ``inf`` for always, 0 for never, ``None``
            for what is itself dense.
        efficiency: share of a dense step's progress that one of its steps is expected to make.
        cost: price of 1000 steps, in the price's currency; ``None`` without a price.
    """

    compressor: str
    cf: float
    step_s: float
    compress_s: float
    exposed_s: float
    speed_up: float
    wire_ratio: float
    break_even: float | None
    efficiency: float
    cost: float | None

    @property
    def progress(self) -> float:
        """Speed-up in progress per second."""
        return self.speed_up * self.efficiency

    def __str__(self) -> str:
        return f"{self.compressor} {self.cf:.4g}x"


@dataclass(frozen=True, slots=True)
class Advice:
    """Predictions for a model, and the verdict that follows from them.

    Attributes:
        choices: float32, 16 bit, then every compressor and CF.
        verdict: which choice is best, in words.
        reason: what its step takes, and what else comes near, in words.
        workers: number of ranks.
        network: network between the workers.
        machine: speed of each worker.
        batch_s: seconds of forward, backward and optimizer.
        elements: number of elements of the model.
    """

    choices: tuple[Option, ...]
    verdict: str
    reason: str
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
        """The first ``count`` of them, all that is dense among them."""
        left = count - sum(choice.break_even is None for choice in self.choices)
        compressed = [choice for choice in self.by_progress if choice.break_even is not None][: max(0, left)]
        return tuple(choice for choice in self.by_progress if choice.break_even is None or choice in compressed)


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
    sixteen = load(shapes, None, 1, batch_s, workers, machine, dense=dense).over(network, machine)

    def choice(
        name: str, cf: float, predicted: Prediction, even: float | None = None, efficiency: float = 1.0
    ) -> Option:
        hours = 1000 * predicted.step_s / 3600 * workers
        return Option(
            compressor=name,
            cf=cf,
            step_s=predicted.step_s,
            compress_s=predicted.compress_s,
            exposed_s=predicted.exposed_s,
            speed_up=sixteen.step_s / predicted.step_s,
            wire_ratio=wire_ratio(full, predicted.wire_bytes),
            break_even=even,
            efficiency=efficiency,
            cost=None if price_per_hour is None else hours * price_per_hour,
        )

    single = load(shapes, None, 1, batch_s, workers, machine, dense="float32").over(network, machine)
    choices = [choice("dense", 1.0, single), choice("dense", 2.0, sixteen)]
    for compressor, cf in candidates(compressors, cfs, machine):
        predicted = load(shapes, compressor, cf, batch_s, workers, machine, dense=dense).over(network, machine)
        even = break_even(shapes, compressor, cf, batch_s, workers, machine, network.alpha, dense=dense)
        if even is None:
            even = math.inf if predicted.step_s < sixteen.step_s else 0.0
        choices.append(choice(compressor.name, cf, predicted, even, compressor.profile(cf).efficiency))
    verdict, reason = _verdict(choices[2:], sixteen, dense)
    return Advice(tuple(choices), verdict, reason, workers, network, machine, batch_s, elements)


def _verdict(choices: Sequence[Option], sixteen: Prediction, dense: Format) -> tuple[str, str]:
    """What is best, and why, a line each."""
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(dense, dense)
    best = max(choices, key=lambda choice: choice.progress)
    fastest = max(choices, key=lambda choice: choice.speed_up)
    step = f"a step takes {_ms(sixteen.step_s)} in {short}, {_ms(sixteen.exposed_s)} of it waiting for the exchange"
    if fastest.speed_up <= MARGIN:
        return (
            f"stay with {short}: nothing is predicted to make a step more than 5 % shorter",
            f"{step}; nearest comes {fastest}, {fastest.speed_up:.2f} times as fast",
        )
    if best.progress <= MARGIN:
        return (
            f"stay with {short}: no choice is expected to make more than 5 % more progress per second",
            f"{step}; {fastest} makes steps {fastest.speed_up:.2f} times as fast, but less of each; nearest comes "
            f"{best}, {best.progress:.2f} times the progress",
        )
    reason = f"{step}; with {best} {_ms(best.step_s)}, {_ms(best.compress_s)} of it coding, each expected to make "
    reason += f"{best.efficiency:.0%} of a dense step's progress"
    mild = min((c for c in choices if c.progress >= 0.95 * best.progress), key=lambda choice: choice.cf)
    if mild.cf < 0.8 * best.cf:
        reason += f"; {mild}, which is milder, comes within 5 %"
    return f"try {best}: {best.progress:.2f} times the progress per second of {short}", reason


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
