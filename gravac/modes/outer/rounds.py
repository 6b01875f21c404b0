# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: a round is the steps from one exchange to the next, and sends each fragment once.

A round is one step of the controller. Its number of steps is therefore decided like the compressor: by the measurements
of earlier rounds, the same on all ranks. If the whole model is one fragment, applied at a fixed step, the last round's
measurements have arrived by then, and decide the number of steps of the next round. If there are several fragments, or
they are applied whenever they arrive, the number is decided one round earlier.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import both
from gravac.measurement import LocalMeasurement
from gravac.modes.outer.candidates import Delay
from gravac.modes.outer.fragments import Fragment, PendingFragment
from gravac.modes.outer.round_state import RoundState

MAX_TIMED_STEPS = 5
"""Largest number of steps that are timed before the first decision; the first step's time is ignored."""


VERDICT_DELAY = 2
"""Number of rounds after which the host reads whether a mean was finite, if it must not wait for the device (see
``Executor.to_host``)."""


class Rounds:
    """Counts a rank's steps, and sends each fragment after its step of the round.

    Args:
        engine: averages pseudo-gradients.
        state: state of the outer steps.
        every: lowest and highest number of steps of a round.
        delay: number of steps that a fragment is in flight, more if its exchange takes longer; 0: training waits for
            the exchange; ``"auto"``: the controller decides the number, and training waits after these steps.
        mixing: fraction of its own weights that a rank keeps when it applies anchors that were in flight during steps;
            ``None``: the rank keeps what it learned during these steps.
        check_fits: function called before a fragment is sent; raises if the trained parameters are not those that ranks
            exchange.

    Attributes:
        begun: whether a step was made since this object was created.
    """

    def __init__(
        self,
        engine: Engine,
        state: RoundState,
        every: tuple[int, int],
        delay: Delay,
        mixing: float | None,
        check_fits: Callable[[], None] = lambda: None,
    ) -> None:
        self.begun = False
        self._engine, self._state = engine, state
        self._every, self._delay, self._mixing = every, delay, mixing
        self._check_fits = check_fits
        self._waits_when_due = delay in (0, "auto")
        self._waits_for_all = self._waits_when_due and len(state.fragments) == 1
        self._is_fixed = every[0] == every[1] and delay != "auto"
        state.delay = 0 if delay == "auto" else delay
        self._sent: list[PendingFragment] = []  # fragments sent in the present round
        self._unread: list[tuple[int, PendingFragment]] = []  # by fragment's position; verdicts that nobody has read
        self._handle: Handle | None = None
        self._decision: Future[Candidate] | None = None  # of the round that began last
        self._step_ends: list[float] = []
        self._idle = self._paused = 0.0
        self._paused_since: float | None = None

    def send_due(self, learning_rate: float) -> None:
        """Count a step, and send the fragments that are to be sent after this step.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the means of some consecutive rounds were not finite.
            ValueError: the trained parameters are not those that ranks exchange.
        """
        state = self._state
        self.begun = True
        state.shares.end_step()
        state.steps += 1
        state.in_round += 1
        if self._waits_when_due:
            self._finish_due()
        if state.phase in ("timing", "undecided"):
            self._decide()
        if state.phase == "closing" or (self._waits_for_all and state.under_way):
            return
        if state.phase == "decided":
            state.train(state.shares.steps_of_round(state.every))
        if state.phase == "training":
            late = max(0, state.in_round - state.own_steps)  # more than 0 if the first round was decided late
            self._send(state.own_steps + late, state.every + late, learning_rate)

    def apply_due(self) -> None:
        """Apply fragments that have arrived and whose delay is over; late fragments are applied later."""
        self._finish_due()
        self._state.shares.begin_step()
        self._state.refusals.warn()
        if self._waits_for_all and not self._state.under_way:
            self._check(self._state.ended - 1)

    def send_rest(self, learning_rate: float, end_round: bool = False, dense: bool = False) -> None:
        """End the round: send all fragments that have not been sent.

        Args:
            learning_rate: learning rate of the inner optimizer.
            end_round: whether to end the round even if it has sent no fragment.
            dense: whether to send dense, so that no residual remains; used only if the round has sent no fragment.

        Raises:
            RuntimeError: ranks make different numbers of steps, and this rank is within a round.
        """
        state = self._state
        if state.shares.by_speed and state.in_round:
            raise RuntimeError(
                f"by_speed: this rank is {state.in_round} steps into round {state.ended}, other ranks may not be; save "
                "or synchronize when all ranks have ended the same round (compressor.outer.ended counts rounds)"
            )
        if self._sent or (end_round and state.in_round):
            self._send(state.in_round, state.in_round, learning_rate, dense)

    def pause(self) -> None:
        """Exclude the time until ``resume`` from the steps' times, since the rank does not train."""
        if self._paused_since is None:
            self._paused_since = time.perf_counter()

    def resume(self) -> None:
        """End a pause: the rank trains again."""
        if self._paused_since is not None:
            self._paused += time.perf_counter() - self._paused_since
            self._paused_since = None
        self._state.shares.begin_step()

    def finish(self) -> None:
        """Wait until no exchange is in flight, and apply all anchors."""
        for fragment in self._state.fragments:
            self._finish(fragment)
        self._state.refusals.warn()

    def settle(self) -> None:
        """Wait until no exchange is in flight; anchors are applied when their delay is over."""
        for fragment in self._state.fragments:
            self._apply_mean(fragment, training_waits=False)

    def prepare_to_save(self) -> None:
        """Complete the state for a checkpoint: read all verdicts, make tensors finite, wait for the round's decision.

        Called on every rank, while no exchange is in flight.
        """
        state = self._state
        self._engine.drain()
        self._read_verdicts(state.ended)
        state.refusals.mend_before_saving(state.ended)
        state.refusals.warn()
        if state.phase == "undecided" and state.ended:
            self._wait_for_decision()

    def _finish_due(self) -> None:
        """Finish exchanges whose delay is over; if training must not wait, only those that have arrived."""
        state = self._state
        for fragment in state.fragments:
            if fragment.due is None or fragment.due > state.steps:
                continue
            if not self._waits_when_due and fragment.pending is not None and not fragment.pending.arrived:
                state.late += fragment.due == state.steps
                continue
            self._finish(fragment)

    def _decide(self) -> None:
        """Set the number of steps of the present round, if the decision about it is known."""
        state = self._state
        if self._is_fixed:
            state.set_round(self._every[0])
        elif state.phase == "timing":
            self._time_step()
        elif not (self._waits_for_all and state.under_way):
            self._wait_for_decision()

    def _time_step(self) -> None:
        """Time a step; after the last timed step, ask for the first decision, with the median of their times."""
        warm = max(2, min(MAX_TIMED_STEPS, self._every[1] - 1))
        self._step_ends.append(self._synchronized_time())
        if len(self._step_ends) == warm:
            pairs = zip(self._step_ends, self._step_ends[1:], strict=False)
            seconds = [end - previous_end for previous_end, end in pairs]
            self._decision = self._engine.prepare(statistics.median(seconds[1:] or seconds))
            self._state.phase = "undecided"

    def _wait_for_decision(self) -> None:
        """Wait for the decision about this round, if there is one, and apply its ``every`` and ``delay``."""
        if self._waits_for_all:
            self._engine.drain()
        if self._waits_for_all and self._state.ended:
            candidate = self._engine.candidate
        else:
            candidate = None if self._decision is None else self._decision.result()
        if candidate is not None and candidate.mode != "outer":
            self._state.close()
        elif candidate is not None:
            self._state.set_round(candidate.every, candidate.delay)

    def _send(self, steps: int, every: int, learning_rate: float, dense: bool = False) -> None:
        """Send the fragments that are to be sent after this step.

        Args:
            steps: number of steps of the round on this rank.
            every: number of steps of the round, on average over the ranks.
            learning_rate: learning rate of the inner optimizer.
            dense: whether to exchange dense.
        """
        state = self._state
        number = len(state.fragments)
        delay = state.delay
        if self._delay == "auto" and steps != every:  # the same fraction of this rank's own steps
            delay = min(steps, -(-delay * steps // every))
        mixing = self._mixing if delay else 0.0
        ready = sum(step <= state.in_round for step in sending_steps(steps, number))
        if ready > len(self._sent):
            self._check_fits()
            state.buffers.check()
        for position in range(len(self._sent), ready):
            fragment, is_last = state.fragments[position], position == number - 1
            self._finish(fragment)
            if position == 0:
                self._check(state.ended - (1 if number == 1 else 2))
                state.shares.receive()
                self._decision = self._engine.begin(
                    StepInputs(learning_rate=learning_rate, mode="outer", steps=every, dense=dense)
                )
                self._read_verdicts(state.ended - VERDICT_DELAY)  # the executor has caught up with these rounds
            pending = fragment.send(state.steps + delay, state.shares.weight, state.ended, mixing)
            self._sent.append(pending)
            buffers = state.buffers.send(state.shares.weight, mixing or 0.0) if is_last else ()
            flat = None if buffers else pending.flat
            local_finite = pending.judge_local(self._engine, buffers)
            self._handle = self._engine.exchange(
                (*pending.pieces, *buffers), flat, is_last=True, then=pending.complete, finite=local_finite
            )
            if not self._engine.schedule.host_looks:
                self._unread.append((position, pending))
            elif local_finite is False:
                state.refusals.mend(pending, state.ended)
        if ready == number:
            self._end_round()

    def _end_round(self) -> None:
        """End the round, whose last fragment has been sent, as a step of the engine."""
        sent, self._sent = tuple(self._sent), []
        overlaps, backward = not self._waits_for_all or self._state.delay > 0, self._engine.mark()
        idle, paused, steps_of_ranks = self._idle, self._paused, self._state.shares.steps

        def fill(measurement: LocalMeasurement) -> None:
            measurement.verdicts.append(functools.reduce(both, (pending.applied for pending in sent)))
            measurement.backward, measurement.overlaps = backward, overlaps
            measurement.idle_since = sent[-1].waited_since if overlaps else None
            measurement.idle, measurement.paused = idle, paused
            measurement.steps_of_ranks, measurement.spread = steps_of_ranks, spread(sent)

        self._engine.end(fill)
        self._state.shares.end_round()
        self._state.end_round()
        self._idle = self._paused = 0.0

    def _finish(self, fragment: Fragment) -> None:
        """Finish a fragment's exchange, if one is in flight, and apply its anchors, or also the buffers."""
        self._apply_mean(fragment)
        if fragment.due is not None:
            fragment.apply_anchors()
            if fragment is self._state.fragments[-1]:
                self._state.buffers.apply_anchors_if(fragment.applied)

    def _apply_mean(self, fragment: Fragment, training_waits: bool = True) -> None:
        """Wait for a fragment in flight, and make the outer step on its anchors.

        Args:
            fragment: the fragment.
            training_waits: whether the time of the wait counts as time that training waited.
        """
        if fragment.pending is None:
            return
        is_last = fragment is self._state.fragments[-1]
        if is_last and training_waits and not fragment.pending.arrived:
            fragment.pending.waited_since = self._engine.mark()
        began = time.perf_counter()
        if self._waits_for_all and self._handle is not None:
            self._handle.wait()
        fragment.pending.result()
        if training_waits and not is_last:  # the last fragment's exchange is timed by its end
            self._idle += time.perf_counter() - began
        self._engine.executor.join()
        pending = fragment.pending
        fragment.apply_mean(self._state.outer)
        if is_last:
            self._state.buffers.zero_means_unless(fragment.applied)
            self._state.buffers.apply_mean()
        if isinstance(pending.applied, bool):
            self._record(self._state.fragments.index(fragment), pending, pending.applied)

    def _check(self, newest: int) -> None:
        """Raise ``NotFiniteError`` if too many consecutive rounds, up to ``newest``, applied no fragment."""
        self._state.refusals.check(self._state.ended, newest, 0 if self._engine.schedule.host_looks else VERDICT_DELAY)

    def _read_verdicts(self, newest: int) -> None:
        """Read the verdicts of rounds up to ``newest`` on the host, if it could not look at them earlier."""
        while self._unread and self._unread[0][1].number <= newest:
            position, pending = self._unread.pop(0)
            assert pending.verdicts is not None
            applied, local_finite = map(bool, pending.verdicts.tolist())
            if not local_finite:
                self._state.refusals.mend(pending, self._state.ended)
            self._record(position, pending, applied)

    def _record(self, position: int, pending: PendingFragment, applied: bool) -> None:
        self._state.refusals.record(pending, position, applied, self._engine.state.rank, self._engine.state.world)

    def _synchronized_time(self) -> float:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)  # a few times before the first exchange, to time a step
        return time.perf_counter()


def sending_steps(length: int, number: int) -> list[int]:
    """Return, for each fragment, the step of a round after which it is sent, counted from 1.

    Args:
        length: number of steps of the round.
        number: number of fragments.

    Example:
        >>> sending_steps(10, 4)
        [3, 5, 8, 10]
    """
    return [-(-length * (position + 1) // number) for position in range(number)]


def spread(sent: Sequence[PendingFragment]) -> torch.Tensor:
    """Return the norm of this rank's pseudo-gradient / the norm of the mean, shape ``()``: the inverse of drift.

    Args:
        sent: all fragments of a round, which have arrived.

    Example:
        >>> import types
        >>> local, mean = torch.tensor(4.0), torch.tensor(1.0)
        >>> spread([types.SimpleNamespace(local_square=local, mean_square=mean)])
        tensor(2.)
    """
    sides = ("local_square", "mean_square")
    local, mean = (sum((getattr(pending, side) for pending in sent), torch.zeros(())) for side in sides)
    return (local / mean).sqrt()
