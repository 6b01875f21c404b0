# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials: whether a run itself tells what a step of a candidate is worth; ranks in memory, no clock.

A run alternates: a reference stretch of dense gradient averaging, then ``trial`` steps of the candidate, after which
the ranks are one again and settle in the reference mode, then a reference stretch, and so on. The candidate's drop in
loss is compared with the drops of the reference stretches before and after it. The loss is read in two ways: on fixed
batches (*probe*), and as the mean of the training losses of the last steps, which are the reference's in every stretch.
What whole runs of the same method came to is in the record of ``tests.measure.progress``.

    python -m tests.measure.switchback [--json FILE] [--programs ...] [--nanogpt CLONE] [--trial STEPS] [--settle STEPS]
        [--trials N] [--seeds N] [--minutes N] [--workers N]
"""

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gravac.controllers.progress import LossLine, LossReading, TrialResults, estimate_ratio
from gravac.lab import simulate
from gravac.lab.tasks.base import Task
from gravac.lab.training.expression import compressor
from tests.measure import progress
from tests.measure.programs import PROGRAMS
from tests.measure.progress import RANKS, Ranks, Way, best_rates, factor
from tests.measure.results import read, todays
from tests.measure.resuming import Book, run_in, until

WAYS = (Way(every=10), Way("quantize(1)", 32.0), Way())
"""Candidates; the last is the reference itself, to see what noise alone does."""

FIXED = 8
"""Number of fixed batches of each rank that a probe reads the loss on."""

FAR_AWAY = 10**6
"""Number of the first fixed batch: no run gets there."""

LAST = (10, 20, 30)
"""Numbers of a stretch's last steps over whose training losses the mean is taken."""

BETWEEN = 10
"""Number of steps from one reading of the probe to the next, through the whole run."""


class Plan(NamedTuple):
    """What a run's steps are.

    Attributes:
        trial: number of steps of the candidate in a trial.
        settle: number of steps after it in which the ranks settle.
        trials: number of trials.
    """

    trial: int
    settle: int
    trials: int

    @property
    def stretch(self) -> int:
        """Number of steps of a reference stretch, and of a trial with what follows it."""
        return self.trial + self.settle

    @property
    def steps(self) -> int:
        """Number of steps of the run: one more reference stretch than trials, after the warm-up."""
        return self.first + (2 * self.trials + 1) * self.stretch

    @property
    def first(self) -> int:
        """Number of steps of the warm-up, before the first stretch: as long as one."""
        return self.stretch

    def of_candidate(self, step: int) -> bool:
        """Tell whether a step is the candidate's."""
        number, within = divmod(step - self.first, self.stretch)
        return step >= self.first and number % 2 == 1 and within < self.trial

    def read_after(self) -> list[int]:
        """Return the numbers of steps made after which the probe reads the loss."""
        ends = [self.first + number * self.stretch for number in range(2 * self.trials + 2)]
        return sorted({*ends, *range(BETWEEN, self.steps + 1, BETWEEN)})


class Case(NamedTuple):
    """One run.

    Attributes:
        program: its name.
        rate: learning rate.
        way: candidate.
        plan: what its steps are.
        seed: of weights and batches.
    """

    program: str
    rate: float
    way: Way
    plan: Plan
    seed: int


def probed(task: Task, model: torch.nn.Module) -> float:
    """Return the mean training loss on the fixed batches of all ranks, by the model as it trains."""
    with torch.no_grad():
        losses = [
            float(task.loss(model, task.batch(FAR_AWAY + number, rank)))
            for number in range(FIXED)
            for rank in range(RANKS)
        ]
    return statistics.fmean(losses)


def run(work: tuple[Case, str | None]) -> dict[str, Any]:
    """Run one case, with the folder of nanoGPT's clone; return its row."""
    case, clone = work
    torch.set_num_threads(1)
    program = PROGRAMS[case.program]
    task = program.make(case.seed, case.rate, None if clone is None else Path(clone))
    began = time.monotonic()
    train = _apart if case.way.every else _by_hook
    losses, probes = train(case, task, program.clip)
    return {
        **case._asdict(),
        "way": case.way._asdict(),
        "plan": case.plan._asdict(),
        "name": str(case.way),
        "losses": [float(f"{loss:.5g}") for loss in losses],
        "probes": probes,
        "seconds": round(time.monotonic() - began, 1),
    }


def _by_hook(case: Case, task: Task, clip: float | None) -> tuple[list[float], list[tuple[int, float]]]:
    model, plan = task.model(), case.plan
    losses: list[list[float]] = [[] for _ in range(plan.steps)]
    probes: list[tuple[int, float]] = []
    reads = set(plan.read_after())

    def loss(step: int, rank: int) -> torch.Tensor:
        told = task.loss(model, task.batch(step, rank))
        losses[step].append(float(told.detach()))
        return told

    def after(step: int) -> None:
        if step + 1 in reads:
            probes.append((step + 1, probed(task, model)))

    simulate.train(
        model,
        task.optimizer(model),
        loss,
        compressor(case.way.label),
        lambda step: case.way.cf if plan.of_candidate(step) else None,
        None,
        RANKS,
        plan.steps,
        after=after,
        schedule=lambda step: factor("cosine", step, plan.steps),
        clip=clip,
    )
    return [statistics.fmean(of) for of in losses], probes


def _apart(case: Case, task: Task, clip: float | None) -> tuple[list[float], list[tuple[int, float]]]:
    plan = case.plan
    as_native = progress.Case(case.program, "cosine", case.rate, progress.NATIVE, case.seed, plan.steps)
    ranks = Ranks(as_native, task, clip)
    losses: list[float] = []
    probes: list[tuple[int, float]] = []
    reads = set(plan.read_after())
    for step in range(plan.steps):
        losses.append(ranks.step(step, together=not plan.of_candidate(step)))
        within = (step + 1 - plan.first) % plan.stretch
        if plan.of_candidate(step) and (within % case.way.every == 0 or within == plan.trial):
            ranks.unite(moments=within == plan.trial)
        if step + 1 in reads:
            probes.append((step + 1, probed(task, ranks.models[0])))
    return losses, probes


def estimates(row: dict[str, Any], settled: int, last: int | None = None) -> list[float]:
    """Return what each trial of a run tells of the efficiency of the candidate's steps.

    Args:
        row: of the run.
        settled: number of steps of settling after which the loss is read.
        last: number of last steps whose training losses' mean is read; ``None``: the probe.
    """
    plan, probes = Plan(**row["plan"]), dict(map(tuple, row["probes"]))

    def value(steps: int) -> float:
        if last is None:
            return float(probes[steps])
        return statistics.fmean(row["losses"][steps - last : steps])

    found = []
    for number in range(1, 2 * plan.trials, 2):
        start = plan.first + number * plan.stretch
        before = (value(start - plan.stretch) - value(start)) / plan.stretch
        after = (value(start + plan.stretch) - value(start + 2 * plan.stretch)) / plan.stretch
        drop = value(start) - value(start + plan.trial + settled)
        a_step = (before + after) / 2
        found.append((drop / a_step - settled) / plan.trial if a_step > 0 else math.nan)
    return found


def learned(row: dict[str, Any], longer: int = 0) -> TrialResults:
    """Return what the trials of a run measured by the probe, as gravac evaluates them in a run.

    Of each stretch of the reference the two first readings and the two last ones are taken.

    Args:
        row: of the run.
        longer: number of first steps of a stretch after a trial that count as settling, besides the plan's.
    """
    plan, probes = Plan(**row["plan"]), dict(map(tuple, row["probes"]))
    stretches = []
    for number in range(0, 2 * plan.trials + 1, 2):
        start = plan.first + number * plan.stretch
        settled = start + (longer if number else 0)
        steps = [step for step in sorted(probes) if settled <= step <= start + plan.stretch]
        stretches.append(LossLine.through([LossReading(step, probes[step]) for step in (*steps[:2], *steps[-2:])]))
    noise = math.sqrt(statistics.fmean(line.noise**2 for line in stretches))
    found = [estimate_ratio(before, after, plan.trial, noise) for before, after in itertools.pairwise(stretches)]
    return TrialResults(1, 0, tuple(one for one in found if math.isfinite(one[1])))


def by_curve(row: dict[str, Any]) -> tuple[float, float]:
    """Return the efficiency of the candidate's steps by one curve through all readings of the reference.

    The curve is ``a + b / (p + c)^d`` of the progress ``p``, in which a step of the candidate counts as much as its
    efficiency says; that, ``c`` and ``d`` are found on a grid, ``a`` and ``b`` by least squares.

    Returns:
        The efficiency, and its standard error: half the width of the efficiencies whose sum of squares is above the
        least one by no more than the residuals' variance.
    """
    plan = Plan(**row["plan"])
    steps, losses = map(np.array, zip(*row["probes"], strict=True))
    number, within = (steps - plan.first) // plan.stretch, (steps - plan.first) % plan.stretch
    of_reference = (steps >= plan.first) & ((number % 2 == 0) | (within == 0))
    trials = (number + 1) // 2 - (within == 0) * (number % 2)  # that were over at each reading
    losses, by_candidate = losses[of_reference], (trials * plan.trial)[of_reference]
    by_reference = steps[of_reference] - by_candidate
    efficiencies = np.linspace(-0.5, 1.5, 201)
    squares = _least_squares(by_reference + efficiencies[:, None] * by_candidate, losses)
    variance = squares.min() / (len(losses) - 5)
    plausible = efficiencies[squares <= squares.min() + variance]
    return float(efficiencies[squares.argmin()]), max(0.005, float(plausible.max() - plausible.min()) / 2)


def _least_squares(progress: "np.ndarray[Any, Any]", losses: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the least sum of squares of a falling power law through losses, for each row of progress."""
    best = np.full(len(progress), math.inf)
    centred = losses - losses.mean()
    for offset, power in itertools.product((1, 10, 30, 100, 300, 1000), (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)):
        shape = (progress + offset) ** -power
        shape = shape - shape.mean(axis=1, keepdims=True)
        scale = np.maximum(0.0, (shape @ centred) / np.square(shape).sum(axis=1))
        best = np.minimum(best, np.square(centred - scale[:, None] * shape).sum(axis=1))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/switchback.json")
    parser.add_argument(
        "--progress",
        default="docs/measurements/progress.json",
        help="file with the results from which learning rates are taken",
    )
    parser.add_argument("--programs", nargs="+", default=[*PROGRAMS], choices=[*PROGRAMS])
    parser.add_argument("--rates", nargs="+", default=["best", "third"], choices=["third", "best", "triple"])
    parser.add_argument("--nanogpt", help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--trial", type=int, nargs="+", default=[100])
    parser.add_argument("--settle", type=int, default=30)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this many minutes")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    time_is_up, book = until(arguments.minutes), Book(arguments.json)
    known = read(Path(arguments.progress))
    places = {"third": 0, "best": 1, "triple": 2}
    ran = {key(row) for row in book.rows}
    wanted = [
        Case(
            name,
            best_rates(known, PROGRAMS[name], name, "cosine")[places[rate]],
            way,
            Plan(trial, arguments.settle, arguments.trials),
            seed,
        )
        for seed, trial, rate, name, way in itertools.product(
            range(arguments.seeds), arguments.trial, arguments.rates, arguments.programs, WAYS
        )
    ]
    missing = [case for case in wanted if case not in ran]
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        run_in(pool, run, [(case, arguments.nanogpt) for case in missing], book, time_is_up, summary)


def summary(row: dict[str, Any]) -> str:
    """Describe a row: what ran, for how long, and what its trials came to."""
    said = {name: row[name] for name in ("program", "rate", "name", "plan", "seed", "seconds")}
    results = learned(row)
    return json.dumps({**said, "ratio": round(results.ratio, 2), "error": round(results.error, 2)})


def key(row: dict[str, Any]) -> Case:
    """The case of a row."""
    return Case(row["program"], row["rate"], Way(**row["way"]), Plan(**row["plan"]), row["seed"])


def spread(found: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a run's trials, and its standard error."""
    return statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan


if __name__ == "__main__":
    main()
