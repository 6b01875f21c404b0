# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Changes the rates of an emulated link at the times of the link's schedule, while training runs."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import NamedTuple

from gravac.lab.links.network import EmulatedNetwork


class PhaseChange(NamedTuple):
    """Due time and actual time of a change of rates, in seconds since the call of ``Schedule.follow``."""

    due_s: float
    applied_s: float


class Schedule:
    """Context manager of a thread that sets the rates of a network's links at the times in ``link.phases``.

    Entering the ``with`` block applies the first phase, so that successive runs on a network begin with equal rates.
    Call ``follow`` when training begins. The end of the block stops the thread and leaves the current rates in force.
    If the block itself raises no error, its end raises the thread's error, if any.

    Attributes:
        changes: due and actual time of each phase that was applied so far, in order, without the first phase.

    Example:
        >>> link = parse_link("1gbit,30s:50mbit")  # doctest: +SKIP
        >>> with EmulatedNetwork(2, link) as network, Schedule(network) as schedule:  # doctest: +SKIP
        ...     schedule.follow()
    """

    def __init__(self, network: EmulatedNetwork) -> None:
        self.changes: list[PhaseChange] = []
        self._network = network
        self._end_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def follow(self) -> None:
        """Start the schedule; called when training begins. Further calls have no effect."""
        if self._thread is None and not self._end_event.is_set():
            self._thread = threading.Thread(
                target=self._apply_phases, args=(time.monotonic(),), name="gravac-schedule", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> Schedule:
        self._network.apply(self._network.link.phases[0])
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_event.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _apply_phases(self, start_time: float) -> None:
        """Apply all phases except the first, each at its time; runs in the thread.

        Args:
            start_time: time of ``time.monotonic()``, in seconds, from which the times of the phases count.
        """
        try:
            for phase in self._network.link.phases[1:]:
                if self._end_event.wait(max(0.0, start_time + phase.at_seconds - time.monotonic())):
                    return
                self._network.apply(phase)
                self.changes.append(PhaseChange(phase.at_seconds, time.monotonic() - start_time))
        except BaseException as error:  # __exit__ raises the error at the end of the block
            self._error = error
