# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Finds the learning rate that is best for *dense* training: one process plays all ranks, nothing is compressed.

An untuned baseline flatters compression, so every method later trains with the rate that the sweep finds::

    python -m gravac.lab.sweep --task denoise --scale 0.4 --rates 0.02 0.05 0.1 --steps 100 300 --seeds 0 1
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from gravac.lab.json_file import write_json
from gravac.lab.provenance import stamp
from gravac.lab.tasks import TASKS, make
from gravac.lab.tasks.base import Metric, Task

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Learning rates to try if none are given, in multiples of the task's default."""


def dense_metrics(task: Task, workers: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Train without compression, and yield ``(step, metric)`` after each number of ``steps``, ascending."""
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(max(steps)):
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate_at(step)
        optimizer.zero_grad()
        for rank in range(workers):
            loss = task.loss(model, task.batch(step, rank)) / workers
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step + 1 in steps:
            yield step + 1, task.metric.compute(task.validate(model))


def best(metric: Metric, metric_by_rate: Mapping[float, float]) -> float | None:
    """Return the learning rate with the best metric; ``None`` if every rate diverged.

    Example:
        >>> best(Metric("loss", "nats", higher_is_better=False), {0.1: 2.0, 0.2: 1.5, 0.4: math.nan})
        0.2
    """
    finite = {rate: reading for rate, reading in metric_by_rate.items() if math.isfinite(reading)}
    sign = 1 if metric.higher_is_better else -1
    return max(finite, key=lambda rate: sign * finite[rate], default=None)


def table(metric: Metric, means: Mapping[float, Mapping[int, float]]) -> list[str]:
    """Return the lines of a table with a row per learning rate, a column per number of steps, and a star at the best.

    Args:
        metric: metric of the task.
        means: mean metric, by learning rate and number of steps.
    """
    columns = list(next(iter(means.values())))
    winners = {steps: best(metric, {rate: row[steps] for rate, row in means.items()}) for steps in columns}
    lines = ["rate".ljust(10) + "".join(f"{steps:>10} " for steps in columns)]
    for rate, row in means.items():
        cells = (f"{row[steps]:>10.4f}{'*' if winners[steps] == rate else ' '}" for steps in columns)
        lines.append(f"{rate:<10g}" + "".join(cells))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the metric, mean over seeds, by learning rate and number of steps; mark the best rates."""
    parser = argparse.ArgumentParser(prog="python -m gravac.lab.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="charlm")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--data", default="", help="folder of the data, for resnet101 and vgg16")
    parser.add_argument("--rates", type=float, nargs="+", help="default: the task's own, times 1/4 to 4")
    parser.add_argument("--steps", type=int, nargs="+", help="default: a quarter, half and all of the task's budget")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    options = parser.parse_args(arguments)
    try:
        task = make(options.task, scale=options.scale, data=options.data)
    except ValueError as error:
        parser.error(str(error))
    rates = options.rates or [factor * task.learning_rate for factor in FACTORS]
    counts = sorted(set(options.steps or [task.budget // 4, task.budget // 2, task.budget]))
    if min(*rates, *counts, options.workers) <= 0:
        parser.error("rates, steps and workers are above 0")
    torch.set_num_threads(1)
    provenance = stamp()
    print(f"{task.name} at scale {options.scale:g}: {task.metric.name} ({task.metric.unit}) after steps", flush=True)
    runs = []
    for rate in rates:
        for seed in options.seeds:
            case = make(options.task, scale=options.scale, seed=seed, learning_rate=rate, data=options.data)
            readings = dict(dense_metrics(case, options.workers, counts))
            runs.append({"rate": rate, "seed": seed, "values": readings})
            text = "  ".join(f"{steps}: {reading:.4f}" for steps, reading in readings.items())
            print(f"  rate {rate:g}  seed {seed}  {text}", flush=True)
    means = {
        rate: {steps: statistics.fmean(run["values"][steps] for run in runs if run["rate"] == rate) for steps in counts}
        for rate in rates
    }
    print("\n".join(table(task.metric, means)))
    winner = best(task.metric, {rate: row[counts[-1]] for rate, row in means.items()})
    print("every rate diverged" if winner is None else f"best after {counts[-1]} steps: {winner:g}")
    if options.json:
        settings = {"task": task.name, "scale": options.scale, "workers": options.workers}
        write_json(options.json, {"stamp": provenance.model_dump(), **settings, "best": winner, "runs": runs})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
