# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface through which ``gravac bench tta`` reports the progress of its training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import TrainingRecord


class Watcher(Protocol):
    """Shows the progress of all runs of ``gravac bench tta``, whose runner calls these functions.

    A leg is the training of a fresh model with one method. The argument ``cell_text`` names task, link and seed of a
    leg, such as ``"charlm 100mbit seed 0"``.
    """

    def show_plan(self, record_count: int, existing_count: int) -> None:
        """Show how many runs there are to do; called before the runs, and again before runs with further seeds.

        Args:
            record_count: number of records of runs that are needed, those in the result file included.
            existing_count: number of needed records that the result file has already, and that are not run again.
        """

    def show_commits(self, code: str, existing_codes: Sequence[str]) -> None:
        """Show the commit of the present code, and the commits of the runs in the result file; called once, at first.

        Args:
            code: text that names the commit of the present code, ``Stamp.code``.
            existing_codes: ``Stamp.code`` of the runs in the result file, each commit once; empty without a file.
        """

    def show_start(self, cell_text: str, leg: Leg) -> None:
        """Show that a session of worker processes starts, whose first leg is ``leg``.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that trains first.
        """

    def show_event(self, cell_text: str, leg: Leg, event: Event) -> None:
        """Show an event that rank 0 reported while a leg trained.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that the event belongs to.
            event: event, such as a step or an evaluation; ``"event"`` is its kind.
        """

    def show_finished_run(self, run: TrainingRecord) -> None:
        """Show the record of a finished run; called after the result file was saved."""

    def show_failed_leg(self, cell_text: str, leg: Leg, error: RunFailed) -> None:
        """Show that a leg failed and gets no record; the legs after it train in new worker processes.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that failed.
            error: error with the end of a worker's output.
        """
