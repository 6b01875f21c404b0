# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times native steps, in which DDP averages gradients by itself. Only forwards are hooked: no Python runs in backward.

A step's time is the time from the start of its forward to the start of the next step's forward. A *stretch* is a number
of successive native steps that count as one measurement. At the end of a stretch the ranks begin to average the medians
of their step times, and continue to train. A step later the averages have arrived, and the controller decides by them.
Each rank also sends the median time of its forwards. No exchange is in flight during forward, so that a change of this
time shows that the machine became faster or slower, and not the link.

In a long stretch the ranks also make a *slow-step check* at intervals: each rank tells the others whether a step took
far longer than the agreed time (the mean over the ranks). If any rank had such a slow step, the stretch ends at once:
if a link breaks down, steps may take seconds. All ranks count the same steps, since DDP's backward needs all ranks.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.controllers.base import DEFAULT_STRETCH_STEPS
from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums
from gravac.engine.inputs import StepInputs
from gravac.engine.run_state import NativeState

UNTIMED_STEPS = 3
"""Number of steps after a change of mode that are not timed, since DDP rebuilds its buckets in them."""

SUM_DELAY_STEPS = 1
"""Number of steps from the start of a sum over the ranks until a rank reads the result.

In between DDP has averaged a step's gradients, so all ranks have sent their numbers. A rank that reads the result may
wait for the link, but does not wait for a slower rank."""

SLOW_STEP_RATIO = 2.0
"""A step counts as slow if the step's time / the agreed time of a step (mean over the ranks) is above this ratio."""

FEWEST_STEPS_CHECKED = 3
"""Smallest number of timed steps of a stretch with which a slow-step check may end the stretch. A pause makes one step
long: other ranks wait while rank 0 evaluates, for example. With fewer steps, this step would determine the median."""

SLOW_END_RATIO = 1.5
"""Ratio that decides which median step time a rank sends at the end of a stretch.

If median time of the last steps / median time of all steps is above this ratio, the rank sends the median of the last
steps, otherwise that of all steps."""

LAST_STEPS_COMPARED = 8
"""Number of steps at the end of a stretch whose median time is compared with the median time of the whole stretch."""

CHECK_INTERVAL_S = 0.3
"""Seconds of training between two slow-step checks, in which ranks tell each other whether a step was slow.

If a step takes longer than these seconds, ranks check after every step. A check costs each rank about 1 ms of processor
time, mostly outside the thread of the training loop."""


class NativeWatch:
    """Counts and times this rank's native steps, in which DDP averages gradients by itself.

    Args:
        engine: object that sums numbers over the ranks, and asks the controller for decisions.
        learning_rate: function that returns the optimizers' present learning rate; nan if not known.
        clock: function that returns the current time in seconds.
    """

    def __init__(
        self, engine: Engine, learning_rate: Callable[[], float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine, self._learning_rate, self._clock = engine, learning_rate, clock
        self._stretch_state: NativeState = engine.state.native
        self._untimed_steps_left = UNTIMED_STEPS
        self._step_seconds: list[float] = []
        self._forward_seconds: list[float] = []  # of the forward of each step in ``_step_seconds``; nan if not known
        self._forward_began_s: float | None = None
        self._forward_s = math.nan  # seconds of the present step's forward; nan until ``forward_ended``
        self._stretch_steps = DEFAULT_STRETCH_STEPS
        self._slow_step_check: RankSums | None = None
        self._check_sent_at_step = 0  # number of the stretch's steps when the slow-step check was sent
        self._times_checked = 0  # number of step times that earlier slow-step checks covered

    def start(self, may_resume: bool = False) -> None:
        """Begin to count and time native steps. Called when the mode becomes native.

        Args:
            may_resume: whether to continue an unfinished stretch (successive steps that count as one measurement) if a
                checkpoint restored one. False: a new stretch begins.
        """
        self._untimed_steps_left, self._forward_began_s = UNTIMED_STEPS, None
        self._step_seconds, self._forward_seconds = [], []
        self._slow_step_check, self._times_checked, self._stretch_steps = None, 0, self._decided_stretch_steps()
        if not may_resume:
            self._stretch_state.made, self._stretch_state.travels, self._stretch_state.uncounted = 0, False, False
        elif self._stretch_state.travels:
            self._engine.conclude()

    def stop(self) -> None:
        """Add the steps of the unfinished stretch to the number of training steps. Called when native mode ends."""
        self._engine.state.trained += self._stretch_state.made
        self._stretch_state.made = 0

    def pause(self) -> None:
        """Leave the current step untimed, since the model is evaluated or saved within it."""
        self._forward_began_s = None

    def forward_starts(self, averaged: bool) -> Candidate | None:
        """Count the previous step, and send or read sums over the ranks. Called when a step's forward begins.

        Args:
            averaged: whether DDP has averaged gradients since the last call.

        Returns:
            The candidate of this step, if the controller has just decided; otherwise ``None``.
        """
        now_s = self._clock()
        if averaged:
            self._count_step(now_s)
        self._forward_began_s, self._forward_s = now_s, math.nan
        if not averaged:
            return None
        if (
            self._slow_step_check is not None
            and self._stretch_state.made >= self._check_sent_at_step + SUM_DELAY_STEPS
            and self._read_slow_step_check()
        ):
            self._end_stretch(after_slow_step=True)
            return self._wait_for_decision()  # all ranks block here, so none blocks on a rank that still computes
        if self._stretch_state.travels:
            return self._wait_for_decision() if self._stretch_state.made >= SUM_DELAY_STEPS else None
        if self._stretch_state.made >= self._stretch_steps and self._slow_step_check is None:
            self._end_stretch()
        elif self._slow_step_check_is_due():
            self._send_slow_step_check()
        return None

    def forward_ended(self, seconds: float) -> None:
        """Store the time of the step's forward, in seconds. Called when a forward that was timed ends.

        Of several forwards in a step, such as those of a pipeline's microbatches, the last counts.
        """
        self._forward_s = seconds

    def prepare_to_save(self) -> None:
        """Wait for the slow-step check in flight, which a saved state does not contain. Called on every rank.

        In a slow-step check, ranks tell each other whether a step was slow.
        """
        if self._slow_step_check is not None:
            self._read_slow_step_check()

    def _count_step(self, now_s: float) -> None:
        """Count a step, and store its time.

        Args:
            now_s: reading of the clock at which the step ended, in seconds.
        """
        self._stretch_state.made += 1
        if self._untimed_steps_left:
            self._untimed_steps_left -= 1
        elif self._forward_began_s is not None:
            self._step_seconds.append(now_s - self._forward_began_s)
            self._forward_seconds.append(self._forward_s)

    def _slow_step_check_is_due(self) -> bool:
        """True if the ranks make a slow-step check before this step; the same on all ranks.

        In a slow-step check, ranks tell each other whether a step was slow (``CHECK_INTERVAL_S``).
        """
        if (
            self._slow_step_check is not None
            or not self._stretch_state.made
            or self._stretch_state.made + SUM_DELAY_STEPS >= self._stretch_steps
        ):
            return False
        agreed_step_s = self._engine.deciding.agreed_step_s
        return agreed_step_s > 0 and self._stretch_state.made % max(1, round(CHECK_INTERVAL_S / agreed_step_s)) == 0

    def _send_slow_step_check(self) -> None:
        """Begin a sum over the ranks: the number of ranks on which a step since the last check was slow.

        A step is slow if the step's time exceeds ``SLOW_STEP_RATIO`` times the agreed time. Before this rank has timed
        ``FEWEST_STEPS_CHECKED`` steps of the stretch, none of them counts as slow; later checks cover them, too.
        """
        step_is_slow = False
        if len(self._step_seconds) >= FEWEST_STEPS_CHECKED:
            slowest_s = max(self._step_seconds[self._times_checked :], default=0.0)
            step_is_slow = slowest_s > SLOW_STEP_RATIO * self._engine.deciding.agreed_step_s
            self._times_checked = len(self._step_seconds)
        self._slow_step_check = self._engine.sum_over_ranks("the check for slow native steps", [float(step_is_slow)])
        self._check_sent_at_step = self._stretch_state.made

    def _read_slow_step_check(self) -> bool:
        """Wait for the sum that ``_send_slow_step_check`` began; return whether a step was slow on any rank.

        The result is the same on all ranks.
        """
        rank_sums, self._slow_step_check = self._slow_step_check, None
        assert rank_sums is not None
        (slow_ranks,) = rank_sums.result()
        return slow_ranks > 0

    def _end_stretch(self, after_slow_step: bool = False) -> None:
        """End the stretch: begin to average the ranks' median times of the stretch's steps.

        Args:
            after_slow_step: whether the stretch ends early, because a step was slow on some rank. If both of this
                rank's last two steps were slow, the rank then sends the last step's time in place of the median. A
                single slow step may be a pause of one rank, which delays one step of every rank.
        """
        steps_sent = steps_that_count(self._step_seconds)
        if (
            after_slow_step
            and min(self._step_seconds[-2:], default=0.0) > SLOW_STEP_RATIO * self._engine.deciding.agreed_step_s
        ):
            steps_sent = slice(-1, None)
        step_s, forward_s = _median(self._step_seconds[steps_sent]), _median(self._forward_seconds[steps_sent])

        def add_step_time(measurement: StepRecording) -> None:
            measurement.native_step_s, measurement.forward_s = step_s, forward_s

        inputs = StepInputs(learning_rate=self._learning_rate(), mode="native", steps=self._stretch_state.made)
        self._engine.begin(inputs)
        self._engine.end(add_step_time)
        self._engine.conclude()
        self._stretch_state.made, self._stretch_state.travels, self._times_checked = 0, True, 0
        self._step_seconds, self._forward_seconds = [], []

    def _wait_for_decision(self) -> Candidate:
        """Wait until the ranks' step times are averaged and the controller has decided; return the chosen candidate."""
        candidate = self._engine.concluded().result()
        self._stretch_state.travels = False
        self._forward_began_s = self._clock()  # without the time of the decision, which would make the step seem slow
        self._stretch_steps = self._decided_stretch_steps()
        return candidate

    def _decided_stretch_steps(self) -> int:
        """Return the number of steps that the controller decided for the stretch that now begins."""
        decision = self._engine.decision
        return DEFAULT_STRETCH_STEPS if decision is None else decision.watch


def steps_that_count(step_seconds: Sequence[float]) -> slice:
    """Return which steps of a stretch the rank sends the median time of: all of them, or the last of them.

    The last ``LAST_STEPS_COMPARED`` steps count if their median time is more than ``SLOW_END_RATIO`` times the median
    of all steps; otherwise all steps count.

    Args:
        step_seconds: time of each step, in seconds.

    Example:
        >>> steps_that_count([0.1] * 20), steps_that_count([0.1] * 20 + [0.4] * 8)
        (slice(0, None, None), slice(-8, None, None))
    """
    last_median_s = _median(step_seconds[-LAST_STEPS_COMPARED:])
    return slice(-LAST_STEPS_COMPARED if last_median_s > SLOW_END_RATIO * _median(step_seconds) else 0, None)


def _median(seconds: Sequence[float]) -> float:
    """Return the median of the numbers that are not nan, in seconds; nan if there are none."""
    known_seconds = [number for number in seconds if not math.isnan(number)]
    return statistics.median(known_seconds) if known_seconds else math.nan
