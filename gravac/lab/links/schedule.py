# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Applies the phases of a link's schedule, each at its time, while training runs."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import NamedTuple

from gravac.lab.links.network import EmulatedNetwork


class Change(NamedTuple):
    """Times at which a phase was due and at which it had been applied, in seconds since ``Schedule.follow``."""

    due: float
    applied: float


class Schedule:
    """Follower of the schedule of a network's link; a context manager around a training run.

    Entering applies the link's first phase, so that successive runs on a network begin alike. ``follow`` is called when
    training begins. Leaving ends the schedule in its current phase, and raises the schedule's error, unless
    the block itself raises an error.

    Attributes:
        changes: phases applied so far, except the first.

    Example:
        >>> link = parse_link("1gbit,30s:50mbit")  # doctest: +SKIP
        >>> with EmulatedNetwork(2, link) as network, Schedule(network) as schedule:  # doctest: +SKIP
        ...     schedule.follow()
    """

    def __init__(self, network: EmulatedNetwork) -> None:
        self.changes: list[Change] = []
        self._network = network
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def follow(self) -> None:
        """Begin the schedule when training begins. Further calls have no effect."""
        if self._thread is None and not self._over.is_set():
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
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _follow(self, start: float) -> None:
        """Apply the phases after the first, in the thread; ``start`` is a time of ``time.monotonic()``."""
        try:
            for phase in self._network.link.phases[1:]:
                if self._over.wait(max(0.0, start + phase.at_seconds - time.monotonic())):
                    return
                self._network.apply(phase)
                self.changes.append(Change(phase.at_seconds, time.monotonic() - start))
        except BaseException as error:  # __exit__ raises the error at the end of the block
            self._error = error
