# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a training run, and the JSON file of records that ``bench tta`` writes and ``report`` reads."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from gravac.candidate import Mode
from gravac.lab.json_file import write_json
from gravac.lab.provenance import Stamp, commits_note
from gravac.settings import SettingsError

SPREAD = 0.10
"""Spread of times to the target over seeds, (longest - shortest) / median, above which more seeds are needed."""


Metric = Annotated[float, BeforeValidator(lambda number: math.nan if number is None else number)]
"""Validation metric of a run; nan if the run diverged, which JSON files have as null."""


class _JsonRecord(BaseModel):
    """Base class of records in JSON files: frozen, without unknown fields, and with null for nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class CurvePoint(_JsonRecord):
    """The validation metric at one evaluation.

    Attributes:
        step: number of steps trained before the evaluation.
        seconds: seconds of training before the evaluation.
        metric: validation metric, in the task's unit.
    """

    step: int
    seconds: float
    metric: Metric


class DecisionPoint(_JsonRecord):
    """A decision of a controller: at the end of a window of steps or at an event, also if nothing changed.

    Attributes:
        step: first step for which the decision holds.
        seconds: seconds of training before the step; ``None`` if they were not recorded.
        compressor: name of the compressor that runs from the step on.
        cf: compression factor; 1 is dense float32, 2 is 16 bit.
        every: number of steps from one exchange to the next.
        delay: number of steps that each exchange is in flight.
        mode: mode of the steps; ``None`` in older files, in which steps are outer steps if ``every`` is above 1.
        changed: whether the decision changes the candidate that runs.
        gain: gain of the window of steps before the decision; ``None`` if not known.
        t_system: samples per second over all ranks in that window; ``None`` if not known.
        reason: reason of the decision, as text.
    """

    step: int
    seconds: float | None = None
    compressor: str
    cf: float
    every: int = 1
    delay: int = 0
    mode: Mode | None = None
    changed: bool
    gain: float | None = None
    t_system: float | None = None
    reason: str


class Split(_JsonRecord):
    """Seconds that rank 0 spends in each phase of a typical step.

    Compression and exchange overlap with backward, so the phases add up to more than the step
    (``TrainingRecord.step_s``).

    Attributes:
        compute: seconds of forward, backward and optimizer.
        compress: seconds of compression, decompression and error feedback; ``None`` if not known, as for methods of
            torch and native steps.
        exchange: seconds of waiting for collectives; ``None`` if not known, as for ``compress``.
        exposed: seconds that the exchange adds to the step: from the computation of the last gradient to the end of
            backward.
        input_wait: seconds of waiting for the batch.
    """

    compute: float
    compress: float | None
    exchange: float | None
    exposed: float
    input_wait: float


class Cell(NamedTuple):
    """A cell of the matrix of runs; the runs of a cell differ in their method only.

    Attributes:
        task: name of the reference task.
        scale: scale of the task's model.
        link: the link in text form, such as ``"100mbit"``.
        workers: number of ranks.
        mesh: mesh of a model in shards as text; ``None``: DDP, without shards.
        seed: seed of the runs.
    """

    task: str
    scale: float
    link: str
    workers: int
    mesh: str | None
    seed: int


class TrainingRecord(_JsonRecord):
    """Record of one run of one method; times are in seconds, and bytes are those of a rank over the run.

    Attributes:
        task: name of the reference task.
        scale: scale of the task's model; 1 suits two cores.
        link: text of the link, such as ``"100mbit"``, ``"1gbit,30s:50mbit"`` or ``"unthrottled"``.
        workers: number of ranks.
        mesh: replicas x shards of a model in shards (HSDP), such as ``"2x2"``; ``None``: DDP, without shards.
        method: text of the method, such as ``"fp16"``, ``"topk@10"`` or ``"gravac:ladder"``.
        adaptive: whether a controller chose candidates during the run.
        seed: seed of initial weights, batches and random compressors.
        metric: name of the validation metric, with its unit.
        higher_is_better: whether a higher metric is better.
        target: target of the metric.
        tta_s: seconds of training until the target was first reached; ``None`` if the run did not reach the target.
        steps_to_target: number of steps until the target was first reached; ``None`` if the run did not reach it.
        seconds: seconds of training of the whole run; for factored runs, ``steps`` times ``step_s``.
        limit_s: limit of the seconds of training; ``None`` if only steps were limited.
        steps: number of steps of the whole run.
        step_s: median seconds of a step; for methods with local steps, the mean.
        every: mean number of steps from one exchange to the next; ``None`` for methods that exchange in every step.
        samples_per_s: samples per second over all ranks.
        efficiency: scaling efficiency, ``samples_per_s`` / (``workers`` x samples per second of one worker alone);
            ``None`` if not measured.
        wire_bytes: bytes that a rank sent, as gravac counted, or by formula for torch's methods; ``None`` if not known.
            On a mesh, those that a rank sent to other replicas.
        interface_bytes: bytes that a rank's network interface counted as sent, headers included; ``None`` without
            emulated links. On a mesh, those of a replica's interface / its number of ranks, which share the interface.
        cpu_seconds: processor seconds of all ranks over the run, evaluation included.
        gain: mean gain over the steps; ``None`` for methods without gains.
        val_metric: validation metric at the end of the run.
        curve: validation metric at each evaluation.
        turns: decisions of the controller, beginning with the initial candidate.
        split: seconds of each phase of a typical step; ``None`` if not known, as for torch's own methods on a mesh,
            which wait for the exchange within backward.
        paced: whether gravac limited its exchange to the link's rate, without a real link.
        factored: whether the number of steps is from a run on another link, and ``step_s`` from a short run on this
            link.
        stamp: commit of the code, time, and speed of the machine; for factored runs, of the run that gave ``step_s``.
            ``None`` in older files.
    """

    task: str
    scale: float
    link: str
    workers: int
    mesh: str | None = None
    method: str
    adaptive: bool
    seed: int
    metric: str
    higher_is_better: bool
    target: float
    tta_s: float | None
    steps_to_target: int | None
    seconds: float
    limit_s: float | None
    steps: int
    step_s: float
    every: float | None = None
    samples_per_s: float
    efficiency: float | None = None
    wire_bytes: int | None
    interface_bytes: int | None
    cpu_seconds: float
    gain: float | None
    val_metric: Metric
    curve: tuple[CurvePoint, ...]
    turns: tuple[DecisionPoint, ...]
    split: Split | None
    paced: bool
    factored: bool
    stamp: Stamp | None = None

    @property
    def cell(self) -> Cell:
        """Cell of the matrix to which the run belongs."""
        return Cell(self.task, self.scale, self.link, self.workers, self.mesh, self.seed)


_RECORDS_ADAPTER = TypeAdapter(list[TrainingRecord])
"""Reads and writes a list of records as JSON."""


def read(paths: Iterable[Path]) -> list[TrainingRecord]:
    """Return the records of all runs in several files, in order.

    Raises:
        SettingsError: a file cannot be read, or was not written by ``bench tta``.
    """
    runs: list[TrainingRecord] = []
    for path in paths:
        try:
            runs += _RECORDS_ADAPTER.validate_json(path.read_bytes())
        except OSError as error:
            raise SettingsError(
                f"{path}: cannot be read ({error.strerror}); give a file of `gravac bench tta --json`"
            ) from None
        except ValidationError as error:
            first_error = error.errors()[0]
            location = ".".join(str(key) for key in first_error["loc"]) or "the file"
            raise SettingsError(
                f"{path}: {location}: {first_error['msg']}; give a file of `gravac bench tta --json`"
            ) from None
    return runs


def commits_of(paths: Sequence[Path], runs: Iterable[TrainingRecord], allow_mixed: bool = False) -> str:
    """Return a sentence on the commits of a table's runs, or an empty string; see ``provenance.commits_note``.

    Args:
        paths: files of the runs, for the error message.
        runs: runs of the table.
        allow_mixed: whether runs of several commits may stand in one table.

    Raises:
        SettingsError: the runs are of several commits, and ``allow_mixed`` is false.
    """
    return commits_note((run.stamp for run in runs), ", ".join(map(str, paths)), allow_mixed)


def save(path: Path, runs: Sequence[TrainingRecord]) -> None:
    """Write all records into a file, in place of its content; an interrupt leaves the old or the new file complete."""
    write_json(path, json.loads(_RECORDS_ADAPTER.dump_json(list(runs))))


def first_reached(curve: Sequence[CurvePoint], target: float, higher_is_better: bool) -> tuple[float, float] | None:
    """Return ``(seconds, steps)`` at which a curve first reached a target; ``None`` if the curve never did.

    The metric is interpolated linearly between evaluations.

    Args:
        curve: validation metric at each evaluation, by ascending step; two points or more.
        target: target of the metric, in the unit of the curve.
        higher_is_better: whether a higher metric is better.
    """
    sign = -1.0 if higher_is_better else 1.0
    for previous_point, following_point in itertools.pairwise(curve):
        previous_distance = sign * (previous_point.metric - target)
        following_distance = sign * (following_point.metric - target)
        if previous_distance <= 0:
            return previous_point.seconds, float(previous_point.step)
        if following_distance <= 0:
            fraction = previous_distance / (previous_distance - following_distance)
            return (
                previous_point.seconds + fraction * (following_point.seconds - previous_point.seconds),
                previous_point.step + fraction * (following_point.step - previous_point.step),
            )
    return None
