# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes rank 0's report on a leg: JSON lines for the parent process, and scalars for TensorBoard.

A *leg* is the training of a fresh model with one method of exchanging gradients.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from gravac.lab.training.exchange import Exchange
from gravac.lab.training.session import SessionSpec, log_folder

_hparams: Any = hparams  # torch has no types for it

REPORT_INTERVAL_S = 0.25
"""Minimum seconds from one JSON line about a step to the next; the steps between them get no line."""


class WorkerReport:
    """Writes rank 0's report on the training of one leg; on all other ranks, calls of this class write nothing.

    Args:
        spec: specification of the session.
        leg_index: index of the leg in ``spec.legs``.
        rank: rank of this process.
    """

    def __init__(self, spec: SessionSpec, leg_index: int, rank: int) -> None:
        self._leg_index = leg_index
        self._events_file = open(Path(spec.session_folder, "events.jsonl"), "a") if rank == 0 else None  # noqa: SIM115
        leg_log_folder = log_folder(spec, spec.legs[leg_index])
        self._summary_writer: Any = (
            SummaryWriter(str(leg_log_folder)) if rank == 0 and leg_log_folder is not None else None
        )
        self._previous_step_line_time = -math.inf

    def write_event(self, event: str, **fields: Any) -> None:
        """Append an event to ``events.jsonl`` as one JSON line, and flush the file.

        Args:
            event: kind of the event, such as ``"step"``.
            fields: further fields of the JSON line, besides the kind and the index of the leg.
        """
        if self._events_file:
            self._events_file.write(json.dumps({"event": event, "leg": self._leg_index, **fields}) + "\n")
            self._events_file.flush()

    def report_step(
        self, step: int, training_seconds: float, loss: float, exchange: Exchange, samples_per_step: int
    ) -> None:
        """Write a step's loss for TensorBoard, and a JSON line at most every ``REPORT_INTERVAL_S`` seconds.

        Args:
            step: number of steps trained so far.
            training_seconds: seconds of training so far.
            loss: training loss of the step.
            exchange: method of exchanging gradients, attached to the model.
            samples_per_step: number of samples of a step, over all ranks.
        """
        if self._summary_writer:
            self._summary_writer.add_scalar("loss/training", loss, step)
        if self._events_file and time.monotonic() - self._previous_step_line_time >= REPORT_INTERVAL_S:
            self._previous_step_line_time = time.monotonic()
            self.write_event(
                "step",
                step=step,
                seconds=training_seconds,
                loss=loss,
                samples_per_s=step * samples_per_step / training_seconds,
                gain=exchange.gain,
                running=exchange.running,
            )

    def report_evaluation(self, step: int, training_seconds: float, metric: float) -> None:
        """Write the validation metric of one evaluation as a JSON line and for TensorBoard.

        TensorBoard gets two curves: over steps, and over milliseconds of training, since its x axis has integers only.

        Args:
            step: number of steps trained before the evaluation.
            training_seconds: seconds of training before the evaluation.
            metric: validation metric, in the task's unit.
        """
        self.write_event("evaluation", step=step, seconds=training_seconds, metric=metric)
        if self._summary_writer:
            self._summary_writer.add_scalar("metric/validation", metric, step)
            self._summary_writer.add_scalar("metric/validation_by_milliseconds", metric, round(training_seconds * 1000))

    def write_hparams(self, settings: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write the leg's settings and final metrics for TensorBoard's hparams page, which has a row per leg.

        Called after the leg's last step. ``AdaptiveCompressor`` writes its own settings into a later file of the same
        folder. TensorBoard reads a folder's settings from the oldest file, which this class made when the leg started.
        So the rows of all legs have the same columns.

        Args:
            settings: settings of the leg by name.
            metrics: metrics at the end of the leg by name.
        """
        if self._summary_writer:
            for summary in _hparams(settings, metrics):
                self._summary_writer.file_writer.add_summary(summary)
            for name, metric in metrics.items():
                self._summary_writer.add_scalar(name, metric)

    def close(self) -> None:
        """Flush and close the files."""
        if self._summary_writer:
            self._summary_writer.close()
        if self._events_file:
            self._events_file.close()


def decisions_as_json(exchange: Exchange, end_seconds: list[float]) -> list[dict[str, Any]]:
    """Return the decisions of a method's controller as dicts of JSON types, the initial candidate first.

    Args:
        exchange: method of exchanging gradients, attached to the model.
        end_seconds: seconds of training at the end of each step, after a 0 for the start of training.
    """
    return [
        {
            "step": decision.step,
            "seconds": end_seconds[min(decision.step, len(end_seconds) - 1)],
            "compressor": decision.compressor,
            "cf": decision.cf,
            "every": decision.every,
            "delay": decision.delay,
            "mode": decision.mode,
            "sends": decision.sends,
            "changed": decision.changed,
            "gain": decision.gain if decision.gain is not None and math.isfinite(decision.gain) else None,
            "t_system": decision.t_system,
            "reason": decision.reason,
        }
        for decision in exchange.decisions()
    ]
