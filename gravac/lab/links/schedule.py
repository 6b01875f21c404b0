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
    """Times at which new rates were due and at which they were in force, in seconds since ``Schedule.follow``."""

    due_s: float
    applied_s: float


class Schedule:
    """Thread that applies the phases of a network's link, each at its time; a context manager around a training run.

    Entering applies the link's first phase, so that successive runs on a network begin with equal rates. ``follow`` is
    called when training begins. Leaving ends the schedule in its current phase, and raises the thread's error, unless
    the block itself raises an error.

    Attributes:
        changes: due and actual times of the phases applied so far, except the first phase.

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
                target=self._follow, args=(time.monotonic(),), name="gravac-schedule", daemon=True
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

    def _follow(self, start: float) -> None:
        """Apply all phases but the first, each at its time since ``start`` (of ``time.monotonic()``), in a thread."""
        try:
            for phase in self._network.link.phases[1:]:
                if self._end_event.wait(max(0.0, start + phase.at_seconds - time.monotonic())):
                    return
                self._network.apply(phase)
                self.changes.append(PhaseChange(phase.at_seconds, time.monotonic() - start))
        except BaseException as error:  # __exit__ raises the error at the end of the block
            self._error = error
