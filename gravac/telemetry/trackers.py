# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sinks that pass a run's numbers to experiment trackers: Weights & Biases, MLflow, a CSV file, or any function."""

import csv
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gravac.settings import SettingsError
from gravac.telemetry import page
from gravac.telemetry.jsonl import plain_settings
from gravac.telemetry.points import Points, WritePoint
from gravac.telemetry.records import DecisionRecord, EndRecord, Record, RunRecord, StepRecord
from gravac.telemetry.sink_guard import SinkGuard

LogSettings = Callable[[dict[str, Any]], object]
"""Function that takes a run's settings, a dict of values by dotted name; what the function returns is not used."""


class TrackerSink:
    """Sink that passes a run's numbers to functions of an experiment tracker, by the tags that TensorBoard shows.

    Steps become means over several steps. The sink never raises an exception while training: the first failure causes a
    warning, and later records are dropped.

    Args:
        log: function that is called with a dict of numbers by tag, and with the number of the training step of these
            numbers, such as ``lambda values, step: run.log(values, step)``. What the function returns is not used.
        settings: function that is called with the run's settings, a dict of values by dotted name, before the first
            step; ``None``: settings are not logged.
        every: number of training steps per point (mean), 1 or more.

    Raises:
        SettingsError: ``every`` is below 1.

    Example:
        >>> from gravac import AdaptiveCompressor
        >>> points = []
        >>> sink = TrackerSink(lambda values, step: points.append((step, values["gravac/cf"])))
        >>> compressor = AdaptiveCompressor(sinks=[sink])
    """

    def __init__(self, log: WritePoint, settings: LogSettings | None = None, every: int = 10) -> None:
        if every < 1:
            raise SettingsError(f"every: {every} steps per point is below 1; use 10")
        self._log, self._settings = log, settings
        self._points = Points(every, log)
        self._guard = SinkGuard(f"TrackerSink({log!r})")
        self._newest_step = 0

    def __call__(self, record: Record) -> None:
        """Log what a record has: steps (as means), settings or totals of the run; decisions are not logged."""
        if not self._guard.has_failed:
            with self._guard:
                self._log_record(record)

    def _log_record(self, record: Record) -> None:
        """Log what a record has, as ``__call__`` does; may raise an exception of the tracker."""
        if isinstance(record, StepRecord):
            self._newest_step = record.step
            self._points.add(record)
        elif isinstance(record, DecisionRecord):
            pass  # a decision is for a future step, and a tracker's step cannot go back; the CF's curve shows changes
        elif isinstance(record, EndRecord):
            self._points.flush()
            totals_by_tag = {
                page.END_PREFIX + name: total for name, total in record.metrics.items() if math.isfinite(total)
            }
            self._log(totals_by_tag, self._newest_step)
        elif isinstance(record, RunRecord) and self._settings is not None:
            self._settings({**plain_settings(record), "world_size": record.world_size})

    def close(self) -> None:
        """Log the means of the steps since the last point."""
        if not self._guard.has_failed:
            with self._guard:
                self._points.flush()


def wandb_sink(run: Any = None, every: int = 10) -> TrackerSink:
    """Return a sink for a run of Weights & Biases.

    The charts of gravac's numbers have ``gravac/step``, the training step, as x axis. The step that wandb itself counts
    is not used, since the program's own calls of ``run.log`` also advance it.

    Args:
        run: the run that ``wandb.init`` returned; ``None``: the active run.
        every: number of training steps per point (mean).

    Raises:
        SettingsError: no run is active, or wandb is not installed.
    """
    run = run or getattr(_import_tracker("wandb"), "run", None)
    if run is None:
        raise SettingsError("run: wandb has no active run; call wandb.init() on rank 0 first, or pass the run")
    step_tag = page.PREFIX + "step"
    run.define_metric(step_tag)
    run.define_metric(page.PREFIX + "*", step_metric=step_tag)
    return TrackerSink(lambda numbers, step: run.log({**numbers, step_tag: step}), run.config.update, every)


def mlflow_sink(every: int = 10) -> TrackerSink:
    """Return a sink for the active run of MLflow; call this function on rank 0.

    Args:
        every: number of training steps per point (mean).

    Raises:
        SettingsError: mlflow is not installed.
    """
    mlflow = _import_tracker("mlflow")

    def log_settings(settings: dict[str, Any]) -> None:
        mlflow.log_params({page.PREFIX + name: setting for name, setting in settings.items()})

    return TrackerSink(lambda numbers, step: mlflow.log_metrics(numbers, step=step), log_settings, every)


class CSVSink:
    """A sink that writes means over ``every`` training steps to a CSV file with a column for each tag.

    Args:
        path: file to write; its folder is created if missing, and an existing file is replaced.
        every: number of training steps per row, 1 or more.

    Raises:
        SettingsError: the file cannot be written, or ``every`` is below 1.
    """

    COLUMNS = (
        "step",
        page.CF,
        page.CF_LOG10,
        page.OUTER_WIRE_RATIO,
        *page.STEP_TAGS.values(),
        page.WIRE_GIGABYTES,
        page.DENSE_WIRE_GIGABYTES,
    )

    def __init__(self, path: str | Path, every: int = 10) -> None:
        path = Path(path)
        self._sink = TrackerSink(self._write_row, every=every)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="", buffering=1)
            self._writer = csv.DictWriter(self._file, self.COLUMNS, extrasaction="ignore")
            self._writer.writeheader()
        except OSError as error:
            raise SettingsError(
                f"path: cannot write to {str(path)!r} ({error.strerror}); give a file in a folder you may write to"
            ) from None
        self._guard = SinkGuard(f"CSVSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Add a step to the next row, and write the row if it has enough steps; ignore other kinds of records."""
        if isinstance(record, StepRecord):
            self._sink(record)

    def close(self) -> None:
        """Write the row of the steps since the last row, and close the file. May be called again."""
        if not self._file.closed:
            self._sink.close()
            with self._guard:
                self._file.close()

    def _write_row(self, numbers_by_tag: dict[str, float], step: int) -> None:
        """Write a row of the file.

        Args:
            numbers_by_tag: numbers by tag, which are the names of columns; other tags are ignored.
            step: number of the training step of the numbers.
        """
        self._writer.writerow({"step": step, **numbers_by_tag})


def _import_tracker(name: str) -> Any:
    """Import and return a tracker's package.

    Raises:
        SettingsError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingsError(f"{name} is not installed; pip install {name}") from None
