# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains all runs of ``gravac bench tta`` that its result file does not have yet, and saves each run when it ends.

The runs are all combinations of task, link, method and seed in a ``RunMatrix``. Runs of several methods are legs of one
session: the same worker processes train them one after another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from gravac.candidate import Candidate
from gravac.controllers.base import DEFAULT_STRETCH_STEPS
from gravac.lab.links.link import UNTHROTTLED, Link, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.provenance import UNRECORDED, Stamp, stamp
from gravac.lab.training.methods import Method
from gravac.lab.training.run import Event, RunFailed, TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg
from gravac.lab.training.shuffled import RunChoice
from gravac.lab.tta import record
from gravac.lab.tta.matrix import REFERENCE_METHOD, RunMatrix
from gravac.lab.tta.record import SPREAD, Cell, CurvePoint, DecisionPoint, Split, TrainingRecord, first_reached
from gravac.lab.tta.watcher import Watcher

TARGET_FRACTION = 0.8
"""The target is the reference run's validation metric after this fraction of its steps."""

TARGET_HALF_WIDTH = 0.06
"""The target is a mean over the evaluations within this distance of ``TARGET_FRACTION``, as a fraction of the steps."""

MethodsByTaskAndLink = Mapping[tuple[str, str], Sequence[Method]]
"""Methods to run, by ``(name of the task, text of the link)``."""


class _RunKey(NamedTuple):
    """Identity of a run: name of its task, texts of its link and of its method, and its seed."""

    task: str
    link: str
    method: str
    seed: int


@dataclass(frozen=True)
class FinishedLeg:
    """A leg (the training of a fresh model with one method) that has ended, and what rank 0 reported about it.

    Attributes:
        leg: leg that has ended.
        start: event that rank 0 reported at the start of the leg.
        end: event that rank 0 reported at the end of the leg, with the leg's results.
        curve: validation metric at each evaluation of the leg, by ascending step.
        stamp: commit of the code, time at the end of the leg, and the machine's speed before the session of workers
            started; ``None``: not recorded.
    """

    leg: Leg
    start: Event
    end: Event
    curve: tuple[CurvePoint, ...]
    stamp: Stamp | None = None


def finished_legs(
    run: TrainingRun, legs: Sequence[Leg], on_event: Callable[[Event], None] = lambda event: None
) -> Iterator[FinishedLeg]:
    """Yield each leg of a session, with its results, as soon as the leg has ended.

    A leg is the training of a fresh model with one method. In a session, the same worker processes train one leg after
    another.

    Args:
        run: the session, whose workers have been started.
        legs: legs of the session, in order.
        on_event: function that is called with each event of rank 0, in order; its result is not used.

    Raises:
        RunFailed: a leg failed. All earlier legs have been yielded.
    """
    start_event: Event = {}
    curve: list[CurvePoint] = []
    for event in run.events():
        on_event(event)
        if event["event"] == "start":
            start_event, curve = event, []
        elif event["event"] == "evaluation":
            curve.append(CurvePoint(step=event["step"], seconds=event["seconds"], metric=event["metric"]))
        elif event["event"] == "end":
            yield FinishedLeg(legs[event["leg"]], start_event, event, tuple(curve))


def run_matrix(matrix: RunMatrix, watcher: Watcher) -> list[TrainingRecord]:
    """Train every combination of task, link, method and seed, and save the result file after each run.

    Runs that the result file has already are not repeated.

    Args:
        matrix: tasks, links, methods and seeds, and how to run them.
        watcher: object that shows the progress.

    Returns:
        All records of the result file, those of earlier calls included.

    Raises:
        RunFailed: the reference run failed, or did not reach the target.
        SettingsError: the result file has other contents than records of runs.
        LinkError: an emulated link cannot be made.
    """
    return _MatrixRunner(matrix, watcher).run()


class _MatrixRunner:
    """Trains every combination of task, link, method and seed of a ``RunMatrix``.

    Attributes:
        matrix: tasks, links, methods and seeds, and how to run them.
        watcher: object that shows the progress.
        runs: records that the result file had at first, then the records of new runs.
        methods: methods of the matrix, in its order.
    """

    def __init__(self, matrix: RunMatrix, watcher: Watcher) -> None:
        self.matrix = matrix
        self.watcher = watcher
        file_exists = matrix.json is not None and matrix.json.exists()
        self.runs = record.read(matrix.json) if file_exists and matrix.json else []
        existing_codes = {UNRECORDED if run.stamp is None else run.stamp.code for run in self.runs}
        self.watcher.show_commits(stamp().code, sorted(existing_codes))
        self.methods = [Method.parse(text) for text in matrix.methods]

    def run(self) -> list[TrainingRecord]:
        """Train all runs, then runs with further seeds where times differ much; return all records.

        The records of the result file are included. Up to ``RunMatrix.more_seeds`` further seeds follow, for methods
        whose times to the target differ between seeds by more than ``SPREAD`` of their median.
        """
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

    def _run_seed(self, seed: int, methods: MethodsByTaskAndLink) -> None:
        """Train methods on tasks and links with one seed; the reference run of each task trains first.

        Args:
            seed: seed of the runs.
            methods: methods to run, by task and link.
        """
        for task in self.matrix.tasks:
            methods_by_link = {link: methods[method_task, link] for method_task, link in methods if method_task == task}
            if not any(methods_by_link.values()):
                continue
            reference = self._find_or_train_reference(task, seed)
            for link_text, link_methods in methods_by_link.items():
                self._run_methods(reference, parse_link(link_text), link_methods)

    def _spread_methods(self, task: str, link: str) -> list[Method]:
        """Return the methods whose times to the target differ between seeds by more than ``SPREAD`` of their median.

        Only methods that reached the target with every seed, and ran with two or more seeds, are returned.
        """
        spread_methods = []
        for method in self.methods:
            runs = [run for run in self.runs if self._is_of_cell(run, task, link) and run.method == method.text]
            times_to_target = [run.tta_s for run in runs if run.tta_s is not None]
            if len(times_to_target) == len(runs) > 1:
                spread_s = max(times_to_target) - min(times_to_target)
                if spread_s > SPREAD * statistics.median(times_to_target):
                    spread_methods.append(method)
        return spread_methods

    def _count_records(self, seeds: Sequence[int], methods: MethodsByTaskAndLink) -> tuple[int, int]:
        """Return ``(needed, existing)``: number of records that are needed, and how many of these exist already.

        Reference runs, and runs that ``matched:`` methods repeat, are included.

        Args:
            seeds: seeds of the runs.
            methods: methods to run, by task and link.
        """
        run_keys = set()
        for (task, link), link_methods in methods.items():
            for seed in seeds if link_methods else ():
                run_keys.add(_RunKey(task, UNTHROTTLED, REFERENCE_METHOD, seed))
                run_keys |= {
                    _RunKey(task, link, method_text, seed)
                    for method in link_methods
                    for method_text in (method.text, method.matched_to)
                    if method_text
                }
        return len(run_keys), sum(
            self._find_record(run_key.task, run_key.link, run_key.method, run_key.seed) is not None
            for run_key in run_keys
        )

    # sessions of workers: reference runs, and runs to the target

    def _find_or_train_reference(self, task: str, seed: int) -> TrainingRecord:
        """Return the record of the reference run of a task and seed; train the run if there is no record yet.

        The reference run trains with plain DDP over an unthrottled link, and sets the target.

        Raises:
            RunFailed: the reference run failed, or did not reach the target.
        """
        existing_record = self._find_record(task, UNTHROTTLED, REFERENCE_METHOD, seed)
        if existing_record:
            return existing_record
        reference_task = self.matrix.task(task, seed)
        budget = self.matrix.budget or reference_task.budget
        leg = Leg(
            REFERENCE_METHOD,
            self._leg_label(task, UNTHROTTLED, REFERENCE_METHOD, seed),
            steps=budget,
            every_steps=reference_task.steps_per_evaluation,
        )
        (reference_leg,) = self._run_in_sessions(task, parse_link(UNTHROTTLED), seed, [leg])
        target = self.matrix.target if self.matrix.target is not None else target_of(reference_leg.curve, budget)
        run = self._make_record(task, parse_link(UNTHROTTLED), seed, reference_leg, target, None)
        if run.tta_s is None:
            raise RunFailed(
                f"target: dense training of {task} did not reach {target:g} within {budget} steps, after which its "
                f"metric is {run.val_metric:g}; use another --target or a larger --budget"
            )
        self._add_record(run)
        return run

    def _run_methods(self, reference: TrainingRecord, link: Link, methods: Sequence[Method]) -> None:
        """Train methods on a link until they reach the target or the time limit, and add their records.

        Methods without a controller share a session of workers. Each method with a controller has a session of its
        own; if the link's rate changes over time, each method without a controller has one, too. ``matched:`` methods,
        which repeat the choices of another method's run, train last.

        Args:
            reference: record of the reference run, which has task, seed and target.
            link: link between the workers.
            methods: methods to run, except those whose records exist.
        """
        task, seed = reference.task, reference.seed
        assert reference.tta_s is not None
        limit_s = self.matrix.limit * reference.tta_s
        method_by_text = {
            needed_method.text: needed_method
            for method in methods
            for needed_method in (method, *self._prerequisites(method))
        }
        missing_methods = [
            method for method in method_by_text.values() if not self._find_record(task, str(link), method.text, seed)
        ]
        missing_methods.sort(key=lambda method: method.matched_to is not None)
        shared_session_methods = [method for method in missing_methods if not method.adaptive and len(link.phases) == 1]
        methods_of_sessions = [shared_session_methods] if shared_session_methods else []
        methods_of_sessions += [[method] for method in missing_methods if method not in shared_session_methods]
        steps_per_evaluation = self.matrix.task(task, seed).steps_per_evaluation
        for session_methods in methods_of_sessions:
            legs = [
                Leg(
                    method.text,
                    self._leg_label(task, str(link), method.text, seed),
                    seconds=limit_s,
                    target=reference.target,
                    every_steps=steps_per_evaluation,
                    choices=self._choices_to_repeat(task, str(link), method, seed),
                )
                for method in session_methods
            ]
            for finished_leg in self._run_in_sessions(task, link, seed, legs):
                self._add_record(self._make_record(task, link, seed, finished_leg, reference.target, limit_s))

    def _prerequisites(self, method: Method) -> list[Method]:
        """Return the method whose choices a ``matched:`` method repeats, in a list; an empty list for other methods."""
        return [] if method.matched_to is None else [Method.parse(method.matched_to)]

    def _choices_to_repeat(self, task: str, link: str, method: Method, seed: int) -> tuple[RunChoice, ...]:
        """Return the candidates (ways to run steps) of another run, which a ``matched:`` method repeats.

        Empty for other methods, and if the other run failed, so that it has no record.
        """
        run = self._find_record(task, link, method.matched_to, seed) if method.matched_to is not None else None
        return () if run is None else choices_of_run(run)

    def _run_in_sessions(self, task: str, link: Link, seed: int, legs: Sequence[Leg]) -> Iterator[FinishedLeg]:
        """Train legs one after another, and yield each leg that ends without failing.

        All legs train in one session (the same worker processes). If a leg fails, the watcher shows the error, and the
        legs after it train in a new session.

        Args:
            task: name of the task.
            link: link between the workers.
            seed: seed of the runs.
            legs: legs to train, each a fresh model with one method.

        Raises:
            RunFailed: the leg of the reference run failed.
            LinkError: an emulated link cannot be made.
        """
        matrix = self.matrix
        settings = TrainingSettings(
            workers=matrix.workers,
            link=str(link),
            lowest_rate_bps=link.lowest_rate_bps,
            task=task,
            scale=matrix.scale,
            data=matrix.data,
            seed=seed,
            log_dir=matrix.log_dir,
            mesh=matrix.mesh,
        )
        cell_text = f"{task}{self._mesh_suffix} {link} seed {seed}"
        link_count = matrix.workers if matrix.mesh is None else matrix.mesh.replicas
        remaining_legs = list(legs)
        while remaining_legs:
            ended_count, idle_stamp = 0, stamp()
            self.watcher.show_start(cell_text, remaining_legs[0])
            try:
                with ExitStack() as stack:
                    network = None if matrix.paced else stack.enter_context(EmulatedNetwork(link_count, link))
                    run = stack.enter_context(TrainingRun(remaining_legs, settings, network))
                    show_event = partial(self._show_event, cell_text, remaining_legs)
                    for finished_leg in finished_legs(run, remaining_legs, show_event):
                        yield replace(finished_leg, stamp=idle_stamp.with_current_time())
                        ended_count += 1
                return
            except RunFailed as error:
                if ended_count >= len(remaining_legs) or remaining_legs[ended_count].method == REFERENCE_METHOD:
                    raise
                self.watcher.show_failed_leg(cell_text, remaining_legs[ended_count], error)
                remaining_legs = remaining_legs[ended_count + 1 :]

    def _show_event(self, cell_text: str, legs: Sequence[Leg], event: Event) -> None:
        """Pass an event of rank 0 to the watcher, with the leg that the event belongs to.

        Args:
            cell_text: text that names task, link and seed.
            legs: legs of the session.
            event: event of rank 0, whose ``"leg"`` is an index of ``legs``.
        """
        self.watcher.show_event(cell_text, legs[event["leg"]], event)

    # records

    def _make_record(
        self,
        task: str,
        link: Link,
        seed: int,
        finished_leg: FinishedLeg,
        target: float,
        limit_s: float | None,
    ) -> TrainingRecord:
        """Return the record of a leg that has ended.

        Args:
            task: name of the task.
            link: link between the workers.
            seed: seed of the run.
            finished_leg: leg that has ended, with rank 0's events.
            target: validation metric to reach, in the task's unit.
            limit_s: seconds of training after which the leg had to stop; ``None``: not limited.
        """
        metric = self.matrix.task(task, seed).metric
        end_event, curve = finished_leg.end, finished_leg.curve
        target_point = first_reached(curve, target, metric.higher_is_better)
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
            seconds=end_event["seconds"],
            limit_s=limit_s,
            steps=end_event["step"],
            step_s=end_event["step_s"],
            every=end_event.get("every"),
            samples_per_s=finished_leg.start["samples_per_step"] / end_event["step_s"],
            wire_bytes=end_event["wire_bytes"],
            interface_bytes=end_event["interface_bytes"],
            cpu_seconds=end_event["cpu_seconds"],
            gain=end_event["gain"],
            val_metric=curve[-1].metric,
            curve=curve,
            turns=tuple(DecisionPoint(**decision) for decision in end_event["turns"]),
            split=None if end_event["split"] is None else Split(**end_event["split"]),
            paced=self.matrix.paced and link.lowest_rate_bps is not None,
            stamp=finished_leg.stamp,
        )

    def _add_record(self, run: TrainingRecord) -> None:
        """Append a record to ``runs``, save the result file, and let the watcher show the record."""
        self.runs.append(run)
        if self.matrix.json is not None:
            record.save(self.matrix.json.absolute(), self.runs)
        self.watcher.show_finished_run(run)

    def _find_record(self, task: str, link: str, method: str, seed: int) -> TrainingRecord | None:
        """Return the record of a run with the matrix's scale, workers and mesh; ``None`` if there is none.

        Args:
            task: name of the task.
            link: text of the link.
            method: text of the method.
            seed: seed of the run.
        """
        cell_runs = (run for run in self.runs if self._is_of_cell(run, task, link))
        return next((run for run in cell_runs if (run.method, run.seed) == (method, seed)), None)

    def _is_of_cell(self, run: TrainingRecord, task: str, link: str) -> bool:
        """True if a run, of any seed and method, has this task and link, and the matrix's scale, workers and mesh."""
        cell = Cell(
            task=task,
            scale=self.matrix.scale,
            link=link,
            workers=self.matrix.workers,
            mesh=self.matrix.mesh_text,
            seed=run.seed,
        )
        return run.cell == cell

    def _leg_label(self, task: str, link: str, method: str, seed: int) -> str:
        """Return the path of a run's folder of logs, relative to ``RunMatrix.log_dir``."""
        task_folder = f"{task}{self._mesh_suffix}".replace(" ", "-")
        return "/".join((task_folder, link.replace("/", "-"), method.replace(":", "-"), f"seed{seed}"))

    @property
    def _mesh_suffix(self) -> str:
        """Text to append to a task's name: a space and the mesh, such as ``2x2``; empty without a mesh."""
        return "" if self.matrix.mesh is None else f" {self.matrix.mesh}"


def choices_of_run(run: TrainingRecord) -> tuple[RunChoice, ...]:
    """Return the candidates that a run's controller chose, in order, each with its number of rounds, rounded up."""
    end_steps = [*(decision.step for decision in run.turns[1:]), run.steps]
    choices = []
    for decision, end_step in zip(run.turns, end_steps, strict=True):
        candidate = Candidate(decision.mode, decision.compressor, decision.cf, decision.every, decision.delay)
        steps_per_round = DEFAULT_STRETCH_STEPS if candidate.mode == "native" else candidate.every
        if end_step > decision.step:
            choices.append(RunChoice(candidate, math.ceil((end_step - decision.step) / steps_per_round)))
    return tuple(choices)


def target_of(curve: Sequence[CurvePoint], budget: int) -> float:
    """Return the target of all runs: the reference run's mean metric over its evaluations near 80 % of its steps.

    "Near" is 74 to 86 % of the steps; if no evaluation is in that range, the nearest evaluation counts.

    Args:
        curve: validation metric at each evaluation of the reference run.
        budget: number of steps of the reference run.
    """
    target_step, half_width_steps = TARGET_FRACTION * budget, TARGET_HALF_WIDTH * budget
    near_metrics = [point.metric for point in curve if abs(point.step - target_step) <= half_width_steps]
    if not near_metrics:
        near_metrics = [min(curve, key=lambda point: abs(point.step - target_step)).metric]
    return statistics.fmean(near_metrics)
