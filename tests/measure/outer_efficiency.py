# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The efficiency of steps where ranks exchange every H of them: steps to a target by (H, compressor, CF), no clock.

Ranks are stepped in one process, with the outer steps as they run over a network. The target is the metric that dense
gradient averaging has after 80 % of the task's budget; efficiency is its steps over those needed, both read off between
evaluations. The outer optimizer is tuned with dense exchanges on charlm and lstm (momentum at H = 10, and the rate
there and further apart); denoise is held out. All else runs with what ``OuterByHand`` has, but for the outer rate:
that is ``rate_of_record``'s unless ``--rate`` gives another. An interrupted run goes on where it was.

    python -m tests.measure.outer_efficiency [--json FILE] [--minutes N] [--seeds N] [--tasks ...] [--sent ...]
        [--every H ...] [--ranks N ...] [--rate R] [--tune] [--workers N]
"""

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from gravac import Static
from gravac.exchange.lockstep import Lockstep
from gravac.lab import tasks
from gravac.lab.training.expression import compressor
from gravac.modes.outer.sgd import OuterSGD
from tests.measure.results import todays
from tests.measure.resuming import Book, run_in, until
from tests.outer.by_hand import OuterByHand

SETUPS = {"charlm": (0.4, 200), "lstm": (1.0, 200), "denoise": (1.0, 300)}
"""Scale and budget in steps of each task, as in ``make measure-tta``."""

SENT = {
    "dense": 1.0,
    "quantize(8)": 4.0,
    "quantize(4)": 8.0,
    "quantize(2)": 16.0,
    "quantize(1)": 32.0,
    "topk": 50.0,
    "topkc": 50.0,
    "topkc(values=quantize(1))": 64.0,
    "powersgd(4)": 128.0,
    "powersgd(16)": 32.0,
}
"""What is sent, with its CF."""

MOMENTA = ((0.7, 0.6), (0.9, 0.3), (1.0, 0.3), (0.7, 0.9))
"""Learning rates with Nesterov's momentum of the outer optimizer that are tried at H = 10."""

TRIED: dict[int, dict[int, tuple[float, ...]]] = {
    2: {10: (0.7, 0.85, 1.0), 20: (0.7, 0.85, 1.0), 50: (0.7, 0.85, 1.0, 1.2), 100: (0.7, 0.85, 1.0, 1.2)},
    4: {5: (0.7, 0.85, 1.0), 10: (0.7, 0.85, 1.0), 20: (0.7, 0.85, 1.0)},
    8: {5: (0.85, 1.0), 10: (0.85, 1.0)},
}
"""Learning rates without, by number of ranks and of steps from one exchange to the next."""

TUNED_ON = ("charlm", "lstm")
"""Tasks that they are tuned by."""

EVERY = (10, 20, 5, 50, 100, 2, 1)
"""Numbers of steps from one exchange to the next that are tried."""

RATES_OF_RECORD = {1: 0.7, 2: 0.7, 5: 0.7, 10: 0.7, 20: 0.85, 50: 1.0, 100: 1.0}
"""Learning rate of the outer optimizer that the recorded runs of two ranks had, by number of steps from one exchange to
the next: the best of ``TRIED``, as ``OuterSGD`` had it then by itself."""

LIMIT = 1.8
"""Steps after which a run that did not reach its target ends, in times of those that gradient averaging needs; a round
that has begun is finished."""


class Case(NamedTuple):
    """One run.

    Attributes:
        task: its name.
        every: number of steps from one exchange to the next; 0: gradients are averaged in each, dense.
        label: of the compressor, as it would be written in Python.
        cf: compression factor; 1 for dense.
        rate: learning rate of the outer optimizer.
        momentum: its momentum, Nesterov's where it is not 0.
        ranks: stepped in memory.
        seed: of weights and batches.
    """

    task: str
    every: int
    label: str = "dense"
    cf: float = 1.0
    rate: float = 1.0
    momentum: float = 0.0
    ranks: int = 2
    seed: int = 0


def rate_of_record(every: int, ranks: int = 2) -> float:
    """Return the learning rate of the outer optimizer that recorded runs had: 1 among more ranks than two."""
    return RATES_OF_RECORD.get(every, 1.0) if ranks == 2 else 1.0


def train(work: tuple[Case, float | None]) -> dict[str, Any]:
    """Run one case, to a target if there is one; what came of it."""
    case, target = work
    steps = SETUPS[case.task][1] if target is None else most_steps(case.task)
    row = trained(case, max(case.every, 1) * -(-steps // max(case.every, 1)), target=target)
    return {**row, "target": target, "reached": None if target is None else crossing(row["curve"], target)}


def trained(case: Case, steps: int, between: int = 10, target: float | None = None) -> dict[str, Any]:
    """Run one case for so many steps, or to a target if there is one, and evaluate about every ``between``."""
    torch.set_num_threads(1)
    task = tasks.make(case.task, scale=SETUPS[case.task][0], seed=case.seed)
    models = [task.model() for _ in range(case.ranks)]
    inner = [task.optimizer(model) for model in models]
    lockstep = Lockstep(case.ranks)
    sends: dict[str, Any] = {"base": compressor(case.label), "cf_range": (1, 1000), "controller": Static(cf=case.cf)}
    outer = [
        OuterByHand(
            model,
            optimizer,
            every=max(case.every, 1),
            delay=0,
            outer=partial(OuterSGD, rate=case.rate, momentum=case.momentum),
            executor=executor,
            **sends,
        )
        for model, optimizer, executor in zip(models, inner, lockstep.executors, strict=True)
    ]
    curve: list[tuple[int, float]] = []
    length = max(case.every, 1)
    evaluate = length * -(-between // length)  # when a round ends, as then all ranks have the anchor's weights
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, inner, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = task.learning_rate_at(step)
            optimizer.zero_grad()
            task.loss(model, task.batch(step, rank)).backward()  # type: ignore[no-untyped-call]
        if case.every == 0:
            average(models)
        for optimizer in inner:
            optimizer.step()
        if case.every:
            for one in outer:
                one.leave()
            for one in outer:
                one.arrive()
        if (step + 1) % evaluate == 0:
            value = task.metric.compute(task.validate(models[0]))
            curve.append((step + 1, value))
            if not math.isfinite(value) or (target is not None and task.metric.is_reached(value, target)):
                break
    gains = [record.gain for record in outer[0].history]
    return {
        **case._asdict(),
        "curve": curve,
        "wire_ratio": outer[0].wire_ratio,
        "gain": sum(gains) / len(gains) if gains else None,
    }


def average(models: Sequence[torch.nn.Module]) -> None:
    """Give all models the mean of their gradients."""
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack([p.grad for p in parameters if p.grad is not None]).mean(0)
        for parameter in parameters:
            parameter.grad = mean.clone()


def crossing(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return the step, between evaluations, at which a curve first reaches a target; ``None``: it does not.

    The last point decides which side is reached; a curve that starts there has reached it at its first point.
    """
    (before, was), *rest = curve
    for step, value in rest:
        if (was - target) * (value - target) <= 0 and was != value:
            return before + (step - before) * (target - was) / (value - was)
        before, was = step, value
    return None


def grid(
    names: Sequence[str],
    sent: Sequence[str],
    seeds: Iterable[int],
    numbers: Sequence[int] = EVERY,
    ranks: Sequence[int] = (2,),
    rate: float | None = None,
) -> Iterable[Case]:
    """What is run, most telling first; a ``rate`` of ``None`` is that of the recorded runs."""
    for seed, number, every, label, name in itertools.product(seeds, ranks, numbers, sent, names):
        chosen = rate_of_record(every, number) if rate is None else rate
        yield Case(name, every, label, SENT[label], chosen, ranks=number, seed=seed)


def tuning(numbers: Sequence[int] = EVERY, ranks: Sequence[int] = (2,)) -> Iterable[Case]:
    """What the outer optimizer is tuned by: momentum among two ranks alone."""
    for number, every in itertools.product(ranks, numbers):
        settings = [(rate, 0.0) for rate in TRIED.get(number, {}).get(every, ())]
        settings += MOMENTA if (number, every) == (2, 10) else ()
        for (rate, momentum), name in itertools.product(settings, TUNED_ON):
            yield Case(name, every, rate=rate, momentum=momentum, ranks=number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/outer_efficiency.json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this many minutes")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=[*SETUPS], choices=[*SETUPS])
    parser.add_argument("--sent", nargs="+", default=[*SENT], choices=[*SENT])
    parser.add_argument("--every", type=int, nargs="+", default=EVERY)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument(
        "--rate", type=float, help="learning rate of the outer optimizer (default: that of the recorded runs)"
    )
    parser.add_argument("--tune", action="store_true", help="tune the outer optimizer, too")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    time_is_up, book = until(arguments.minutes), Book(arguments.json)
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:

        def run(wanted: Iterable[tuple[Case, float | None]]) -> list[dict[str, Any]]:
            """Rows of these cases; those that an earlier run left in the file are not run again."""
            wanted = [*dict.fromkeys(wanted)]
            ran = {key(row) for row in book.rows}
            if not time_is_up():
                run_in(pool, train, [work for work in wanted if work[0] not in ran], book, time_is_up, without_curve)
            rows = {key(row): row for row in book.rows}
            return [rows[case] for case, _ in wanted if case in rows]

        cases = [*tuning(arguments.every, arguments.ranks)] if arguments.tune else []
        seeds, between = range(arguments.seeds), (arguments.every, arguments.ranks, arguments.rate)
        cases += grid(arguments.tasks, arguments.sent, seeds, *between)
        references = run((Case(case.task, 0, ranks=case.ranks, seed=case.seed), None) for case in cases)
        targets = {(row["task"], row["seed"], row["ranks"]): at_share(row) for row in references}
        run((case, targets[case.task, case.seed, case.ranks]) for case in cases)


def without_curve(row: dict[str, Any]) -> str:
    """Describe a row, without its curve."""
    return json.dumps({name: value for name, value in row.items() if name != "curve"})


def at_share(row: dict[str, Any]) -> float:
    """Return the metric of a run of gradient averaging after 80 % of its budget."""
    return dict(map(tuple, row["curve"]))[round(0.8 * SETUPS[row["task"]][1])]


def best(tried: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Return the outer settings of the fewest steps, by geometric mean over the tasks; what is not reached is last."""
    by_setting: dict[tuple[float, float], list[float]] = {}
    for row in tried:
        by_setting.setdefault((row["rate"], row["momentum"]), []).append(row["reached"] or math.inf)
    return min(by_setting, key=lambda setting: math.prod(by_setting[setting]))


def tuned(rows: Iterable[dict[str, Any]], ranks: int = 2) -> dict[int, list[dict[str, Any]]]:
    """Return the rows that the outer optimizer is tuned by, by number of steps from one exchange to the next."""
    cases = set(tuning(ranks=(ranks,)))
    found: dict[int, list[dict[str, Any]]] = {every: [] for every in TRIED[ranks]}
    for row in rows:
        if key(row) in cases:
            found[row["every"]].append(row)
    return {every: tried for every, tried in found.items() if tried}


class Worth(NamedTuple):
    """An efficiency, relative to what is said where it is used; less than that where a run did not get there."""

    value: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'under ' * self.at_most}{self.value:.2f}"


def most_steps(task: str) -> int:
    """The number of steps after which a run that did not reach its target ends."""
    return round(LIMIT * 0.8 * SETUPS[task][1])


def worth(row: dict[str, Any]) -> Worth:
    """The efficiency of one run: gradient averaging's steps to the target over its own, or over all that it made."""
    return Worth(0.8 * SETUPS[row["task"]][1] / (row["reached"] or row["curve"][-1][0]), not row["reached"])


def mean(of: Sequence[Worth]) -> Worth:
    """The geometric mean."""
    return Worth(statistics.geometric_mean(one.value for one in of), any(one.at_most for one in of))


def by_case(
    rows: Sequence[dict[str, Any]], label: str = "dense", ranks: int = 2
) -> dict[tuple[str, int], dict[int, Worth]]:
    """Return efficiency by task and H, of each seed, of runs at the rate of record."""
    found: dict[tuple[str, int], dict[int, Worth]] = {}
    for row in rows:
        ours = row["every"] and (row["rate"], row["momentum"]) == (rate_of_record(row["every"], ranks), 0.0)
        if ours and (row["label"], row["ranks"]) == (label, ranks):
            found.setdefault((row["task"], row["every"]), {})[row["seed"]] = worth(row)
    return found


def efficiencies(rows: Sequence[dict[str, Any]], label: str = "dense", ranks: int = 2) -> dict[tuple[str, int], Worth]:
    """Return efficiency by task and H: over seeds."""
    return {at: mean([*of.values()]) for at, of in by_case(rows, label, ranks).items()}


def points(rows: Sequence[dict[str, Any]], ranks: int = 2) -> dict[int, float]:
    """Return the geometric mean over the tasks by H, dense, at most 1: what a controller goes by.

    Among more ranks than two of the texts alone: there gradient averaging itself stumbles on denoise.
    """
    found = efficiencies(rows, ranks=ranks)
    found = {(task, every): one for (task, every), one in found.items() if ranks == 2 or task in TUNED_ON}
    numbers = sorted({every for _, every in found})
    return {every: min(1.0, mean([one for (_, at), one in found.items() if at == every]).value) for every in numbers}


def key(row: dict[str, Any]) -> Case:
    """The case of a row."""
    return Case(**{field: row[field] for field in Case._fields})


if __name__ == "__main__":
    main()
