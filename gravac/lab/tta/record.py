# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The record of one training run, and the JSON file of many: what ``bench tta`` writes and ``report`` reads."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from gravac.candidate import Mode
from gravac.lab.json_file import write_json
from gravac.lab.provenance import Stamp, one_commit
from gravac.settings import SettingsError

SPREAD = 0.10
"""Spread of times over seeds, (most - least) / median, above which more seeds are asked for, or added."""


Metric = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A metric; a run that diverged has nan, which is written as null."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class CurvePoint(_Record):
    """The validation metric at one moment.

    Attributes:
        step: number of steps made.
        seconds: seconds of training, without evaluation.
        metric: value of the metric, in the task's unit.
    """

    step: int
    seconds: float
    metric: Metric


class Turn(_Record):
    """A window's end, or a trigger: what the controller decided, also when nothing changed.

    Attributes:
        step: the first step the decision holds for.
        seconds: training time at it; ``None`` when it was not noted.
        compressor: name of what runs from here.
        cf: its compression factor; 1 is dense float32, 2 is 16 bit.
        every: number of steps from one exchange to the next.
        delay: number of steps behind which each travels.
        mode: who exchanges; older files have none, and ``every`` tells.
        changed: whether that differs from before.
        gain: gain of the window that ended; ``None`` at the start.
        t_system: samples per second of the window.
        reason: why it was decided, in words.
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
    """Where a step's time (``TrainingRecord.step_s``) went on rank 0, in seconds. Compress and exchange overlap.

    Attributes:
        compute: forward, backward and optimizer.
        compress: encode, decode and error feedback; ``None`` for methods that are not ours, and native steps.
        exchange: waiting for collectives; ``None`` likewise.
        exposed: what the exchange adds to the step: from the end of backward's computation to its return.
        input_wait: waiting for the batch.
    """

    compute: float
    compress: float | None
    exchange: float | None
    exposed: float
    input_wait: float


class TrainingRecord(_Record):
    """One run of one method; times in seconds, bytes per rank over the run, rates in bits per second.

    Attributes:
        task: name of the reference task.
        scale: scale of the task.
        link: link as it was given: ``"100mbit"``, ``"1gbit,30s:50mbit"``, ``"unthrottled"``.
        workers: number of ranks.
        method: method as it was given: ``"fp16"``, ``"topk@10"``, ``"gravac:ladder"``.
        adaptive: whether a controller decides.
        seed: seed of weights, batches and random compressors.
        metric: name of the metric with its unit.
        higher_is_better: whether a higher metric is better.
        target: value of the metric to be reached.
        tta_s: training time until the target was first reached; ``None`` when it was not.
        steps_to_target: steps until then; ``None`` when it was not reached.
        seconds: training time of the run; for factored runs steps times ``step_s``.
        limit_s: the run was to be stopped after so many seconds; ``None`` when steps alone bounded it.
        steps: steps made.
        step_s: median seconds of a step; the mean, where not every step exchanges.
        every: mean number of steps from one exchange to the next; ``None`` where every step exchanges.
        samples_per_s: samples per second over all ranks.
        efficiency: samples_per_s / (workers * samples per second of one worker alone); ``None`` when not measured.
        wire_bytes: bytes on the wire by our ledger, by formula for torch's own methods; ``None`` when neither is known.
        interface_bytes: bytes by the network interface's own counter, headers included; ``None`` without one.
        cpu_seconds: processor seconds of all ranks over the whole run, evaluation included.
        gain: mean gain over the steps; ``None`` for methods without one.
        val_metric: value of the metric at the end.
        curve: values of the metric over the run.
        turns: decisions of the controller.
        split: a median step's time.
        paced: no real link; the exchange held itself back.
        factored: steps came from a run on another link, and ``step_s`` from a short run on this one.
        stamp: code, time and speed of the machine; of factored runs those of ``step_s``. ``None`` of older files.
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
    turns: tuple[Turn, ...]
    split: Split | None
    paced: bool
    factored: bool
    stamp: Stamp | None = None

    @property
    def cell(self) -> tuple[str, float, str, int, int]:
        """The cell of the matrix whose methods are compared: task, scale, link, workers, seed."""
        return (self.task, self.scale, self.link, self.workers, self.seed)


_RECORDS = TypeAdapter(list[TrainingRecord])


def read(paths: Iterable[Path]) -> list[TrainingRecord]:
    """Read the runs of several files, in order.

    Raises:
        SettingsError: a file cannot be read, or is none of ``bench tta``; names the file, the entry and the field.
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
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise SettingsError(f"{path}: {where}: {first['msg']}; give a file of `gravac bench tta --json`") from None
    return runs


def of_one_commit(paths: Sequence[Path], runs: Iterable[TrainingRecord], mixed: bool = False) -> str:
    """Return what a table says of the commits of its runs; see ``gravac.lab.provenance.one_commit``.

    Raises:
        SettingsError: there are several, and they are not to be mixed.
    """
    return one_commit((run.stamp for run in runs), ", ".join(map(str, paths)), mixed)


def save(path: Path, runs: Sequence[TrainingRecord]) -> None:
    """Write all runs, one file replaced at once: an interrupt leaves the old one or the new one whole."""
    write_json(path, json.loads(_RECORDS.dump_json(list(runs))))


def first_reached(curve: Sequence[CurvePoint], target: float, higher_is_better: bool) -> tuple[float, float] | None:
    """``(seconds, steps)`` when the target was first reached, linear between evaluations; ``None`` when it was not."""
    sign = -1.0 if higher_is_better else 1.0
    for before, after in itertools.pairwise(curve):
        was, now = sign * (before.metric - target), sign * (after.metric - target)
        if was <= 0:
            return before.seconds, float(before.step)
        if now <= 0:
            share = was / (was - now)
            return (
                before.seconds + share * (after.seconds - before.seconds),
                before.step + share * (after.step - before.step),
            )
    return None
