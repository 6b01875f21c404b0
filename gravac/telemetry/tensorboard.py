# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records as TensorBoard scalars, text and hyperparameters, with a layout that shows a run on one page."""

import importlib
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gravac.candidate import Forecast
from gravac.settings import SettingsError
from gravac.telemetry import descriptions, page
from gravac.telemetry.jsonl import plain_settings
from gravac.telemetry.points import Points
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    ProgressRecord,
    Record,
    RunRecord,
    StepRecord,
)
from gravac.telemetry.sink_guard import Quiet

CHANGES_SHOWN = 500
"""Number of the newest changes that the table at the end of a run shows."""


class TensorBoardSink:
    """A sink that writes a run to ``log_dir`` for TensorBoard (page "Custom Scalars", smoothing 0).

    Steps are written as points (``gravac.telemetry.points``), decisions at once. A thread of TensorBoard writes the
    file, and flushes it every two seconds.

    Args:
        log_dir: folder of this run, created if missing; put the folders of runs to compare side by side.
        every: number of training steps per point, 1 or more.

    Raises:
        SettingsError: ``log_dir`` cannot be written to, or ``every`` is below 1.
    """

    def __init__(self, log_dir: str | Path, every: int = 10) -> None:
        if every < 1:
            raise SettingsError(f"every: {every} steps per point is below 1; use 10")
        check_writable(Path(log_dir))
        from torch.utils.tensorboard import SummaryWriter  # slow to import: only for runs that log

        self._message: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer: Any = SummaryWriter(str(log_dir), max_queue=100, flush_secs=2)
        self._quiet = Quiet(f"TensorBoardSink({str(log_dir)!r})")
        self._points = Points(every, self._write_scalars)
        self._newest_step: StepRecord | None = None
        self._run: RunRecord | None = None
        self._decisions = 0
        self._measured: tuple[str, ...] = ()
        self._changes: list[tuple[DecisionRecord, DecisionRecord | StepRecord | None]] = []
        self._previous: DecisionRecord | StepRecord | None = None  # first step, or newest decision

    def __call__(self, record: Record) -> None:
        """Write a record. Never raises: the first failure warns, and all later records are dropped."""
        if self._writer is None or self._quiet.failed:
            return
        with self._quiet:
            if isinstance(record, StepRecord):
                self._add_step(record)
            elif isinstance(record, DecisionRecord):
                self._write_decision(record)
            elif isinstance(record, RunRecord):
                self._write_run(record, 0)
            elif isinstance(record, ForecastsRecord):
                if self._run is not None:
                    run = replace(self._run, forecasts=record.forecasts, dropped=record.dropped)
                    self._write_run(run, record.step)
            elif isinstance(record, ModeRecord):
                self._writer.add_text(page.MODE_TEXT, descriptions.describe_mode_change(record), record.step)
                self._write_scalars({page.MODE_SECONDS: record.seconds}, record.step)
            elif isinstance(record, ProgressRecord):
                self._write_progress(record)
            else:
                self._write_end(record)

    def close(self) -> None:
        """Write the newest point and the table of changes, and close the files. May be called again.

        Later records are dropped.
        """
        if self._writer is None:
            return
        if not self._quiet.failed:
            with self._quiet:
                self._finish()
        writer, self._writer = self._writer, None
        with self._quiet:
            writer.close()

    def _write_run(self, run: RunRecord, step: int) -> None:
        """Write the description of the run, and the layout of its charts.

        Args:
            run: the run, with the candidates that are admitted after ``step``.
            step: number of training steps made.
        """
        self._run = run
        self._write_layout()
        self._writer.add_text(page.RUN_TEXT, descriptions.describe_run(run), step)

    def _add_step(self, step: StepRecord) -> None:
        self._points.add(step)
        self._newest_step = step
        self._previous = step if self._previous is None else self._previous

    def _write_decision(self, decision: DecisionRecord) -> None:
        self._decisions += 1
        band = (decision.gain, decision.gain_low, decision.gain_high)
        if all(map(math.isfinite, band)):
            self._write_scalars(dict(zip(page.GAIN, band, strict=True)), decision.step)
        text = descriptions.describe_decision(decision, self._previous, self._forecasts)
        self._writer.add_text(page.DECISION_TEXT, text, decision.step)
        if decision.changed:
            self._changes = [*self._changes[-CHANGES_SHOWN + 1 :], (decision, self._previous)]
        self._previous = decision

    def _write_layout(self) -> None:
        outer = any(forecast.candidate.every > 1 for forecast in self._forecasts)
        self._writer.add_custom_scalars(page.layout(outer, self._measured))

    def _write_progress(self, progress: ProgressRecord) -> None:
        """Write the belief about a candidate's efficiency after its newest trial, with its band, and a description.

        A candidate's curve begins at step 0 with the belief before the run.
        """
        name = descriptions.tag_name(progress.candidate)
        tags = page.efficiency_tags(name)
        if name not in self._measured:
            self._measured = (*self._measured, name)
            self._write_layout()
            for forecast in self._forecasts:
                if forecast.candidate == progress.candidate:
                    self._write_scalars(dict(zip(tags, forecast.belief.band, strict=True)), 0)
        band = (progress.efficiency, progress.low, progress.high)
        self._write_scalars(dict(zip(tags, band, strict=True)), progress.step)
        self._writer.add_text(
            page.PROGRESS_TEXT, descriptions.describe_progress(progress, self._forecasts), progress.step
        )

    def _write_end(self, end: EndRecord) -> None:
        self._finish()
        metrics = {page.END + name: total for name, total in end.metrics.items() if math.isfinite(total)}
        settings = plain_settings(self._run) | {"world_size": self._run.world_size} if self._run else {}
        self._writer.add_hparams(settings, metrics, run_name=".", global_step=end.steps)

    def _finish(self) -> None:
        """Write the newest point and the table of changes; a second call writes nothing."""
        self._points.flush()
        if self._decisions and self._newest_step is not None:
            text = descriptions.tabulate_changes(self._changes, self._decisions, self._forecasts)
            self._writer.add_text(page.CHANGES_TEXT, text, self._newest_step.step)
            self._decisions = 0

    @property
    def _forecasts(self) -> tuple[Forecast, ...]:
        return self._run.forecasts if self._run else ()

    def _write_scalars(self, numbers: dict[str, float], step: int) -> None:
        """Write numbers in a single event; an event for each, as ``add_scalar`` writes, costs several times as much.

        Args:
            numbers: finite numbers by tag.
            step: number of the training step.
        """
        scalars = [self._message.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._writer.file_writer.add_summary(self._message(value=scalars), step)


def check_writable(log_dir: Path) -> None:
    """Create a folder for logs, if it is missing, and check that files can be written to it.

    Raises:
        SettingsError: the folder cannot be created, or written to.
    """
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise SettingsError(
            f"log_dir: cannot write to {str(log_dir)!r} ({error.strerror}); give a folder you may write to"
        ) from None
