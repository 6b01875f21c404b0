# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: a round is a number of training steps, after which the ranks exchange how far their weights moved.

The controller decides once a round, by measurements of earlier rounds, which are the same on all ranks. It chooses the
compressor and the round's number of steps. If training waits for the mean at a fixed step, the number of steps of
round t follows from the measurements up to round t - 1. If means are applied whenever they arrive, the number follows
from the measurements up to round t - 2.
"""

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future

import torch

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs
from gravac.modes.outer.anchor import PendingMean
from gravac.modes.outer.candidates import Delay
from gravac.modes.outer.round_state import RoundState

MAX_TIMED_STEPS = 5
"""Largest number of steps that are timed before the first decision; the first step's time is ignored."""


FLAGS_DELAY_ROUNDS = 2
"""Number of rounds after which the host reads whether a mean was finite, if the host must not wait for the device (see
``HostCopy``)."""


class Rounds:
    """Counts a rank's steps, and sends the pseudo-gradient at the end of each round.

    Args:
        engine: averages pseudo-gradients.
        state: state of the outer steps.
        every_range: lowest and highest number of steps of a round.
        delay: number of steps that a pseudo-gradient is in flight, more if its exchange takes longer; 0: training waits
            for the exchange; ``"auto"``: the controller decides the number, and training waits after that many steps.
        mixing: fraction of its own weights that a rank keeps when it applies the anchor, if it trained while the
            exchange was in flight; ``None``: the rank keeps what it learned meanwhile.
        check_parameters: function without arguments, called before anything is sent; raises ``ValueError`` if the
            trained parameters are not those that ranks exchange.

    Attributes:
        has_stepped: whether a step was made since this object was created.
    """

    def __init__(
        self,
        engine: Engine,
        state: RoundState,
        every_range: tuple[int, int],
        delay: Delay,
        mixing: float | None,
        check_parameters: Callable[[], None] = lambda: None,
    ) -> None:
        self.has_stepped = False
        self._engine, self._state = engine, state
        self._every_range, self._mixing = every_range, mixing
        self._check_parameters = check_parameters
        self._waits_when_due = delay in (0, "auto")
        self._is_every_fixed = every_range[0] == every_range[1] and delay != "auto"
        state.delay = 0 if delay == "auto" else delay
        self._unread: list[PendingMean] = []  # exchanges of which the host has not read yet whether they were finite
        self._last_handle: Handle | None = None
        self._decided_candidate: Future[Candidate] | None = None  # made when the last round began
        self._step_ends_s: list[float] = []
        self._forward_seconds: list[float] = []  # of the present round
        self._paused_s = 0.0
        self._paused_since_s: float | None = None

    def send_due(self, learning_rate: float) -> None:
        """Count a step of this rank, and send its pseudo-gradient if the round ends with that step.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the means of several consecutive rounds were not finite.
            ValueError: the trained parameters are not those that ranks exchange.
        """
        state = self._state
        self.has_stepped = True
        state.steps += 1
        state.in_round += 1
        if self._waits_when_due:
            self._finish_due()
        if state.phase in ("timing", "undecided"):
            self._set_decided_steps()
        if state.phase == "closing" or (self._waits_when_due and state.under_way):
            return
        if state.phase == "decided" and state.in_round >= state.every:  # above if the first round was decided late
            self._send(learning_rate)

    def apply_due(self) -> None:
        """Apply the mean if its delay is over.

        If the mean has not arrived by then, what happens depends on the setting ``delay``. With 0 or ``"auto"``, the
        method waits for the mean. With a fixed delay above 0, it returns, and a later call applies the mean.
        """
        self._finish_due()
        self._state.refusals.warn()
        if self._waits_when_due and not self._state.under_way:
            self._check_progress(self._state.ended - 1)

    def end_early(self, learning_rate: float, dense: bool = False) -> None:
        """End the round now, if it has made a step.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.
            dense: whether to send dense, so that no residual remains.
        """
        if self._state.in_round:
            self._send(learning_rate, dense)

    def forward_ended(self, seconds: float) -> None:
        """Keep the time of a forward of this round, in seconds, if no exchange is in flight, which could slow it."""
        if self._state.anchor.pending is None:
            self._forward_seconds.append(seconds)

    def pause(self) -> None:
        """Begin a time in which the rank does not train; step times exclude the time until ``resume``."""
        if self._paused_since_s is None:
            self._paused_since_s = time.perf_counter()

    def resume(self) -> None:
        """End a pause, since the rank trains again."""
        if self._paused_since_s is not None:
            self._paused_s += time.perf_counter() - self._paused_since_s
            self._paused_since_s = None

    def finish_exchange(self) -> None:
        """Wait until no exchange is in flight; apply its mean to the anchor, and the anchor to the rank's weights."""
        self._finish()
        self._state.refusals.warn()

    def wait_for_exchange(self) -> None:
        """Wait until no exchange is in flight; apply its mean to the anchor, but not the anchor to the weights."""
        self._apply_mean(training_waits=False)

    def prepare_to_save(self) -> None:
        """Complete the state for a checkpoint.

        Read whether all means were finite, reset tensors that are not finite, and wait for the round's decision. Called
        on every rank, while no exchange is in flight.
        """
        state = self._state
        self._engine.drain()
        self._read_flags(state.ended)
        state.refusals.reset_before_saving(state.ended)
        state.refusals.warn()
        if state.phase == "undecided" and state.ended:
            self._wait_for_decision()

    def _finish_due(self) -> None:
        """Apply the mean if its delay is over; wait for it if training waits, otherwise apply it only if it arrived."""
        state = self._state
        due_step, pending = state.anchor.due_step, state.anchor.pending
        if due_step is None or due_step > state.steps:
            return
        if not self._waits_when_due and pending is not None and not pending.has_arrived:
            state.late += due_step == state.steps
            return
        self._finish()

    def _set_decided_steps(self) -> None:
        """Set the number of steps of the present round, if the controller has decided it."""
        state = self._state
        if self._is_every_fixed:
            state.set_round(self._every_range[0])
        elif state.phase == "timing":
            self._time_step()
        elif not (self._waits_when_due and state.under_way):
            self._wait_for_decision()

    def _time_step(self) -> None:
        """Time a step; after the last timed step, let the controller decide by the median of the step times."""
        timed_steps = max(2, min(MAX_TIMED_STEPS, self._every_range[1] - 1))
        self._step_ends_s.append(self._synchronized_time())
        if len(self._step_ends_s) == timed_steps:
            successive_ends = zip(self._step_ends_s, self._step_ends_s[1:], strict=False)
            seconds = [end - previous_end for previous_end, end in successive_ends]
            self._decided_candidate = self._engine.prepare(statistics.median(seconds[1:] or seconds))
            self._state.phase = "undecided"

    def _wait_for_decision(self) -> None:
        """Wait for the decision about this round, if the engine makes one; set the round's ``every`` and ``delay``."""
        if self._waits_when_due:
            self._engine.drain()
        if self._waits_when_due and self._state.ended:
            candidate = self._engine.candidate
        else:
            candidate = None if self._decided_candidate is None else self._decided_candidate.result()
        if candidate is not None and candidate.mode != "outer":
            self._state.begin_closing()
        elif candidate is not None:
            self._state.set_round(candidate.every, candidate.delay)

    def _send(self, learning_rate: float, dense: bool = False) -> None:
        """Send the pseudo-gradient and the buffers; end the round, and the step as which the engine counts it.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.
            dense: whether to exchange dense.
        """
        state, engine = self._state, self._engine
        mixing = self._mixing if state.delay else 0.0
        self._check_parameters()
        state.buffers.check()
        self._finish()
        self._check_progress(state.ended - 1)
        self._decided_candidate = engine.begin(
            StepInputs(learning_rate=learning_rate, mode="outer", steps=state.in_round, dense=dense)
        )
        self._read_flags(state.ended - FLAGS_DELAY_ROUNDS)  # the executor has caught up with these rounds
        pending = state.anchor.compute_pseudo_gradient(state.steps + state.delay, state.ended, mixing)
        local_finite = pending.check_local_finite(engine)
        self._last_handle = engine.submit(
            pending.pieces, pending.flat, is_last=True, then=pending.complete_exchange, finite=local_finite
        )
        pending.buffers = state.buffers.send(engine, mixing or 0.0, looks=dense)
        if engine.executor.lag:
            self._unread.append(pending)
        elif not engine.executor.known(local_finite):
            state.refusals.reset_rank(pending, state.ended)
        self._end_engines_step(pending)
        state.end_round()

    def _end_engines_step(self, pending: PendingMean) -> None:
        """End the step as which the engine counts the round."""
        overlaps, ended_at = not self._waits_when_due or self._state.delay > 0, self._engine.mark()
        paused_s, self._paused_s = self._paused_s, 0.0
        forward_s = statistics.median(self._forward_seconds) if self._forward_seconds else math.nan
        self._forward_seconds.clear()

        def add_round(recording: StepRecording) -> None:
            recording.backward_ended, recording.overlaps = ended_at, overlaps
            recording.waits_since = pending.waits_since if overlaps else None
            recording.paused, recording.forward_s = paused_s, forward_s
            recording.inverse_drift = pending.inverse_drift

        self._engine.end(add_round)

    def _finish(self) -> None:
        """Finish the exchange in flight, if there is one, and apply the anchors to weights and buffers."""
        self._apply_mean()
        if self._state.anchor.due_step is not None:
            self._state.anchor.apply()
            self._state.buffers.apply_anchors(self._state.anchor.mean_applied)

    def _apply_mean(self, training_waits: bool = True) -> None:
        """Wait for the mean, if an exchange is in flight, and make the outer step on the anchor.

        Args:
            training_waits: whether the wait counts as time for which training waited.
        """
        anchor, pending = self._state.anchor, self._state.anchor.pending
        if pending is None:
            return
        if training_waits and not pending.has_arrived:
            pending.waits_since = self._engine.mark()
        if self._waits_when_due and self._last_handle is not None:
            self._last_handle.wait()
        pending.wait()
        self._engine.executor.join()
        anchor.apply_mean(self._state.outer)
        if pending.buffers is not None:
            self._state.buffers.apply_mean(anchor.mean_applied)
            if not self._engine.executor.lag:
                self._read_buffer_flags(pending)
        if (is_finite := self._engine.executor.known(pending.mean_finite)) is not None:
            self._record_result(pending, is_finite)

    def _check_progress(self, newest_round: int) -> None:
        """Raise ``NotFiniteError`` if too many consecutive rounds, up to ``newest_round``, applied no mean."""
        self._state.refusals.check(
            self._state.ended, newest_round, FLAGS_DELAY_ROUNDS if self._engine.executor.lag else 0
        )

    def _read_flags(self, newest_round: int) -> None:
        """Read, on the host, whether the means of rounds up to ``newest_round`` were finite, if not read yet."""
        while self._unread and self._unread[0].round_number <= newest_round:
            pending = self._unread.pop(0)
            assert pending.finite_flags_on_host is not None
            self._read_buffer_flags(pending)
            mean_finite, local_finite = map(bool, pending.finite_flags_on_host.read())
            if not local_finite:
                self._state.refusals.reset_rank(pending, self._state.ended)
            self._record_result(pending, mean_finite)

    def _read_buffer_flags(self, pending: PendingMean) -> None:
        """Read, on the host, the flags of the buffers that were sent with a pseudo-gradient, if any were."""
        if pending.buffers is not None:
            texts = self._state.buffers.read_flags(pending.buffers)
            self._state.refusals.add_warnings(pending, texts, self._engine.state.rank)

    def _record_result(self, pending: PendingMean, mean_finite: bool) -> None:
        """Record whether a mean was finite, and therefore applied."""
        self._state.refusals.record(pending, mean_finite, self._engine.state.rank, self._engine.state.world)

    def _synchronized_time(self) -> float:
        """Wait for the GPU, if there is one; return the host's clock, in seconds."""
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)  # a few times before the first exchange, to time a step
        return time.perf_counter()
