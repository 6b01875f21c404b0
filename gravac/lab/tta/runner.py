# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the part of a matrix that its file does not hold yet, cell after cell; each run is saved as it ends."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

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
from gravac.lab.tta.record import SPREAD, CurvePoint, Split, TrainingRecord, Turn, first_reached
from gravac.lab.tta.watcher import Watcher

TARGET_AT = 0.8
"""Share of the reference's budget at which its metric is the target."""

AROUND = 0.06
"""Share of the budget around ``TARGET_AT`` within which evaluations count: the target is their mean."""

ALONE_STEPS = 15
"""Number of steps of one worker by itself, to know what a worker can do."""

PROBE_STEPS = WARM_UP + 8
"""Number of steps of a turn in which a step's time is taken; each method has two turns."""


Methods = Mapping[tuple[str, str], Sequence[Method]]
"""Methods to run, by task and link."""


@dataclass(frozen=True)
class Ended:
    """The report of a leg: its end, and the metric over it; stamped with the machine's speed before its session."""

    leg: Leg
    start: Event
    end: Event
    curve: tuple[CurvePoint, ...]
    stamp: Stamp


def run_matrix(matrix: Matrix, watcher: Watcher) -> list[TrainingRecord]:
    """Run what the result file does not hold yet, saving after each run; return all its runs.

    Raises:
        SettingsError: the result file holds something else.
        LinkError: a link cannot be made.
    """
    return _Bench(matrix, watcher).run()


class _Bench:
    def __init__(self, matrix: Matrix, watcher: Watcher) -> None:
        self.matrix = matrix
        self.watcher = watcher
        there = matrix.json is not None and matrix.json.exists()
        self.runs = record.read([matrix.json]) if there and matrix.json else []
        codes = {UNRECORDED if run.stamp is None else run.stamp.code for run in self.runs}
        self.watcher.stamped(stamp().code, sorted(codes))
        self.methods = [Method.parse(text) for text in matrix.methods]

    def run(self) -> list[TrainingRecord]:
        links = [parse_link(text) for text in self.matrix.links]
        everything = {(task, str(link)): self.methods for task in self.matrix.tasks for link in links}
        self.watcher.planned(*self._count(self.matrix.seeds, everything))
        for seed in self.matrix.seeds:
            self._seed(seed, everything)
        last = max(self.matrix.seeds)
        for seed in range(last + 1, last + 1 + self.matrix.more_seeds):
            wide = {place: self._wide(*place) for place in everything}
            if not any(wide.values()):
                break
            self.watcher.planned(*self._count([seed], wide))
            self._seed(seed, wide)
        return self.runs

    def _seed(self, seed: int, methods: Methods) -> None:
        """Run one seed of the methods given for each task and link."""
        for task in self.matrix.tasks:
            asked = {link: methods[task, link] for of, link in methods if of == task}
            if not any(asked.values()):
                continue
            reference = self._reference(task, seed)
            if self.matrix.factored:
                some = [m for m in self.methods if m.factored and any(m in those for those in asked.values())]
                self._full(reference, parse_link(UNTHROTTLED), some)  # steps to the target, the same on all links
            for text, those in asked.items():
                link = parse_link(text)
                if self.matrix.factored:
                    self._times(reference, link, [method for method in those if method.factored])
                    those = [method for method in those if not method.factored]
                self._full(reference, link, those)

    def _wide(self, task: str, link: str) -> list[Method]:
        """Methods whose times to the target differ too much between seeds; those that missed it have none."""
        found = []
        for method in self.methods:
            runs = [run for run in self.runs if self._same(run, task, link) and run.method == method.text]
            times = [run.tta_s for run in runs if run.tta_s is not None]
            if len(times) == len(runs) > 1 and max(times) - min(times) > SPREAD * statistics.median(times):
                found.append(method)
        return found

    def _count(self, seeds: Sequence[int], methods: Methods) -> tuple[int, int]:
        """Records that such a part of the matrix has, and how many of them are there."""
        wanted = set()
        for (task, link), those in methods.items():
            for seed in seeds if those else ():
                wanted.add((task, UNTHROTTLED, REFERENCE, seed))
                wanted |= {(task, link, name, seed) for method in those for name in (method.text, method.of) if name}
                if self.matrix.factored:
                    wanted |= {(task, UNTHROTTLED, method.text, seed) for method in those if method.factored}
        return len(wanted), sum(self._find(*key) is not None for key in wanted)

    # the three kinds of sessions

    def _reference(self, task: str, seed: int) -> TrainingRecord:
        """Return the record of native DDP's unthrottled run, with what one worker does alone."""
        found = self._find(task, UNTHROTTLED, REFERENCE, seed)
        if found:
            return found
        made = self.matrix.task(task, seed)
        budget = self.matrix.budget or made.budget
        legs = [
            Leg(ALONE, ALONE, steps=min(ALONE_STEPS, budget)),
            Leg(REFERENCE, self._label(task, UNTHROTTLED, REFERENCE, seed), steps=budget, every_steps=made.every),
        ]
        alone, whole = self._session(task, parse_link(UNTHROTTLED), seed, legs)
        target = self.matrix.target if self.matrix.target is not None else target_of(whole.curve, budget)
        one = alone.start["batch_size"] / alone.end["step_s"]
        run = self._record(task, parse_link(UNTHROTTLED), seed, whole, target, None)
        if run.tta_s is None:
            raise RunFailed(
                f"{task}: dense did not reach the target {target:g} within {budget} steps (it came to "
                f"{run.val_metric:g}); use another --target or a larger --budget"
            )
        run = run.model_copy(update={"efficiency": run.samples_per_s / (self.matrix.workers * one)})
        self._keep(run)
        return run

    def _full(self, reference: TrainingRecord, link: Link, methods: Sequence[Method]) -> None:
        """Methods on a link, to the target: static ones in one session, adaptive ones each in their own.

        Matched random ones come last, after those whose choices they play.
        """
        task, seed = reference.task, reference.seed
        assert reference.tta_s is not None
        seconds = self.matrix.limit * reference.tta_s
        named = {method.text: method for one in methods for method in (one, *self._before(one))}
        wanted = [method for method in named.values() if not self._find(task, str(link), method.text, seed)]
        wanted.sort(key=lambda method: method.of is not None)
        alike = [method for method in wanted if not method.adaptive and len(link.phases) == 1]
        sessions = [alike] if alike else []
        sessions += [[method] for method in wanted if method not in alike]
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
            for ended in self._session(task, link, seed, legs):
                self._keep(self._record(task, link, seed, ended, reference.target, seconds, reference))

    def _before(self, method: Method) -> list[Method]:
        """Return what must run before a method."""
        return [] if method.of is None else [Method.parse(method.of)]

    def _played(self, task: str, link: str, method: Method, seed: int) -> tuple[Play, ...]:
        """Return what a matched random method plays; nothing where the run that chose it failed."""
        run = self._find(task, link, method.of, seed) if method.of is not None else None
        return () if run is None else plays(run.turns, run.steps)

    def _times(self, reference: TrainingRecord, link: Link, static: Sequence[Method]) -> None:
        """Static methods on a link by factors: steps from the unthrottled run, times from turns on this link."""
        task, seed = reference.task, reference.seed
        wanted = [
            (method, unthrottled)
            for method in static
            if not self._find(task, str(link), method.text, seed)
            and (unthrottled := self._find(task, UNTHROTTLED, method.text, seed))
        ]
        if not wanted:
            return
        assert reference.tta_s is not None
        seconds = self.matrix.limit * reference.tta_s
        timed = (run for run in self.runs if self._same(run, task, str(link)) and run.factored)
        known = {run.method: run for run in timed if run.seed == seed or not self.matrix.times_each_seed}
        if any(method.text not in known for method, _ in wanted):
            turns = [Leg(method.text, f"{method.text} step time", steps=PROBE_STEPS) for method, _ in wanted] * 2
            probes: dict[str, list[Ended]] = defaultdict(list)
            for ended in self._session(task, link, seed, turns):
                probes[ended.leg.method].append(ended)
            for method, unthrottled in wanted:
                if turned := probes[method.text]:
                    ends = [ended.end for ended in turned]
                    self._keep(factored(unthrottled, str(link), ends, seconds, reference, turned[-1].stamp))
            return
        for method, unthrottled in wanted:
            self._keep(refactored(unthrottled, known[method.text], seconds))

    def _session(self, task: str, link: Link, seed: int, legs: Sequence[Leg]) -> Iterator[Ended]:
        """Yield each leg's report. A leg that fails is told of and left out; those after it run in a new session."""
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
        todo = list(legs)
        while todo:
            at, start, idle = 0, {}, stamp()
            curve: list[CurvePoint] = []
            self.watcher.starting(cell, todo[0])
            try:
                with ExitStack() as stack:
                    network = None if matrix.paced else stack.enter_context(EmulatedNetwork(matrix.workers, link))
                    run = stack.enter_context(TrainingRun(todo, settings, network))
                    for event in run.events():
                        self.watcher.event(cell, todo[event["leg"]], event)
                        if event["event"] == "start":
                            at, start, curve = event["leg"], event, []
                        elif event["event"] == "evaluation":
                            curve.append(
                                CurvePoint(step=event["step"], seconds=event["seconds"], metric=event["metric"])
                            )
                        elif event["event"] == "end":
                            yield Ended(todo[at], start, event, tuple(curve), idle.now())
                            at += 1
                return
            except RunFailed as error:
                if todo[at].method in (ALONE, REFERENCE) or at >= len(todo):
                    raise
                self.watcher.failed(cell, todo[at], error)
                todo = todo[at + 1 :]

    # records

    def _record(
        self,
        task: str,
        link: Link,
        seed: int,
        ended: Ended,
        target: float,
        limit_s: float | None,
        reference: TrainingRecord | None = None,
    ) -> TrainingRecord:
        metric = self.matrix.task(task, seed).metric
        end, curve = ended.end, ended.curve
        reached = first_reached(curve, target, metric.higher_is_better)
        samples = ended.start["samples_per_step"] / end["step_s"]
        return TrainingRecord(
            task=task,
            scale=self.matrix.scale,
            link=str(link),
            workers=self.matrix.workers,
            method=ended.leg.method,
            adaptive=Method.parse(ended.leg.method).adaptive,
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
            turns=tuple(Turn(**turn) for turn in end["turns"]),
            split=Split(**end["split"]),
            paced=self.matrix.paced and link.slowest is not None,
            factored=False,
            stamp=ended.stamp,
        )

    def _keep(self, run: TrainingRecord) -> None:
        self.runs.append(run)
        if self.matrix.json is not None:
            record.save(self.matrix.json.absolute(), self.runs)
        self.watcher.finished(run)

    def _find(self, task: str, link: str, method: str, seed: int) -> TrainingRecord | None:
        return next(
            (run for run in self.runs if self._same(run, task, link) and (run.method, run.seed) == (method, seed)), None
        )

    def _same(self, run: TrainingRecord, task: str, link: str) -> bool:
        return run.cell[:4] == (task, self.matrix.scale, link, self.matrix.workers)

    def _label(self, task: str, link: str, method: str, seed: int) -> str:
        return "/".join((task, link.replace("/", "-"), method.replace(":", "-"), f"seed{seed}"))


def target_of(curve: Sequence[CurvePoint], budget: int) -> float:
    """Return what the reference had reached at 80 % of its budget: the mean of the evaluations around that step."""
    at, width = TARGET_AT * budget, AROUND * budget
    near = [point.metric for point in curve if abs(point.step - at) <= width]
    if not near:
        near = [min(curve, key=lambda point: abs(point.step - at)).metric]
    return statistics.fmean(near)
