# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: a round is a number of training steps, in which each fragment of the model is exchanged once.

The controller decides once a round, by measurements of earlier rounds, which are the same on all ranks. It chooses the
compressor and the round's number of steps. If the whole model is one fragment, and training waits for its mean at a
fixed step, the number of steps of round t follows from the measurements up to round t - 1. If there are several
fragments, or means are applied whenever they arrive, the number follows from the measurements up to round t - 2.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs
from gravac.modes.outer.candidates import Delay
from gravac.modes.outer.fragments import Fragment, PendingFragment
from gravac.modes.outer.round_state import RoundState

MAX_TIMED_STEPS = 5
"""Largest number of steps that are timed before the first decision; the first step's time is ignored."""


FLAGS_DELAY_ROUNDS = 2
"""Number of rounds after which the host reads whether a mean was finite, if the host must not wait for the device (see
``HostCopy``)."""


class Rounds:
    """Counts a rank's steps, and sends the model's fragments one after another in each round.

    Args:
        engine: averages pseudo-gradients.
        state: state of the outer steps.
        every_range: lowest and highest number of steps of a round.
        delay: number of steps that a fragment is in flight, more if its exchange takes longer; 0: training waits for
            the exchange; ``"auto"``: the controller decides the number, and training waits after that many steps.
        mixing: fraction of its own weights that a rank keeps when it applies anchors, if it trained while the exchange
            was in flight; ``None``: the rank keeps what it learned meanwhile.
        check_parameters: function without arguments, called before a fragment is sent; raises ``ValueError`` if the
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
        self._every_range, self._delay, self._mixing = every_range, delay, mixing
        self._check_parameters = check_parameters
        self._waits_when_due = delay in (0, "auto")
        self._rounds_are_sequential = self._waits_when_due and len(state.fragments) == 1
        self._is_every_fixed = every_range[0] == every_range[1] and delay != "auto"
        state.delay = 0 if delay == "auto" else delay
        self._sent_fragments: list[PendingFragment] = []  # of the present round
        self._unread_fragments: list[tuple[int, PendingFragment]] = []
        """Position and exchange of each sent fragment for which the host has not read yet whether it was finite."""
        self._last_handle: Handle | None = None
        self._decided_candidate: Future[Candidate] | None = None  # made when the last round began
        self._step_ends_s: list[float] = []
        self._forward_seconds: list[float] = []  # of the present round
        self._waited_s = self._paused_s = 0.0
        self._paused_since_s: float | None = None

    def send_due(self, learning_rate: float) -> None:
        """Count a step of this rank, and send the fragments whose turn it is after that step.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the means of several consecutive rounds were not finite.
            ValueError: the trained parameters are not those that ranks exchange.
        """
        state = self._state
        self.has_stepped = True
        state.shares.end_step()
        state.steps += 1
        state.in_round += 1
        if self._waits_when_due:
            self._finish_due()
        if state.phase in ("timing", "undecided"):
            self._set_decided_steps()
        if state.phase == "closing" or (self._rounds_are_sequential and state.under_way):
            return
        if state.phase == "decided":
            state.set_own_steps(state.shares.steps_of_round(state.every))
        if state.phase == "training":
            late_steps = max(0, state.in_round - state.own_steps)  # above 0 if the first round was decided late
            self._send_ready_fragments(state.own_steps + late_steps, state.every + late_steps, learning_rate)

    def apply_due(self) -> None:
        """Apply means whose delay is over.

        If such a mean has not arrived yet, what happens depends on the setting ``delay``. With 0 or ``"auto"``, the
        method waits for the mean. With a fixed delay above 0, it returns, and a later call applies the mean.
        """
        self._finish_due()
        self._state.shares.begin_step()
        self._state.refusals.warn()
        if self._rounds_are_sequential and not self._state.under_way:
            self._check_progress(self._state.ended - 1)

    def send_rest(self, learning_rate: float, end_round: bool = False, dense: bool = False) -> None:
        """End the round: send the fragments that the round has not sent yet.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.
            end_round: whether to end the round even if it has sent no fragment yet.
            dense: whether to send dense, so that no residual remains; used only if the round has sent no fragment yet.

        Raises:
            RuntimeError: ranks make different numbers of steps, and this rank is within a round.
        """
        state = self._state
        if state.shares.by_speed and state.in_round:
            raise RuntimeError(
                f"by_speed: this rank is {state.in_round} steps into round {state.ended}, and other ranks may be in "
                "another round; save or synchronize when all ranks have ended the same round (compressor.outer.ended "
                "counts rounds)"
            )
        if self._sent_fragments or (end_round and state.in_round):
            self._send_ready_fragments(state.in_round, state.in_round, learning_rate, dense)

    def forward_ended(self, seconds: float) -> None:
        """Keep the time of a forward of this round, in seconds, if no exchange is in flight, which could slow it."""
        if all(fragment.pending is None for fragment in self._state.fragments):
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
        self._state.shares.begin_step()

    def finish_exchanges(self) -> None:
        """Wait until no exchange is in flight; apply all means to anchors, and all anchors to the rank's weights."""
        for fragment in self._state.fragments:
            self._finish_fragment(fragment)
        self._state.refusals.warn()

    def wait_for_exchanges(self) -> None:
        """Wait until no exchange is in flight; apply all means to anchors, but no anchors to the rank's weights."""
        for fragment in self._state.fragments:
            self._apply_mean(fragment, training_waits=False)

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
        """Apply means whose delay is over; wait for them if training waits, otherwise apply only arrived means."""
        state = self._state
        for fragment in state.fragments:
            if fragment.due_step is None or fragment.due_step > state.steps:
                continue
            if not self._waits_when_due and fragment.pending is not None and not fragment.pending.has_arrived:
                state.late += fragment.due_step == state.steps
                continue
            self._finish_fragment(fragment)

    def _set_decided_steps(self) -> None:
        """Set the number of steps of the present round, if the controller has decided it."""
        state = self._state
        if self._is_every_fixed:
            state.set_round(self._every_range[0])
        elif state.phase == "timing":
            self._time_step()
        elif not (self._rounds_are_sequential and state.under_way):
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
        if self._rounds_are_sequential:
            self._engine.drain()
        if self._rounds_are_sequential and self._state.ended:
            candidate = self._engine.candidate
        else:
            candidate = None if self._decided_candidate is None else self._decided_candidate.result()
        if candidate is not None and candidate.mode != "outer":
            self._state.begin_closing()
        elif candidate is not None:
            self._state.set_round(candidate.every, candidate.delay)

    def _send_ready_fragments(self, own_steps: int, every: int, learning_rate: float, dense: bool = False) -> None:
        """Send the fragments that are to be sent after this step; end the round after its last fragment.

        Args:
            own_steps: number of steps of the round on this rank.
            every: number of steps of the round, on average over the ranks.
            learning_rate: learning rate of the inner optimizer; nan if not known.
            dense: whether to exchange dense.
        """
        state = self._state
        fragment_count = len(state.fragments)
        delay = state.delay
        if self._delay == "auto" and own_steps != every:  # the same fraction of this rank's own steps
            delay = min(own_steps, -(-delay * own_steps // every))
        mixing = self._mixing if delay else 0.0
        ready_count = sum(step <= state.in_round for step in sending_steps(own_steps, fragment_count))
        if ready_count > len(self._sent_fragments):
            self._check_parameters()
            state.buffers.check()
        for position in range(len(self._sent_fragments), ready_count):
            fragment, is_last = state.fragments[position], position == fragment_count - 1
            self._finish_fragment(fragment)
            if position == 0:
                self._check_progress(state.ended - (1 if fragment_count == 1 else 2))
                state.shares.begin_exchange()
                self._decided_candidate = self._engine.begin(
                    StepInputs(learning_rate=learning_rate, mode="outer", steps=every, dense=dense)
                )
                self._read_flags(state.ended - FLAGS_DELAY_ROUNDS)  # the executor has caught up with these rounds
            pending = fragment.compute_pseudo_gradient(state.steps + delay, state.shares.weight, state.ended, mixing)
            self._sent_fragments.append(pending)
            local_finite = pending.check_local_finite(self._engine)
            self._last_handle = self._engine.submit(
                pending.pieces, pending.flat, is_last=True, then=pending.complete_exchange, finite=local_finite
            )
            if is_last:
                pending.buffers = state.buffers.send(self._engine, state.shares.weight, mixing or 0.0, looks=dense)
            if self._engine.executor.lag:
                self._unread_fragments.append((position, pending))
            elif not self._engine.executor.known(local_finite):
                state.refusals.reset_rank(pending, state.ended)
        if ready_count == fragment_count:
            self._end_round()

    def _end_round(self) -> None:
        """End the round after its last fragment was sent; end the step as which the engine counts the round."""
        sent_fragments, self._sent_fragments = tuple(self._sent_fragments), []
        overlaps, ended_at = not self._rounds_are_sequential or self._state.delay > 0, self._engine.mark()
        waited_s, paused_s, steps_of_ranks = self._waited_s, self._paused_s, self._state.shares.steps_of_ranks
        forward_s = statistics.median(self._forward_seconds) if self._forward_seconds else math.nan
        self._forward_seconds.clear()

        def add_round(measurement: StepRecording) -> None:
            measurement.backward_ended, measurement.overlaps = ended_at, overlaps
            measurement.waits_since = sent_fragments[-1].waits_since if overlaps else None
            measurement.idle, measurement.paused = waited_s, paused_s
            measurement.steps_of_ranks, measurement.inverse_drift = steps_of_ranks, inverse_drift(sent_fragments)
            measurement.forward_s = forward_s

        self._engine.end(add_round)
        self._state.shares.end_round()
        self._state.end_round()
        self._waited_s = self._paused_s = 0.0

    def _finish_fragment(self, fragment: Fragment) -> None:
        """Finish a fragment's exchange, if it is in flight, and apply its anchors to the rank's weights.

        With the last fragment, also apply the buffers' anchors to the buffers.
        """
        self._apply_mean(fragment)
        if fragment.due_step is not None:
            fragment.apply_anchors()
            if fragment is self._state.fragments[-1]:
                self._state.buffers.apply_anchors(fragment.mean_applied)

    def _apply_mean(self, fragment: Fragment, training_waits: bool = True) -> None:
        """Wait for a fragment's mean, if the fragment is in flight, and make the outer step on its anchors.

        Args:
            fragment: part of the model whose anchors the mean moves.
            training_waits: whether the wait counts as time for which training waited.
        """
        if fragment.pending is None:
            return
        is_last = fragment is self._state.fragments[-1]
        if is_last and training_waits and not fragment.pending.has_arrived:
            fragment.pending.waits_since = self._engine.mark()
        began_s = time.perf_counter()
        if self._rounds_are_sequential and self._last_handle is not None:
            self._last_handle.wait()
        fragment.pending.wait()
        if training_waits and not is_last:  # the wait for the last fragment is measured from its ``waits_since``
            self._waited_s += time.perf_counter() - began_s
        self._engine.executor.join()
        pending_exchange = fragment.pending
        fragment.apply_mean(self._state.outer)
        if pending_exchange.buffers is not None:
            self._state.buffers.apply_mean(fragment.mean_applied)
            if not self._engine.executor.lag:
                self._read_buffer_flags(pending_exchange)
        if (is_finite := self._engine.executor.known(pending_exchange.mean_finite)) is not None:
            self._record_result(self._state.fragments.index(fragment), pending_exchange, is_finite)

    def _check_progress(self, newest_round: int) -> None:
        """Raise ``NotFiniteError`` if too many consecutive rounds, up to ``newest_round``, applied no fragment."""
        self._state.refusals.check(
            self._state.ended, newest_round, FLAGS_DELAY_ROUNDS if self._engine.executor.lag else 0
        )

    def _read_flags(self, newest_round: int) -> None:
        """Read, on the host, whether the means of rounds up to ``newest_round`` were finite, if not read yet."""
        while self._unread_fragments and self._unread_fragments[0][1].round_number <= newest_round:
            position, pending = self._unread_fragments.pop(0)
            assert pending.finite_flags_on_host is not None
            self._read_buffer_flags(pending)
            mean_finite, local_finite = map(bool, pending.finite_flags_on_host.read())
            if not local_finite:
                self._state.refusals.reset_rank(pending, self._state.ended)
            self._record_result(position, pending, mean_finite)

    def _read_buffer_flags(self, pending: PendingFragment) -> None:
        """Read, on the host, the flags of the buffers that were sent with a fragment, if any were."""
        if pending.buffers is not None:
            texts = self._state.buffers.read_flags(pending.buffers)
            self._state.refusals.add_warnings(pending, texts, self._engine.state.rank)

    def _record_result(self, position: int, pending: PendingFragment, mean_finite: bool) -> None:
        """Record whether the mean of the fragment at a position was finite, and therefore applied."""
        self._state.refusals.record(pending, position, mean_finite, self._engine.state.rank, self._engine.state.world)

    def _synchronized_time(self) -> float:
        """Wait for the GPU, if there is one; return the host's clock, in seconds."""
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)  # a few times before the first exchange, to time a step
        return time.perf_counter()


def sending_steps(round_steps: int, fragment_count: int) -> list[int]:
    """Return, for each fragment, the step of a round after which the fragment is sent, counted from 1.

    Args:
        round_steps: number of steps of the round.
        fragment_count: number of fragments.

    Example:
        >>> sending_steps(10, 4)
        [3, 5, 8, 10]
    """
    return [-(-round_steps * (position + 1) // fragment_count) for position in range(fragment_count)]


def inverse_drift(sent_fragments: Sequence[PendingFragment]) -> torch.Tensor:
    """Return the norm of this rank's pseudo-gradient / the norm of the mean, shape ``()``: the inverse of drift.

    Args:
        sent_fragments: all fragments of a round, which have arrived.

    Example:
        >>> import types
        >>> local, mean = torch.tensor(4.0), torch.tensor(1.0)
        >>> inverse_drift([types.SimpleNamespace(local_squared_norm=local, mean_squared_norm=mean)])
        tensor(2.)
    """
    norm_names = ("local_squared_norm", "mean_squared_norm")
    zero = torch.zeros((), dtype=torch.float32, device="cpu")
    local_sum, mean_sum = (
        sum((getattr(pending, norm_name) for pending in sent_fragments), zero) for norm_name in norm_names
    )
    return (local_sum / mean_sum).sqrt()
