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
from typing import Any, NamedTuple

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Controller, Decision, Measurement, has_flag

MAX_BLOCK_ROUNDS = 5
"""Maximum number of rounds in which a candidate runs before another candidate may run, in the random order.

A round is the steps from one exchange to the next. ``shuffled_blocks`` cuts the rounds of each candidate into blocks of
at most this many rounds, and shuffles the blocks. With a maximum of 1, almost every round would have a new candidate.
"""

REASON = "by a random order of the candidates that an adaptive run chose"
"""Last words of each decision reason of ``ShuffledController``."""


class RunChoice(NamedTuple):
    """A candidate that a controller chose in a run, and the number of rounds until the controller's next choice.

    A round is the steps from one exchange to the next; in native mode, ``DEFAULT_STRETCH_STEPS`` steps.
    """

    candidate: Candidate
    rounds: int


def shuffled_blocks(choices: Iterable[RunChoice], seed: int) -> list[RunChoice]:
    """Cut choices into blocks of no more than ``MAX_BLOCK_ROUNDS`` rounds each, and return the blocks in random order.

    Args:
        choices: candidates, each with the number of rounds that it ran.
        seed: seed of the random order; the same seed gives the same order.
    """
    blocks = [
        RunChoice(choice.candidate, min(MAX_BLOCK_ROUNDS, choice.rounds - rounds_before))
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
        """Return a copy of this controller for another latency, in steps."""
        return replace(self, latency=latency)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the compression factors (CFs) that the inner controller proposes, ascending."""
        return self.inner_controller.propose(cf_range, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[_State, Decision]:
        """Return the state before the first step, and the decision to run the first choice of the random order."""
        state, decision = self.restore({"at": 0}, forecasts)
        return state, replace(decision, reason=f"start at {decision.candidate}, {REASON}")

    def observe(self, state: _State, measurement: Measurement) -> tuple[_State, Decision]:
        """Return the state after a measurement, and the decision for ``latency`` steps after the measured step."""
        following_state = state._replace(observed_count=state.observed_count + 1)
        previous, following = self._decided_candidate(state), self._decided_candidate(following_state)
        reason = "" if following == previous else f"switched from {previous} to {following}, {REASON}"
        return following_state, Decision(following, reason=reason)

    def dump(self, state: _State) -> dict[str, Any]:
        """Return the state as a dict of JSON types, for a checkpoint: the number of measurements so far."""
        return {"at": state.observed_count}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[_State, Decision]:
        """Return the state that ``dump`` described, and the decision for the next step."""
        state = _State(tuple(forecast.candidate for forecast in forecasts), dumped["at"])
        return state, Decision(self._decided_candidate(state))

    def _decided_candidate(self, state: _State) -> Candidate:
        """Return the candidate of the round for which the controller decides in a state."""
        decided_round = state.observed_count - 1 + self.latency if state.observed_count else 0
        repetition, remaining_rounds = divmod(decided_round, sum(choice.rounds for choice in self.choices))
        blocks = iter(shuffled_blocks(self.choices, self.seed + repetition))
        block = next(blocks)
        while remaining_rounds >= block.rounds:
            remaining_rounds -= block.rounds
            block = next(blocks)
        return _nearest_candidate(block.candidate, state.candidates)


class _State(NamedTuple):
    """State of ``ShuffledController``: candidates that may run, and number of measurements so far, one per round."""

    candidates: tuple[Candidate, ...]
    observed_count: int


def _nearest_candidate(wanted: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that equals the wanted one, or the most similar candidate if none is equal.

    Mode counts most, then compressor, number of steps between exchanges, compression factor, and delay.
    """

    def distance(candidate: Candidate) -> tuple[float, ...]:
        return (
            candidate.mode != wanted.mode,
            candidate.compressor != wanted.compressor,
            abs(math.log(candidate.every / wanted.every)),
            abs(math.log(candidate.cf / wanted.cf)),
            (candidate.delay > 0) != (wanted.delay > 0),
            abs(candidate.delay - wanted.delay),
        )

    return min(candidates, key=distance)
