# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a matrix that are not in its result file yet, one after another, and saves each run at its end."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from gravac.lab.links.link import UNTHROTTLED, Link, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.provenance import UNRECORDED, Stamp, stamp
from gravac.lab.training.methods import Method
from gravac.lab.training.run import Event, RunFailed, TrainingRun, TrainingSettings
from gravac.lab.training.session import ALONE, WARM_UP, Leg
from gravac.lab.training.shuffled import Play, plays
from gravac.lab.tta import record
from gravac.lab.tta.factored import efficiency, factored, refactored
from gravac.lab.tta.matrix import REFERENCE, Matrix
from gravac.lab.tta.record import SPREAD, CurvePoint, DecisionPoint, Split, TrainingRecord, first_reached
from gravac.lab.tta.watcher import Watcher

TARGET_FRACTION = 0.8
"""Fraction of the reference's budget at which its metric is the target."""

TARGET_WIDTH = 0.06
"""Fraction of the budget on each side of ``TARGET_FRACTION``; the target is the mean of the evaluations within."""

ALONE_STEPS = 15
"""Number of steps of one worker alone, to measure its speed."""

PROBE_STEPS = WARM_UP + 8
"""Number of steps of a short run that measures the time of a step; each method has two of these runs."""


Methods = Mapping[tuple[str, str], Sequence[Method]]
"""Methods to run, by task and link."""


class _RunKey(NamedTuple):
    """Identifies a run of the matrix."""

    task: str
    link: str
    method: str
    seed: int


@dataclass(frozen=True)
class FinishedLeg:
    """A leg that ended, with its events and its curve.

    Attributes:
        leg: leg that ended.
        start: event at the leg's start.
        end: event at the leg's end.
        curve: metric over the leg.
        stamp: stamp at the leg's end, with the machine's speed before the session; ``None`` if none was taken.
    """

    leg: Leg
    start: Event
    end: Event
    curve: tuple[CurvePoint, ...]
    stamp: Stamp | None = None


def finished_legs(
    run: TrainingRun, legs: Sequence[Leg], watch: Callable[[Event], None] = lambda event: None
) -> Iterator[FinishedLeg]:
    """Yield each leg of a training run when it ended, in order.

    Args:
        run: the run, which has started.
        legs: legs of the run.
        watch: function that is called with each event.

    Raises:
        RunFailed: a leg failed; the legs before it were yielded.
    """
    start: Event = {}
    curve: list[CurvePoint] = []
    for event in run.events():
        watch(event)
        if event["event"] == "start":
            start, curve = event, []
        elif event["event"] == "evaluation":
            curve.append(CurvePoint(step=event["step"], seconds=event["seconds"], metric=event["metric"]))
        elif event["event"] == "end":
            yield FinishedLeg(legs[event["leg"]], start, event, tuple(curve))


def run_matrix(matrix: Matrix, watcher: Watcher) -> list[TrainingRecord]:
    """Run the cells that are not in the result file yet, saving after each run; return all runs of the file.

    Raises:
        SettingsError: the result file has other contents than records of runs.
        LinkError: a link cannot be made.
    """
    return _MatrixRunner(matrix, watcher).run()


class _MatrixRunner:
    """Runs a matrix; ``runs`` are the records of the result file and the new records."""

    def __init__(self, matrix: Matrix, watcher: Watcher) -> None:
        self.matrix = matrix
        self.watcher = watcher
        file_exists = matrix.json is not None and matrix.json.exists()
        self.runs = record.read([matrix.json]) if file_exists and matrix.json else []
        codes = {UNRECORDED if run.stamp is None else run.stamp.code for run in self.runs}
        self.watcher.stamped(stamp().code, sorted(codes))
        self.methods = [Method.parse(text) for text in matrix.methods]

    def run(self) -> list[TrainingRecord]:
        links = [parse_link(text) for text in self.matrix.links]
        all_methods = {(task, str(link)): self.methods for task in self.matrix.tasks for link in links}
        self.watcher.planned(*self._count(self.matrix.seeds, all_methods))
        for seed in self.matrix.seeds:
            self._run_seed(seed, all_methods)
        highest = max(self.matrix.seeds)
        for seed in range(highest + 1, highest + 1 + self.matrix.more_seeds):
            spread_methods = {(task, link): self._spread_methods(task, link) for task, link in all_methods}
            if not any(spread_methods.values()):
                break
            self.watcher.planned(*self._count([seed], spread_methods))
            self._run_seed(seed, spread_methods)
        return self.runs

    def _run_seed(self, seed: int, methods: Methods) -> None:
        """Run one seed of methods, by task and link."""
        for task in self.matrix.tasks:
            by_link = {link: methods[method_task, link] for method_task, link in methods if method_task == task}
            if not any(by_link.values()):
                continue
            reference = self._reference(task, seed)
            if self.matrix.factored:
                static = [
                    method
                    for method in self.methods
                    if method.factored and any(method in link_methods for link_methods in by_link.values())
                ]
                # the number of steps to the target, which is the same on all links
                self._run_in_full(reference, parse_link(UNTHROTTLED), static)
            for text, link_methods in by_link.items():
                link = parse_link(text)
                if self.matrix.factored:
                    self._run_factored(reference, link, [method for method in link_methods if method.factored])
                    link_methods = [method for method in link_methods if not method.factored]
                self._run_in_full(reference, link, link_methods)

    def _spread_methods(self, task: str, link: str) -> list[Method]:
        """Return the methods that reached the target with every seed, at times that differ too much between seeds."""
        spread = []
        for method in self.methods:
            runs = [run for run in self.runs if self._is_of_cell(run, task, link) and run.method == method.text]
            times = [run.tta_s for run in runs if run.tta_s is not None]
            if len(times) == len(runs) > 1 and max(times) - min(times) > SPREAD * statistics.median(times):
                spread.append(method)
        return spread

    def _count(self, seeds: Sequence[int], methods: Methods) -> tuple[int, int]:
        """Return the number of records of seeds and methods, and how many of them exist already."""
        keys = set()
        for (task, link), link_methods in methods.items():
            for seed in seeds if link_methods else ():
                keys.add(_RunKey(task, UNTHROTTLED, REFERENCE, seed))
                keys |= {
                    _RunKey(task, link, name, seed)
                    for method in link_methods
                    for name in (method.text, method.matched_to)
                    if name
                }
                if self.matrix.factored:
                    keys |= {
                        _RunKey(task, UNTHROTTLED, method.text, seed) for method in link_methods if method.factored
                    }
        return len(keys), sum(self._find(key.task, key.link, key.method, key.seed) is not None for key in keys)

    # the three kinds of sessions

    def _reference(self, task: str, seed: int) -> TrainingRecord:
        """Return the record of native DDP's unthrottled run, with the efficiency against one worker alone."""
        existing = self._find(task, UNTHROTTLED, REFERENCE, seed)
        if existing:
            return existing
        reference_task = self.matrix.task(task, seed)
        budget = self.matrix.budget or reference_task.budget
        legs = [
            Leg(ALONE, ALONE, steps=min(ALONE_STEPS, budget)),
            Leg(
                REFERENCE,
                self._label(task, UNTHROTTLED, REFERENCE, seed),
                steps=budget,
                every_steps=reference_task.every,
            ),
        ]
        alone, full = self._session(task, parse_link(UNTHROTTLED), seed, legs)
        target = self.matrix.target if self.matrix.target is not None else target_of(full.curve, budget)
        alone_samples_per_s = alone.start["batch_size"] / alone.end["step_s"]
        run = self._record(task, parse_link(UNTHROTTLED), seed, full, target, None)
        if run.tta_s is None:
            raise RunFailed(
                f"{task}: dense did not reach the target {target:g} within {budget} steps (it came to "
                f"{run.val_metric:g}); use another --target or a larger --budget"
            )
        efficiency_of_reference = run.samples_per_s / (self.matrix.workers * alone_samples_per_s)
        run = run.model_copy(update={"efficiency": efficiency_of_reference})
        self._add(run)
        return run

    def _run_in_full(self, reference: TrainingRecord, link: Link, methods: Sequence[Method]) -> None:
        """Run methods on a link to the target: static methods in one session, each adaptive method in its own.

        Matched random methods run last, after the methods whose choices they play.
        """
        task, seed = reference.task, reference.seed
        assert reference.tta_s is not None
        seconds = self.matrix.limit * reference.tta_s
        by_text = {method.text: method for listed in methods for method in (listed, *self._prerequisites(listed))}
        missing = [method for method in by_text.values() if not self._find(task, str(link), method.text, seed)]
        missing.sort(key=lambda method: method.matched_to is not None)
        shared_session = [method for method in missing if not method.adaptive and len(link.phases) == 1]
        sessions = [shared_session] if shared_session else []
        sessions += [[method] for method in missing if method not in shared_session]
        every = self.matrix.task(task, seed).every
        for session in sessions:
            legs = [
                Leg(
                    method.text,
                    self._label(task, str(link), method.text, seed),
                    seconds=seconds,
                    target=reference.target,
                    every_steps=every,
                    played=self._played(task, str(link), method, seed),
                )
                for method in session
            ]
            for finished in self._session(task, link, seed, legs):
                self._add(self._record(task, link, seed, finished, reference.target, seconds, reference))

    def _prerequisites(self, method: Method) -> list[Method]:
        """Return the methods that must run before a method."""
        return [] if method.matched_to is None else [Method.parse(method.matched_to)]

    def _played(self, task: str, link: str, method: Method, seed: int) -> tuple[Play, ...]:
        """Return the choices for a matched random method; none if the adaptive run failed."""
        run = self._find(task, link, method.matched_to, seed) if method.matched_to is not None else None
        return () if run is None else plays(run.turns, run.steps)

    def _run_factored(self, reference: TrainingRecord, link: Link, static: Sequence[Method]) -> None:
        """Make factored records of static methods: steps of the unthrottled run, times of short runs on the link."""
        task, seed = reference.task, reference.seed
        missing = [
            (method, unthrottled)
            for method in static
            if not self._find(task, str(link), method.text, seed)
            and (unthrottled := self._find(task, UNTHROTTLED, method.text, seed))
        ]
        if not missing:
            return
        assert reference.tta_s is not None
        seconds = self.matrix.limit * reference.tta_s
        factored_runs = (run for run in self.runs if self._is_of_cell(run, task, str(link)) and run.factored)
        timed = {run.method: run for run in factored_runs if run.seed == seed or not self.matrix.times_each_seed}
        if any(method.text not in timed for method, _ in missing):
            legs = [Leg(method.text, f"{method.text} step time", steps=PROBE_STEPS) for method, _ in missing] * 2
            probes: dict[str, list[FinishedLeg]] = defaultdict(list)
            for finished in self._session(task, link, seed, legs):
                probes[finished.leg.method].append(finished)
            for method, unthrottled in missing:
                if method_probes := probes[method.text]:
                    ends = [finished.end for finished in method_probes]
                    self._add(factored(unthrottled, str(link), ends, seconds, reference, method_probes[-1].stamp))
            return
        for method, unthrottled in missing:
            self._add(refactored(unthrottled, timed[method.text], seconds))

    def _session(self, task: str, link: Link, seed: int, legs: Sequence[Leg]) -> Iterator[FinishedLeg]:
        """Run legs, and yield each leg that finished.

        A leg that fails is reported to the watcher and left out; the legs after it run in a new session. If a leg of
        one worker alone or of the reference fails, the error is raised.
        """
        matrix = self.matrix
        settings = TrainingSettings(
            workers=matrix.workers,
            link=str(link),
            slowest=link.slowest,
            task=task,
            scale=matrix.scale,
            data=matrix.data,
            seed=seed,
            log_dir=matrix.log_dir,
        )
        cell = f"{task} {link} seed {seed}"
        remaining = list(legs)
        while remaining:
            ended, idle_stamp = 0, stamp()
            self.watcher.starting(cell, remaining[0])
            try:
                with ExitStack() as stack:
                    network = None if matrix.paced else stack.enter_context(EmulatedNetwork(matrix.workers, link))
                    run = stack.enter_context(TrainingRun(remaining, settings, network))
                    watch = partial(self._watch, cell, remaining)
                    for finished in finished_legs(run, remaining, watch):
                        yield replace(finished, stamp=idle_stamp.with_current_time())
                        ended += 1
                return
            except RunFailed as error:
                if ended >= len(remaining) or remaining[ended].method in (ALONE, REFERENCE):
                    raise
                self.watcher.failed(cell, remaining[ended], error)
                remaining = remaining[ended + 1 :]

    def _watch(self, cell: str, legs: Sequence[Leg], event: Event) -> None:
        self.watcher.event(cell, legs[event["leg"]], event)

    # records

    def _record(
        self,
        task: str,
        link: Link,
        seed: int,
        finished: FinishedLeg,
        target: float,
        limit_s: float | None,
        reference: TrainingRecord | None = None,
    ) -> TrainingRecord:
        metric = self.matrix.task(task, seed).metric
        end, curve = finished.end, finished.curve
        reached = first_reached(curve, target, metric.higher_is_better)
        samples = finished.start["samples_per_step"] / end["step_s"]
        return TrainingRecord(
            task=task,
            scale=self.matrix.scale,
            link=str(link),
            workers=self.matrix.workers,
            method=finished.leg.method,
            adaptive=Method.parse(finished.leg.method).adaptive,
            seed=seed,
            metric=f"{metric.name}, {metric.unit}",
            higher_is_better=metric.higher_is_better,
            target=target,
            tta_s=reached[0] if reached else None,
            steps_to_target=round(reached[1]) if reached else None,
            seconds=end["seconds"],
            limit_s=limit_s,
            steps=end["step"],
            step_s=end["step_s"],
            every=end.get("every"),
            samples_per_s=samples,
            efficiency=efficiency(samples, reference),
            wire_bytes=end["wire_bytes"],
            interface_bytes=end["interface_bytes"],
            cpu_seconds=end["cpu_seconds"],
            gain=end["gain"],
            val_metric=curve[-1].metric,
            curve=curve,
            turns=tuple(DecisionPoint(**decision) for decision in end["turns"]),
            split=Split(**end["split"]),
            paced=self.matrix.paced and link.slowest is not None,
            factored=False,
            stamp=finished.stamp,
        )

    def _add(self, run: TrainingRecord) -> None:
        """Add a record, and save the result file."""
        self.runs.append(run)
        if self.matrix.json is not None:
            record.save(self.matrix.json.absolute(), self.runs)
        self.watcher.finished(run)

    def _find(self, task: str, link: str, method: str, seed: int) -> TrainingRecord | None:
        cell_runs = (run for run in self.runs if self._is_of_cell(run, task, link))
        return next((run for run in cell_runs if (run.method, run.seed) == (method, seed)), None)

    def _is_of_cell(self, run: TrainingRecord, task: str, link: str) -> bool:
        """True if a run is of the task, scale, link and number of workers of a cell, with any seed."""
        return run.cell[:4] == (task, self.matrix.scale, link, self.matrix.workers)

    def _label(self, task: str, link: str, method: str, seed: int) -> str:
        return "/".join((task, link.replace("/", "-"), method.replace(":", "-"), f"seed{seed}"))


def target_of(curve: Sequence[CurvePoint], budget: int) -> float:
    """Return the reference's metric at 80 % of its budget: the mean of the evaluations around that step.

    Args:
        curve: metric over the reference run.
        budget: number of steps of the reference run.
    """
    step, width = TARGET_FRACTION * budget, TARGET_WIDTH * budget
    near = [point.metric for point in curve if abs(point.step - step) <= width]
    if not near:
        near = [min(curve, key=lambda point: abs(point.step - step)).metric]
    return statistics.fmean(near)
