# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What delay, unequal shares of the steps, and anchors in bfloat16 cost in steps: ranks in memory, no clock.

Ranks whose clocks are made up, one of them so many times as fast, train with ``by_speed`` to the metric that dense
gradient averaging has after 80 % of the task's budget. Told are steps of a rank on average, read off between the ends
of rounds. An interrupted run goes on where it was.

    python -m tests.measure.outer_costs [--json FILE] [--seeds N] [--ranks N ...] [--workers N]
"""

import argparse
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch

from gravac import Static
from gravac.exchange.lockstep import Lockstep
from gravac.lab import tasks
from gravac.lab.training.expression import compressor
from gravac.modes.outer.sgd import OuterSGD
from tests.measure import outer_efficiency
from tests.measure.outer_efficiency import SENT, SETUPS, at_share, crossing, most_steps, rate_of_record
from tests.measure.results import todays
from tests.measure.resuming import Book, run_in
from tests.outer.by_hand import OuterByHand

EVERY = 10
"""Number of steps from one exchange to the next, of a rank on average."""

FASTER = (1.0, 1.5, 3.0, 9.0)
"""How many times as fast the first rank is: of two, 10 and 10 steps, 12 and 8, 15 and 5, 18 and 2."""

LABELS = ("quantize(2)", "dense")

DELAY, MIXING = 5, (None, 0.0, 0.5)
"""Steps behind which an exchange travels, and what is done with those steps."""


class Case(NamedTuple):
    """One run; see ``outer_efficiency.Case``.

    Attributes:
        task: its name.
        label: of the compressor.
        faster: how many times as fast the first rank is.
        anchors: format of the anchors.
        delay: number of steps behind which an exchange travels.
        mixing: share of its weights that a rank keeps then; ``None``: what it learned meanwhile.
        seed: of weights and batches.
        every: number of steps from one exchange to the next, of a rank on average.
        ranks: stepped in memory.
    """

    task: str
    label: str = "dense"
    faster: float = 1.0
    anchors: str = "float32"
    delay: int = 0
    mixing: float | None = None
    seed: int = 0
    every: int = EVERY
    ranks: int = 2


def train(work: tuple[Case, float]) -> dict[str, Any]:
    """Run one case to a target; what came of it."""
    torch.set_num_threads(1)
    case, target = work
    task = tasks.make(case.task, scale=SETUPS[case.task][0], seed=case.seed)
    models = [task.model() for _ in range(case.ranks)]
    inner = [task.optimizer(model) for model in models]
    lockstep = Lockstep(case.ranks)
    outer = [
        OuterByHand(
            model,
            optimizer,
            base=compressor(case.label),
            cf_range=(1, 1000),
            controller=Static(cf=SENT[case.label]),
            every=case.every,
            by_speed=True,
            anchor_dtype=case.anchors,
            delay=case.delay,
            mixing=case.mixing,
            outer=partial(OuterSGD, rate=rate_of_record(case.every, case.ranks)),
            executor=executor,
        )
        for model, optimizer, executor in zip(models, inner, lockstep.executors, strict=True)
    ]
    for rank, one in enumerate(outer):
        seconds = case.faster if rank else 1.0
        one._rounds._state.shares.clock = itertools.count(0.0, seconds).__next__
    curve: list[tuple[int, float]] = []
    made = [0] * case.ranks
    while sum(made) < case.ranks * most_steps(case.task):
        ended = outer[0].rounds
        for rank, one in enumerate(outer):
            while one.rounds == ended:
                for group in inner[rank].param_groups:
                    group["lr"] = task.learning_rate_at(made[rank])
                inner[rank].zero_grad()
                task.loss(models[rank], task.batch(made[rank], rank)).backward()  # type: ignore[no-untyped-call]
                inner[rank].step()
                made[rank] += 1
                one.leave()
                if one.rounds == ended:
                    one.arrive()
        lockstep.run()
        for one in outer:
            one.arrive()
        with outer[0].synced():
            value = task.metric.compute(task.validate(models[0]))
        curve.append((sum(made) // case.ranks, value))
        if not math.isfinite(value) or task.metric.is_reached(value, target):
            break
    shares = outer[0].steps_of_ranks
    return {**case._asdict(), "steps_of_ranks": shares, "target": target, "reached": crossing(curve, target)}


def cases(seeds: Iterable[int], ranks: Iterable[int]) -> Iterable[Case]:
    """What is run, most telling first."""
    for seed, number, label, name in itertools.product(seeds, ranks, LABELS, SETUPS):
        case = partial(Case, name, label, seed=seed, ranks=number)
        yield from (case(faster) for faster in FASTER)
        yield case(anchors="bfloat16")
        yield from (case(delay=DELAY, mixing=mixing) for mixing in MIXING)


def main(of: Callable[[Iterable[int], Iterable[int]], Iterable[Case]] = cases, name: str = "outer_costs") -> None:
    """Run what a command line asks for.

    Args:
        of: function that takes seeds and numbers of ranks, and returns the cases to run.
        name: of the record.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default=f"docs/measurements/{name}.json")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    book = Book(arguments.json)
    todays()  # the machine's speed, before workers take it
    known = {Case(**{field: row[field] for field in Case._fields if field in row}) for row in book.rows}
    wanted = [case for case in of(range(arguments.seeds), arguments.ranks) if case not in known]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        dense = {outer_efficiency.Case(case.task, 0, ranks=case.ranks, seed=case.seed) for case in wanted}
        averaged = pool.imap(outer_efficiency.train, [(case, None) for case in sorted(dense)])
        targets = {(row["task"], row["ranks"], row["seed"]): at_share(row) for row in averaged}
        run_in(pool, train, [(one, targets[one.task, one.ranks, one.seed]) for one in wanted], book)


if __name__ == "__main__":
    main()
