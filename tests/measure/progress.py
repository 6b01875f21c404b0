# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How much progress a step makes by every way to run steps, on six programs, by learning rate and schedule; no clock.

Ranks are stepped in one process. A run trains its way but for the last tenth of its steps, which average dense
gradients: what noise or averaging did to the loss for the moment is gone then (*settled*). Efficiency is the number of
steps after which native training had the same loss, over the run's; the steps of settling are taken off both. Its
learning rates are the best of five for native training, a third of it, and three times it, each for a rate that is
constant after a warm-up and for one that falls to a tenth by a cosine. An interrupted run goes on where it was.

    python -m tests.measure.progress [--json FILE] [--parts outer decay beliefs] [--programs ...] [--nanogpt CLONE]
        [--seeds N] [--minutes N] [--workers N] [--steps N]
"""

import argparse
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gravac import Static
from gravac.exchange.lockstep import Lockstep
from gravac.lab import simulate
from gravac.lab.tasks.base import Task
from gravac.lab.training.expression import compressor
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import DEFAULT_MIXING
from tests.measure.programs import PROGRAMS, Program, shortened
from tests.measure.results import todays
from tests.measure.resuming import Book, run_in, until
from tests.outer.by_hand import OuterByHand

RANKS = 2

SCHEDULES = ("cosine", "constant")
"""Learning rate schedules, each after a warm-up."""

WARMUP = 0.1
"""Share of a run's steps over which the learning rate rises."""

LEAST = 0.1
"""Factor of the learning rate at the end of a cosine."""

SETTLE = 0.1
"""Share of a run's steps, the last, that average dense gradients whatever the method."""

POINTS = 40
"""Number of evaluations of a native run."""


class Way(NamedTuple):
    """A way to run steps.

    Attributes:
        label: of the compressor, as it would be written in Python.
        cf: compression factor; 1 for dense.
        every: number of steps from one exchange to the next; 0: gradients are averaged in each step.
        delay: number of steps behind which an exchange travels.
        rate: learning rate of the outer optimizer.
        momentum: its momentum.
        rule: how ``every`` follows the learning rate; see ``steps_apart``.
    """

    label: str = "dense"
    cf: float = 1.0
    every: int = 0
    delay: int = 0
    rate: float = 1.0
    momentum: float = 0.0
    rule: str = "fixed"

    def __str__(self) -> str:
        sent = self.label if self.cf == 1 else f"{self.label} {self.cf:g}x"
        if not self.every:
            return sent
        rule = "" if self.rule == "fixed" else f" {self.rule}"
        behind = f" behind {self.delay}" if self.delay else ""
        outer = "" if (self.rate, self.momentum) == (1, 0) else f", rate {self.rate:g}"
        outer += f" momentum {self.momentum:g}" if self.momentum else ""
        return f"{sent} every {self.every}{rule}{behind}{outer}"


NATIVE = Way()

OPTIMIZERS = ((0.7, 0.0), (0.85, 0.0), (1.0, 0.0), (0.5, 0.5), (0.2, 0.8), (0.4, 0.8), (0.7, 0.9))
"""Learning rates and momenta of outer optimizers."""

OUTER = tuple(Way(every=10, rate=rate, momentum=momentum) for rate, momentum in OPTIMIZERS)
"""Outer optimizers: without momentum, with rate / (1 - momentum) at 1, at 1 and at 2, and DiLoCo's."""

DECAY = tuple(Way(every=every, rule=rule) for rule in ("fixed", "grows", "falls") for every in (5, 10, 20))
"""Rules by which ranks exchange more rarely, or more often, as the learning rate falls; cosine alone."""

BELIEFS = (
    *(Way(label, cf) for label, cf in (
        ("dense", 2.0), ("quantize(4)", 8.0), ("quantize(2)", 16.0), ("quantize(1)", 32.0),
        ("topk", 10.0), ("topk", 50.0), ("powersgd(16)", 32.0), ("powersgd(4)", 128.0),
    )),
    *(Way(every=every) for every in (2, 5, 10, 20, 50)),
    Way(every=2, delay=1),
    Way(every=10, delay=5),
    Way("quantize(2)", 16.0, every=10, delay=5),
)  # fmt: skip
"""Ways of every kind: 16 bit, quantized, sparse, low rank, outer steps with and without a delay."""

PARTS = {"outer": OUTER, "decay": DECAY, "beliefs": BELIEFS}


class Case(NamedTuple):
    """One run.

    Attributes:
        program: its name.
        schedule: of the learning rate.
        rate: learning rate.
        way: of running steps.
        seed: of weights and batches.
        steps: number of training steps.
    """

    program: str
    schedule: str
    rate: float
    way: Way
    seed: int
    steps: int

    @property
    def settling(self) -> int:
        """Number of the last steps, which average dense gradients."""
        return 0 if self.way == NATIVE else round(SETTLE * self.steps)


def factor(schedule: str, step: int, steps: int) -> float:
    """Return what a step's learning rate is, over the run's.

    Example:
        >>> factor("constant", 0, 100), factor("constant", 99, 100), round(factor("cosine", 99, 100), 3)
        (0.1, 1.0, 0.1)
    """
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    share = (step + 1 - warmup) / max(1, steps - warmup)
    return LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * share))


def steps_apart(way: Way, at: float, share: float) -> int:
    """Return the number of steps until the next exchange.

    - ``"fixed"``: ``every``.
    - ``"grows"``: as the square of what the learning rate fell by, from half of its peak on (QSR, arXiv:2310.14423).
    - ``"falls"``: as the learning rate does, twice ``every`` at the peak; in each step in the last fifth of the run.

    Args:
        way: has ``every`` and the rule.
        at: the learning rate over its peak.
        share: share of the run's steps that were made.
    """
    if way.rule == "grows":
        return max(way.every, math.floor(way.every * (0.5 / at) ** 2))
    if way.rule == "falls":
        return 1 if share >= 0.8 else max(1, round(2 * way.every * at))
    return way.every


class Ranks:
    """Ranks in memory, each with a model and an optimizer of its own, from the same weights."""

    def __init__(self, case: Case, task: Task, clip: float | None) -> None:
        self.case, self.task, self.clip = case, task, clip
        self.models = [task.model() for _ in range(RANKS)]
        self.optimizers = [task.optimizer(model) for model in self.models]

    def step(
        self,
        step: int,
        together: bool,
        seen: Callable[[Sequence[Sequence[torch.Tensor]]], None] | None = None,
    ) -> float:
        """Make one step; return the mean loss.

        Args:
            step: number of the step.
            together: whether all ranks step by the mean of their gradients, else each by its own.
            seen: function that is called with the gradients of each rank, in the order of the model's parameters.
        """
        losses = []
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = self.case.rate * factor(self.case.schedule, step, self.case.steps)
            optimizer.zero_grad()
            loss = self.task.loss(model, self.task.batch(step, rank))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
        if seen is not None:
            seen([[p.grad.clone() for p in model.parameters() if p.grad is not None] for model in self.models])
        if together:
            for parameters in zip(*(model.parameters() for model in self.models), strict=True):
                mean = torch.stack([p.grad for p in parameters if p.grad is not None]).mean(0)
                for parameter in parameters:
                    parameter.grad = mean.clone()
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()
        return sum(losses) / len(losses)

    def unite(self, moments: bool) -> None:
        """Give all ranks the mean of their weights and buffers, and of the optimizers' moments if asked."""
        tensors = [[*model.parameters(), *model.buffers()] for model in self.models]
        if moments:
            states = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
            for place, state in enumerate(states):
                tensors[place] += [value for one in state.values() for value in one.values() if torch.is_tensor(value)]
        with torch.no_grad():
            for same in zip(*tensors, strict=True):
                if same[0].is_floating_point():
                    mean = torch.stack([tensor.detach() for tensor in same]).mean(0)
                    for tensor in same:
                        tensor.copy_(mean)

    def value(self) -> float:
        """Return the first rank's metric."""
        return self.task.metric.compute(self.task.validate(self.models[0]))


def train(work: tuple[Case, str | None]) -> dict[str, Any]:
    """Run one case, with the folder of nanoGPT's clone; return its row."""
    case, clone = work
    torch.set_num_threads(1)
    program = PROGRAMS[case.program]
    task = program.make(case.seed, case.rate, None if clone is None else Path(clone))
    began = time.monotonic()
    run = _in_each_step if not case.way.every else _by_rule if case.way.rule != "fixed" else _in_rounds
    came = run(case, task, program.clip)
    return {
        **case._asdict(),
        "way": case.way._asdict(),
        "name": str(case.way),
        "higher_is_better": task.metric.higher_is_better,
        "seconds": round(time.monotonic() - began, 1),
        **came,
    }


def _in_each_step(case: Case, task: Task, clip: float | None) -> dict[str, Any]:
    model, way, last = task.model(), case.way, case.steps - case.settling
    curve: list[tuple[int, float]] = []
    between = max(1, case.steps // POINTS) if way == NATIVE else case.steps

    def after(step: int) -> None:
        if (step + 1) % between == 0 or step + 1 in (last, case.steps):
            curve.append((step + 1, task.metric.compute(task.validate(model))))

    came = simulate.train(
        model,
        task.optimizer(model),
        lambda step, rank: task.loss(model, task.batch(step, rank)),
        compressor(way.label),
        None if way == NATIVE else lambda step: way.cf if step < last else None,
        None,
        RANKS,
        case.steps,
        after=after,
        schedule=lambda step: factor(case.schedule, step, case.steps),
        clip=clip,
    )
    return {"curve": curve, "gain": came.gain, "wire_ratio": came.wire_ratio}


def _in_rounds(case: Case, task: Task, clip: float | None) -> dict[str, Any]:
    way = case.way
    last = (case.steps - case.settling) // way.every * way.every
    ranks, lockstep = Ranks(case, task, clip), Lockstep(RANKS)
    outer = [
        OuterByHand(
            model,
            optimizer,
            base=compressor(way.label),
            cf_range=(1, 1000),
            controller=Static(cf=way.cf),
            every=way.every,
            delay=way.delay,
            mixing=DEFAULT_MIXING if way.delay else None,
            outer=partial(OuterSGD, rate=way.rate, momentum=way.momentum),
            executor=executor,
        )
        for model, optimizer, executor in zip(ranks.models, ranks.optimizers, lockstep.executors, strict=True)
    ]
    for step in range(last):
        ranks.step(step, together=False)
        for one in outer:
            one.leave()
        lockstep.run()
        for one in outer:
            one.arrive()
    return {**_settled(ranks, last), "exchanges": last // way.every}


def _by_rule(case: Case, task: Task, clip: float | None) -> dict[str, Any]:
    ranks, last = Ranks(case, task, clip), case.steps - case.settling
    exchanges = since = 0
    for step in range(last):
        at = factor(case.schedule, step, case.steps)
        apart = steps_apart(case.way, min(1.0, at) if step >= round(WARMUP * case.steps) else 1.0, step / case.steps)
        ranks.step(step, together=apart == 1 and not since)
        since += 1
        if since >= apart or step + 1 == last:
            if apart > 1 or since > 1:
                ranks.unite(moments=False)
            exchanges, since = exchanges + 1, 0
    return {**_settled(ranks, last), "exchanges": exchanges}


def _settled(ranks: Ranks, last: int) -> dict[str, Any]:
    """Have ranks that trained apart average gradients to the end of the run."""
    ranks.unite(moments=True)
    curve = [(last, ranks.value())]
    for step in range(last, ranks.case.steps):
        ranks.step(step, together=True)
    return {"curve": [*curve, (ranks.case.steps, ranks.value())]}


def efficiency(row: dict[str, Any], native: dict[str, Any], settled: bool = True) -> float:
    """Return the progress of a step of a run, over that of a native step of the same learning rate, at most 1.

    Args:
        row: of the run.
        native: row of native training with the same program, schedule, rate and seed.
        settled: whether to read the loss after settling, and not before it.
    """
    sign = -1 if row["higher_is_better"] else 1
    last, before = row["curve"][-1], row["curve"][-2]
    at, value = last if settled else before
    off = (last[0] - before[0]) if settled else 0
    if not math.isfinite(value):
        return 0.0
    reached = steps_to([(step, sign * one) for step, one in native["curve"]], sign * value)
    return min(1.0, max(0.0, (min(reached, at) - off) / (at - off)))


def steps_to(curve: Sequence[tuple[int, float]], value: float) -> float:
    """Return the number of steps after which a falling curve, taken at its lowest so far, is at a value.

    Example:
        >>> steps_to([(10, 4.0), (20, 2.0), (30, 2.5), (40, 1.0)], 3.0)
        15.0
        >>> steps_to([(10, 4.0), (20, 2.0)], 1.0)
        inf
    """
    before, was = 0, math.inf
    for step, one in curve:
        if one <= value:
            return float(step) if not math.isfinite(was) else before + (step - before) * (was - value) / (was - one)
        if one < was:
            before, was = step, one
    return math.inf


def references(schedules: Iterable[str], seeds: Iterable[int], programs: dict[str, Program]) -> Iterator[Case]:
    """Native runs at all learning rates."""
    for seed, schedule, name in itertools.product(seeds, schedules, programs):
        for rate in programs[name].rates:
            yield Case(name, schedule, rate, NATIVE, seed, programs[name].steps)


def best_rates(rows: Iterable[dict[str, Any]], program: Program, name: str, schedule: str) -> tuple[float, ...]:
    """Return a third of the best learning rate of native training by its last loss, the best, and three times it."""
    by_rate: dict[float, list[float]] = {}
    for row in rows:
        if row["program"] == name and row["schedule"] == schedule and key(row).way == NATIVE:
            value = row["curve"][-1][1] * (-1 if row["higher_is_better"] else 1)
            by_rate.setdefault(row["rate"], []).append(value if math.isfinite(value) else math.inf)
    means = {rate: sum(values) / len(values) for rate, values in by_rate.items()}
    inner = program.rates[1:-1]
    best = min(inner, key=lambda rate: means.get(rate, math.inf))
    place = program.rates.index(best)
    return program.rates[place - 1 : place + 2]


def key(row: dict[str, Any]) -> Case:
    """The case of a row."""
    plain = {field: row[field] for field in Case._fields}
    return Case(**{**plain, "way": Way(**row["way"])})


def summary(row: dict[str, Any]) -> str:
    """Describe a row: what ran, for how long, and the end of its curve."""
    said = {name: row[name] for name in ("program", "schedule", "rate", "name", "seed", "curve", "seconds")}
    return json.dumps({**said, "curve": row["curve"][-2:]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/progress.json")
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=[*PARTS])
    parser.add_argument("--programs", nargs="+", default=[*PROGRAMS], choices=[*PROGRAMS])
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, choices=SCHEDULES)
    parser.add_argument("--rates", nargs="+", default=["third", "best", "triple"], choices=["third", "best", "triple"])
    parser.add_argument("--nanogpt", help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this many minutes")
    parser.add_argument("--steps", type=int, default=10**9, help="maximum number of steps of a run, to try the program")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    time_is_up, book = until(arguments.minutes), Book(arguments.json)
    programs = {name: shortened(PROGRAMS[name], arguments.steps) for name in arguments.programs}
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:

        def run(wanted: Iterable[Case]) -> None:
            """Run what no row is of; stop when time is up."""
            ran = {key(row) for row in book.rows}
            missing = [(case, arguments.nanogpt) for case in dict.fromkeys(wanted) if case not in ran]
            if not missing or time_is_up():
                return
            if not run_in(pool, train, missing, book, time_is_up, summary):
                raise SystemExit(0)

        seeds = range(arguments.seeds)
        run(references(arguments.schedules, seeds, programs))
        places = {"third": 0, "best": 1, "triple": 2}
        for part, seed, rate_at, schedule in itertools.product(
            arguments.parts, seeds, arguments.rates, arguments.schedules
        ):
            if part == "decay" and schedule == "constant":
                continue
            run(
                Case(
                    name,
                    schedule,
                    best_rates(book.rows, program, name, schedule)[places[rate_at]],
                    way,
                    seed,
                    program.steps,
                )
                for name, program in programs.items()
                for way in PARTS[part]
            )


if __name__ == "__main__":
    main()
