# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reports of rank 0 of a session on a leg: JSON lines for the parent process, scalars for TensorBoard."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from gravac.lab.training.exchange import Exchange
from gravac.lab.training.session import Spec, log_folder

_hparams: Any = hparams  # torch has no types for it

REPORT_SECONDS = 0.25
"""Minimum seconds between two progress lines."""


class WorkerReport:
    """Rank 0's report on a leg; the same calls do nothing on other ranks.

    Args:
        spec: specification of the session.
        leg: index of the leg in ``spec.legs``.
        rank: rank of this process.
    """

    def __init__(self, spec: Spec, leg: int, rank: int) -> None:
        self._leg = leg
        self._lines = open(Path(spec.folder, "events.jsonl"), "a") if rank == 0 else None  # noqa: SIM115
        folder = log_folder(spec, spec.legs[leg])
        self._board: Any = SummaryWriter(str(folder)) if rank == 0 and folder is not None else None
        self._previous_line = -math.inf

    def line(self, event: str, **fields: Any) -> None:
        """Write an event as one JSON line, with the leg's index, and flush the file."""
        if self._lines:
            self._lines.write(json.dumps({"event": event, "leg": self._leg, **fields}) + "\n")
            self._lines.flush()

    def step(self, step: int, clock: float, loss: float, exchange: Exchange | None, samples: int) -> None:
        """Report a step, without a JSON line if the previous line is more recent than ``REPORT_SECONDS``.

        Args:
            step: number of steps trained so far.
            clock: training seconds so far.
            loss: training loss of the step.
            exchange: the attached method; ``None`` for a worker that trains alone.
            samples: samples per step, over all ranks.
        """
        if self._board:
            self._board.add_scalar("loss/training", loss, step)
        if self._lines and time.monotonic() - self._previous_line >= REPORT_SECONDS:
            self._previous_line = time.monotonic()
            names = ("mode", "cf", "gain", "every")
            of_method = {name: getattr(exchange, name) if exchange else None for name in names}
            self.line("step", step=step, seconds=clock, loss=loss, samples_per_s=step * samples / clock, **of_method)

    def evaluation(self, step: int, clock: float, metric: float) -> None:
        """Report the metric, by steps and by training seconds (for which TensorBoard's "step" is milliseconds)."""
        self.line("evaluation", step=step, seconds=clock, metric=metric)
        if self._board:
            self._board.add_scalar("metric/validation", metric, step)
            self._board.add_scalar("metric/validation_by_milliseconds", metric, round(clock * 1000))

    def compare(self, settings: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write settings and metrics for TensorBoard's hparams page, which compares runs by them.

        They are in this run's own file. It is older than the file in which a compressor writes its settings when it
        closes, and TensorBoard shows the oldest of a run. So each leg is one row, and all rows have the same columns.
        """
        if self._board:
            for summary in _hparams(settings, metrics):
                self._board.file_writer.add_summary(summary)
            for name, metric in metrics.items():
                self._board.add_scalar(name, metric)

    def close(self) -> None:
        """Flush and close the files."""
        if self._board:
            self._board.close()
        if self._lines:
            self._lines.close()


def decisions(exchange: Exchange, ends: list[float]) -> list[dict[str, Any]]:
    """Return a method's decisions in JSON types.

    Args:
        exchange: an attached method.
        ends: training seconds at the start, then at each step's end.
    """
    return [
        {
            "step": decision.step,
            "seconds": ends[min(decision.step, len(ends) - 1)],
            "compressor": decision.compressor,
            "cf": decision.cf,
            "every": decision.every,
            "delay": decision.delay,
            "mode": decision.mode,
            "changed": decision.changed,
            "gain": decision.gain if math.isfinite(decision.gain) else None,
            "t_system": decision.t_system,
            "reason": decision.reason,
        }
        for decision in exchange.decisions()
    ]


def changes(exchange: Exchange, ends: list[float]) -> list[dict[str, Any]]:
    """Return a method's changes of mode in JSON types.

    ``at_seconds`` is the training time at a change; ``seconds`` and ``wire_bytes`` are the costs of the change on this
    rank.

    Args:
        exchange: an attached method.
        ends: training seconds at the start, then at each step's end.
    """
    return [
        {
            "step": change.step,
            "at_seconds": ends[min(change.step, len(ends) - 1)],
            "before": change.before,
            "after": change.after,
            "seconds": change.seconds,
            "wire_bytes": change.wire_bytes,
        }
        for change in exchange.changes()
    ]
