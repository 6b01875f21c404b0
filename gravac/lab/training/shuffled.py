# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Matched random: the choices of an adaptive run, each for as many steps, at times that chance decides.

Where this does as well as the run itself, what the run chose counts, and not when.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from gravac.candidate import Candidate, Forecast, Mode, Span
from gravac.controllers.base import LATENCY, WATCH, Controller, Decision, Measurement

BLOCK = 5
"""Largest number of rounds that stay together: each round for itself would change what runs all the time."""


WHY = "as an adaptive run chose, at another time"


class Play(NamedTuple):
    """A choice, and for how long.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor.
        every: number of steps from one exchange to the next.
        rounds: number of steps of the engine: of exchanges, or of native stretches of ``WATCH`` steps.
        delay: number of steps behind which each travels.
        mode: who exchanges.
    """

    compressor: str
    cf: float
    every: int
    rounds: int
    delay: int = 0
    mode: Mode = "hook"


class Noted(Protocol):
    """What a decision says, from a step on."""

    @property
    def step(self) -> int:
        """Step that it holds from."""

    @property
    def compressor(self) -> str:
        """Name of the compressor."""

    @property
    def cf(self) -> float:
        """Compression factor."""

    @property
    def every(self) -> int:
        """Number of steps from one exchange to the next."""

    @property
    def delay(self) -> int:
        """Number of steps behind which it travels."""

    @property
    def mode(self) -> Mode | None:
        """Who exchanges; ``None`` if that was not noted."""


def plays(turns: Sequence[Noted], steps: int) -> tuple[Play, ...]:
    """Return what a run of so many steps chose, in order.

    Example:
        >>> from types import SimpleNamespace as Turn
        >>> turns = [Turn(step=0, compressor="dense", cf=1, every=1, delay=0, mode="native")]
        >>> turns += [Turn(step=16, compressor="dense", cf=1, every=5, delay=2, mode=None)]
        >>> [(play.mode, play.rounds, play.delay) for play in plays(turns, 36)]
        [('native', 2, 0), ('outer', 4, 2)]
    """
    ends = [*(turn.step for turn in turns[1:]), steps]
    return tuple(_play(turn, end - turn.step) for turn, end in zip(turns, ends, strict=True) if end > turn.step)


def _play(turn: Noted, steps: int) -> Play:
    mode: Mode = turn.mode or ("outer" if turn.every > 1 else "hook")
    rounds = math.ceil(steps / (WATCH if mode == "native" else turn.every))
    return Play(turn.compressor, turn.cf, turn.every, rounds, turn.delay, mode)


def shuffled(played: Iterable[Play], seed: int) -> list[Play]:
    """Return plays cut into blocks of rounds, in the order that a seed gives."""
    blocks = [
        one._replace(rounds=min(BLOCK, one.rounds - done)) for one in played for done in range(0, one.rounds, BLOCK)
    ]
    random.Random(seed).shuffle(blocks)
    return blocks


@dataclass(frozen=True)
class Shuffled:
    """A controller that goes by no measurement: it plays a list in an order that a seed gives, again and again.

    Attributes:
        of: controller that made the choices; it says what may be chosen.
        played: its choices.
        seed: seed of the order.
        latency: steps from a measurement to the decision that it leads to.
    """

    of: Controller[Any]
    played: tuple[Play, ...]
    seed: int = 0
    latency: int = LATENCY

    name = "shuffled"

    @property
    def keeps_all(self) -> bool:
        """Tell what the other tells."""
        return self.of.keeps_all

    @property
    def sixteen_bit(self) -> bool:
        """Tell what the other tells."""
        return self.of.sixteen_bit

    @property
    def chooses_every(self) -> bool:
        """Tell whether the other chooses how often."""
        return bool(getattr(self.of, "chooses_every", False))

    @property
    def native(self) -> bool:
        """Tell whether the other may choose native steps."""
        return bool(getattr(self.of, "native", False))

    def for_latency(self, latency: int) -> Shuffled:
        """Return it as it is where a decision takes so many steps to hold."""
        return replace(self, latency=latency)

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """Return what the other wants to choose from."""
        return self.of.propose(cf_range, reach)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[_Position, Decision]:
        """Begin with the first choice of the order."""
        state = _Position(tuple(forecast.candidate for forecast in forecasts), 0)
        first = self._at(state.candidates, 0)
        return state, Decision(first, reason=f"start at {first}, {WHY}")

    def observe(self, state: _Position, measurement: Measurement) -> tuple[_Position, Decision]:
        """Go on by one step, or round."""
        before, after = (self._at(state.candidates, self._due(at)) for at in (state.at, state.at + 1))
        reason = "" if after == before else f"{before} to {after}, {WHY}"
        return replace(state, at=state.at + 1), Decision(after, reason=reason)

    def dump(self, state: _Position) -> dict[str, Any]:
        """Return how far it is."""
        return {"at": state.at}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[_Position, Decision]:
        """Go on from there."""
        state = _Position(tuple(forecast.candidate for forecast in forecasts), plain["at"])
        return state, Decision(self._at(state.candidates, self._due(state.at)))

    def _due(self, observed: int) -> int:
        """Return the step that a decision holds for, once so many were observed."""
        return observed - 1 + self.latency if observed else 0

    def _at(self, candidates: Sequence[Candidate], position: int) -> Candidate:
        length = sum(one.rounds for one in self.played)
        left = position % length
        for one in shuffled(self.played, self.seed + position // length):
            if left < one.rounds:
                return _nearest(one, candidates)
            left -= one.rounds
        raise AssertionError("a position lies in some block")


@dataclass(frozen=True)
class _Position:
    """How many steps were observed, and what may run."""

    candidates: tuple[Candidate, ...]
    at: int


def _nearest(one: Play, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that a play names, or what comes nearest where that was not admitted."""

    def distance(candidate: Candidate) -> tuple[bool, bool, float, float, bool, int]:
        often, sent = abs(math.log(candidate.every / one.every)), abs(math.log(candidate.cf / one.cf))
        waits = (candidate.delay > 0) != (one.delay > 0)
        others = candidate.compressor != one.compressor
        return (candidate.mode != one.mode, others, often, sent, waits, abs(candidate.delay - one.delay))

    return min(candidates, key=distance)
