# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records for experiment trackers: Weights & Biases, MLflow, a CSV file, or any function that takes numbers by name."""

import csv
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gravac.settings import SettingsError
from gravac.telemetry import page
from gravac.telemetry.jsonl import plain_settings
from gravac.telemetry.points import Points, Write
from gravac.telemetry.quiet import Quiet
from gravac.telemetry.records import DecisionRecord, EndRecord, Record, RunRecord, StepRecord

Settings = Callable[[dict[str, Any]], object]
"""Takes a run's settings, by dotted name, as plain values."""


class TrackerSink:
    """A sink that hands a run to functions of a tracker: the tags and means that TensorBoard shows.

    Never raises while training: the first failure warns, later records are then dropped.

    Args:
        log: takes numbers by tag and the step that they are of, such as ``lambda values, step: run.log(values, step)``.
        settings: takes the run's settings, before the first step; ``None``: they are not told.
        every: steps per point, at least 1.

    Raises:
        SettingsError: ``every`` is below 1.

    Example:
        >>> from gravac import AdaptiveCompressor
        >>> points = []
        >>> sink = TrackerSink(lambda values, step: points.append((step, values["gravac/cf"])))
        >>> compressor = AdaptiveCompressor(sinks=[sink])
    """

    def __init__(self, log: Write, settings: Settings | None = None, every: int = 10) -> None:
        if every < 1:
            raise SettingsError(f"every: {every} steps per point is below 1; use 10")
        self._log, self._settings = log, settings
        self._points = Points(every, log)
        self._quiet = Quiet(f"TrackerSink({log!r})")
        self._step = 0

    def __call__(self, record: Record) -> None:
        """Hand one record on."""
        if not self._quiet.failed:
            with self._quiet:
                self._take(record)

    def _take(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._step = record.step
            self._points.add(record)
        elif isinstance(record, DecisionRecord):
            pass  # a tracker's step never goes back, and a decision is of a step to come: the CF's staircase shows it
        elif isinstance(record, EndRecord):
            self._points.flush()
            totals = {page.END + name: value for name, value in record.metrics.items() if math.isfinite(value)}
            self._log(totals, self._step)
        elif isinstance(record, RunRecord) and self._settings is not None:
            self._settings({**plain_settings(record), "world_size": record.world_size})

    def close(self) -> None:
        """Write what is pending."""
        if not self._quiet.failed:
            with self._quiet:
                self._points.flush()


def wandb_sink(run: Any = None, every: int = 10) -> TrackerSink:
    """Make a sink of a run of Weights & Biases.

    Its steps are gravac's own (``gravac/step``), so that they do not collide with what else the run logs.

    Args:
        run: what ``wandb.init`` returned; ``None``: the run under way.
        every: steps per point.

    Raises:
        SettingsError: there is no run under way, or wandb is not installed.
    """
    run = run or getattr(_module("wandb"), "run", None)
    if run is None:
        raise SettingsError("run: no run of wandb is under way; call wandb.init() on rank 0 first, or give the run")
    step = page.PREFIX + "step"
    run.define_metric(step)
    run.define_metric(page.PREFIX + "*", step_metric=step)
    return TrackerSink(lambda values, at: run.log({**values, step: at}), run.config.update, every)


def mlflow_sink(every: int = 10) -> TrackerSink:
    """Make a sink of MLflow's run under way, on rank 0.

    Args:
        every: steps per point.

    Raises:
        SettingsError: mlflow is not installed.
    """
    mlflow = _module("mlflow")

    def settings(found: dict[str, Any]) -> None:
        mlflow.log_params({page.PREFIX + name: value for name, value in found.items()})

    return TrackerSink(lambda values, step: mlflow.log_metrics(values, step=step), settings, every)


class CSVSink:
    """A sink that appends steps, as means over ``every`` of them, to a CSV file with a column for each tag.

    Args:
        path: file to write; its folder is made when missing, and a file that is there is replaced.
        every: steps per row, at least 1.

    Raises:
        SettingsError: the file cannot be written, or ``every`` is below 1.
    """

    COLUMNS = (
        "step",
        page.CF,
        page.CF_LOG10,
        page.OUTER_WIRE_RATIO,
        *page.STEPS.values(),
        page.WIRE_GIGABYTES,
        page.DENSE_WIRE_GIGABYTES,
    )

    def __init__(self, path: str | Path, every: int = 10) -> None:
        path = Path(path)
        self._sink = TrackerSink(self._row, every=every)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="", buffering=1)
            self._writer = csv.DictWriter(self._file, self.COLUMNS, extrasaction="ignore")
            self._writer.writeheader()
        except OSError as error:
            raise SettingsError(
                f"path: cannot write to {str(path)!r} ({error.strerror}); give a file in a folder you may write to"
            ) from None
        self._quiet = Quiet(f"CSVSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Hand one record on; of a run only its steps are written."""
        if isinstance(record, StepRecord):
            self._sink(record)

    def close(self) -> None:
        """Write what is pending and close the file. May be called again."""
        if not self._file.closed:
            self._sink.close()
            with self._quiet:
                self._file.close()

    def _row(self, values: dict[str, float], step: int) -> None:
        self._writer.writerow({"step": step, **values})


def _module(name: str) -> Any:
    """Import a tracker's package.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingsError(f"{name} is not installed; pip install {name}") from None
