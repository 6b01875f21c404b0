# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac costs where it compresses nothing: settled on native steps, or on dense with the hook, against DDP.

Four models of the same weights train by turns, each in DDP of its own: two without gravac (``native`` and ``again``),
one settled on native steps, one settled on dense float32 with the hook kept (``native=False``). A cycle is a block of
steps of each, then the same blocks in reverse order, so that a drift of the machine falls on all alike. A cycle's ratio
is the time of two blocks over that of ``native``'s two; what ``again`` over ``native`` shows is the machine's noise.
The first steps of a block, after another model has used the caches, are not timed. Two ranks over gloo on loopback.

    python -m tests.measure.native [--json FILE] [--cycles N] [--steps N] [--tasks T ...]
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.controllers.native import next_stretch_length
from gravac.lab.tasks import make
from tests.measure.results import write
from tests.modes.scripted import NATIVE, Scripted, script
from tests.ranks import processes

TASKS = {"denoise": 0.5, "lstm": 1.0, "charlm": 0.4}
"""Tasks and their scales: steps of some 15, 70 and 100 ms."""

NAMES = ("native", "settled", "hook", "again")
"""Models by name; the first is the one that others are compared with."""

UNTIMED = 2
"""Number of steps at a block's beginning that are not timed."""

WARM_UP = 24
"""Number of steps of each model before the first block: buckets are laid anew, a first stretch ends."""

CYCLES = {"denoise": 120, "lstm": 60, "charlm": 60}

RESAMPLES = 5000

PATIENCE = 7200.0
"""Seconds after which ranks that have not ended hang."""


@dataclass
class Model:
    """A model that trains by turns with others.

    Attributes:
        step: function that takes the number of a step, and makes that training step.
        compressor: what is attached; ``None`` without gravac.
        numbers: numbers of the steps to come.
    """

    step: Callable[[int], None]
    compressor: AdaptiveCompressor | None
    numbers: Iterator[int] = field(default_factory=count)

    def seconds(self, steps: int) -> list[float]:
        """Make a number of steps; return the seconds of each."""
        found = []
        for _ in range(steps):
            since = time.perf_counter()
            self.step(next(self.numbers))
            found.append(time.perf_counter() - since)
        return found


def model_of(name: str, task_name: str, rank: int, watch: int) -> Model:
    """Set up one of the models, with native stretches of ``watch`` steps."""
    task = make(task_name, scale=TASKS[task_name])
    module = task.model()
    megabytes = sum(parameter.numel() for parameter in module.parameters()) * 4 / 2**20
    ddp = DistributedDataParallel(module, bucket_cap_mb=min(25.0, max(megabytes / 8, 0.02)))
    optimizer = task.optimizer(module)
    compressor: AdaptiveCompressor | None = None
    if name == "settled":
        compressor = AdaptiveCompressor(topk, (10, 10), controller=Scripted(script=script((0, NATIVE)), watch=watch))
    elif name == "hook":
        compressor = AdaptiveCompressor(topk, (1, 1000), controller=Static(cf=1), native=False)
    if compressor is not None:
        compressor.attach(ddp, optimizer)
    batches = [task.batch(step, rank) for step in range(16)]

    def step(number: int) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(ddp, batches[number % len(batches)]))
        optimizer.step()

    return Model(step, compressor)


def trains(rank: int, world: int, task: str, steps: int, cycles: int) -> list[dict[str, Any]]:
    """Train all models by turns; return a row for each cycle."""
    trial = model_of("native", task, rank, 8)
    typical = torch.tensor(statistics.median(trial.seconds(12)[4:]))
    dist.all_reduce(typical)
    watch = next_stretch_length(400, float(typical) / world, 8)
    models = {name: model_of(name, task, rank, watch) for name in NAMES}
    for model in models.values():
        model.seconds(WARM_UP)
    rows = []
    for cycle in range(cycles):
        order = list(NAMES)
        random.Random(cycle).shuffle(order)
        blocks: dict[str, list[list[float]]] = {name: [] for name in NAMES}
        for name in (*order, *reversed(order)):
            compressor = models[name].compressor
            if compressor is not None:
                with compressor.shared_weights():  # as around an evaluation: other models' blocks are no step of this
                    pass
            dist.barrier()
            blocks[name].append(models[name].seconds(steps + UNTIMED)[UNTIMED:])
        told = torch.tensor([[sum(map(sum, blocks[name])), _median(blocks[name])] for name in NAMES])
        dist.all_reduce(told)
        told /= world
        settled = models["settled"].compressor
        assert settled is not None and settled.mode == "native"
        means = {name: round(float(told[i, 0]) / 2 / steps, 7) for i, name in enumerate(NAMES)}
        medians = {name: round(float(told[i, 1]), 7) for i, name in enumerate(NAMES)}
        rows.append({"task": task, "cycle": cycle, "order": order, "mean_s": means, "median_s": medians})
    for model in models.values():
        if model.compressor is not None:
            model.compressor.close()
    return rows


def _median(blocks: Sequence[Sequence[float]]) -> float:
    return statistics.median([seconds for block in blocks for seconds in block])


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and its 95 % bootstrap interval over cycles.

    Args:
        logs: logarithm of each cycle's ratio.
    """
    draws = random.Random(0)
    means = sorted(statistics.fmean(draws.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return step times over native's as Markdown."""
    lines = [
        "| task | native's step | settled on native | by medians | native again | by medians | `native=False`, dense "
        "| cycles |",
        "|" + " --- |" * 8,
    ]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        step = statistics.median(row["mean_s"]["native"] for row in own)
        cells = []
        for name, kind in (
            ("settled", "mean_s"), ("settled", "median_s"), ("again", "mean_s"), ("again", "median_s"),
            ("hook", "mean_s"),
        ):  # fmt: skip
            mean, low, high = interval([math.log(row[kind][name] / row[kind]["native"]) for row in own])
            cells.append(f"{mean:.3f} [{low:.3f}-{high:.3f}]")
        lines.append(f"| {task} | {1e3 * step:.1f} ms | {' | '.join(cells)} | {len(own)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--cycles", type=int, help="number of cycles of each task (default: depends on the task)")
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps of a block")
    parser.add_argument("--tasks", nargs="+", default=tuple(TASKS), choices=tuple(TASKS))
    options = parser.parse_args()
    rows = []
    for task in options.tasks:
        cycles = CYCLES[task] if options.cycles is None else options.cycles
        rows += processes(trains, 2, task, options.steps, cycles, timeout=PATIENCE)[0]
    write(rows, options.json)
    print(table(rows))


if __name__ == "__main__":
    main()
