# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface by which a matrix reports its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import TrainingRecord


class Watcher(Protocol):
    """An object that shows a matrix's progress."""

    def planned(self, records: int, existing: int) -> None:
        """Show the number of records of the matrix, and the number of these records in the result file."""

    def stamped(self, code: str, existing: Sequence[str]) -> None:
        """Show the code that the new runs are made with, and the codes of the runs in the result file."""

    def starting(self, cell: str, leg: Leg) -> None:
        """Show that a leg begins."""

    def event(self, cell: str, leg: Leg, event: Event) -> None:
        """Show an event that a leg's rank 0 reported."""

    def finished(self, run: TrainingRecord) -> None:
        """Show that a record was made and saved."""

    def failed(self, cell: str, leg: Leg, error: RunFailed) -> None:
        """Show that a leg failed; the other legs still run."""
