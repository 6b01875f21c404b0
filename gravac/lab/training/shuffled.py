# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Matched random methods: the choices of an adaptive run, each for as many steps, in random order.

If the random order reaches a target as fast as the run, the choices matter, and their times do not.
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
"""Maximum number of rounds in a block of the random order; single rounds would change the candidate all the time."""


REASON = "as an adaptive run chose, at another time"


class Play(NamedTuple):
    """A choice, and the number of rounds to play it for.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor.
        every: number of steps from one exchange to the next.
        rounds: number of the engine's steps: of exchanges, or of native stretches of ``WATCH`` steps.
        delay: number of steps that each exchange is in flight.
        mode: mode of the steps.
    """

    compressor: str
    cf: float
    every: int
    rounds: int
    delay: int = 0
    mode: Mode = "hook"


class DecisionLike(Protocol):
    """The fields of a recorded decision that a play needs."""

    @property
    def step(self) -> int:
        """First step for which the decision holds."""

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
        """Number of steps that the exchange is in flight."""

    @property
    def mode(self) -> Mode | None:
        """Mode of the steps; ``None`` in older records."""


def plays(decisions: Sequence[DecisionLike], steps: int) -> tuple[Play, ...]:
    """Return the choices of a run, in order.

    Args:
        decisions: decisions of the run.
        steps: number of steps of the run.

    Example:
        >>> from types import SimpleNamespace as Decision
        >>> decisions = [Decision(step=0, compressor="dense", cf=1, every=1, delay=0, mode="native")]
        >>> decisions += [Decision(step=16, compressor="dense", cf=1, every=5, delay=2, mode=None)]
        >>> [(play.mode, play.rounds, play.delay) for play in plays(decisions, 36)]
        [('native', 2, 0), ('outer', 4, 2)]
    """
    ends = [*(decision.step for decision in decisions[1:]), steps]
    return tuple(
        _play(decision, end - decision.step)
        for decision, end in zip(decisions, ends, strict=True)
        if end > decision.step
    )


def _play(decision: DecisionLike, steps: int) -> Play:
    mode: Mode = decision.mode or ("outer" if decision.every > 1 else "hook")
    rounds = math.ceil(steps / (WATCH if mode == "native" else decision.every))
    return Play(decision.compressor, decision.cf, decision.every, rounds, decision.delay, mode)


def shuffled(played: Iterable[Play], seed: int) -> list[Play]:
    """Return plays, cut into blocks of at most ``BLOCK`` rounds, in the random order of a seed."""
    blocks = [
        play._replace(rounds=min(BLOCK, play.rounds - done)) for play in played for done in range(0, play.rounds, BLOCK)
    ]
    random.Random(seed).shuffle(blocks)
    return blocks


@dataclass(frozen=True)
class Shuffled:
    """A controller that plays choices in random order, again and again, whatever is measured.

    Attributes:
        inner: controller that made the choices; it proposes the candidates.
        played: choices of the inner controller.
        seed: seed of the order.
        latency: number of steps from a measurement to the decision based on it.
    """

    inner: Controller[Any]
    played: tuple[Play, ...]
    seed: int = 0
    latency: int = LATENCY

    name = "shuffled"

    @property
    def keeps_all(self) -> bool:
        """See ``Controller``: that of the inner controller."""
        return self.inner.keeps_all

    @property
    def sixteen_bit(self) -> bool:
        """See ``Controller``: that of the inner controller."""
        return self.inner.sixteen_bit

    @property
    def chooses_every(self) -> bool:
        """True if the inner controller chooses the number of steps from one exchange to the next."""
        return bool(getattr(self.inner, "chooses_every", False))

    @property
    def native(self) -> bool:
        """True if the inner controller may choose native steps."""
        return bool(getattr(self.inner, "native", False))

    def for_latency(self, latency: int) -> Shuffled:
        """Return the controller for ``latency`` steps from a measurement to its decision."""
        return replace(self, latency=latency)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the CFs that the inner controller proposes."""
        return self.inner.propose(cf_range, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Begin with the first choice of the order."""
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), 0)
        first = self._candidate_at(state.candidates, 0)
        return state, Decision(first, reason=f"start at {first}, {REASON}")

    def observe(self, state: _ShuffledState, measurement: Measurement) -> tuple[_ShuffledState, Decision]:
        """Advance by one step, or round."""
        previous, following = (
            self._candidate_at(state.candidates, self._due(observed))
            for observed in (state.observed, state.observed + 1)
        )
        reason = "" if following == previous else f"{previous} to {following}, {REASON}"
        return replace(state, observed=state.observed + 1), Decision(following, reason=reason)

    def dump(self, state: _ShuffledState) -> dict[str, Any]:
        """Return the number of observed steps."""
        return {"at": state.observed}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Continue after the number of observed steps in ``dumped``."""
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), dumped["at"])
        return state, Decision(self._candidate_at(state.candidates, self._due(state.observed)))

    def _due(self, observed: int) -> int:
        """Return the step for which a decision after ``observed`` steps holds."""
        return observed - 1 + self.latency if observed else 0

    def _candidate_at(self, candidates: Sequence[Candidate], step: int) -> Candidate:
        """Return the candidate to run in a step, counted from 0."""
        length = sum(play.rounds for play in self.played)
        remaining = step % length
        for play in shuffled(self.played, self.seed + step // length):
            if remaining < play.rounds:
                return _nearest(play, candidates)
            remaining -= play.rounds
        raise AssertionError("a position lies in some block")


@dataclass(frozen=True)
class _ShuffledState:
    """State of ``Shuffled``.

    Attributes:
        candidates: candidates that may run.
        observed: number of observed steps, or rounds.
    """

    candidates: tuple[Candidate, ...]
    observed: int


def _nearest(play: Play, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate of a play, or the nearest candidate if that of the play was not admitted."""

    def distance(candidate: Candidate) -> tuple[bool, bool, float, float, bool, int]:
        every_distance = abs(math.log(candidate.every / play.every))
        cf_distance = abs(math.log(candidate.cf / play.cf))
        delay_differs = (candidate.delay > 0) != (play.delay > 0)
        compressor_differs = candidate.compressor != play.compressor
        return (
            candidate.mode != play.mode,
            compressor_differs,
            every_distance,
            cf_distance,
            delay_differs,
            abs(candidate.delay - play.delay),
        )

    return min(candidates, key=distance)
