# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes records as TensorBoard scalars, texts and hyperparameters, with a layout that shows a run on one page."""

import importlib
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gravac.candidate import Candidate, Forecast, named
from gravac.settings import SettingsError
from gravac.telemetry import descriptions, page
from gravac.telemetry.jsonl import plain_settings
from gravac.telemetry.points import Points
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    Record,
    RunRecord,
    StepRecord,
)
from gravac.telemetry.sink_guard import SinkGuard

MAX_CHANGES = 500
"""Largest number of rows in the table of candidate changes at the end of a run; older changes are left out."""


class TensorBoardSink:
    """Sink that writes a run to ``log_dir`` for TensorBoard (page "Custom Scalars", smoothing 0).

    Steps are written as points, which are means over several steps (``gravac.telemetry.points``); decisions are written
    at once. A thread of TensorBoard writes the file, and flushes the file every two seconds.

    Args:
        log_dir: folder for the run's files, created if missing. To compare runs, put their folders into one folder.
        every: number of training steps per point, 1 or more.

    Raises:
        SettingsError: ``log_dir`` cannot be written to, or ``every`` is below 1.
    """

    def __init__(self, log_dir: str | Path, every: int = 10) -> None:
        if every < 1:
            raise SettingsError(f"every: {every} steps per point is below 1; use 10")
        check_writable(Path(log_dir))
        from torch.utils.tensorboard import SummaryWriter  # slow to import: only for runs that log

        self._summary_class: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer: Any = SummaryWriter(str(log_dir), max_queue=100, flush_secs=2)
        self._guard = SinkGuard(f"TensorBoardSink({str(log_dir)!r})")
        self._points = Points(every, self._write_scalars)
        self._newest_step: StepRecord | None = None
        self._run_record: RunRecord | None = None
        self._decision_count = 0
        self._candidate_changes: list[tuple[DecisionRecord, Candidate | None]] = []
        self._running_candidate: Candidate | None = None

    def __call__(self, record: Record) -> None:
        """Write a record. Never raises: the first failure causes a warning, and later records are dropped."""
        if self._writer is None or self._guard.has_failed:
            return
        with self._guard:
            if isinstance(record, StepRecord):
                self._add_step(record)
            elif isinstance(record, DecisionRecord):
                self._write_decision(record)
            elif isinstance(record, RunRecord):
                self._write_run(record, 0)
            elif isinstance(record, ForecastsRecord):
                if self._run_record is not None:
                    run = replace(self._run_record, forecasts=record.forecasts, dropped=record.dropped)
                    self._write_run(run, record.step)
            elif isinstance(record, ModeRecord):
                self._writer.add_text(page.MODE_TEXT, descriptions.describe_mode_change(record), record.step)
                self._write_scalars({page.MODE_SECONDS: record.seconds}, record.step)
            else:
                self._write_end(record)

    def close(self) -> None:
        """Write the last point and the table of candidate changes, and close the files. May be called again.

        Records that come later are dropped.
        """
        if self._writer is None:
            return
        if not self._guard.has_failed:
            with self._guard:
                self._finish()
        writer, self._writer = self._writer, None
        with self._guard:
            writer.close()

    def _write_run(self, run: RunRecord, step: int) -> None:
        """Write the description of a run, and the layout of its charts.

        Args:
            run: record of the run, with the candidates that may be chosen after ``step``.
            step: number of training steps made before the record.
        """
        self._run_record = run
        self._write_layout()
        self._writer.add_text(page.RUN_TEXT, descriptions.describe_run(run), step)

    def _add_step(self, step: StepRecord) -> None:
        """Add a step to the steps of the next point, which is written when there are enough steps."""
        self._points.add(step)
        self._newest_step = step
        if self._running_candidate is None:  # in a resumed run, before the first decision
            self._running_candidate = named(step.candidate, self._forecasts)

    def _write_decision(self, decision: DecisionRecord) -> None:
        """Write a decision's gains and description; if it changes the candidate, keep it for the final table."""
        self._decision_count += 1
        gains = [gain for gain in (decision.gain, decision.gain_low, decision.gain_high) if gain is not None]
        if len(gains) == len(page.GAIN_TAGS) and all(map(math.isfinite, gains)):
            self._write_scalars(dict(zip(page.GAIN_TAGS, gains, strict=True)), decision.step)
        text = descriptions.describe_decision(decision, self._running_candidate)
        self._writer.add_text(page.DECISION_TEXT, text, decision.step)
        if decision.changed:
            newest_changes = self._candidate_changes[-MAX_CHANGES + 1 :]
            self._candidate_changes = [*newest_changes, (decision, self._running_candidate)]
        self._running_candidate = decision.candidate

    def _write_layout(self) -> None:
        """Write the layout of the run's charts, which depends on the candidates."""
        may_run_outer = any(forecast.candidate.every > 1 for forecast in self._forecasts)
        self._writer.add_custom_scalars(page.layout(may_run_outer))

    def _write_end(self, end: EndRecord) -> None:
        """At the end of a run, write the last point of each curve, the table of candidate changes, and hyperparameters.

        TensorBoard's page of hyperparameters lists the run's settings and totals.
        """
        self._finish()
        totals_by_tag = {page.END_PREFIX + name: total for name, total in end.metrics.items() if math.isfinite(total)}
        hyperparameters = (
            plain_settings(self._run_record) | {"world_size": self._run_record.world_size} if self._run_record else {}
        )
        self._writer.add_hparams(hyperparameters, totals_by_tag, run_name=".", global_step=end.steps)

    def _finish(self) -> None:
        """Write the curves' last point and the table of candidate changes; a second call writes nothing."""
        self._points.flush()
        if self._decision_count and self._newest_step is not None:
            text = descriptions.tabulate_changes(self._candidate_changes, self._decision_count)
            self._writer.add_text(page.CHANGES_TEXT, text, self._newest_step.step)
            self._decision_count = 0

    @property
    def _forecasts(self) -> tuple[Forecast, ...]:
        return self._run_record.forecasts if self._run_record else ()

    def _write_scalars(self, numbers_by_tag: dict[str, float], step: int) -> None:
        """Write numbers in a single event, which takes a fraction of the time of ``add_scalar`` for each number.

        Args:
            numbers_by_tag: finite numbers by tag.
            step: number of the training step of the numbers.
        """
        scalars = [self._summary_class.Value(tag=tag, simple_value=number) for tag, number in numbers_by_tag.items()]
        self._writer.file_writer.add_summary(self._summary_class(value=scalars), step)


def check_writable(log_dir: Path) -> None:
    """Create a folder for logs if it is missing, and check that files can be written to the folder.

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
