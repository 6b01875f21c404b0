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
"""Spread of times over seeds, (longest - shortest) / median, above which more seeds are recommended, or run."""


Metric = Annotated[float, BeforeValidator(lambda number: math.nan if number is None else number)]
"""Metric of a run; nan if the run diverged, written as null."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class CurvePoint(_Record):
    """The validation metric at one evaluation.

    Attributes:
        step: number of steps made.
        seconds: seconds of training, without evaluation.
        metric: metric, in the task's unit.
    """

    step: int
    seconds: float
    metric: Metric


class DecisionPoint(_Record):
    """A decision of the controller at a window's end or at a trigger, also if nothing changed.

    Attributes:
        step: first step for which the decision holds.
        seconds: training time at the step; ``None`` if it was not recorded.
        compressor: name of the compressor that runs from the step on.
        cf: compression factor; 1 is dense float32, 2 is 16 bit.
        every: number of steps from one exchange to the next.
        delay: number of steps that each exchange is in flight.
        mode: mode of the steps; ``None`` in older files, whose modes follow from ``every``.
        changed: whether the decision differs from the previous decision.
        gain: gain of the window that ended; ``None`` at the start.
        t_system: samples per second of the window.
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


class Split(_Record):
    """Seconds of each phase of a typical step (``TrainingRecord.step_s``) on rank 0.

    Compression and exchange overlap with backward.

    Attributes:
        compute: seconds of forward, backward and optimizer.
        compress: seconds of encode, decode and error feedback; ``None`` for methods of torch, and native steps.
        exchange: seconds of waiting for collectives; ``None`` as for ``compress``.
        exposed: seconds that the exchange adds to the step: from the computation of the last gradient to backward's
            return.
        input_wait: seconds of waiting for the batch.
    """

    compute: float
    compress: float | None
    exchange: float | None
    exposed: float
    input_wait: float


class Cell(NamedTuple):
    """A cell of the matrix, whose methods are compared.

    Attributes:
        task: name of the reference task.
        scale: scale of the task.
        link: text of the link.
        workers: number of ranks.
        seed: seed of the runs.
    """

    task: str
    scale: float
    link: str
    workers: int
    seed: int


class TrainingRecord(_Record):
    """Record of one run of one method; times in seconds, bytes per rank over the run, rates in bits per second.

    Attributes:
        task: name of the reference task.
        scale: scale of the task.
        link: text of the link: ``"100mbit"``, ``"1gbit,30s:50mbit"``, ``"unthrottled"``.
        workers: number of ranks.
        method: text of the method: ``"fp16"``, ``"topk@10"``, ``"gravac:ladder"``.
        adaptive: whether a controller decides.
        seed: seed of weights, batches and random compressors.
        metric: name of the metric with its unit.
        higher_is_better: whether a higher metric is better.
        target: target of the metric.
        tta_s: training time until the target was first reached; ``None`` if it was not reached.
        steps_to_target: number of steps until the target was first reached; ``None`` if it was not reached.
        seconds: training time of the run; of factored runs, steps times ``step_s``.
        limit_s: limit of the training time; ``None`` if only steps were limited.
        steps: number of steps made.
        step_s: median seconds of a step; for methods with local steps, the mean.
        every: mean number of steps from one exchange to the next; ``None`` for methods that exchange in every step.
        samples_per_s: samples per second over all ranks.
        efficiency: samples_per_s / (workers * samples per second of one worker alone); ``None`` if not measured.
        wire_bytes: bytes on the wire by gravac's ledger, by formula for torch's methods; ``None`` if not known.
        interface_bytes: bytes by the counter of the network interface, headers included; ``None`` without an interface.
        cpu_seconds: processor seconds of all ranks over the run, evaluation included.
        gain: mean gain over the steps; ``None`` for methods without gains.
        val_metric: metric at the end of the run.
        curve: metric over the run.
        turns: decisions of the controller.
        split: seconds of each phase of a typical step.
        paced: whether the exchange limited itself to the link's rate, without a real link.
        factored: whether steps are from a run on another link, and ``step_s`` from a short run on this link.
        stamp: code, time, and speed of the machine; of factored runs, those of ``step_s``. ``None`` in older files.
    """

    task: str
    scale: float
    link: str
    workers: int
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
        """Cell of the matrix that has the run."""
        return Cell(self.task, self.scale, self.link, self.workers, self.seed)


_RECORDS = TypeAdapter(list[TrainingRecord])


def read(paths: Iterable[Path]) -> list[TrainingRecord]:
    """Read the runs of several files, in order.

    Raises:
        SettingsError: a file cannot be read, or was not written by ``bench tta``; names the file, the entry and the
            field.
    """
    runs: list[TrainingRecord] = []
    for path in paths:
        try:
            runs += _RECORDS.validate_json(path.read_bytes())
        except OSError as error:
            raise SettingsError(
                f"{path}: cannot be read ({error.strerror}); give a file of `gravac bench tta --json`"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(str(key) for key in first["loc"]) or "the file"
            raise SettingsError(
                f"{path}: {location}: {first['msg']}; give a file of `gravac bench tta --json`"
            ) from None
    return runs


def commits_of(paths: Sequence[Path], runs: Iterable[TrainingRecord], mixed: bool = False) -> str:
    """Return a sentence on the commits of a table's runs; see ``gravac.lab.provenance.commits_note``.

    Args:
        paths: files of the runs, for the message.
        runs: runs of the table.
        mixed: whether runs of several commits may stand in one table.

    Raises:
        SettingsError: the runs are of several commits, and ``mixed`` is false.
    """
    return commits_note((run.stamp for run in runs), ", ".join(map(str, paths)), mixed)


def save(path: Path, runs: Sequence[TrainingRecord]) -> None:
    """Write all runs, and replace the file atomically: an interrupt leaves the complete old or new file."""
    write_json(path, json.loads(_RECORDS.dump_json(list(runs))))


def first_reached(curve: Sequence[CurvePoint], target: float, higher_is_better: bool) -> tuple[float, float] | None:
    """Return ``(seconds, steps)`` at which a curve first reached the target, linear between evaluations.

    ``None`` if the curve did not reach the target.
    """
    sign = -1.0 if higher_is_better else 1.0
    for previous, following in itertools.pairwise(curve):
        previous_distance = sign * (previous.metric - target)
        following_distance = sign * (following.metric - target)
        if previous_distance <= 0:
            return previous.seconds, float(previous.step)
        if following_distance <= 0:
            fraction = previous_distance / (previous_distance - following_distance)
            return (
                previous.seconds + fraction * (following.seconds - previous.seconds),
                previous.step + fraction * (following.step - previous.step),
            )
    return None
