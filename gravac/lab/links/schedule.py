# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link's schedule while training runs: each phase is applied at its time."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import NamedTuple

from gravac.lab.links.network import EmulatedNetwork


class Change(NamedTuple):
    """A phase that was applied; seconds since ``Schedule.follow``."""

    asked: float
    applied: float


class Schedule:
    """Follows the schedule of a network's link; a context manager around one training run.

    Entering it puts the network into the link's first phase, so that runs that follow one another on a network begin
    alike. ``follow`` is called when training begins. Leaving it ends the schedule where it stands, and raises what went
    wrong in it, unless something else is already on its way.

    Attributes:
        changes: when each phase after the first was due, and when it was in force, so far.

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
        """Begin the schedule: training begins now. May be called again, without effect."""
        if self._thread is None and not self._over.is_set():
            self._thread = threading.Thread(
                target=self._follow, args=(time.monotonic(),), name="gravac-schedule", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> Schedule:
        self._network.apply(self._network.link.phases[0])
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and value is None:
            raise self._error

    def _follow(self, began: float) -> None:
        try:
            for phase in self._network.link.phases[1:]:
                if self._over.wait(max(0.0, began + phase.at_seconds - time.monotonic())):
                    return
                self._network.apply(phase)
                self.changes.append(Change(phase.at_seconds, time.monotonic() - began))
        except BaseException as error:  # raised where the block ends
            self._error = error
