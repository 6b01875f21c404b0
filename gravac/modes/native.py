# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Native steps, in which DDP exchanges by itself: watched from outside, so that no Python runs in backward.

Steps are timed from forward to forward. At the end of a stretch of steps the ranks send each other their median time,
and continue to train. A step later the sums have arrived, and the controller decides by them. In a long stretch the
ranks ask each other at intervals whether a step took far longer than earlier ones. If a step did, the stretch ends at
once: steps may take seconds if a link broke down. All ranks count alike: DDP lets no rank make a synced backward that
the others do not make.
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
"""Number of steps after a change of mode that are not timed: DDP rebuilds its buckets."""

ANSWER = 1
"""Number of steps after which a rank reads the sum of the numbers that the ranks sent. By then DDP has averaged a
step's gradients, so all ranks have sent their numbers. The rank that reads may wait for the link, but not for a rank
that computes."""

FAR = 2.0
"""Ratio of a step's time to the agreed time above which a rank tells the others that a step took far longer."""

BREAKING = 1.5
"""Ratio of the median time of a stretch's last steps to that of all its steps, above which a rank sends the former."""

LAST_STEPS = 8
"""Number of a stretch's last steps whose median is compared with that of all its steps."""

QUESTION_S = 0.3
"""Seconds of training between two questions; if a step takes longer, the ranks ask after every step. A question costs
each rank about 1 ms of processor time, mostly in threads other than the training loop's."""


class NativeWatch:
    """Counts and times this rank's native steps.

    Args:
        engine: sums numbers over the ranks, and decides.
        learning_rate: returns the optimizers' learning rate; nan if not known.
        clock: returns the current time in seconds.
    """

    def __init__(
        self, engine: Engine, learning_rate: Callable[[], float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine, self._learning_rate, self._clock = engine, learning_rate, clock
        self._state: NativeState = engine.state.native
        self._settling = SETTLING
        self._seconds: list[float] = []
        self._forward_began: float | None = None
        self._length = WATCH
        self._question: RankSums | None = None
        self._question_step = self._checked = 0  # steps of the stretch when the question was sent; step times looked at

    def start(self, may_resume: bool = False) -> None:
        """Begin native steps.

        Args:
            may_resume: whether a checkpoint may have restored an unfinished stretch, which then continues.
        """
        self._settling, self._seconds, self._forward_began = SETTLING, [], None
        self._question, self._checked, self._length = None, 0, self._stretch_length()
        if not may_resume:
            self._state.made, self._state.travels, self._state.uncounted = 0, False, False
        elif self._state.travels:
            self._engine.conclude()

    def leave(self) -> None:
        """End native steps: count the steps of the unfinished stretch as training steps."""
        self._engine.state.trained += self._state.made
        self._state.made = 0

    def pause(self) -> None:
        """Leave the current step untimed: the model is evaluated, or saved."""
        self._forward_began = None

    def forward_starts(self, stepped: bool) -> Candidate | None:
        """Count the previous step, and start or read agreements: the forward of a synced step begins.

        Args:
            stepped: whether a synced backward was made since the last such forward.

        Returns:
            The candidate of this step, if the ranks have just agreed on it.
        """
        moment = self._clock()
        if stepped:
            self._count(moment)
        self._forward_began = moment
        if not stepped:
            return None
        if self._question is not None and self._state.made >= self._question_step + ANSWER and self._read_answer():
            self._end_stretch(after_slow_step=True)
            return self._wait_for_decision()  # all ranks block here, so none blocks on a rank that still computes
        if self._state.travels:
            return self._wait_for_decision() if self._state.made >= ANSWER else None
        if self._state.made >= self._length and self._question is None:
            self._end_stretch()
        elif self._should_ask():
            self._send_question()
        return None

    def prepare_to_save(self) -> None:
        """Wait for the question in flight, which the state does not record. Called on every rank."""
        if self._question is not None:
            self._read_answer()

    def _count(self, moment: float) -> None:
        """Count a step that ended at a moment, in seconds of the clock."""
        self._state.made += 1
        if self._settling:
            self._settling -= 1
        elif self._forward_began is not None:
            self._seconds.append(moment - self._forward_began)

    def _should_ask(self) -> bool:
        """True if the ranks are to ask each other before this step; the same on all ranks."""
        if self._question is not None or not self._state.made or self._state.made + ANSWER >= self._length:
            return False
        agreed = self._engine.deciding.seconds
        return agreed > 0 and self._state.made % max(1, round(QUESTION_S / agreed)) == 0

    def _send_question(self) -> None:
        """Start to count the ranks on which a step took far longer since the last question."""
        agreed = self._engine.deciding.seconds
        slow = max(self._seconds[self._checked :], default=0.0) > FAR * agreed
        self._checked = len(self._seconds)
        self._question = self._engine.sum_over_ranks("whether a native step took far longer", [float(slow)])
        self._question.receive()  # already here: in native steps nothing else waits for the executor
        self._question_step = self._state.made

    def _read_answer(self) -> bool:
        """Return whether a step took far longer on any rank; the same on all ranks."""
        question, self._question = self._question, None
        assert question is not None
        (ranks,) = question.result()
        return ranks > 0

    def _end_stretch(self, after_slow_step: bool = False) -> None:
        """End the stretch: start to agree with the other ranks on the time of its steps.

        Args:
            after_slow_step: whether the stretch ends because a step took far longer on some rank. If the last two steps
                both took far longer on this rank, only the last one's time is sent. A pause of one rank does not lead
                to that: it delays a single step of each rank.
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
        self._state.made, self._state.travels, self._seconds, self._checked = 0, True, [], 0

    def _wait_for_decision(self) -> Candidate:
        """Return the candidate that the controller decides for by the ranks' agreed times."""
        candidate = self._engine.concluded().result()
        self._state.travels = False
        self._length = self._stretch_length()
        return candidate

    def _stretch_length(self) -> int:
        """Return the number of steps of the stretch that begins, as the controller decided."""
        decision = self._engine.decision
        return WATCH if decision is None else decision.watch


def median_of(seconds: Sequence[float]) -> float:
    """Return the median of steps' times; of the last ``LAST_STEPS`` if these took far longer; nan for no times.

    Example:
        >>> median_of([0.1] * 20), median_of([0.1] * 20 + [0.4] * 8)
        (0.1, 0.4)
    """
    if not seconds:
        return math.nan
    of_all, of_last = statistics.median(seconds), statistics.median(seconds[-LAST_STEPS:])
    return of_last if of_last > BREAKING * of_all else of_all
