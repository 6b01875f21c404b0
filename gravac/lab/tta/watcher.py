# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a matrix tells of its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import TrainingRecord


class Watcher(Protocol):
    """The interface of what shows a matrix's progress."""

    def planned(self, records: int, there: int) -> None:
        """Note how many records the matrix has, and how many of them are there already."""

    def stamped(self, code: str, there: Sequence[str]) -> None:
        """Note the code that runs are made with, and those that runs in the file were made with."""

    def starting(self, cell: str, leg: Leg) -> None:
        """Note that a leg begins."""

    def event(self, cell: str, leg: Leg, event: Event) -> None:
        """Show a report of a leg's rank 0."""

    def finished(self, run: TrainingRecord) -> None:
        """Note that a record was made and saved."""

    def failed(self, cell: str, leg: Leg, error: RunFailed) -> None:
        """Note that a leg failed; the others go on."""
