# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``matched:`` methods, which run the candidates that a controller chose in another run again, in random order.

A candidate is a way to run steps: mode, compressor, compression factor. Each candidate runs for as many steps in total
as in the other run. These methods are controls of an experiment. If they reach the target as fast as the other run did,
then it matters which candidates the controller chose, but not when.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from gravac.candidate import Candidate, Forecast, Mode, Span
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, LATENCY, Controller, Decision, Measurement, has_flag

MAX_BLOCK_ROUNDS = 5
"""Maximum number of rounds in which a candidate runs before another candidate may run, in the random order.

A round is the steps from one exchange to the next. ``shuffled_blocks`` cuts the rounds of each candidate into blocks of
at most this many rounds, and shuffles the blocks. With a maximum of 1, almost every round would have a new candidate.
"""


REASON = "by a random order of the candidates that an adaptive run chose"
"""Last words of each decision reason of ``ShuffledController``."""


class RunChoice(NamedTuple):
    """A candidate (way to run steps) that a controller chose in a run, and the number of rounds for which it ran.

    A round is the steps from one exchange to the next.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor.
        every: number of steps from one exchange to the next.
        rounds: number of rounds until the controller's next choice. In native mode, ``DEFAULT_STRETCH_STEPS`` steps
            count as a round; the number is rounded up.
        delay: number of steps that each exchange is in flight before its mean is applied.
        mode: mode of the steps: ``native``, ``hook`` or ``outer``.
    """

    compressor: str
    cf: float
    every: int
    rounds: int
    delay: int = 0
    mode: Mode = "hook"


class DecisionLike(Protocol):
    """A recorded decision of a controller, with the fields that ``choices_of_run`` reads."""

    @property
    def step(self) -> int:
        """Number of the first step for which the decision holds, from 0."""

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
        """Number of steps that each exchange is in flight before its mean is applied."""

    @property
    def mode(self) -> Mode | None:
        """Mode of the steps (``native``, ``hook`` or ``outer``); ``None`` in older records, which have no mode."""


def choices_of_run(decisions: Sequence[DecisionLike], steps: int) -> tuple[RunChoice, ...]:
    """Return the candidates that a controller chose in a run, in order, each with its number of rounds.

    A round is ``every`` steps, from one exchange to the next. For native steps, a round is ``DEFAULT_STRETCH_STEPS``
    (8) steps.

    Args:
        decisions: all recorded decisions of the run, by ascending step.
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
        _choice_of_decision(decision, end_step - decision.step)
        for decision, end_step in zip(decisions, end_steps, strict=True)
        if end_step > decision.step
    )


def _choice_of_decision(decision: DecisionLike, steps: int) -> RunChoice:
    """Return the candidate of a decision, with the number of rounds that it ran.

    Args:
        decision: recorded decision of a controller.
        steps: number of steps until the next decision, or until the end of the run.
    """
    mode: Mode = decision.mode or ("outer" if decision.every > 1 else "hook")
    rounds = math.ceil(steps / (DEFAULT_STRETCH_STEPS if mode == "native" else decision.every))
    return RunChoice(decision.compressor, decision.cf, decision.every, rounds, decision.delay, mode)


def shuffled_blocks(choices: Iterable[RunChoice], seed: int) -> list[RunChoice]:
    """Cut choices into blocks of no more than ``MAX_BLOCK_ROUNDS`` rounds each, and return the blocks in random order.

    Args:
        choices: candidates, each with the number of rounds (steps from one exchange to the next) that it ran.
        seed: seed of the random order; the same seed gives the same order.
    """
    blocks = [
        choice._replace(rounds=min(MAX_BLOCK_ROUNDS, choice.rounds - rounds_before))
        for choice in choices
        for rounds_before in range(0, choice.rounds, MAX_BLOCK_ROUNDS)
    ]
    random.Random(seed).shuffle(blocks)
    return blocks


@dataclass(frozen=True)
class ShuffledController:
    """A controller that repeats the choices of another controller's run in random order, and ignores measurements.

    When all choices have run, they all run once more in another random order.

    Attributes:
        inner_controller: controller of the same type and settings as the controller that made the choices; proposes
            the CFs, and says which modes may run.
        choices: candidates that a controller chose in an earlier run, each with its number of rounds.
        seed: seed of the random order.
        latency: number of steps from a measured step to the step in which the decision based on it takes effect.
    """

    inner_controller: Controller[Any]
    choices: tuple[RunChoice, ...]
    seed: int = 0
    latency: int = LATENCY

    name = "shuffled"

    @property
    def keeps_all(self) -> bool:
        """True if gravac keeps all proposed CFs as candidates, even CFs that send no fewer bytes than dense."""
        return self.inner_controller.keeps_all

    @property
    def chooses_sixteen_bit(self) -> bool:
        """True if the inner controller may choose dense in 16 bit, besides dense in float32."""
        return self.inner_controller.chooses_sixteen_bit

    @property
    def chooses_every(self) -> bool:
        """True if the inner controller chooses the number of steps from one exchange to the next."""
        return has_flag(self.inner_controller, "chooses_every")

    @property
    def chooses_native(self) -> bool:
        """True if the inner controller may choose native steps."""
        return has_flag(self.inner_controller, "chooses_native")

    def for_latency(self, latency: int) -> ShuffledController:
        """Return a copy of this controller for another latency.

        Args:
            latency: number of steps from a measured step to the step in which the decision based on it takes effect.
        """
        return replace(self, latency=latency)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the compression factors (CFs) that the inner controller proposes, ascending.

        Args:
            cf_range: lowest and highest CF that the user allows.
            supported: CFs that the compressor supports: all of a span, or a list.
        """
        return self.inner_controller.propose(cf_range, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Return the state before the first step, and the decision to run the first choice of the random order.

        Args:
            forecasts: forecasts of the candidates that may run.
        """
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), 0)
        first_candidate = self._candidate_at(state.candidates, 0)
        return state, Decision(first_candidate, reason=f"start at {first_candidate}, {REASON}")

    def observe(self, state: _ShuffledState, measurement: Measurement) -> tuple[_ShuffledState, Decision]:
        """Return the state after a measurement, and the decision for ``latency`` steps after the measured step.

        Args:
            state: state before the measurement.
            measurement: not used, except that measurements are counted.
        """
        previous_candidate, following_candidate = (
            self._candidate_at(state.candidates, self._decided_round(observed_count))
            for observed_count in (state.observed_count, state.observed_count + 1)
        )
        reason = (
            ""
            if following_candidate == previous_candidate
            else f"switched from {previous_candidate} to {following_candidate}, {REASON}"
        )
        return replace(state, observed_count=state.observed_count + 1), Decision(following_candidate, reason=reason)

    def dump(self, state: _ShuffledState) -> dict[str, Any]:
        """Return the state as a dict of JSON types, for a checkpoint: the number of measurements so far."""
        return {"at": state.observed_count}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[_ShuffledState, Decision]:
        """Return the state that ``dump`` described, and the decision for the next step.

        Args:
            dumped: dict that ``dump`` returned.
            forecasts: forecasts of the candidates that may run.
        """
        state = _ShuffledState(tuple(forecast.candidate for forecast in forecasts), dumped["at"])
        return state, Decision(self._candidate_at(state.candidates, self._decided_round(state.observed_count)))

    def _decided_round(self, observed_count: int) -> int:
        """Return the number, from 0, of the round for which the controller decides.

        Args:
            observed_count: number of measurements so far, one per round.
        """
        return observed_count - 1 + self.latency if observed_count else 0

    def _candidate_at(self, candidates: Sequence[Candidate], round_number: int) -> Candidate:
        """Return the candidate to run in a round.

        Args:
            candidates: candidates that may run.
            round_number: number of the round, from 0, over the whole run. When all choices have run, they all run once
                more in another random order.
        """
        total_rounds = sum(choice.rounds for choice in self.choices)
        remaining_rounds = round_number % total_rounds
        for block in shuffled_blocks(self.choices, self.seed + round_number // total_rounds):
            if remaining_rounds < block.rounds:
                return _nearest_candidate(block, candidates)
            remaining_rounds -= block.rounds
        raise AssertionError(
            f"round_number: no block of the choices has round {round_number}, which is a bug of gravac"
        )


@dataclass(frozen=True)
class _ShuffledState:
    """State of ``ShuffledController``.

    Attributes:
        candidates: candidates that may run.
        observed_count: number of measurements so far, one per round (the steps from one exchange to the next).
    """

    candidates: tuple[Candidate, ...]
    observed_count: int


def _nearest_candidate(choice: RunChoice, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that equals a choice, or the most similar candidate if none is equal.

    Mode counts most, then compressor, number of steps between exchanges, compression factor, and delay.

    Args:
        choice: candidate of an earlier run.
        candidates: candidates to select from.
    """

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
