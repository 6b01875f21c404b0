# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a matrix, except for runs that are in its result file already, and saves each run at its end."""

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
from gravac.lab.training.session import ALONE, WARM_UP_STEPS, Leg
from gravac.lab.training.shuffled import RunChoice, choices_of_run
from gravac.lab.tta import record
from gravac.lab.tta.factored import efficiency, factored_record, factored_record_of_seed
from gravac.lab.tta.matrix import REFERENCE_METHOD, RunMatrix
from gravac.lab.tta.record import SPREAD, Cell, CurvePoint, DecisionPoint, Split, TrainingRecord, first_reached
from gravac.lab.tta.watcher import Watcher

TARGET_FRACTION = 0.8
"""Fraction of the reference run's steps at which its validation metric becomes the target."""

TARGET_WIDTH = 0.06
"""Maximum distance from ``TARGET_FRACTION``, as a fraction of the steps, of the evaluations averaged to the target."""

ALONE_STEPS = 15
"""Number of steps that one worker trains alone, to measure its speed."""

PROBE_STEPS = WARM_UP_STEPS + 8
"""Number of steps of a short run that measures the seconds of a step; each method has two such runs."""


Methods = Mapping[tuple[str, str], Sequence[Method]]
"""Methods to run, by ``(task, link)``."""


class _RunKey(NamedTuple):
    """Key of a run of the matrix: texts of its task, link and method, and its seed."""

    task: str
    link: str
    method: str
    seed: int


@dataclass(frozen=True)
class FinishedLeg:
    """A leg (the training of a fresh model with one method, within a session) that ended, and rank 0's report of it.

    Attributes:
        leg: leg that ended.
        start: event at the leg's start.
        end: event at the leg's end.
        curve: validation metric at each evaluation of the leg.
        stamp: commit of the code, time of the leg's end, and the machine's speed before the session; ``None`` without a
            stamp.
    """

    leg: Leg
    start: Event
    end: Event
    curve: tuple[CurvePoint, ...]
    stamp: Stamp | None = None


def finished_legs(
    run: TrainingRun, legs: Sequence[Leg], watch: Callable[[Event], None] = lambda event: None
) -> Iterator[FinishedLeg]:
    """Yield the legs of a session, in order, each as soon as it has ended.

    A leg is the training of a fresh model with one method; a session trains several legs with the same workers.

    Args:
        run: the session, which has started.
        legs: legs of the session.
        watch: function that is called with each event of rank 0.

    Raises:
        RunFailed: a leg failed; all legs before that leg were yielded.
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


def run_matrix(matrix: RunMatrix, watcher: Watcher) -> list[TrainingRecord]:
    """Run a matrix, and save the result file after each run; return the records of all runs in the file.

    Runs that are in the result file already are not repeated.

    Args:
        matrix: what to run.
        watcher: object that shows the progress.

    Raises:
        RunFailed: the reference run failed, or did not reach the target.
        SettingsError: the result file has other contents than records of runs.
        LinkError: an emulated link cannot be made.
    """
    return _MatrixRunner(matrix, watcher).run()


class _MatrixRunner:
    """Runs a matrix.

    Attributes:
        matrix: what to run.
        watcher: object that shows the progress.
        runs: records of the result file, then the new records.
        methods: methods of the matrix.
    """

    def __init__(self, matrix: RunMatrix, watcher: Watcher) -> None:
        self.matrix = matrix
        self.watcher = watcher
        file_exists = matrix.json is not None and matrix.json.exists()
        self.runs = record.read([matrix.json]) if file_exists and matrix.json else []
        codes = {UNRECORDED if run.stamp is None else run.stamp.code for run in self.runs}
        self.watcher.show_commits(stamp().code, sorted(codes))
        self.methods = [Method.parse(text) for text in matrix.methods]

    def run(self) -> list[TrainingRecord]:
        """Run all methods on all tasks and links with all seeds; return the records of all runs."""
        links = [parse_link(text) for text in self.matrix.links]
        all_methods = {(task, str(link)): self.methods for task in self.matrix.tasks for link in links}
        self.watcher.show_plan(*self._count_records(self.matrix.seeds, all_methods))
        for seed in self.matrix.seeds:
            self._run_seed(seed, all_methods)
        highest_seed = max(self.matrix.seeds)
        for seed in range(highest_seed + 1, highest_seed + 1 + self.matrix.more_seeds):
            spread_methods = {(task, link): self._spread_methods(task, link) for task, link in all_methods}
            if not any(spread_methods.values()):
                break
            self.watcher.show_plan(*self._count_records([seed], spread_methods))
            self._run_seed(seed, spread_methods)
        return self.runs

    def _run_seed(self, seed: int, methods: Methods) -> None:
        """Run methods on their tasks and links, with one seed."""
        for task in self.matrix.tasks:
            by_link = {link: methods[method_task, link] for method_task, link in methods if method_task == task}
            if not any(by_link.values()):
                continue
            reference = self._reference_record(task, seed)
            if self.matrix.factored:
                static_methods = [
                    method
                    for method in self.methods
                    if method.can_be_factored and any(method in link_methods for link_methods in by_link.values())
                ]
                # full runs give the number of steps to the target, which is the same on all links
                self._run_in_full(reference, parse_link(UNTHROTTLED), static_methods)
            for text, link_methods in by_link.items():
                link = parse_link(text)
                if self.matrix.factored:
                    self._run_factored(reference, link, [method for method in link_methods if method.can_be_factored])
                    link_methods = [method for method in link_methods if not method.can_be_factored]
                self._run_in_full(reference, link, link_methods)

    def _spread_methods(self, task: str, link: str) -> list[Method]:
        """Return the methods that reached the target with every seed, with a spread of times above ``SPREAD``."""
        spread_methods = []
        for method in self.methods:
            runs = [run for run in self.runs if self._is_of_cell(run, task, link) and run.method == method.text]
            times_to_target = [run.tta_s for run in runs if run.tta_s is not None]
            if len(times_to_target) == len(runs) > 1:
                spread = max(times_to_target) - min(times_to_target)
                if spread > SPREAD * statistics.median(times_to_target):
                    spread_methods.append(method)
        return spread_methods

    def _count_records(self, seeds: Sequence[int], methods: Methods) -> tuple[int, int]:
        """Return the number of records that these seeds and methods need, and how many of those exist already."""
        keys = set()
        for (task, link), link_methods in methods.items():
            for seed in seeds if link_methods else ():
                keys.add(_RunKey(task, UNTHROTTLED, REFERENCE_METHOD, seed))
                keys |= {
                    _RunKey(task, link, name, seed)
                    for method in link_methods
                    for name in (method.text, method.matched_to)
                    if name
                }
                if self.matrix.factored:
                    keys |= {
                        _RunKey(task, UNTHROTTLED, method.text, seed)
                        for method in link_methods
                        if method.can_be_factored
                    }
        return len(keys), sum(self._find_record(key.task, key.link, key.method, key.seed) is not None for key in keys)

    # sessions: the reference run, full runs, and short runs for factored records

    def _reference_record(self, task: str, seed: int) -> TrainingRecord:
        """Return the record of the reference run of a task and seed; train that run if the record does not exist yet.

        The record's efficiency needs the speed of one worker alone, which is measured in the same session.
        """
        existing_record = self._find_record(task, UNTHROTTLED, REFERENCE_METHOD, seed)
        if existing_record:
            return existing_record
        reference_task = self.matrix.task(task, seed)
        budget = self.matrix.budget or reference_task.budget
        legs = [
            Leg(ALONE, ALONE, steps=min(ALONE_STEPS, budget)),
            Leg(
                REFERENCE_METHOD,
                self._label(task, UNTHROTTLED, REFERENCE_METHOD, seed),
                steps=budget,
                every_steps=reference_task.steps_per_evaluation,
            ),
        ]
        alone_leg, reference_leg = self._run_in_sessions(task, parse_link(UNTHROTTLED), seed, legs)
        target = self.matrix.target if self.matrix.target is not None else target_of(reference_leg.curve, budget)
        alone_samples_per_s = alone_leg.start["batch_size"] / alone_leg.end["step_s"]
        run = self._make_record(task, parse_link(UNTHROTTLED), seed, reference_leg, target, None)
        if run.tta_s is None:
            raise RunFailed(
                f"target: dense training of {task} did not reach {target:g} within {budget} steps, after which its "
                f"metric is {run.val_metric:g}; use another --target or a larger --budget"
            )
        efficiency_of_reference = run.samples_per_s / (self.matrix.workers * alone_samples_per_s)
        run = run.model_copy(update={"efficiency": efficiency_of_reference})
        self._add(run)
        return run

    def _run_in_full(self, reference: TrainingRecord, link: Link, methods: Sequence[Method]) -> None:
        """Train methods on a link until the target: static methods in one session, each adaptive method in its own.

        Methods that repeat the choices of another method's run (``matched:``) come last.

        Args:
            reference: record of the reference run, which has task, seed and target.
            link: link between the workers.
            methods: methods to run, unless their records exist.
        """
        task, seed = reference.task, reference.seed
        assert reference.tta_s is not None
        limit_s = self.matrix.limit * reference.tta_s
        by_text = {needed.text: needed for method in methods for needed in (method, *self._prerequisites(method))}
        missing_methods = [
            method for method in by_text.values() if not self._find_record(task, str(link), method.text, seed)
        ]
        missing_methods.sort(key=lambda method: method.matched_to is not None)
        shared_session = [method for method in missing_methods if not method.adaptive and len(link.phases) == 1]
        sessions = [shared_session] if shared_session else []
        sessions += [[method] for method in missing_methods if method not in shared_session]
        evaluation_interval = self.matrix.task(task, seed).steps_per_evaluation
        for session in sessions:
            legs = [
                Leg(
                    method.text,
                    self._label(task, str(link), method.text, seed),
                    seconds=limit_s,
                    target=reference.target,
                    every_steps=evaluation_interval,
                    choices=self._choices_to_repeat(task, str(link), method, seed),
                )
                for method in session
            ]
            for finished_leg in self._run_in_sessions(task, link, seed, legs):
                self._add(self._make_record(task, link, seed, finished_leg, reference.target, limit_s, reference))

    def _prerequisites(self, method: Method) -> list[Method]:
        """Return the methods that must run before a method: for ``matched:``, the method whose choices it repeats."""
        return [] if method.matched_to is None else [Method.parse(method.matched_to)]

    def _choices_to_repeat(self, task: str, link: str, method: Method, seed: int) -> tuple[RunChoice, ...]:
        """Return the choices that a method repeats in random order; empty for other methods, or if their run failed."""
        run = self._find_record(task, link, method.matched_to, seed) if method.matched_to is not None else None
        return () if run is None else choices_of_run(run.turns, run.steps)

    def _run_factored(self, reference: TrainingRecord, link: Link, static_methods: Sequence[Method]) -> None:
        """Add factored records of static methods on a link: steps of unthrottled runs x seconds of a step on the link.

        Short runs on the link measure the seconds of a step, unless earlier records on the link have them.
        """
        task, seed = reference.task, reference.seed
        missing_pairs = [
            (method, unthrottled)
            for method in static_methods
            if not self._find_record(task, str(link), method.text, seed)
            and (unthrottled := self._find_record(task, UNTHROTTLED, method.text, seed))
        ]
        if not missing_pairs:
            return
        assert reference.tta_s is not None
        limit_s = self.matrix.limit * reference.tta_s
        factored_runs = (run for run in self.runs if self._is_of_cell(run, task, str(link)) and run.factored)
        timed_runs = {run.method: run for run in factored_runs if run.seed == seed or not self.matrix.times_each_seed}
        if any(method.text not in timed_runs for method, _ in missing_pairs):
            legs = [Leg(method.text, f"{method.text} step time", steps=PROBE_STEPS) for method, _ in missing_pairs] * 2
            probes: dict[str, list[FinishedLeg]] = defaultdict(list)
            for finished_leg in self._run_in_sessions(task, link, seed, legs):
                probes[finished_leg.leg.method].append(finished_leg)
            for method, unthrottled in missing_pairs:
                if method_probes := probes[method.text]:
                    end_events = [finished_leg.end for finished_leg in method_probes]
                    self._add(
                        factored_record(unthrottled, str(link), end_events, limit_s, reference, method_probes[-1].stamp)
                    )
            return
        for method, unthrottled in missing_pairs:
            self._add(factored_record_of_seed(unthrottled, timed_runs[method.text], limit_s))

    def _run_in_sessions(self, task: str, link: Link, seed: int, legs: Sequence[Leg]) -> Iterator[FinishedLeg]:
        """Run legs in sessions, and yield each leg that finished.

        If a leg fails, the watcher shows the error, and the remaining legs run in a new session. But if the reference
        run or one worker alone fails, ``RunFailed`` is raised.
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
            mesh=matrix.mesh,
        )
        cell = f"{task}{self._mesh_suffix} {link} seed {seed}"
        hosts = matrix.workers if matrix.mesh is None else matrix.mesh.replicas
        remaining_legs = list(legs)
        while remaining_legs:
            ended_count, idle_stamp = 0, stamp()
            self.watcher.show_start(cell, remaining_legs[0])
            try:
                with ExitStack() as stack:
                    network = None if matrix.paced else stack.enter_context(EmulatedNetwork(hosts, link))
                    run = stack.enter_context(TrainingRun(remaining_legs, settings, network))
                    watch = partial(self._watch, cell, remaining_legs)
                    for finished_leg in finished_legs(run, remaining_legs, watch):
                        yield replace(finished_leg, stamp=idle_stamp.with_current_time())
                        ended_count += 1
                return
            except RunFailed as error:
                if ended_count >= len(remaining_legs) or remaining_legs[ended_count].method in (
                    ALONE,
                    REFERENCE_METHOD,
                ):
                    raise
                self.watcher.show_failed_leg(cell, remaining_legs[ended_count], error)
                remaining_legs = remaining_legs[ended_count + 1 :]

    def _watch(self, cell: str, legs: Sequence[Leg], event: Event) -> None:
        """Pass an event to the watcher, with the leg that the event belongs to."""
        self.watcher.show_event(cell, legs[event["leg"]], event)

    # records

    def _make_record(
        self,
        task: str,
        link: Link,
        seed: int,
        finished_leg: FinishedLeg,
        target: float,
        limit_s: float | None,
        reference: TrainingRecord | None = None,
    ) -> TrainingRecord:
        """Return the record of a leg that finished.

        Args:
            task: name of the task.
            link: link between the workers.
            seed: seed of the run.
            finished_leg: leg that finished, with its events.
            target: target of the validation metric.
            limit_s: limit of the seconds of training; ``None``: not limited.
            reference: record of the reference run, for the efficiency; ``None``: not known.
        """
        metric = self.matrix.task(task, seed).metric
        end, curve = finished_leg.end, finished_leg.curve
        target_point = first_reached(curve, target, metric.higher_is_better)
        samples_per_s = finished_leg.start["samples_per_step"] / end["step_s"]
        return TrainingRecord(
            task=task,
            scale=self.matrix.scale,
            link=str(link),
            workers=self.matrix.workers,
            mesh=self.matrix.mesh_text,
            method=finished_leg.leg.method,
            adaptive=Method.parse(finished_leg.leg.method).adaptive,
            seed=seed,
            metric=f"{metric.name}, {metric.unit}",
            higher_is_better=metric.higher_is_better,
            target=target,
            tta_s=target_point[0] if target_point else None,
            steps_to_target=round(target_point[1]) if target_point else None,
            seconds=end["seconds"],
            limit_s=limit_s,
            steps=end["step"],
            step_s=end["step_s"],
            every=end.get("every"),
            samples_per_s=samples_per_s,
            efficiency=efficiency(samples_per_s, reference),
            wire_bytes=end["wire_bytes"],
            interface_bytes=end["interface_bytes"],
            cpu_seconds=end["cpu_seconds"],
            gain=end["gain"],
            val_metric=curve[-1].metric,
            curve=curve,
            turns=tuple(DecisionPoint(**decision) for decision in end["turns"]),
            split=None if end["split"] is None else Split(**end["split"]),
            paced=self.matrix.paced and link.slowest is not None,
            factored=False,
            stamp=finished_leg.stamp,
        )

    def _add(self, run: TrainingRecord) -> None:
        """Add a record, save the result file, and show the record to the watcher."""
        self.runs.append(run)
        if self.matrix.json is not None:
            record.save(self.matrix.json.absolute(), self.runs)
        self.watcher.show_finished_run(run)

    def _find_record(self, task: str, link: str, method: str, seed: int) -> TrainingRecord | None:
        """Return the record of a run; ``None`` if the run was not made yet."""
        cell_runs = (run for run in self.runs if self._is_of_cell(run, task, link))
        return next((run for run in cell_runs if (run.method, run.seed) == (method, seed)), None)

    def _is_of_cell(self, run: TrainingRecord, task: str, link: str) -> bool:
        """True if a run has this task and link, and the matrix's scale, workers and mesh; the seed may be any."""
        cell = Cell(
            task=task,
            scale=self.matrix.scale,
            link=link,
            workers=self.matrix.workers,
            mesh=self.matrix.mesh_text,
            seed=run.seed,
        )
        return run.cell == cell

    def _label(self, task: str, link: str, method: str, seed: int) -> str:
        """Return the name of a run's log folder, a relative path."""
        task_folder = f"{task}{self._mesh_suffix}".replace(" ", "-")
        return "/".join((task_folder, link.replace("/", "-"), method.replace(":", "-"), f"seed{seed}"))

    @property
    def _mesh_suffix(self) -> str:
        """Text that follows a task's name, such as `` 2x2``; empty without a mesh."""
        return "" if self.matrix.mesh is None else f" {self.matrix.mesh}"


def target_of(curve: Sequence[CurvePoint], budget: int) -> float:
    """Return the target: the mean of the reference run's metric over the evaluations near 80 % of its steps.

    Args:
        curve: validation metric at each evaluation of the reference run.
        budget: number of steps of the reference run.
    """
    step, width = TARGET_FRACTION * budget, TARGET_WIDTH * budget
    near_metrics = [point.metric for point in curve if abs(point.step - step) <= width]
    if not near_metrics:
        near_metrics = [min(curve, key=lambda point: abs(point.step - step)).metric]
    return statistics.fmean(near_metrics)
