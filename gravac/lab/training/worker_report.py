# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What rank 0 of a session tells of a leg: JSON lines for the parent process, scalars for TensorBoard."""

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
"""Shortest time between two progress lines."""


class WorkerReport:
    """Rank 0's account of a leg; the same calls do nothing on other ranks.

    Args:
        spec: the session.
        leg: index of the leg in ``spec.legs``.
        rank: the rank that trains here.
    """

    def __init__(self, spec: Spec, leg: int, rank: int) -> None:
        self._leg = leg
        self._lines = open(Path(spec.folder, "events.jsonl"), "a") if rank == 0 else None  # noqa: SIM115
        folder = log_folder(spec, spec.legs[leg])
        self._board: Any = SummaryWriter(str(folder)) if rank == 0 and folder is not None else None
        self._last = -math.inf

    def line(self, event: str, **values: Any) -> None:
        """Write one event at once, with the leg's index."""
        if self._lines:
            self._lines.write(json.dumps({"event": event, "leg": self._leg, **values}) + "\n")
            self._lines.flush()

    def step(self, step: int, clock: float, loss: float, exchange: Exchange | None, samples: int) -> None:
        """Tell of a step; the JSON line is left out where the last one is more recent than ``REPORT_SECONDS``.

        Args:
            step: steps trained so far.
            clock: training seconds so far.
            loss: training loss of the step.
            exchange: what exchanges; ``None`` of one worker alone.
            samples: samples a step, over all ranks.
        """
        if self._board:
            self._board.add_scalar("loss/training", loss, step)
        if self._lines and time.monotonic() - self._last >= REPORT_SECONDS:
            self._last = time.monotonic()
            told = {name: getattr(exchange, name) if exchange else None for name in ("mode", "cf", "gain", "every")}
            self.line("step", step=step, seconds=clock, loss=loss, samples_per_s=step * samples / clock, **told)

    def evaluation(self, step: int, clock: float, metric: float) -> None:
        """Tell of the metric, by steps and by training seconds (there TensorBoard's "step" is milliseconds)."""
        self.line("evaluation", step=step, seconds=clock, metric=metric)
        if self._board:
            self._board.add_scalar("metric/validation", metric, step)
            self._board.add_scalar("metric/validation_by_milliseconds", metric, round(clock * 1000))

    def compare(self, settings: dict[str, Any], metrics: dict[str, float]) -> None:
        """Put settings and metrics on TensorBoard's hparams page, which compares runs by them.

        They go into this run's own file, which is older than what a compressor writes of its settings when it closes:
        TensorBoard shows the first of a run, so each leg is one row, and all rows have the same columns.
        """
        if self._board:
            for summary in _hparams(settings, metrics):
                self._board.file_writer.add_summary(summary)
            for name, value in metrics.items():
                self._board.add_scalar(name, value)

    def close(self) -> None:
        """Write what is left, and close the files."""
        if self._board:
            self._board.close()
        if self._lines:
            self._lines.close()


def decisions(exchange: Exchange, ends: list[float]) -> list[dict[str, Any]]:
    """Return an exchange's decisions as JSON values.

    Args:
        exchange: a method, attached.
        ends: training seconds at the start, then at each step's end.
    """
    return [
        {
            "step": turn.step,
            "seconds": ends[min(turn.step, len(ends) - 1)],
            "compressor": turn.compressor,
            "cf": turn.cf,
            "every": turn.every,
            "delay": turn.delay,
            "mode": turn.mode,
            "changed": turn.changed,
            "gain": turn.gain if math.isfinite(turn.gain) else None,
            "t_system": turn.t_system,
            "reason": turn.reason,
        }
        for turn in exchange.decisions()
    ]


def changes(exchange: Exchange, ends: list[float]) -> list[dict[str, Any]]:
    """Return an exchange's changes of mode as JSON values; arguments are those of ``decisions``.

    ``at_seconds`` is the training time at a change, ``seconds`` and ``wire_bytes`` what the change took on this rank.
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
