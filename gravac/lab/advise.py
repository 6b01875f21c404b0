# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the step time of every compressor and CF for a model, and says whether compressing is worth it.

What is predicted is time, by ``gravac.costmodel``. What a compressed step loses in progress is a prior only, from what
was measured before; a run of ``gravac bench tta`` measures it. Showing needs rich, plotting matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gravac.candidate import Span
from gravac.collectives import AllReduce
from gravac.compressors import COMPRESSORS, Compressor, Dense
from gravac.costmodel import Format, Load, Machine, Network, Prediction, break_even, load
from gravac.lab.json_file import write_json
from gravac.lab.links.rates import format_rate
from gravac.lab.shapes import MODELS, Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

MARGIN = 1.05
"""A prediction is not so exact that less than 5 % means anything."""

REACH = (1.0, 1000.0)
"""CFs considered."""

TRIED = (10.0, 100.0, 1000.0)
"""CFs of a compressor that can do any, unless the user says otherwise."""

LATENCY = 50e-6
"""Seconds of a message where nothing was calibrated: TCP in one data centre."""

COPY = 14e9
"""Bytes per second of a copy where nothing was calibrated: one core of the CPU that ``COSTS`` was measured on."""

BANDWIDTHS = tuple(10 ** (7 + step / 10) for step in range(41))
"""Of the plot, bits per second: 0.01 to 100 Gbit/s."""

WORKERS = tuple(2**power for power in range(1, 13))
"""Of the plot: 2 to 4096."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way of exchanging gradients.

    Attributes:
        compressor: its name; ``"dense"`` for none.
        cf: compression factor.
        step_s: predicted, seconds.
        compress_s: of that, encode and decode.
        exposed_s: of that, exchange that backward does not hide.
        speed_up: step time of 16 bit over this one.
        wire_ratio: wire bytes of dense float32 over these.
        break_even: bandwidth below which it beats 16 bit, bits per second; ``inf`` for always, 0 for never, ``None``
            for what is itself dense.
        worth: share of a dense step's progress that one of its steps is expected to make; ``None`` when not known.
        cost: of 1000 steps, in the price's currency; ``None`` without a price.
    """

    compressor: str
    cf: float
    step_s: float
    compress_s: float
    exposed_s: float
    speed_up: float
    wire_ratio: float
    break_even: float | None
    worth: float | None
    cost: float | None

    @property
    def progress(self) -> float:
        """Speed-up in progress per second, as far as known: where the worth is not known, in steps per second."""
        return self.speed_up * (1.0 if self.worth is None else self.worth)

    def __str__(self) -> str:
        return f"{self.compressor} {self.cf:.4g}x"


@dataclass(frozen=True, slots=True)
class Advice:
    """What was predicted, and what follows.

    Attributes:
        choices: float32, 16 bit, then every compressor and CF.
        verdict: in words.
        workers: ranks.
        network: between them.
        machine: of each of them.
        batch_s: forward, backward and optimizer, seconds.
        elements: of the model.
    """

    choices: tuple[Choice, ...]
    verdict: str
    workers: int
    network: Network
    machine: Machine
    batch_s: float
    elements: int


def shapes_of(model: str | torch.nn.Module | Sequence[Shape]) -> list[Shape]:
    """Parameter shapes of a model by name, of a module's parameters that are trained, or as given.

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
    names: Sequence[str] | None, cfs: Sequence[float] | None, shapes: Sequence[Shape], machine: Machine
) -> list[tuple[Compressor, float]]:
    """The compressors and CFs to predict.

    Args:
        names: of compressors; ``None`` for all whose cost the machine knows.
        cfs: wanted; a compressor that has but a few CFs takes part with those within a tenth of a wanted one. ``None``
            for ``TRIED``, or for all that it has.
        shapes: of the model.
        machine: knows the costs.

    Raises:
        ValueError: a compressor is unknown, a CF below 1, or no compressor does any of the CFs.
    """
    for name in names or ():
        if name not in COMPRESSORS or name not in machine.costs:
            known = ", ".join(known for known in COMPRESSORS if known in machine.costs)
            raise ValueError(f"compressors: {name!r} is unknown or its cost was never measured; known: {known}")
    for cf in cfs or ():
        if not (math.isfinite(cf) and cf >= 1):
            raise ValueError(f"cf: {cf!r} is no compression factor; give 1 or more, such as 10")
    chosen: list[tuple[Compressor, float]] = []
    for name, compressor in COMPRESSORS.items():
        if isinstance(compressor, Dense) or name not in (names or machine.costs):
            continue
        low, high = min(REACH[0], *(cfs or REACH)), max(REACH[1], *(cfs or REACH))
        reach = compressor.candidates((low, high), shapes)
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
    """Predicts every choice, and says what follows.

    Args:
        model: a name of ``gravac.lab.shapes.MODELS``, a module, or shapes.
        batch_s: forward, backward and optimizer of one batch on one worker, seconds.
        workers: ranks; 1 or more.
        network: between them.
        machine: of each of them; ``None`` for one CPU core.
        compressors: names; ``None`` for all.
        cfs: compression factors; ``None`` for some usual ones.
        price_per_hour: of one worker.
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
        name: str, cf: float, predicted: Prediction, even: float | None = None, worth: float | None = None
    ) -> Choice:
        hours = 1000 * predicted.step_s / 3600 * workers
        return Choice(
            compressor=name,
            cf=cf,
            step_s=predicted.step_s,
            compress_s=predicted.compress_s,
            exposed_s=predicted.exposed_s,
            speed_up=sixteen.step_s / predicted.step_s,
            wire_ratio=full / predicted.wire_bytes if predicted.wire_bytes else 1.0,
            break_even=even,
            worth=worth,
            cost=None if price_per_hour is None else hours * price_per_hour,
        )

    single = load(shapes, None, 1, batch_s, workers, machine, dense="float32").over(network, machine)
    choices = [choice("dense", 1.0, single, worth=1.0), choice("dense", 2.0, sixteen, worth=1.0)]
    for compressor, cf in candidates(compressors, cfs, shapes, machine):
        predicted = load(shapes, compressor, cf, batch_s, workers, machine, dense=dense).over(network, machine)
        even = break_even(shapes, compressor, cf, batch_s, workers, machine, network.alpha, dense=dense)
        if even is None:
            even = math.inf if predicted.step_s < sixteen.step_s else 0.0
        choices.append(choice(compressor.name, cf, predicted, even, worth_of(compressor, cf)))
    verdict = _verdict(choices[2:], dense)
    return Advice(tuple(choices), verdict, workers, network, machine, batch_s, elements)


def worth_of(compressor: Compressor, cf: float) -> float | None:
    """The expected worth of a step, where the compressor says one."""
    known = getattr(compressor, "worth", None)
    if known is None:
        return None
    try:
        return float(known(cf))
    except (KeyError, ValueError):
        return None


def _verdict(choices: Sequence[Choice], dense: Format) -> str:
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(dense, dense)
    best = max(choices, key=lambda choice: choice.progress)
    fastest = max(choices, key=lambda choice: choice.speed_up)
    if fastest.speed_up <= MARGIN:
        return (
            f"stay with {short}: nothing is predicted to make a step more than 5 % shorter; nearest comes {fastest}, "
            f"{fastest.speed_up:.2f} times the speed of {short}"
        )
    if best.progress <= MARGIN:
        return (
            f"stay with {short}: {fastest} makes steps {fastest.speed_up:.2f} times as fast, but no choice is expected "
            f"to make more than 5 % more progress per second, since compressed steps are worth less; nearest comes "
            f"{best}, {best.progress:.2f} times"
        )
    words = f"try {best}: steps {best.speed_up:.2f} times as fast as {short}"
    if best.worth is None:
        words += "; what its steps lose in progress is not known, so measure it"
    else:
        words += f", each expected to be worth {best.worth:.0%} of a dense one: {best.progress:.2f} times the progress"
    mild = min((c for c in choices if c.progress >= 0.95 * best.progress), key=lambda choice: choice.cf)
    if mild.cf < 0.8 * best.cf:
        words += f"; {mild}, which is milder, comes within 5 % of that"
    return words + ". A prediction: check it with gravac bench tta"


def show(advice: Advice, console: Console | None = None) -> None:
    """The table, and the verdict below it. Needs rich."""
    from rich.box import SIMPLE_HEAVY
    from rich.table import Table

    from gravac.lab.console import wide

    console = wide(console)
    network, machine = advice.network, advice.machine
    table = Table(
        box=SIMPLE_HEAVY,
        title=f"{advice.elements / 1e6:.1f} M parameters, {advice.workers} workers, "
        f"{1e3 * advice.batch_s:g} ms a batch, {format_rate(float(f'{network.bandwidth:.4g}'))}, "
        f"{1e6 * network.alpha:.4g} µs a message",
        caption=f"Predicted, not measured. Compression costs as many copies as on a CPU, at "
        f"{machine.copy_bytes_per_s / 1e9:.4g} GB/s; {machine.overlap:.0%} of backward hides exchange.",
    )
    table.add_column("compressor")
    priced = any(choice.cost is not None for choice in advice.choices)
    heads = ["CF", "step ms", "compress ms", "exposed ms", "vs 16 bit", "wire ratio", "break-even", "step's worth"]
    for head in [*heads, *(["cost / 1000 steps"] if priced else [])]:
        table.add_column(head, justify="right")
    for choice in advice.choices:
        cells = [
            f"{choice.cf:.4g}",
            f"{1e3 * choice.step_s:.1f}",
            f"{1e3 * choice.compress_s:.1f}",
            f"{1e3 * choice.exposed_s:.1f}",
            f"{choice.speed_up:.2f}",
            f"{choice.wire_ratio:.2f}",
            _even(choice.break_even),
            "-" if choice.worth is None else f"{choice.worth:.2f}",
            *([f"{choice.cost:.2f}"] if choice.cost is not None else []),
        ]
        style = "bold green" if choice.break_even is not None and choice.speed_up > MARGIN else None
        table.add_row(choice.compressor, *cells, style=style)
    console.print(table)
    console.print(advice.verdict, highlight=False, soft_wrap=True)


def _even(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "-"
    if bandwidth == 0:
        return "never"
    return "always" if math.isinf(bandwidth) else format_rate(float(f"{bandwidth:.3g}"))


def as_json(advice: Advice) -> dict[str, Any]:
    """For a file: ``break_even`` is bits per second, ``"always"`` or ``"never"``."""

    def row(choice: Choice) -> dict[str, Any]:
        even: float | str | None = choice.break_even
        if even in (0.0, math.inf):
            even = "never" if even == 0.0 else "always"
        return {**{name: getattr(choice, name) for name in Choice.__slots__}, "break_even": even}

    return {
        "verdict": advice.verdict,
        "workers": advice.workers,
        "batch_seconds": advice.batch_s,
        "elements": advice.elements,
        "alpha": advice.network.alpha,
        "bandwidth": advice.network.bandwidth,
        "copy_bytes_per_s": advice.machine.copy_bytes_per_s,
        "overlap": advice.machine.overlap,
        "choices": [row(choice) for choice in advice.choices],
    }


def save(advice: Advice, path: Path) -> None:
    """Writes ``as_json`` to a file."""
    write_json(path, as_json(advice))


def plot(
    advice: Advice, model: str | torch.nn.Module | Sequence[Shape], path: Path, dense: Format = "bfloat16"
) -> None:
    """Speed-up over 16 bit against bandwidth, and against workers, of each compressor's best choice. Needs matplotlib.

    Args:
        advice: for the model.
        model: as given to ``advise``.
        path: of a PNG.
        dense: as given to ``advise``.
    """
    from matplotlib.figure import Figure

    shapes = shapes_of(model)
    machine, network = advice.machine, advice.network
    best: dict[str, Choice] = {}
    for choice in advice.choices[2:]:
        if choice.compressor not in best or choice.progress > best[choice.compressor].progress:
            best[choice.compressor] = choice
    shown = sorted(best.values(), key=lambda choice: -choice.progress)[:8]

    def held(choice: Choice | None, workers: int) -> Load:
        compressor, cf = (None, 1.0) if choice is None else (COMPRESSORS[choice.compressor], choice.cf)
        return load(shapes, compressor, cf, advice.batch_s, workers, machine, dense=dense)

    def speed_ups(ours: Load, sixteen: Load, networks: Sequence[Network]) -> list[float]:
        return [sixteen.over(at, machine).step_s / ours.over(at, machine).step_s for at in networks]

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_bandwidth, by_workers = figure.subplots(1, 2)
    networks = [Network(network.alpha, bandwidth) for bandwidth in BANDWIDTHS]
    sixteen = held(None, advice.workers)
    dense_by_workers = {workers: held(None, workers) for workers in WORKERS}
    for choice in shown:
        ours = held(choice, advice.workers)
        by_bandwidth.plot([b / 1e9 for b in BANDWIDTHS], speed_ups(ours, sixteen, networks), label=str(choice))
        lines = [speed_ups(held(choice, n), dense_by_workers[n], [network])[0] for n in WORKERS]
        by_workers.plot(WORKERS, lines, label=str(choice))
    _axes(by_bandwidth, f"{advice.workers} workers", "bandwidth, Gbit/s", network.bandwidth / 1e9)
    rate = format_rate(float(f"{network.bandwidth:.3g}"))
    _axes(by_workers, rate, "workers", advice.workers)
    by_bandwidth.set_ylabel("step time of 16 bit / step time")
    by_workers.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=120)


def _axes(axes: Axes, title: str, label: str, here: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axvline(here, color="black", linewidth=0.8, linestyle=":")
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
