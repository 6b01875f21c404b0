# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes each rank's number of steps in a round, by its speed, and its pseudo-gradient's weight, by its samples.

Number of steps and weight follow from sums over the ranks, and take effect two rounds after the measurement:

1. Round t: each rank times its steps.
2. End of round t: each rank sends its step time, and its number of samples of a step, to all ranks.
3. Round t + 2: each rank's number of steps and weight follow from the sums.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums

EQUAL_SPEED = 0.1
"""Ranks make equally many steps if, for each rank, |speed - mean speed| / mean speed is at most this number."""

NEWEST_WEIGHT = 0.5
"""Weight of the newest round's step time in a moving average of step times over the rounds, in [0, 1]."""


class Shares:
    """Computes each rank's number of steps and weight in a round, and times this rank's steps.

    Args:
        engine: sums numbers over the ranks.
        by_speed: whether a rank's number of steps is in proportion to its speed.
        samples: number of samples of a step on this rank; ``None`` (on every rank): all ranks have the same weight.

    Attributes:
        by_speed: whether a rank's number of steps is in proportion to its speed.
        clock: function that returns the current time in seconds.
        steps_of_ranks: number of steps of each rank in the present round; empty before the first round.
        weight: factor on this rank's pseudo-gradient, which makes the mean over the ranks a mean over samples.
    """

    def __init__(self, engine: Engine, by_speed: bool, samples: int | None) -> None:
        self.by_speed = by_speed
        self.clock: Callable[[], float] = time.perf_counter
        self.steps_of_ranks: tuple[int, ...] = ()
        self.weight = 1.0
        self._engine, self._samples_per_step = engine, samples or 0
        self._ranks_are_equal = not by_speed and samples is None
        self._agreed_seconds: list[float] = []  # of a step, by rank; the same on all ranks
        self._agreed_samples: list[float] = []  # of a step, by rank; the same on all ranks
        self._last_round_numbers: list[float] = []  # this rank's seconds and samples of a step, in the last round
        self._sums_in_flight: RankSums | None = None  # of the newest round that has ended
        self._sums_due: RankSums | None = None  # of the round before, by which the next round is divided
        self._step_seconds: list[float] = []
        self._step_began_s: float | None = None

    def begin_step(self) -> None:
        """Begin to time a step."""
        if self.by_speed:
            self._step_began_s = self.clock()

    def end_step(self) -> None:
        """Store the time of a step that the rank has just made."""
        if self._step_began_s is not None:
            self._step_seconds.append(self.clock() - self._step_began_s)
            self._step_began_s = None

    def steps_of_round(self, mean_steps: int) -> int:
        """Compute ``steps_of_ranks`` and ``weight`` of the round that begins; return this rank's number of steps.

        Args:
            mean_steps: number of steps of the round, on average over the ranks.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._update_agreed()
        self.steps_of_ranks = steps_of(mean_steps, self._agreed_seconds or [1.0] * self._engine.state.world)
        self.weight = weights_of(self.steps_of_ranks, self._agreed_samples or [1.0] * self._engine.state.world)[
            self._engine.state.rank
        ]
        return self.steps_of_ranks[self._engine.state.rank]

    def begin_exchange(self) -> None:
        """Make the sums of the last round's numbers those by which the next round is divided; training does not wait.

        Called on every rank when a round's first fragment is sent.
        """
        if self._last_round_numbers and self._sums_in_flight is None:  # the run was restored
            self._send_round_numbers()
        self._sums_due, self._sums_in_flight = self._sums_in_flight, None

    def end_round(self) -> None:
        """Send this rank's seconds and samples of a step. Called when a round's last fragment has been sent."""
        if not self._ranks_are_equal:
            self._last_round_numbers = [statistics.median(self._step_seconds or [0.0]), self._samples_per_step]
            self._send_round_numbers()
        self._step_seconds = []

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state; ``None`` if the settings give all ranks the same number of steps and weight.

        Called between two rounds.
        """
        if self._ranks_are_equal:
            return None
        self._update_agreed()
        return {"seconds": self._agreed_seconds, "samples": self._agreed_samples, "own": self._last_round_numbers}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a state that ``state_dict`` returned; ``None`` changes nothing."""
        if state is not None and not self._ranks_are_equal:
            self._agreed_seconds, self._agreed_samples, self._last_round_numbers = (
                list(state[key]) for key in ("seconds", "samples", "own")
            )

    def _send_round_numbers(self) -> None:
        """Begin to gather all ranks' seconds and samples of a step.

        Each rank sends a list with room for all ranks' numbers, which has zeros in place of the other ranks' numbers;
        the sum of these lists has the numbers of all ranks.
        """
        rank, world = self._engine.state.rank, self._engine.state.world
        numbers_of_ranks = [0.0] * (2 * world)
        numbers_of_ranks[rank], numbers_of_ranks[world + rank] = self._last_round_numbers
        self._sums_in_flight = self._engine.sum_over_ranks("the ranks' step times", numbers_of_ranks)

    def _update_agreed(self) -> None:
        """Wait for the newest sums over the ranks, if any, and set all ranks' seconds and samples by these sums."""
        if self._sums_due is None:
            return
        sums, world = self._sums_due.result(), self._engine.state.world
        self._sums_due = None
        seconds, samples = sums[:world], sums[world:]
        if self.by_speed and all(0 < rank_seconds < math.inf for rank_seconds in seconds):
            previous_seconds = self._agreed_seconds or seconds
            self._agreed_seconds = [
                average_s + NEWEST_WEIGHT * (newest_s - average_s)
                for average_s, newest_s in zip(previous_seconds, seconds, strict=True)
            ]
        if any(samples):
            self._agreed_samples = samples


def steps_of(mean_steps: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return each rank's number of steps in a round, in proportion to the rank's speed; equal if speeds are similar.

    Args:
        mean_steps: number of steps on average over the ranks, apart from rounding.
        seconds: seconds that a step takes, by rank.

    Example:
        >>> steps_of(10, [0.1, 0.1, 0.3]), steps_of(10, [0.1, 0.11])
        ((13, 13, 4), (10, 10))
    """
    speeds = [1 / rank_seconds for rank_seconds in seconds]
    mean_speed = statistics.fmean(speeds)
    if all(abs(speed - mean_speed) <= EQUAL_SPEED * mean_speed for speed in speeds):
        return (mean_steps,) * len(speeds)
    return tuple(max(1, round(mean_steps * speed / mean_speed)) for speed in speeds)


def weights_of(steps: Sequence[int], samples: Sequence[float]) -> tuple[float, ...]:
    """Return the factor on each rank's pseudo-gradient, by the rank's samples in a round; the mean factor is 1.

    Args:
        steps: number of steps in the round, by rank.
        samples: number of samples of a step, by rank.

    Example:
        >>> weights_of([10, 10], [32, 32]), weights_of([15, 5], [32, 32])
        ((1.0, 1.0), (1.5, 0.5))
    """
    round_samples = [rank_steps * step_samples for rank_steps, step_samples in zip(steps, samples, strict=True)]
    total_samples = math.fsum(round_samples)
    return tuple(rank_samples * len(round_samples) / total_samples for rank_samples in round_samples)
