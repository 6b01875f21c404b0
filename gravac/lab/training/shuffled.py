# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods that repeat the choices of an adaptive run, each for as many steps, in random order.

These methods are controls of an experiment: if the random order reaches the target as fast as the adaptive run, only
the controller's choices matter, and not their times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from gravac.candidate import Candidate, Forecast, Mode, Span
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, LATENCY, Controller, Decision, Measurement

MAX_BLOCK_ROUNDS = 5
"""Largest number of successive rounds (from one exchange to the next) that a candidate runs before another may follow.
If it were 1, the candidate would change in almost every round."""


REASON = "a choice of the adaptive run, at a random time"
"""Reason of all decisions, as text."""


class RunChoice(NamedTuple):
    """A candidate that an adaptive run chose, and the number of rounds for which it ran.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor.
        every: number of steps from one exchange to the next.
        rounds: number of exchanges until the next choice; for native steps, number of steps /
            ``DEFAULT_STRETCH_STEPS``, rounded up.
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
    """The fields of a recorded decision that ``choices_of_run`` reads."""

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
        """Number of steps that each exchange is in flight."""

    @property
    def mode(self) -> Mode | None:
        """Mode of the steps; ``None`` in older records."""


def choices_of_run(decisions: Sequence[DecisionLike], steps: int) -> tuple[RunChoice, ...]:
    """Return the choices of an adaptive run, in order.

    A native choice counts rounds of ``DEFAULT_STRETCH_STEPS`` (8) steps, any other choice rounds of ``every`` steps.

    Args:
        decisions: decisions of the run, by ascending step.
        steps: number of steps of the whole run.

    Example:
        >>> from types import SimpleNamespace as Decision
        >>> decisions = [Decision(step=0, compressor="dense", cf=1, every=1, delay=0, mode="native")]
        >>> decisions += [Decision(step=16, compressor="dense", cf=1, every=5, delay=2, mode=None)]
        >>> [(choice.mode, choice.rounds, choice.delay) for choice in choices_of_run(decisions, 36)]
        [('native', 2, 0), ('outer', 4, 2)]
    """
    end_steps = [*(decision.step for decision in decisions[1:]), steps]
    return tuple(
        _choice_of_decision(decision, end - decision.step)
        for decision, end in zip(decisions, end_steps, strict=True)
        if end > decision.step
    )


def _choice_of_decision(decision: DecisionLike, steps: int) -> RunChoice:
    """Return the choice of a decision that held for a number of steps."""
    mode: Mode = decision.mode or ("outer" if decision.every > 1 else "hook")
    rounds = math.ceil(steps / (DEFAULT_STRETCH_STEPS if mode == "native" else decision.every))
    return RunChoice(decision.compressor, decision.cf, decision.every, rounds, decision.delay, mode)


def shuffled_blocks(choices: Iterable[RunChoice], seed: int) -> list[RunChoice]:
    """Cut choices into blocks of at most ``MAX_BLOCK_ROUNDS`` rounds; return them in random order, by ``seed``."""
    blocks = [
        choice._replace(rounds=min(MAX_BLOCK_ROUNDS, choice.rounds - rounds_before))
        for choice in choices
        for rounds_before in range(0, choice.rounds, MAX_BLOCK_ROUNDS)
    ]
    random.Random(seed).shuffle(blocks)
    return blocks


@dataclass(frozen=True)
class ShuffledController:
    """A controller that repeats the choices of another controller in random order, and ignores all measurements.

    After the last choice, all choices follow once more in another random order.

    Attributes:
        inner_controller: controller that made the choices, and proposes the candidates.
        choices: choices that the inner controller made in its run.
        seed: seed of the random order.
        latency: number of steps from a measurement to the decision based on it.
    """

    inner_controller: Controller[Any]
    choices: tuple[RunChoice, ...]
    seed: int = 0
    latency: int = LATENCY

    name = "shuffled"

    @property
    def keeps_all(self) -> bool:
        """The inner controller's setting, see ``Controller``."""
        return self.inner_controller.keeps_all

    @property
    def sixteen_bit(self) -> bool:
        """The inner controller's setting, see ``Controller``."""
        return self.inner_controller.sixteen_bit

    @property
    def chooses_every(self) -> bool:
        """True if the inner controller chooses the number of steps from one exchange to the next."""
        return bool(getattr(self.inner_controller, "chooses_every", False))

    @property
    def native(self) -> bool:
        """True if the inner controller may choose native steps."""
        return bool(getattr(self.inner_controller, "native", False))

    def for_latency(self, latency: int) -> ShuffledController:
        """Return a copy of this controller that decides ``latency`` steps after each measurement."""
        return replace(self, latency=latency)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the CFs that the inner controller proposes."""
        return self.inner_controller.propose(cf_range, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Return the initial state, and the decision for the first choice of the random order."""
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), 0)
        first_candidate = self._candidate_at(state.candidates, 0)
        return state, Decision(first_candidate, reason=f"start at {first_candidate}, {REASON}")

    def observe(self, state: _ShuffledState, measurement: Measurement) -> tuple[_ShuffledState, Decision]:
        """Return the state after one more measurement, and the decision that holds ``latency`` measurements later."""
        previous_candidate, following_candidate = (
            self._candidate_at(state.candidates, self._position(observed_count))
            for observed_count in (state.observed_count, state.observed_count + 1)
        )
        reason = (
            ""
            if following_candidate == previous_candidate
            else f"{previous_candidate} to {following_candidate}, {REASON}"
        )
        return replace(state, observed_count=state.observed_count + 1), Decision(following_candidate, reason=reason)

    def dump(self, state: _ShuffledState) -> dict[str, Any]:
        """Return the number of observed measurements, as the plain form of the state."""
        return {"at": state.observed_count}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Return the state and the decision after the number of measurements in ``dumped``."""
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), dumped["at"])
        return state, Decision(self._candidate_at(state.candidates, self._position(state.observed_count)))

    def _position(self, observed_count: int) -> int:
        """Return the number of the round, from 0, to decide on after ``observed_count`` measurements."""
        return observed_count - 1 + self.latency if observed_count else 0

    def _candidate_at(self, candidates: Sequence[Candidate], position: int) -> Candidate:
        """Return the candidate to run in a round.

        Args:
            candidates: candidates that may run.
            position: number of the round, from 0, over the whole run. When all choices have run for their numbers of
                rounds, all follow once more in another random order.
        """
        total_rounds = sum(choice.rounds for choice in self.choices)
        remaining_rounds = position % total_rounds
        for block in shuffled_blocks(self.choices, self.seed + position // total_rounds):
            if remaining_rounds < block.rounds:
                return _nearest_candidate(block, candidates)
            remaining_rounds -= block.rounds
        raise AssertionError("position: no block has this round")


@dataclass(frozen=True)
class _ShuffledState:
    """State of ``ShuffledController``.

    Attributes:
        candidates: candidates that may run.
        observed_count: number of observed measurements, one per round.
    """

    candidates: tuple[Candidate, ...]
    observed_count: int


def _nearest_candidate(choice: RunChoice, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate of ``candidates`` that equals a choice, or otherwise the most similar candidate."""

    def distance(candidate: Candidate) -> tuple[bool, bool, float, float, bool, int]:
        every_distance = abs(math.log(candidate.every / choice.every))
        cf_distance = abs(math.log(candidate.cf / choice.cf))
        delay_differs = (candidate.delay > 0) != (choice.delay > 0)
        compressor_differs = candidate.compressor != choice.compressor
        return (
            candidate.mode != choice.mode,
            compressor_differs,
            every_distance,
            cf_distance,
            delay_differs,
            abs(candidate.delay - choice.delay),
        )

    return min(candidates, key=distance)
