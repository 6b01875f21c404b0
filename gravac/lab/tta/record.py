# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a training run, and the files of ``gravac bench tta``: records as JSON, evaluations as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from gravac.candidate import Mode
from gravac.lab.json_file import write_atomically, write_json
from gravac.lab.provenance import UNRECORDED, Stamp
from gravac.settings import SettingsError

SPREAD = 0.10
"""Spread of a method's times to the target over seeds, (longest - shortest) / median, above which more seeds run."""


Metric = Annotated[float, BeforeValidator(lambda number: math.nan if number is None else number)]
"""Validation metric of a run, in the task's unit; nan if the run diverged. JSON files store nan as null."""


class _JsonRecord(BaseModel):
    """Base class of records in JSON files: immutable, refuses unknown fields, and stores nan as null."""

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
    """A decision of a controller; it may leave the candidate (way to run steps) unchanged.

    The first decision of a run is the candidate that the run starts with. A controller decides at the end of a window
    (a number of steps), or earlier if a measurement calls for a decision.

    Attributes:
        step: number of the first step for which the decision holds, from 0.
        seconds: seconds of training before that step.
        compressor: name of the compressor that runs from that step on.
        cf: compression factor; 1 is dense float32, 2 is 16 bit.
        every: number of steps from one exchange to the next.
        delay: number of steps that each exchange is in flight before its mean is applied.
        mode: mode of the steps: ``native``, ``hook`` or ``outer``.
        sends: what an exchange sends, in words, such as ``"4 bits (7.5x fewer bytes)"``.
        changed: whether the decision changes the candidate (way to run steps).
        gain: gain of the window before the decision; ``None`` if not known.
        t_system: samples per second over all ranks in the window before the decision; ``None`` if not known.
        reason: reason of the decision, as text.
    """

    step: int
    seconds: float
    compressor: str
    cf: float
    every: int
    delay: int
    mode: Mode
    sends: str
    changed: bool
    gain: float | None
    t_system: float | None
    reason: str


class Split(_JsonRecord):
    """Seconds that rank 0 spends in each phase of a typical step.

    Compression and exchange overlap with backward, so the sum of the phases may be above the seconds of the step,
    ``TrainingRecord.step_s``.

    Attributes:
        compute: seconds of forward, backward and optimizer, without ``exposed``.
        compress: seconds of compression, decompression and error feedback; ``None`` if not known, as for methods of
            torch and for native steps.
        exchange: seconds in which collectives were in flight, hidden behind backward or not; ``None`` if not known, as
            for methods of torch and for native steps.
        exposed: seconds for which the step waits for the exchange: the time from the computation of the last gradient
            to the end of backward; in outer steps, also waits outside backward.
        input_wait: seconds from the start of the step until the batch is ready.
    """

    compute: float
    compress: float | None
    exchange: float | None
    exposed: float
    input_wait: float


class Cell(NamedTuple):
    """All settings of a run, except its method; the runs of a cell differ only in their method.

    Attributes:
        task: name of the reference task.
        scale: scale of the task's model; 1 suits two cores.
        link: the link as text, such as ``"100mbit"``.
        workers: number of ranks.
        mesh: mesh on which a model in shards trains, as text such as ``"2x2"``; ``None``: DDP, without shards.
        seed: seed of initial weights, batches and random compressors.
    """

    task: str
    scale: float
    link: str
    workers: int
    mesh: str | None
    seed: int


class TrainingRecord(_JsonRecord):
    """Record of one training run with one method of exchanging gradients.

    Attributes:
        task: name of the reference task.
        scale: scale of the task's model; 1 suits two cores.
        link: the link as text, such as ``"100mbit"``, ``"1gbit,30s:50mbit"`` (which changes after 30 s) or
            ``"unthrottled"``.
        workers: number of ranks.
        mesh: replicas x shards of a model in shards (HSDP), such as ``"2x2"``; ``None``: DDP, without shards.
        method: text of the method, such as ``"fp16"``, ``"topk@10"`` or ``"gravac:ladder"``.
        adaptive: whether a controller chose candidates (ways to run steps) during the run.
        seed: seed of initial weights, batches and random compressors.
        metric: name of the validation metric, with its unit.
        higher_is_better: whether a higher metric is better.
        target: validation metric to reach, in the task's unit.
        tta_s: seconds of training until the target was first reached (time to accuracy); ``None`` if the target was not
            reached.
        steps_to_target: number of steps until the target was first reached; ``None`` if the target was not reached.
        seconds: seconds of training of the whole run, without evaluations.
        limit_s: seconds of training after which the run had to stop; ``None`` if only the number of steps was limited.
        steps: number of steps of the whole run.
        step_s: median seconds of a step; for methods with local steps, the mean.
        every: mean number of steps from one exchange to the next; ``None`` for methods that exchange in every step.
        samples_per_s: samples per second over all ranks.
        wire_bytes: bytes that rank 0 sent in the whole run: counted by gravac, or by formula for methods of torch;
            ``None`` if not known. On a mesh, bytes that rank 0 sent to other replicas.
        interface_bytes: bytes that a rank sent in the whole run, as its network interface counted, packet headers
            included; mean over the ranks. ``None`` without emulated links. On a mesh the ranks of a replica share an
            interface, whose bytes are divided by their number.
        cpu_seconds: processor seconds of all ranks over the run, evaluations included.
        gain: mean gain over the steps; ``None`` for methods that measure no gain.
        val_metric: validation metric at the end of the run.
        curve: validation metric at each evaluation.
        turns: decisions of the controller, by ascending step; the first is the candidate that the run started with.
        split: seconds of each phase of a typical step; ``None`` if not known, as for torch's own methods on a mesh,
            which wait for the exchange in the middle of backward.
        paced: whether gravac slowed down its own exchange to the link's rate, instead of using emulated links.
        stamp: commit of the code, time of the measurement, and speed of the machine; ``None``: not recorded.
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
    wire_bytes: int | None
    interface_bytes: int | None
    cpu_seconds: float
    gain: float | None
    val_metric: Metric
    curve: tuple[CurvePoint, ...]
    turns: tuple[DecisionPoint, ...]
    split: Split | None
    paced: bool
    stamp: Stamp | None = None

    @property
    def cell(self) -> Cell:
        """All settings of the run, except its method; equal for runs that may be compared."""
        return Cell(self.task, self.scale, self.link, self.workers, self.mesh, self.seed)

    @property
    def task_name(self) -> str:
        """Name of the task, followed by the mesh if the model was in shards, such as ``gpt2 2x2``."""
        return self.task if self.mesh is None else f"{self.task} {self.mesh}"


RUN_COLUMNS = (
    "task", "scale", "workers", "mesh", "link", "paced", "method", "seed", "metric", "target", "tta_s", "wire_bytes",
)  # fmt: skip
"""Fields of ``TrainingRecord`` that are columns of the CSV."""

_RECORDS_ADAPTER = TypeAdapter(list[TrainingRecord])
"""Pydantic adapter that reads and writes a list of records as JSON."""


def read(path: Path) -> list[TrainingRecord]:
    """Return the records of all runs in a JSON file, in the order of the file.

    Raises:
        SettingsError: the file cannot be read, or was not written by ``gravac bench tta``.
    """
    try:
        return _RECORDS_ADAPTER.validate_json(path.read_bytes())
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


def save(path: Path, runs: Sequence[TrainingRecord]) -> None:
    """Replace a JSON file by one with the given records, at once: an interrupt leaves either the old or the new file.

    Args:
        path: file to write.
        runs: all records that the file is to contain.
    """
    write_json(path, json.loads(_RECORDS_ADAPTER.dump_json(list(runs))))


def write_csv(path: Path, runs: Sequence[TrainingRecord]) -> None:
    """Replace a CSV file by one with a row for each evaluation of each run, for tools such as pandas.

    The columns are ``RUN_COLUMNS``, fields of ``TrainingRecord``; ``code``, the commit that ran; ``step`` and
    ``seconds`` of training before the evaluation; and ``value``, the metric. A cell is empty if nothing is known.

    Args:
        path: file to write.
        runs: records of all runs.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*RUN_COLUMNS, "code", "step", "seconds", "value"])
    for run in runs:
        run_cells = [getattr(run, name) for name in RUN_COLUMNS]
        run_cells.append(UNRECORDED if run.stamp is None else run.stamp.code)
        writer.writerows([*run_cells, point.step, point.seconds, point.metric] for point in run.curve)
    write_atomically(path, text.getvalue())


def first_reached(curve: Sequence[CurvePoint], target: float, higher_is_better: bool) -> tuple[float, float] | None:
    """Return ``(seconds, steps)`` of training until a target was first reached; ``None`` if it was never reached.

    The metric is interpolated linearly between two evaluations, so ``steps`` may have a fraction.

    Args:
        curve: validation metric at each evaluation, by ascending step; two points or more.
        target: metric to reach, in the unit of the curve.
        higher_is_better: whether a higher metric is better.
    """
    sign = -1.0 if higher_is_better else 1.0
    for previous_point, following_point in itertools.pairwise(curve):
        previous_distance = sign * (previous_point.metric - target)
        following_distance = sign * (following_point.metric - target)
        if previous_distance <= 0:
            return previous_point.seconds, float(previous_point.step)
        if following_distance <= 0 and not math.isfinite(previous_distance):  # nothing to interpolate from
            return following_point.seconds, float(following_point.step)
        if following_distance <= 0:
            fraction = previous_distance / (previous_distance - following_distance)
            return (
                previous_point.seconds + fraction * (following_point.seconds - previous_point.seconds),
                previous_point.step + fraction * (following_point.step - previous_point.step),
            )
    return None
