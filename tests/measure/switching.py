# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What it costs to switch while training: steps to the target of runs that change their compression factor on the way.

The lab's ``charlm`` (AdamW) and ``denoise`` (SGD) as ``make measure-tta`` trains them, two ranks in memory, no clock.
Target: what dense reaches after 160 and 240 steps. An interrupted measurement goes on where it was.

    python -m tests.measure.switching [--json FILE] [--seeds N] [--table] [--mixed]
"""

import argparse
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gravac.lab import simulate, tasks
from gravac.lab.training.expression import compressor
from tests.measure.results import commits, todays
from tests.measure.resuming import Book, run_in

TASKS = {"charlm": (0.4, 160, 240), "denoise": (1.0, 240, 340)}
"""Scale, steps of dense to the target, and most steps."""

EVERY = 4
"""Steps between two evaluations."""

TWO, ONE = 32 * 128 / (2 * 128 + 16), 32 * 128 / (128 + 16)
"""CFs of a ladder's two bits and one bit: blocks of 128 with a scale of 16 bits."""

Turns = tuple[tuple[int, float | None], ...]

SCHEDULES: dict[str, tuple[str, Turns]] = {
    "dense": ("ladder", ((0, None),)),
    "2 bits": ("ladder", ((0, TWO),)),
    "1 bit": ("ladder", ((0, ONE),)),
    "2 bits, 1 bit from 60": ("ladder", ((0, TWO), (60, ONE))),
    "2 bits, 1 bit from 60, 2 bits from 140": ("ladder", ((0, TWO), (60, ONE), (140, TWO))),
    "1 bit, 2 bits from 60": ("ladder", ((0, ONE), (60, TWO))),
    "1 bit, 2 bits from 140": ("ladder", ((0, ONE), (140, TWO))),
    "1 bit, dense from 140": ("ladder", ((0, ONE), (140, None))),
    "dense, 1 bit from 9 to 18": ("ladder", ((0, None), (9, ONE), (18, None))),
    "dense, 1 bit from 100 to 109": ("ladder", ((0, None), (100, ONE), (109, None))),
    "1 bit, dense from 100 to 109": ("ladder", ((0, ONE), (100, None), (109, ONE))),
    "top-k 10x": ("topk", ((0, 10.0),)),
    "top-k 10x, dense from 140": ("topk", ((0, 10.0), (140, None))),
    "dense, top-k 10x from 9 to 18": ("topk", ((0, None), (9, 10.0), (18, None))),
    "dense, top-k 10x from 100 to 109": ("topk", ((0, None), (100, 10.0), (109, None))),
}
"""Base and, from which step on, the CF; ``None`` is dense."""

SWITCHED = {
    "1 bit, 2 bits from 140": "1 bit",
    "2 bits, 1 bit from 60, 2 bits from 140": "2 bits, 1 bit from 60",
    "1 bit, dense from 140": "1 bit",
    "top-k 10x, dense from 140": "top-k 10x",
}
"""What changes after 140 steps, and the same run without that."""

AFTER = range(144, 181)
"""Steps over which they are compared."""


class Case(NamedTuple):
    """One training run."""

    task: str
    schedule: str
    seed: int


def cf_at(turns: Turns, step: int) -> float | None:
    """Of a schedule."""
    return [cf for start, cf in turns if start <= step][-1]


def train(case: Case) -> dict[str, Any]:
    """The case, and its metric every few steps, from half of the steps that dense needs on."""
    torch.set_num_threads(1)
    scale, aim, steps = TASKS[case.task]
    task = tasks.make(case.task, scale=scale, seed=case.seed)
    base, turns = SCHEDULES[case.schedule]
    model = task.model()
    curve: list[tuple[int, float]] = []

    def after(step: int) -> None:
        if step + 1 >= aim / 2 and (step + 1) % EVERY == 0:
            curve.append((step + 1, task.metric.compute(task.validate(model))))

    simulate.train(
        model,
        task.optimizer(model),
        lambda step, rank: task.loss(model, task.batch(step, rank)),
        compressor(base),
        lambda step: cf_at(turns, step),
        None,
        2,
        steps,
        ramp=task.warmup,
        after=after,
    )
    return {**case._asdict(), "curve": curve}


def steps_to_target(row: dict[str, Any], dense: dict[str, Any]) -> int | None:
    """First evaluated step at what dense reaches; ``None``: not in the steps it had."""
    _, aim, _ = TASKS[row["task"]]
    metric, target = tasks.TASKS[row["task"]].metric, dict(map(tuple, dense["curve"]))[aim]
    return next((step for step, value in row["curve"] if metric.is_reached(value, target)), None)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As Markdown: a task in each column, seeds side by side."""
    found = {Case(row["task"], row["schedule"], row["seed"]): row for row in rows}
    seeds = sorted({case.seed for case in found})
    lines = [f"| steps of | {' | '.join(TASKS)} |", "|" + " --- |" * (1 + len(TASKS))]
    for schedule in SCHEDULES:
        cells = []
        for task in TASKS:
            mine = [(found.get(Case(task, schedule, seed)), found.get(Case(task, "dense", seed))) for seed in seeds]
            reached = [steps_to_target(row, dense) for row, dense in mine if row is not None and dense is not None]
            cells.append(" ".join("more" if steps is None else str(steps) for steps in reached))
        lines.append(f"| {schedule} | {' | '.join(cells)} |")
    lines += ["", f"| metric, mean of steps {AFTER[0]} to {AFTER[-1]}, less that without the change at 140 | charlm |"]
    lines.append("| --- | --- |")
    for schedule, without in SWITCHED.items():
        both = [(found.get(Case("charlm", schedule, s)), found.get(Case("charlm", without, s))) for s in seeds]
        more = [level(row) - level(other) for row, other in both if row is not None and other is not None]
        lines.append(f"| {schedule} | {' '.join(f'{value:+.3f}' for value in more)} |")
    return "\n".join(lines)


def level(row: dict[str, Any]) -> float:
    """Mean of the metric over the steps after a switch."""
    return statistics.fmean(value for step, value in row["curve"] if step in AFTER)


def missing(rows: Iterable[dict[str, Any]], seeds: int) -> list[Case]:
    """Cases that the file does not have."""
    ran = {Case(row["task"], row["schedule"], row["seed"]) for row in rows}
    wanted = (Case(task, schedule, seed) for seed in range(10, 10 + seeds) for task in TASKS for schedule in SCHEDULES)
    return [case for case in wanted if case not in ran]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("docs/measurements/switching.json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mixed", action="store_true", help="allow rows of several commits in the table, with a note")
    parser.add_argument("--table", action="store_true", help="run nothing, print the results in the file")
    arguments = parser.parse_args()
    book = Book(arguments.json)
    if not arguments.table:
        todays()  # the machine's speed, before workers take it
        left = missing(book.rows, arguments.seeds)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            run_in(
                pool, train, left, book, describe=lambda row: f"{row['task']}, {row['schedule']}, seed {row['seed']}"
            )
    print(commits(book.rows, arguments.json, arguments.mixed))
    print(table(book.rows))


if __name__ == "__main__":
    main()
