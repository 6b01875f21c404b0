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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gravac.candidate import Candidate
from gravac.exchange.executor import both
from gravac.outer.buffers import Buffers
from gravac.outer.candidates import Delay
from gravac.outer.fragments import Fragment, Journey
from gravac.outer.refusing import Refusals
from gravac.outer.shares import Shares
from gravac.stepping.clock import Timestamps
from gravac.stepping.door import Door, Handle

WARM = 5
"""Largest number of steps that are timed before the first choice; the first of them does not count."""


BEHIND = 2
"""Number of rounds after which the host reads a verdict where it must not look: what ``Executor.to_host`` promises."""


class Rounds:
    """Counts a rank's steps, and has fragments leave and arrive.

    Args:
        door: takes pseudo-gradients in.
        fragments: parts of the model, in the order in which they leave.
        buffers: travel with the last fragment.
        outer: optimizer of the anchors.
        shares: what each rank does in a round.
        every: lowest and highest number of steps of a round.
        delay: number of steps behind which a fragment travels, and more where it takes longer; 0: training waits for
            it; ``"auto"``: as many as are decided, and training waits for the rest.
        own: share of its own weights that a rank keeps where it takes up anchors that travelled behind steps; ``None``:
            what it learned meanwhile.
        refusals: what becomes of means that are not finite.
        check_fits: called before a fragment leaves; raises where what ranks train does not fit what they exchange.

    Attributes:
        ended: number of rounds whose last fragment has left.
        late: number of fragments that had not come when they were due; each was taken up later.
        begun: whether a step was made, since this was made.
        shares: those given.
    """

    def __init__(
        self,
        door: Door,
        fragments: Sequence[Fragment],
        buffers: Buffers,
        outer: torch.optim.Optimizer,
        shares: Shares,
        every: tuple[int, int],
        delay: Delay,
        own: float | None,
        refusals: Refusals,
        check_fits: Callable[[], None] = lambda: None,
    ) -> None:
        self.ended = self.late = 0
        self.begun = False
        self._door, self._fragments, self._buffers, self._outer = door, fragments, buffers, outer
        self.shares = shares
        self._refusals = refusals
        self._unread: list[tuple[int, Journey]] = []  # by place of the fragment; the host has not read the verdicts
        self._every, self._delay, self._own = every, delay, own
        self._check_fits = check_fits
        self._in_time = delay in (0, "auto")  # what is due is waited for
        self._whole = self._in_time and len(fragments) == 1
        self._steps = self._in_round = 0
        self._length: int | None = None  # of the round: steps of a rank on average
        self._behind = 0 if delay == "auto" else delay  # of the round: steps of a rank on average, too
        self._mine: int | None = None  # steps of this rank
        self._journeys: list[Journey] = []
        self._handle: Handle | None = None
        self._chosen = _Chosen()
        self._began: list[float] = []
        self._waited = self._paused = 0.0

    def leave(self, learning_rate: float) -> None:
        """Count a step, and hand over the fragments whose turn it is.

        Args:
            learning_rate: learning rate of the inner optimizer; nan when not known.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the means of some rounds on end were not finite.
            ValueError: what is to leave does not fit; see ``OuterOptimizer.step``.
        """
        self.begun = True
        self.shares.made()
        self._steps += 1
        self._in_round += 1
        if self._in_time:
            self._take_up_due()
        self._length = self._length or self._known()
        if self._length is not None and not (self._whole and self.under_way):
            self._mine = self._mine or self.shares.begin(self._length)
            behind = max(0, self._in_round - self._mine)  # it was decided late, in the first round
            self._leave(self._mine + behind, self._length + behind, learning_rate)

    def arrive(self) -> None:
        """Take up fragments that are due and have come; one that is late has time until it is to leave again."""
        self._take_up_due()
        self.shares.trains()
        self._refusals.tell()
        if self._whole and not self.under_way:
            self._check(self.ended - 1)

    def leave_now(self, learning_rate: float, whole: bool = False) -> None:
        """End the round: have all fragments leave that have not.

        Args:
            learning_rate: learning rate of the inner optimizer.
            whole: whether also a round is ended that no fragment has left in.

        Raises:
            RuntimeError: ranks make other numbers of steps, and this one is within a round.
        """
        if self.shares.by_speed and self._in_round:
            raise RuntimeError(
                f"by_speed: this rank is {self._in_round} steps into round {self.ended}, others elsewhere; save and "
                "synchronize on all ranks when the same round has ended, as told by .rounds"
            )
        if self._journeys or (whole and self._in_round):
            self._leave(self._in_round, self._in_round, learning_rate)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nobody trains in here: what it takes is not a step's."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - since
            self.shares.trains()

    def finish(self) -> None:
        """Wait until nothing is under way, and take up all of it."""
        for fragment in self._fragments:
            self._finish(fragment)
        self._refusals.tell()

    def settle(self) -> None:
        """Wait until nothing is under way; what has come is taken up when it is due."""
        for fragment in self._fragments:
            self._arrive(fragment, trains=False)

    def read_verdicts(self) -> None:
        """Have the host read all verdicts, and make this rank finite if it is not, before it is saved.

        Called on every rank; nothing is under way.
        """
        self._door.state()
        self._read(self.ended)
        self._refusals.mend_before_saving(self.ended)
        self._refusals.tell()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and how many steps the round has; nothing is under way."""
        self._length = self._length or (self._decided() if self.ended else None)
        known = {"ended": self.ended, "steps": self._steps, "in_round": self._in_round, "length": self._length}
        compute_s = self._door.compute_s
        return {**known, "behind": self._behind, "compute_s": compute_s, "shares": self.shares.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from counters."""
        self.ended, self._steps, self._in_round = state["ended"], state["steps"], state["in_round"]
        self._length = state["length"]
        self._behind = state["behind"]
        self._door.compute_s = state["compute_s"]
        self.shares.load_state_dict(state["shares"])

    @property
    def under_way(self) -> bool:
        """Whether a fragment is under way, or not taken up yet."""
        return any(fragment.due is not None for fragment in self._fragments)

    def _take_up_due(self) -> None:
        for fragment in self._fragments:
            if fragment.due is None or fragment.due > self._steps:
                continue
            if not self._in_time and fragment.journey is not None and not fragment.journey.here:
                self.late += fragment.due == self._steps
                continue
            self._finish(fragment)

    def _known(self) -> int | None:
        """Return how many steps the present round has; ``None``: that is not known yet."""
        low, high = self._every
        warm = max(2, min(WARM, high - 1))
        if low == high and self._delay != "auto":
            return low
        if self.ended == 0 and len(self._began) < warm:
            self._began.append(self._now())
            if len(self._began) == warm:
                took = [after - before for before, after in zip(self._began, self._began[1:], strict=False)]
                self._chosen.forget()
                self._door.prepare(statistics.median(took[1:] or took), self._chosen.take, self._chosen.fail)
            return None
        if self._whole and self.under_way:
            return None
        return self._decided()

    def _decided(self) -> int | None:
        """Wait for what was decided for the present round; return how many steps it has, ``None`` if nothing was."""
        low, high = self._every
        if low == high and self._delay != "auto":
            return low
        candidate = self._door.decided() if self._whole else None
        if not (self.ended and self._whole):
            candidate = self._chosen.wait()
        if candidate is None:
            return None
        self._behind = candidate.delay
        return candidate.every

    def _leave(self, length: int, every: int, learning_rate: float) -> None:
        """Have those leave whose turn it is in a round of ``length`` steps, of a rank on average ``every``."""
        number = len(self._fragments)
        behind = self._behind
        if self._delay == "auto" and length != every:  # as large a share of this rank's own steps
            behind = min(length, -(-behind * length // every))
        own = self._own if behind else 0.0
        ready = sum(step <= self._in_round for step in leaves_at(length, number))
        if ready > len(self._journeys):
            self._check_fits()
            self._buffers.check()
        for at in range(len(self._journeys), ready):
            fragment, last = self._fragments[at], at == number - 1
            self._finish(fragment)
            if at == 0:
                self._check(self.ended - (1 if number == 1 else 2))
                self._chosen.forget()
                self.shares.ask()
                self._door.begin(
                    learning_rate=learning_rate, every=every, begun=self._chosen.take, fail=self._chosen.fail
                )
                self._read(self.ended - BEHIND)  # which the executor has caught up with
            weight = self.shares.weight
            journey = fragment.leave(self._steps + behind, weight, self.ended, own)
            self._journeys.append(journey)
            buffers = self._buffers.leave(weight, own or 0.0) if last else ()
            whole = None if buffers else journey.whole
            sound = journey.sets_out(self._door, buffers)
            self._handle = self._door.pieces((*journey.pieces, *buffers), whole, True, journey.came, sound)
            if self._door.masked:
                self._unread.append((at, journey))
            elif sound is False:
                self._refusals.mend(journey, self.ended)
        if ready == number:
            self._end()

    def _end(self) -> None:
        sent, self._journeys = tuple(self._journeys), []
        awaited = None if self._whole and not self._behind else lambda: sent[-1].awaited
        made = Timestamps(
            backward=self._door.mark(),
            waited=self._waited,
            awaited=awaited,
            paused=self._paused,
            steps_of_ranks=self.shares.steps,
        )
        self._door.end(made, lambda: spread(sent), lambda: functools.reduce(both, (one.applied for one in sent)))
        self.shares.end()
        self.ended += 1
        self._in_round, self._length, self._mine, self._waited, self._paused = 0, None, None, 0.0, 0.0

    def _finish(self, fragment: Fragment) -> None:
        self._arrive(fragment)
        if fragment.due is not None:
            fragment.take_up()
            if fragment is self._fragments[-1]:
                self._buffers.take_up_if(fragment.applied)

    def _arrive(self, fragment: Fragment, trains: bool = True) -> None:
        """Wait for a fragment that is under way, and have its anchors make their step.

        Args:
            fragment: the fragment.
            trains: whether training waits for it.
        """
        if fragment.journey is None:
            return
        last = fragment is self._fragments[-1]
        if last and trains and not fragment.journey.here:
            fragment.journey.awaited = self._door.mark()
        since = time.perf_counter()
        if self._whole and self._handle is not None:
            self._handle.wait()
        fragment.journey.wait()
        if trains and not last:  # of the last one the exchange tells, when it ended
            self._waited += time.perf_counter() - since
        self._door.join()
        journey = fragment.journey
        fragment.arrive(self._outer)
        if fragment is self._fragments[-1]:
            self._buffers.refuse(fragment.applied)
            self._buffers.arrive()
        if isinstance(journey.applied, bool):
            self._learn(self._fragments.index(fragment), journey, journey.applied)

    def _check(self, last: int) -> None:
        """End training if all ranks know by round ``last`` that it does not get on."""
        self._refusals.check(self.ended, last, BEHIND if self._door.masked else 0)

    def _read(self, last: int) -> None:
        """Have the host read verdicts, of rounds up to ``last``, that it could not look at before and has by now."""
        while self._unread and self._unread[0][1].number <= last:
            position, journey = self._unread.pop(0)
            assert journey.verdicts is not None
            applied, sound = map(bool, journey.verdicts.tolist())
            if not sound:
                self._refusals.mend(journey, self.ended)
            self._learn(position, journey, applied)

    def _learn(self, position: int, journey: Journey, applied: bool) -> None:
        self._refusals.learn(journey, position, applied, self._door.rank, self._door.world)

    def _now(self) -> float:
        if self._door.device.type == "cuda":
            torch.cuda.synchronize(self._door.device)  # a few times before the first exchange, to time a step
        return time.perf_counter()


class _Chosen:
    """What the executor says was decided, once it does."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._candidate: Candidate | None = None
        self._failure: BaseException | None = None

    def forget(self) -> None:
        self._there.clear()

    def take(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._there.set()

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._there.set()

    def wait(self) -> Candidate:
        self._there.wait()
        if self._failure is not None:
            raise self._failure
        assert self._candidate is not None
        return self._candidate


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
    own, mean = (sum((getattr(one, side) for one in journeys), torch.zeros(())) for side in ("own", "mean"))
    return (own / mean).sqrt()
