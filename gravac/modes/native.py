# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Native steps, in which DDP exchanges by itself: watched from outside, so that no Python runs in backward.

Steps are timed from forward to forward. At the end of a stretch of steps the ranks send each other their median time,
and go on to train; two steps later the sums are there, and the controller decides by them. All ranks count alike: DDP
lets no rank make a synced backward that the others do not make.
"""

import statistics
import time
from collections.abc import Callable

from gravac.candidate import Candidate
from gravac.controllers.base import WATCH
from gravac.engine.engine import Engine, StepInputs
from gravac.engine.run_state import NativeState
from gravac.measurement import LocalMeasurement

SETTLING = 3
"""Number of steps after a change that are not timed: DDP lays its buckets anew."""

ANSWER = 2
"""Number of steps for which the ranks' sums travel: no rank makes the second before all have made the first, so that
nobody waits for a rank that waits for it."""


class NativeWatch:
    """Counts and times this rank's native steps.

    Args:
        engine: has the ranks agree.
        learning_rate: tells the optimizers' learning rate; nan if not known.
        clock: tells seconds.
    """

    def __init__(
        self, engine: Engine, learning_rate: Callable[[], float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine, self._learning_rate, self._clock = engine, learning_rate, clock
        self._state: NativeState = engine.state.native
        self._settling = SETTLING
        self._seconds: list[float] = []
        self._since: float | None = None
        self._length = WATCH

    def start(self, taken_up: bool = False) -> None:
        """Native steps begin.

        Args:
            taken_up: whether a checkpoint may have brought a stretch that goes on.
        """
        self._settling, self._seconds, self._since = SETTLING, [], None
        self._length = self._to_watch()
        if not taken_up:
            self._state.made, self._state.travels, self._state.uncounted = 0, False, False
        elif self._state.travels:
            self._engine.conclude()

    def pause(self) -> None:
        """The present step is not timed: the model is evaluated, or saved."""
        self._since = None

    def forward_starts(self, stepped: bool) -> Candidate | None:
        """The forward of a synced step begins.

        Args:
            stepped: whether a synced backward was made since the last such forward.

        Returns:
            The candidate that this step is to run, if the ranks have just agreed on it.
        """
        now = self._clock()
        if stepped:
            self._count(now)
        self._since = now
        if not stepped:
            return None
        if self._state.travels and self._state.made >= ANSWER:
            return self._decided()
        if not self._state.travels and self._state.made >= self._length:
            self._end_stretch()
        return None

    def _count(self, now: float) -> None:
        self._state.made += 1
        if self._settling:
            self._settling -= 1
        elif self._since is not None:
            self._seconds.append(now - self._since)

    def _end_stretch(self) -> None:
        """Start to agree with the other ranks on the steps made."""
        seconds = statistics.median(self._seconds) if self._seconds else float("nan")

        def fill(measurement: LocalMeasurement) -> None:
            measurement.watched = seconds

        inputs = StepInputs(learning_rate=self._learning_rate(), mode="native", steps=self._state.made)
        self._engine.begin(inputs)
        self._engine.end(fill)
        self._engine.conclude()
        self._state.made, self._state.travels, self._seconds = 0, True, []

    def _decided(self) -> Candidate:
        """Decide by what the ranks agreed on."""
        candidate = self._engine.concluded().result()
        self._state.travels = False
        self._length = self._to_watch()
        return candidate

    def _to_watch(self) -> int:
        """Return the number of steps of the stretch that begins, as decided."""
        decision = self._engine.decision
        return WATCH if decision is None else decision.watch
