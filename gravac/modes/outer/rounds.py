# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The life of a round: a rank's steps from one exchange to the next, in which each fragment leaves once.

A round is one step of the controller, so its number of steps is decided like the compressor: by what earlier rounds
showed, alike on all ranks. A model that is exchanged whole, and taken up at a step on which all ranks agree, has shown
by then what the round came to, and what that leads to decides how long the next one is. Where fragments travel in
turns, or are taken up whenever they come, a round takes what was decided when the one before set out.
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
from gravac.modes.outer.fragments import Fragment, Journey
from gravac.modes.outer.round_state import RoundState

WARM = 5
"""Largest number of steps that are timed before the first choice; the first of them does not count."""


BEHIND = 2
"""Number of rounds after which the host reads a verdict where it must not look: what ``Executor.to_host`` promises."""


class Rounds:
    """Counts a rank's steps, and exchanges fragments when their turn comes.

    Args:
        engine: takes pseudo-gradients in.
        state: state of the outer steps.
        every: lowest and highest number of steps of a round.
        delay: number of steps behind which a fragment travels, and more where it takes longer; 0: training waits for
            it; ``"auto"``: as many as are decided, and training waits for the rest.
        mixing: share of its own weights that a rank keeps when it applies anchors that were in flight during steps;
            ``None``: what it learned meanwhile.
        check_fits: called before a fragment leaves; raises if what ranks train does not fit what they exchange.

    Attributes:
        begun: whether a step was made, since this was made.
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
        self._in_time = delay in (0, "auto")  # what is due is waited for
        self._whole = self._in_time and len(state.fragments) == 1
        self._is_fixed = every[0] == every[1] and delay != "auto"
        state.delay = 0 if delay == "auto" else delay
        self._journeys: list[Journey] = []
        self._unread: list[tuple[int, Journey]] = []  # by place of the fragment; the host has not read the verdicts
        self._handle: Handle | None = None
        self._decision: Future[Candidate] | None = None  # of the round that began last
        self._step_began: list[float] = []
        self._idle = self._paused = 0.0
        self._paused_since: float | None = None

    def leave(self, learning_rate: float) -> None:
        """Count a step, and exchange the fragments whose turn it is.

        Args:
            learning_rate: learning rate of the inner optimizer; nan if not known.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the means of some rounds on end were not finite.
            ValueError: what is to leave does not fit what ranks exchange.
        """
        state = self._state
        self.begun = True
        state.shares.made()
        state.steps += 1
        state.in_round += 1
        if self._in_time:
            self._take_up_due()
        if state.phase in ("timing", "undecided"):
            self._decide()
        if state.phase == "closing" or (self._whole and state.under_way):
            return
        if state.phase == "decided":
            state.train(state.shares.steps_of_round(state.every))
        if state.phase == "training":
            late = max(0, state.in_round - state.own_steps)  # it was decided late, in the first round
            self._leave(state.own_steps + late, state.every + late, learning_rate)

    def arrive(self) -> None:
        """Apply fragments that are due and have come; a late one has time until it is to leave again."""
        self._take_up_due()
        self._state.shares.trains()
        self._state.refusals.tell()
        if self._whole and not self._state.under_way:
            self._check(self._state.ended - 1)

    def leave_now(self, learning_rate: float, end_round: bool = False, dense: bool = False) -> None:
        """End the round: exchange all fragments that have not left.

        Args:
            learning_rate: learning rate of the inner optimizer.
            end_round: whether also a round is ended that no fragment has left in.
            dense: whether that is exchanged dense, if no fragment has left in the round, so that it leaves no residual.

        Raises:
            RuntimeError: ranks make other numbers of steps, and this one is within a round.
        """
        state = self._state
        if state.shares.by_speed and state.in_round:
            raise RuntimeError(
                f"by_speed: this rank is {state.in_round} steps into round {state.ended}, others elsewhere; save and "
                "synchronize on all ranks when the same round has ended, as told by compressor.outer.ended"
            )
        if self._journeys or (end_round and state.in_round):
            self._leave(state.in_round, state.in_round, learning_rate, dense)

    def pause(self) -> None:
        """Leave the time from here to ``resume`` out of the steps' times: nobody trains."""
        if self._paused_since is None:
            self._paused_since = time.perf_counter()

    def resume(self) -> None:
        """The rank trains again."""
        if self._paused_since is not None:
            self._paused += time.perf_counter() - self._paused_since
            self._paused_since = None
        self._state.shares.trains()

    def finish(self) -> None:
        """Wait until nothing is in flight, and apply all of it."""
        for fragment in self._state.fragments:
            self._finish(fragment)
        self._state.refusals.tell()

    def settle(self) -> None:
        """Wait until nothing is in flight; what has come is applied when it is due."""
        for fragment in self._state.fragments:
            self._arrive(fragment, trains=False)

    def prepare_to_save(self) -> None:
        """Read all verdicts, make this rank finite if it is not, and wait for what was decided for the round.

        Called on every rank; nothing is in flight.
        """
        state = self._state
        self._engine.drain()
        self._read(state.ended)
        state.refusals.mend_before_saving(state.ended)
        state.refusals.tell()
        if state.phase == "undecided" and state.ended:
            self._decide_by_the_last_round()

    def _take_up_due(self) -> None:
        state = self._state
        for fragment in state.fragments:
            if fragment.due is None or fragment.due > state.steps:
                continue
            if not self._in_time and fragment.journey is not None and not fragment.journey.here:
                state.late += fragment.due == state.steps
                continue
            self._finish(fragment)

    def _decide(self) -> None:
        """Learn how many steps the present round has, if that is known."""
        state = self._state
        if self._is_fixed:
            state.decide(self._every[0])
        elif state.phase == "timing":
            self._time_a_step()
        elif not (self._whole and state.under_way):
            self._decide_by_the_last_round()

    def _time_a_step(self) -> None:
        """Time a step; after the last of those timed, have the first decision made by their median."""
        warm = max(2, min(WARM, self._every[1] - 1))
        self._step_began.append(self._now())
        if len(self._step_began) == warm:
            moments = zip(self._step_began, self._step_began[1:], strict=False)
            seconds = [after - before for before, after in moments]
            self._decision = self._engine.prepare(statistics.median(seconds[1:] or seconds))
            self._state.phase = "undecided"

    def _decide_by_the_last_round(self) -> None:
        """Wait for the decision about this round, if there is one, and take up its ``every`` and ``delay``."""
        if self._whole:
            self._engine.drain()
        if self._whole and self._state.ended:
            candidate = self._engine.candidate
        else:
            candidate = None if self._decision is None else self._decision.result()
        if candidate is not None and candidate.mode != "outer":
            self._state.end_apart()
        elif candidate is not None:
            self._state.decide(candidate.every, candidate.delay)

    def _leave(self, steps: int, every: int, learning_rate: float, dense: bool = False) -> None:
        """Exchange the fragments whose turn it is, in a round of ``steps`` on this rank and ``every`` on average."""
        state = self._state
        number = len(state.fragments)
        behind = state.delay
        if self._delay == "auto" and steps != every:  # as large a share of this rank's own steps
            behind = min(steps, -(-behind * steps // every))
        mixing = self._mixing if behind else 0.0
        ready = sum(step <= state.in_round for step in leaves_at(steps, number))
        if ready > len(self._journeys):
            self._check_fits()
            state.buffers.check()
        for at in range(len(self._journeys), ready):
            fragment, last = state.fragments[at], at == number - 1
            self._finish(fragment)
            if at == 0:
                self._check(state.ended - (1 if number == 1 else 2))
                state.shares.ask()
                self._decision = self._engine.begin(
                    StepInputs(learning_rate=learning_rate, mode="outer", steps=every, dense=dense)
                )
                self._read(state.ended - BEHIND)  # which the executor has caught up with
            journey = fragment.leave(state.steps + behind, state.shares.weight, state.ended, mixing)
            self._journeys.append(journey)
            buffers = state.buffers.leave(state.shares.weight, mixing or 0.0) if last else ()
            flat = None if buffers else journey.flat
            sound = journey.sets_out(self._engine, buffers)
            self._handle = self._engine.exchange(
                (*journey.pieces, *buffers), flat, last=True, then=journey.came, known=sound
            )
            if not self._engine.schedule.looks:
                self._unread.append((at, journey))
            elif sound is False:
                state.refusals.mend(journey, state.ended)
        if ready == number:
            self._end()

    def _end(self) -> None:
        sent, self._journeys = tuple(self._journeys), []
        overlaps, backward = not self._whole or self._state.delay > 0, self._engine.mark()
        idle, paused, steps_of_ranks = self._idle, self._paused, self._state.shares.steps

        def fill(measurement: LocalMeasurement) -> None:
            measurement.verdicts.append(functools.reduce(both, (journey.applied for journey in sent)))
            measurement.backward, measurement.overlaps = backward, overlaps
            measurement.idle_since = sent[-1].awaited if overlaps else None
            measurement.idle, measurement.paused = idle, paused
            measurement.steps_of_ranks, measurement.spread = steps_of_ranks, spread(sent)

        self._engine.end(fill)
        self._state.shares.end()
        self._state.end_round()
        self._idle = self._paused = 0.0

    def _finish(self, fragment: Fragment) -> None:
        self._arrive(fragment)
        if fragment.due is not None:
            fragment.take_up()
            if fragment is self._state.fragments[-1]:
                self._state.buffers.take_up_if(fragment.applied)

    def _arrive(self, fragment: Fragment, trains: bool = True) -> None:
        """Wait for a fragment that is under way, and have its anchors make their step.

        Args:
            fragment: the fragment.
            trains: whether training waits for it.
        """
        if fragment.journey is None:
            return
        last = fragment is self._state.fragments[-1]
        if last and trains and not fragment.journey.here:
            fragment.journey.awaited = self._engine.mark()
        since = time.perf_counter()
        if self._whole and self._handle is not None:
            self._handle.wait()
        fragment.journey.result()
        if trains and not last:  # of the last one the exchange tells, when it ended
            self._idle += time.perf_counter() - since
        self._engine.executor.join()
        journey = fragment.journey
        fragment.arrive(self._state.outer)
        if last:
            self._state.buffers.refuse(fragment.applied)
            self._state.buffers.arrive()
        if isinstance(journey.applied, bool):
            self._learn(self._state.fragments.index(fragment), journey, journey.applied)

    def _check(self, last: int) -> None:
        """Raise ``NotFiniteError`` if too many rounds on end, up to ``last``, applied no fragment."""
        self._state.refusals.check(self._state.ended, last, 0 if self._engine.schedule.looks else BEHIND)

    def _read(self, last: int) -> None:
        """Have the host read verdicts, of rounds up to ``last``, that it could not look at before and has by now."""
        while self._unread and self._unread[0][1].number <= last:
            position, journey = self._unread.pop(0)
            assert journey.verdicts is not None
            applied, sound = map(bool, journey.verdicts.tolist())
            if not sound:
                self._state.refusals.mend(journey, self._state.ended)
            self._learn(position, journey, applied)

    def _learn(self, position: int, journey: Journey, applied: bool) -> None:
        self._state.refusals.learn(journey, position, applied, self._engine.state.rank, self._engine.state.world)

    def _now(self) -> float:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)  # a few times before the first exchange, to time a step
        return time.perf_counter()


def leaves_at(length: int, number: int) -> list[int]:
    """Return the step of a round, counted from 1, after which each of so many fragments leaves.

    Example:
        >>> leaves_at(10, 4)
        [3, 5, 8, 10]
    """
    return [-(-length * (position + 1) // number) for position in range(number)]


def spread(journeys: Sequence[Journey]) -> torch.Tensor:
    """Return the norm of what this rank sent over that of the means that came, shape ``()``: drift's inverse.

    Example:
        >>> import types
        >>> sent, mean = torch.tensor(4.0), torch.tensor(1.0)  # squared
        >>> spread([types.SimpleNamespace(own=sent, mean=mean)])
        tensor(2.)
    """
    own, mean = (sum((getattr(journey, side) for journey in journeys), torch.zeros(())) for side in ("own", "mean"))
    return (own / mean).sqrt()
