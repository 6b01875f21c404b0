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
from gravac.telemetry import page, words
from gravac.telemetry.jsonl import plain_settings
from gravac.telemetry.points import Points
from gravac.telemetry.quiet import Quiet
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

CHANGES = 500
"""Most changes kept for the table at the end of a run: the latest ones."""


class TensorBoardSink:
    """A sink that writes a run to ``log_dir``; look with ``tensorboard --logdir``, page "Custom Scalars", smoothing 0.

    Steps are written as points (``gravac.telemetry.points``), decisions when they come. A thread of TensorBoard writes
    the file, and flushes it every two seconds.

    Args:
        log_dir: folder of this run, made when missing; the runs of one experiment are folders side by side.
        every: steps per point, at least 1.

    Raises:
        SettingsError: ``log_dir`` cannot be written to, or ``every`` is below 1.
    """

    def __init__(self, log_dir: str | Path, every: int = 10) -> None:
        if every < 1:
            raise SettingsError(f"every: {every} steps per point is below 1; use 10")
        check_writable(Path(log_dir))
        from torch.utils.tensorboard import SummaryWriter  # slow: only who logs pays for it

        self._message: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer: Any = SummaryWriter(str(log_dir), max_queue=100, flush_secs=2)
        self._quiet = Quiet(f"TensorBoardSink({str(log_dir)!r})")
        self._points = Points(every, self._scalars)
        self._last: StepRecord | None = None
        self._run: RunRecord | None = None
        self._decisions = 0
        self._measured: tuple[str, ...] = ()
        self._changes: list[tuple[DecisionRecord, DecisionRecord | StepRecord | None]] = []
        self._decided: DecisionRecord | StepRecord | None = None

    def __call__(self, record: Record) -> None:
        """Write one record. Never raises: the first failure warns, later records are then dropped."""
        if self._writer is None or self._quiet.failed:
            return
        with self._quiet:
            if isinstance(record, StepRecord):
                self._step(record)
            elif isinstance(record, DecisionRecord):
                self._decision(record)
            elif isinstance(record, RunRecord):
                self._began(record, 0)
            elif isinstance(record, ForecastsRecord):
                if self._run is not None:
                    self._began(replace(self._run, forecasts=record.forecasts, dropped=record.dropped), record.step)
            elif isinstance(record, ModeRecord):
                self._writer.add_text(page.MODE_TEXT, words.mode_words(record), record.step)
                self._scalars({page.MODE_SECONDS: record.seconds}, record.step)
            elif isinstance(record, ProgressRecord):
                self._progress(record)
            else:
                self._end(record)

    def close(self) -> None:
        """Write what is pending and close the files. May be called again; records that come later are dropped."""
        if self._writer is None:
            return
        if not self._quiet.failed:
            with self._quiet:
                self._finish()
        writer, self._writer = self._writer, None
        with self._quiet:
            writer.close()

    def _began(self, run: RunRecord, step: int) -> None:
        """Write the run in words, and the layout of its charts, as is known after a number of training steps."""
        self._run = run
        self._lay_out()
        self._writer.add_text(page.RUN_TEXT, words.run_words(run), step)

    def _step(self, step: StepRecord) -> None:
        self._points.add(step)
        self._last = step
        self._decided = step if self._decided is None else self._decided

    def _decision(self, decision: DecisionRecord) -> None:
        self._decisions += 1
        band = (decision.gain, decision.gain_low, decision.gain_high)
        if all(map(math.isfinite, band)):
            self._scalars(dict(zip(page.GAIN, band, strict=True)), decision.step)
        text = words.decision_words(decision, self._decided, self._forecasts)
        self._writer.add_text(page.DECISION_TEXT, text, decision.step)
        if decision.changed:
            self._changes = [*self._changes[-CHANGES + 1 :], (decision, self._decided)]
        self._decided = decision

    def _lay_out(self) -> None:
        outer = any(forecast.candidate.every > 1 for forecast in self._forecasts)
        self._writer.add_custom_scalars(page.layout(outer, self._measured))

    def _progress(self, progress: ProgressRecord) -> None:
        """Write the efficiency that is believed now, with its band, and what was measured in words.

        A candidate's curve begins at step 0 with what was believed before the run.
        """
        name = words.progress_name(progress.candidate)
        tags = page.efficiency_tags(name)
        if name not in self._measured:
            self._measured = (*self._measured, name)
            self._lay_out()
            for forecast in self._forecasts:
                if forecast.candidate == progress.candidate:
                    self._scalars(dict(zip(tags, forecast.belief.band, strict=True)), 0)
        band = (progress.efficiency, progress.low, progress.high)
        self._scalars(dict(zip(tags, band, strict=True)), progress.step)
        self._writer.add_text(page.PROGRESS_TEXT, words.progress_words(progress, self._forecasts), progress.step)

    def _end(self, end: EndRecord) -> None:
        self._finish()
        metrics = {page.END + name: value for name, value in end.metrics.items() if math.isfinite(value)}
        settings = plain_settings(self._run) | {"world_size": self._run.world_size} if self._run else {}
        self._writer.add_hparams(settings, metrics, run_name=".", global_step=end.steps)

    def _finish(self) -> None:
        """The last steps and the table of changes; again, nothing."""
        self._points.flush()
        if self._decisions and self._last is not None:
            text = words.changes_words(self._changes, self._decisions, self._forecasts)
            self._writer.add_text(page.CHANGES_TEXT, text, self._last.step)
            self._decisions = 0

    @property
    def _forecasts(self) -> tuple[Forecast, ...]:
        return self._run.forecasts if self._run else ()

    def _scalars(self, values: dict[str, float], step: int) -> None:
        """All values, which are finite, in one event: one each, as add_scalar makes, costs several times as much."""
        items = [self._message.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.file_writer.add_summary(self._message(value=items), step)


def check_writable(log_dir: Path) -> None:
    """Make a folder for logs, if need be.

    Raises:
        SettingsError: it cannot be made, or written to.
    """
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise SettingsError(
            f"log_dir: cannot write to {str(log_dir)!r} ({error.strerror}); give a folder you may write to"
        ) from None
