# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Each rank's number of steps in a round, by its speed, and weight of its pseudo-gradient, by its samples.

Both follow from sums over the ranks, and take effect two rounds after the measurement:

1. Round t: each rank times its steps.
2. End of round t: each rank sends its step time, and its number of samples of a step, to all ranks.
3. Round t + 1: when its first fragment is sent, the ranks begin to wait for the sums.
4. Round t + 2: numbers of steps, and weights, follow from the sums.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums

EQUAL_SPEED = 0.1
"""Ranks count as equally fast if all speeds differ from their mean by at most this fraction."""

NEWEST_WEIGHT = 0.5
"""Weight of the newest round's step times in their average over rounds."""


class Shares:
    """Computes each rank's number of steps and weight in a round, and times this rank's steps.

    Args:
        engine: sums numbers over the ranks.
        by_speed: whether ranks make steps in proportion to their speed.
        samples: number of samples of a step on this rank; ``None``, on every rank: ranks weigh equally.

    Attributes:
        by_speed: whether ranks make steps in proportion to their speed.
        clock: returns the current time in seconds.
        steps: number of steps of each rank in the present round; empty before the first round.
        weight: factor on this rank's pseudo-gradient, so that the mean over the ranks is a mean over samples.
    """

    def __init__(self, engine: Engine, by_speed: bool, samples: int | None) -> None:
        self.by_speed = by_speed
        self.clock: Callable[[], float] = time.perf_counter
        self.steps: tuple[int, ...] = ()
        self.weight = 1.0
        self._engine, self._count = engine, samples or 0
        self._equal = not by_speed and samples is None
        self._seconds: list[float] = []  # agreed seconds of a step, by rank
        self._samples: list[float] = []  # agreed samples of a step, by rank
        self._local: list[float] = []  # this rank's seconds and samples of a step, in the last round
        self._sent: RankSums | None = None  # sums that nobody waits for yet
        self._pending: RankSums | None = None  # sums that ranks wait for
        self._times: list[float] = []
        self._since: float | None = None

    def begin_step(self) -> None:
        """Begin to time a step: the rank trains."""
        if self.by_speed:
            self._since = self.clock()

    def end_step(self) -> None:
        """End to time a step: the rank has made it."""
        if self._since is not None:
            self._times.append(self.clock() - self._since)
            self._since = None

    def steps_of_round(self, length: int) -> int:
        """Return this rank's number of steps in a round that begins.

        Args:
            length: number of steps of a rank on average.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._update()
        self.steps = steps_of(length, self._seconds or [1.0] * self._engine.state.world)
        self.weight = weights_of(self.steps, self._samples or [1.0] * self._engine.state.world)[self._engine.state.rank]
        return self.steps[self._engine.state.rank]

    def receive(self) -> None:
        """Begin to wait for the sums of the last round, on every rank; called when a round's first fragment is sent."""
        if self._local and self._sent is None:  # the run was restored
            self._send()
        if self._sent is not None:
            self._sent.receive()
        self._pending, self._sent = self._sent, None

    def end_round(self) -> None:
        """Send this rank's seconds and samples of a step; called when a round's last fragment has been sent."""
        if not self._equal:
            self._local = [statistics.median(self._times or [0.0]), self._count]
            self._send()
        self._times = []

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state, between two rounds; ``None`` if all ranks make equally many steps of equal weight."""
        if self._equal:
            return None
        self._update()
        return {"seconds": self._seconds, "samples": self._samples, "own": self._local}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a state; ``None`` changes nothing."""
        if state is not None and not self._equal:
            self._seconds, self._samples, self._local = (list(state[key]) for key in ("seconds", "samples", "own"))

    def _send(self) -> None:
        rank, world = self._engine.state.rank, self._engine.state.world
        numbers = [0.0] * (2 * world)
        numbers[rank], numbers[world + rank] = self._local
        self._sent = self._engine.sum_over_ranks("the ranks' step times", numbers)

    def _update(self) -> None:
        """Update the agreed seconds and samples by the pending sums, if there are any."""
        if self._pending is None:
            return
        sums, world = self._pending.result(), self._engine.state.world
        self._pending = None
        seconds, samples = sums[:world], sums[world:]
        if self.by_speed and all(0 < of_rank < math.inf for of_rank in seconds):
            previous = self._seconds or seconds
            self._seconds = [
                earlier + NEWEST_WEIGHT * (newest - earlier) for earlier, newest in zip(previous, seconds, strict=True)
            ]
        if any(samples):
            self._samples = samples


def steps_of(length: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the number of steps of each rank in a round, in proportion to its speed.

    Args:
        length: number of steps, on average over the ranks, except for rounding.
        seconds: seconds that a step takes, by rank.

    Example:
        >>> steps_of(10, [0.1, 0.1, 0.3]), steps_of(10, [0.1, 0.11])
        ((13, 13, 4), (10, 10))
    """
    speeds = [1 / of_rank for of_rank in seconds]
    mean = statistics.fmean(speeds)
    if all(abs(speed - mean) <= EQUAL_SPEED * mean for speed in speeds):
        return (length,) * len(speeds)
    return tuple(max(1, round(length * speed / mean)) for speed in speeds)


def weights_of(steps: Sequence[int], samples: Sequence[float]) -> tuple[float, ...]:
    """Return the factor on each rank's pseudo-gradient, by the samples of its round; the mean factor is 1.

    Example:
        >>> weights_of([10, 10], [32, 32]), weights_of([15, 5], [32, 32])
        ((1.0, 1.0), (1.5, 0.5))
    """
    in_round = [number * of_step for number, of_step in zip(steps, samples, strict=True)]
    total = math.fsum(in_round)
    return tuple(of_rank * len(in_round) / total for of_rank in in_round)
