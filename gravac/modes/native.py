# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times native steps, in which DDP exchanges by itself, from outside, so that no Python runs in backward.

Steps are timed from forward to forward. At the end of a stretch of steps the ranks begin to average their median times,
and continue to train. A step later the sums have arrived, and the controller decides by them. In a long stretch the
ranks tell each other at intervals whether a step took far longer than earlier steps. If so, the stretch ends at once,
since steps may take seconds if a link breaks down. All ranks count the same steps, since DDP's backward needs all
ranks.
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

ANSWER_STEPS = 1
"""Number of steps from the sending of numbers to the reading of their sum. By then DDP has averaged a step's gradients,
so all ranks have sent their numbers: a rank that reads may wait for the link, but not for a slower rank."""

SLOW_STEP_RATIO = 2.0
"""A step took far longer if its time is above this multiple of the time that the ranks agreed on."""

SLOW_END_RATIO = 1.5
"""A rank sends the median time of a stretch's last steps if it is above this multiple of the whole stretch's."""

LAST_STEPS_COMPARED = 8
"""Number of a stretch's last steps whose median time is compared with the whole stretch's."""

QUESTION_S = 0.3
"""Seconds of training after which the ranks ask each other again whether a step took far longer; if steps take longer
than this, they ask after every step. A question costs each rank about 1 ms of processor time, mostly in other threads
than the training loop's."""


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
        """Count the previous step, and start or read sums over the ranks; a step's forward begins.

        Args:
            stepped: whether DDP has averaged gradients since the last such forward.

        Returns:
            The candidate of this step, if the ranks have just agreed on it.
        """
        moment = self._clock()
        if stepped:
            self._count(moment)
        self._forward_began = moment
        if not stepped:
            return None
        if (
            self._question is not None
            and self._state.made >= self._question_step + ANSWER_STEPS
            and self._read_answer()
        ):
            self._end_stretch(after_slow_step=True)
            return self._wait_for_decision()  # all ranks block here, so none blocks on a rank that still computes
        if self._state.travels:
            return self._wait_for_decision() if self._state.made >= ANSWER_STEPS else None
        if self._state.made >= self._length and self._question is None:
            self._end_stretch()
        elif self._should_ask():
            self._send_question()
        return None

    def prepare_to_save(self) -> None:
        """Wait for the answer to a question in flight, which a saved state does not contain. Called on every rank."""
        if self._question is not None:
            self._read_answer()

    def _count(self, moment: float) -> None:
        """Count a step that ended at a time, in seconds of the clock."""
        self._state.made += 1
        if self._settling:
            self._settling -= 1
        elif self._forward_began is not None:
            self._seconds.append(moment - self._forward_began)

    def _should_ask(self) -> bool:
        """True if the ranks are to ask each other before this step; the same on all ranks."""
        if self._question is not None or not self._state.made or self._state.made + ANSWER_STEPS >= self._length:
            return False
        agreed = self._engine.deciding.seconds
        return agreed > 0 and self._state.made % max(1, round(QUESTION_S / agreed)) == 0

    def _send_question(self) -> None:
        """Start to count the ranks on which a step took far longer since the last question."""
        agreed = self._engine.deciding.seconds
        slow = max(self._seconds[self._checked :], default=0.0) > SLOW_STEP_RATIO * agreed
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
                both did on this rank, only the last step's time is sent. A pause of one rank delays only a single step
                of each rank, so it does not count.
        """
        seconds = median_of(self._seconds)
        if after_slow_step and min(self._seconds[-2:], default=0.0) > SLOW_STEP_RATIO * self._engine.deciding.seconds:
            seconds = self._seconds[-1]

        def fill(measurement: LocalMeasurement) -> None:
            measurement.watched = seconds

        inputs = StepInputs(learning_rate=self._learning_rate(), mode="native", steps=self._state.made)
        self._engine.begin(inputs)
        self._engine.end(fill)
        self._engine.conclude()
        self._state.made, self._state.travels, self._seconds, self._checked = 0, True, [], 0

    def _wait_for_decision(self) -> Candidate:
        """Wait for the controller's decision by the agreed times; return the candidate."""
        candidate = self._engine.concluded().result()
        self._state.travels = False
        self._forward_began = self._clock()  # the time of deciding is no time of the step: it would seem a slow step
        self._length = self._stretch_length()
        return candidate

    def _stretch_length(self) -> int:
        """Return the number of steps of the stretch that begins, as the controller decided."""
        decision = self._engine.decision
        return WATCH if decision is None else decision.watch


def median_of(seconds: Sequence[float]) -> float:
    """Return the median of steps' times; of the last steps alone if these took longer; nan without times.

    Example:
        >>> median_of([0.1] * 20), median_of([0.1] * 20 + [0.4] * 8)
        (0.1, 0.4)
    """
    if not seconds:
        return math.nan
    of_all, of_last = statistics.median(seconds), statistics.median(seconds[-LAST_STEPS_COMPARED:])
    return of_last if of_last > SLOW_END_RATIO * of_all else of_all
