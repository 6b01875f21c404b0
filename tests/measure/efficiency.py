# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Efficiency: the progress that a step of a method makes, over a native step's; loss at equal steps, without a clock.

Ranks are stepped in one process. A run trains its way but for the last tenth of its steps, which average dense
gradients: what noise or averaging did to the loss for the moment is gone then (*settled*). Efficiency is the number of
steps after which native training had the same loss, over the run's; the steps of settling are taken off both. Its
learning rates are the best of five for native training, a third of it, and three times it. An interrupted run goes on
where it was; ``--csv`` writes the efficiencies, which ``tests.measure.beliefs`` reads.

    python -m tests.measure.efficiency [--json FILE] [--csv FILE] [--way COMPRESSOR CF [EVERY [DELAY]]] [--programs ...]
        [--nanogpt CLONE] [--seeds N] [--minutes N] [--workers N] [--steps N]
"""

import argparse
import csv
import itertools
import json
import math
import multiprocessing
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from gravac import Static, dense
from gravac.averaging.average import Averager
from gravac.candidate import DENSE, Candidate, Forecast, Span
from gravac.collectives import wire_ratio
from gravac.compressors import Dense
from gravac.controllers.base import LATENCY, Decision, Measurement
from gravac.engine.admission import Admission
from gravac.engine.decisions import Deciding
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.lockstep import Lockstep
from gravac.lab.tasks.base import Task
from gravac.lab.training.expression import compressor
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import DEFAULT_MIXING
from tests.measure.programs import PROGRAMS, Program, shortened
from tests.measure.results import STAMP, todays
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

MIN_COMPRESSED_ELEMENTS = 1024
"""Minimum number of elements of a tensor to be compressed; smaller tensors are averaged uncompressed."""

FLOAT32 = Candidate("hook", DENSE, 1.0)


class Way(NamedTuple):
    """A way to run steps.

    Attributes:
        label: of the compressor, as it would be written in Python.
        cf: compression factor; 1 for dense.
        every: number of steps from one exchange to the next; 0: gradients are averaged in each step.
        delay: number of steps for which an exchange is in flight.
    """

    label: str = "dense"
    cf: float = 1.0
    every: int = 0
    delay: int = 0

    def __str__(self) -> str:
        sent = self.label if self.cf == 1 else f"{self.label} {self.cf:g}x"
        sent += f" every {self.every}" if self.every else ""
        return sent + (f" behind {self.delay}" if self.delay else "")


NATIVE = Way()

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


def train(work: tuple[Case, str | None]) -> dict[str, Any]:
    """Run one case, with the folder of nanoGPT's clone; return its row."""
    case, clone = work
    torch.set_num_threads(1)
    program = PROGRAMS[case.program]
    task = program.make(case.seed, case.rate, None if clone is None else Path(clone))
    began = time.monotonic()
    came = (_in_rounds if case.way.every else _in_each_step)(case, task, program.clip)
    return {
        **case._asdict(),
        "way": case.way._asdict(),
        "name": str(case.way),
        "higher_is_better": task.metric.higher_is_better,
        "seconds": round(time.monotonic() - began, 1),
        **came,
    }


@dataclass(frozen=True, slots=True)
class OneWay:
    """A controller that runs a compression factor up to a step, then dense float32; it ignores all measurements.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor.
        last: number of the first step of dense float32.
    """

    name: ClassVar[str] = "one way"
    keeps_all: ClassVar[bool] = True
    chooses_sixteen_bit: ClassVar[bool] = False

    compressor: str
    cf: float
    last: int

    def candidate_at(self, step: int) -> Candidate:
        """Return the candidate to run in a step, counted from 0."""
        return Candidate("hook", self.compressor, self.cf) if step < self.last else FLOAT32

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return an empty tuple: the controller does not choose between CFs."""
        return ()

    def start(self, forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Return the state (always 0) and the decision for the first steps: the candidate of the last forecast."""
        return 0, Decision(forecasts[-1].candidate, reason="as scheduled")

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        """Return the same state, and the decision for the step that is ``LATENCY`` steps after the measured step."""
        return state, Decision(self.candidate_at(measurement.step + LATENCY), reason="as scheduled")

    def dump(self, state: int) -> dict[str, Any]:
        """Return an empty dict: the controller has no state."""
        return {}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Return what ``start`` returns: the controller has no state to restore."""
        return self.start(forecasts)


def _in_each_step(case: Case, task: Task, clip: float | None) -> dict[str, Any]:
    """Train one model by the mean of all ranks' gradients, averaged as over a network."""
    model, way, last = task.model(), case.way, case.steps - case.settling
    optimizer, parameters, base = task.optimizer(model), dict(model.named_parameters()), compressor(way.label)
    controller = OneWay(base.name if base.compresses else DENSE, way.cf, 0 if way == NATIVE else last)

    def admit(*_: object) -> Admission:
        candidates = (FLOAT32, controller.candidate_at(0))
        return Admission(tuple(Forecast(candidate, wire_ratio=candidate.cf) for candidate in candidates))

    plain = base if isinstance(base, Dense) else dense
    averagers = [Averager(base, plain, None, MIN_COMPRESSED_ELEMENTS) for _ in range(RANKS)]
    engines = [Engine(averager, Deciding(controller, admit, lambda _: None)) for averager in averagers]
    for engine, executor in zip(engines, Lockstep(RANKS).executors, strict=True):
        engine.use(executor)
    between = max(1, case.steps // POINTS) if way == NATIVE else case.steps
    curve: list[tuple[int, float]] = []
    error = energy = 0.0
    for step in range(case.steps):
        for group in optimizer.param_groups:
            group["lr"] = case.rate * factor(case.schedule, step, case.steps)
        averaged: dict[str, torch.Tensor] = {}
        for rank, engine in enumerate(engines):
            optimizer.zero_grad(set_to_none=True)
            task.loss(model, task.batch(step, rank)).backward()  # type: ignore[no-untyped-call]
            gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
            averaged = averaged or gradients
            engine.begin(StepInputs(forms=[(tuple(gradient.shape), gradient.dtype) for gradient in gradients.values()]))
            handle = engine.ready(list(gradients.items()))
            engine.end()
        handle.wait()
        for averager in averagers:
            error += float(averager.recording.error)
            energy += float(averager.recording.energy)
        for name, parameter in parameters.items():
            parameter.grad = averaged[name]
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        optimizer.step()
        if (step + 1) % between == 0 or step + 1 in (last, case.steps):
            curve.append((step + 1, task.metric.compute(task.validate(model))))
    totals = [engine.state.totals for engine in engines]
    return {
        "curve": curve,
        "gain": 1 - error / energy if energy else 1.0,
        "wire_ratio": min(wire_ratio(one.dense_wire_bytes, one.wire_bytes) for one in totals),
    }


def _in_rounds(case: Case, task: Task, clip: float | None) -> dict[str, Any]:
    """Train a model on each rank, in outer steps; then all by the mean of their gradients."""
    way = case.way
    last = (case.steps - case.settling) // way.every * way.every
    models = [task.model() for _ in range(RANKS)]
    optimizers, lockstep = [task.optimizer(model) for model in models], Lockstep(RANKS)
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
            outer=partial(OuterSGD, rate=1.0, momentum=0.0),
            executor=executor,
        )
        for model, optimizer, executor in zip(models, optimizers, lockstep.executors, strict=True)
    ]

    def step_of(step: int, together: bool) -> None:
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = case.rate * factor(case.schedule, step, case.steps)
            optimizer.zero_grad()
            task.loss(model, task.batch(step, rank)).backward()  # type: ignore[no-untyped-call]
        if together:
            for parameters in zip(*(model.parameters() for model in models), strict=True):
                mean = torch.stack([p.grad for p in parameters if p.grad is not None]).mean(0)
                for parameter in parameters:
                    parameter.grad = mean.clone()
        for model, optimizer in zip(models, optimizers, strict=True):
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()

    for step in range(last):
        step_of(step, together=False)
        for one in outer:
            one.leave()
        lockstep.run()
        for one in outer:
            one.arrive()
    unite(models, optimizers)
    curve = [(last, task.metric.compute(task.validate(models[0])))]
    for step in range(last, case.steps):
        step_of(step, together=True)
    return {"curve": [*curve, (case.steps, task.metric.compute(task.validate(models[0])))]}


def unite(models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Give all ranks the mean of their weights, buffers and optimizers' moments."""
    tensors = [[*model.parameters(), *model.buffers()] for model in models]
    for place, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()["state"]
        tensors[place] += [value for one in state.values() for value in one.values() if torch.is_tensor(value)]
    with torch.no_grad():
        for same in zip(*tensors, strict=True):
            if same[0].is_floating_point():
                mean = torch.stack([tensor.detach() for tensor in same]).mean(0)
                for tensor in same:
                    tensor.copy_(mean)


def efficiency(row: dict[str, Any], native: dict[str, Any]) -> float:
    """Return the progress of a step of a run, over that of a native step of the same learning rate, at most 1.

    Args:
        row: of the run.
        native: row of native training with the same program, schedule, rate and seed.
    """
    sign = -1 if row["higher_is_better"] else 1
    (before, _), (at, value) = row["curve"][-2:]
    off = at - before
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
    """Return the case of a row."""
    plain = {field: row[field] for field in Case._fields}
    return Case(**{**plain, "way": Way(**row["way"])})


def tidy(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line of the CSV for each run that native training with the same learning rate is there for."""
    cases = {key(row): row for row in rows}
    lines = []
    for case, row in cases.items():
        native = cases.get(case._replace(way=NATIVE))
        if case.way != NATIVE and native is not None:
            about = {name: value for name, value in case._asdict().items() if name != "way"}
            efficient = efficiency(row, native)
            lines.append({**about, **case.way._asdict(), "gain": row.get("gain", ""), "efficiency": efficient})
    return lines


def summary(row: dict[str, Any]) -> str:
    """Describe a row: what ran, for how long, and the end of its curve."""
    said = {name: row[name] for name in ("program", "schedule", "rate", "name", "seed", "curve", "seconds")}
    return json.dumps({**said, "curve": row["curve"][-2:]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="efficiency.json", help="the runs; those that are there are not run again")
    parser.add_argument("--csv", type=Path, help="file to write the efficiencies to")
    parser.add_argument(
        "--way", nargs="+", action="append", metavar="COMPRESSOR CF [EVERY [DELAY]]",
        help="way to run steps, such as 'quantize(2)' 16 10 (default: all that beliefs are fitted to)",
    )  # fmt: skip
    parser.add_argument("--programs", nargs="+", default=[*PROGRAMS], choices=[*PROGRAMS])
    parser.add_argument("--schedules", nargs="+", default=["cosine"], choices=SCHEDULES)
    parser.add_argument("--rates", nargs="+", default=["third", "best", "triple"], choices=["third", "best", "triple"])
    parser.add_argument("--nanogpt", help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this many minutes")
    parser.add_argument("--steps", type=int, default=10**9, help="maximum number of steps of a run, to try the program")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    ways = [Way(label, float(cf), *map(int, rest)) for label, cf, *rest in arguments.way or ()] or BELIEFS
    time_is_up, book = until(arguments.minutes), Book(arguments.json)
    programs = {name: shortened(PROGRAMS[name], arguments.steps) for name in arguments.programs}
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:

        def run(wanted: Iterable[Case]) -> bool:
            """Run what no row is of; return False if time is up."""
            ran = {key(row) for row in book.rows}
            missing = [(case, arguments.nanogpt) for case in dict.fromkeys(wanted) if case not in ran]
            return not time_is_up() and (not missing or run_in(pool, train, missing, book, time_is_up, summary))

        seeds = range(arguments.seeds)
        if run(references(arguments.schedules, seeds, programs)):
            places = {"third": 0, "best": 1, "triple": 2}
            run(
                Case(
                    name, schedule, best_rates(book.rows, program, name, schedule)[places[at]], way, seed, program.steps
                )
                for seed, at, schedule in itertools.product(seeds, arguments.rates, arguments.schedules)
                for name, program in programs.items()
                for way in ways
            )
    lines = tidy(book.rows)
    for line in lines:
        print(json.dumps(line))
    if arguments.csv and lines:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            stamps = {(one.commit, one.utc): one for one in (row.get(STAMP, todays()) for row in book.rows)}.values()
            for one in stamps:
                made_with = f"torch {one.torch}, Python {one.python}, {one.cores} cores"
                file.write(f"# commit {one.commit}, {one.utc}, {made_with}\n")
            file.write(f"# command: python -m tests.measure.efficiency {shlex.join(sys.argv[1:])}\n")
            table = csv.DictWriter(file, [*lines[0]], lineterminator="\n")
            table.writeheader()
            table.writerows(lines)


if __name__ == "__main__":
    main()
