# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface by which a matrix of runs reports its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import TrainingRecord


class Watcher(Protocol):
    """Interface of objects that show the progress of a matrix of runs.

    ``cell`` is text for a task, a link and a seed; a leg is the training of a fresh model with one method.
    """

    def show_plan(self, record_count: int, existing_count: int) -> None:
        """Show how many records the matrix needs, and how many of these exist in the result file already."""

    def show_commits(self, code: str, existing_codes: Sequence[str]) -> None:
        """Show the commit of the present code, and the commits of the runs that exist in the result file.

        Args:
            code: ``Stamp.code`` of the present code.
            existing_codes: ``Stamp.code`` of the runs in the result file, each once.
        """

    def show_start(self, cell: str, leg: Leg) -> None:
        """Show that a leg of a cell begins."""

    def show_event(self, cell: str, leg: Leg, event: Event) -> None:
        """Show an event that rank 0 reported about a leg."""

    def show_finished_run(self, run: TrainingRecord) -> None:
        """Show the record of a run that was added to the result file."""

    def show_failed_leg(self, cell: str, leg: Leg, error: RunFailed) -> None:
        """Show that a leg failed; the remaining legs run in a new session."""
