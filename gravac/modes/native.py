# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Native steps, in which DDP exchanges by itself: watched from outside, so that no Python runs in backward.

Steps are timed from forward to forward. At the end of a stretch of steps the ranks send each other their median time,
and go on to train; a step later the sums are there, and the controller decides by them. In a long stretch the ranks
ask each other now and then whether a step took far longer than before. If so, the stretch ends at once: steps may take
seconds where a link broke down. All ranks count alike: DDP lets no rank make a synced backward that the others do not
make.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

from gravac.candidate import Candidate
from gravac.controllers.base import WATCH
from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums
from gravac.engine.inputs import StepInputs
from gravac.engine.run_state import NativeState
from gravac.measurement import LocalMeasurement

SETTLING = 3
"""Number of steps after a change that are not timed: DDP lays its buckets anew."""

ANSWER = 1
"""Number of steps after which a rank reads the sum of the numbers that the ranks sent. By then DDP has averaged a
step's gradients, so that all ranks have sent theirs. A rank may wait for the link here, but not for a rank that
computes."""

FAR = 2.0
"""Ratio of a step's time to the agreed one from which on a rank tells the others that it took far longer."""

BREAKING = 1.5
"""Ratio of the median of a stretch's last steps to that of all from which on the ranks go by the last ones."""

LAST = 8
"""Number of a stretch's last steps that are looked at by themselves."""

QUESTION_S = 0.3
"""Seconds of training between two questions; if a step takes longer, the ranks ask after every step. A question costs
each rank about 1 ms of processor time, most of it in other threads than the training loop's."""


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
        self._question: RankSums | None = None
        self._asked_at = self._told = 0

    def start(self, taken_up: bool = False) -> None:
        """Native steps begin.

        Args:
            taken_up: whether a checkpoint may have brought a stretch that goes on.
        """
        self._settling, self._seconds, self._since = SETTLING, [], None
        self._question, self._told, self._length = None, 0, self._to_watch()
        if not taken_up:
            self._state.made, self._state.travels, self._state.uncounted = 0, False, False
        elif self._state.travels:
            self._engine.conclude()

    def leave(self) -> None:
        """Native steps end: count those that no stretch has told of."""
        self._engine.state.trained += self._state.made
        self._state.made = 0

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
        if self._question is not None and self._state.made >= self._asked_at + ANSWER and self._answer():
            self._end_stretch(after_slow_step=True)
            return self._decided()  # all ranks block here, so that none of them blocks on one that still computes
        if self._state.travels:
            return self._decided() if self._state.made >= ANSWER else None
        if self._state.made >= self._length and self._question is None:
            self._end_stretch()
        elif self._asks():
            self._ask()
        return None

    def prepare_to_save(self) -> None:
        """Have nothing in flight but what the state tells. Called on every rank."""
        if self._question is not None:
            self._answer()

    def _count(self, now: float) -> None:
        self._state.made += 1
        if self._settling:
            self._settling -= 1
        elif self._since is not None:
            self._seconds.append(now - self._since)

    def _asks(self) -> bool:
        """Tell whether the ranks ask each other now, by what they all know."""
        if self._question is not None or not self._state.made or self._state.made + ANSWER >= self._length:
            return False
        agreed = self._engine.deciding.seconds
        return agreed > 0 and self._state.made % max(1, round(QUESTION_S / agreed)) == 0

    def _ask(self) -> None:
        """Ask whether a step took far longer on any rank, and tell the others."""
        agreed = self._engine.deciding.seconds
        slow = max(self._seconds[self._told :], default=0.0) > FAR * agreed
        self._told = len(self._seconds)
        self._question = self._engine.sum_over_ranks("whether a native step took far longer", [float(slow)])
        self._question.receive()  # already now: in native steps nothing else waits for the executor
        self._asked_at = self._state.made

    def _answer(self) -> bool:
        """Return whether a step took far longer on any rank; the same on all ranks."""
        question, self._question = self._question, None
        assert question is not None
        (ranks,) = question.result()
        return ranks > 0

    def _end_stretch(self, after_slow_step: bool = False) -> None:
        """Start to agree with the other ranks on the steps made.

        Args:
            after_slow_step: whether it ends because a step took far longer on some rank. If the last two steps both
                did here, only the last one is told; a pause of one rank delays a single step of each rank.
        """
        seconds = median_of(self._seconds)
        if after_slow_step and min(self._seconds[-2:], default=0.0) > FAR * self._engine.deciding.seconds:
            seconds = self._seconds[-1]

        def fill(measurement: LocalMeasurement) -> None:
            measurement.watched = seconds

        inputs = StepInputs(learning_rate=self._learning_rate(), mode="native", steps=self._state.made)
        self._engine.begin(inputs)
        self._engine.end(fill)
        self._engine.conclude()
        self._state.made, self._state.travels, self._seconds, self._told = 0, True, [], 0

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


def median_of(seconds: Sequence[float]) -> float:
    """Return the median of steps' times; that of the last ones if they took far longer; nan if there are none.

    Example:
        >>> median_of([0.1] * 20), median_of([0.1] * 20 + [0.4] * 8)
        (0.1, 0.4)
    """
    if not seconds:
        return math.nan
    middle, recent = statistics.median(seconds), statistics.median(seconds[-LAST:])
    return recent if recent > BREAKING * middle else middle
