# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How many steps each rank makes in a round, by its speed, and how much its pseudo-gradient counts, by its samples.

Both are functions of numbers that the ranks agreed on, the same on all of them, two rounds later:

1. Round t: each rank times its steps.  2. Its end: all ranks' times, and the samples of a step, are on their way.
3. Round t + 1, where its first fragment leaves: they are waited for.  4. Round t + 2 goes by them.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums

EQUAL = 0.1
"""Ranks whose speeds are all within this share of their mean count as equally fast."""

NEW = 0.5
"""Weight of a round's step times beside what earlier rounds showed."""


class Shares:
    """Times a rank's steps, and knows all ranks' shares.

    Args:
        engine: sums numbers over the ranks.
        by_speed: whether ranks make steps in proportion to their speed.
        samples: number of samples of a step on this rank; ``None``, on every rank: all alike.

    Attributes:
        by_speed: the same.
        clock: tells seconds.
        steps: number of steps of each rank in the present round; none before the first.
        weight: factor on this rank's pseudo-gradient, so that their mean over the ranks is one over samples.
    """

    def __init__(self, engine: Engine, by_speed: bool, samples: int | None) -> None:
        self.by_speed = by_speed
        self.clock: Callable[[], float] = time.perf_counter
        self.steps: tuple[int, ...] = ()
        self.weight = 1.0
        self._engine, self._count = engine, samples or 0
        self._equal = not by_speed and samples is None
        self._seconds: list[float] = []  # a step's, by rank, as agreed
        self._samples: list[float] = []
        self._own: list[float] = []  # this rank's, of the round before
        self._told: RankSums | None = None
        self._asked: RankSums | None = None
        self._times: list[float] = []
        self._since: float | None = None

    def trains(self) -> None:
        """The rank goes on to train."""
        if self.by_speed:
            self._since = self.clock()

    def made(self) -> None:
        """It made a step."""
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
        self._take()
        self.steps = steps_of(length, self._seconds or [1.0] * self._engine.state.world)
        self.weight = weights_of(self.steps, self._samples or [1.0] * self._engine.state.world)[self._engine.state.rank]
        return self.steps[self._engine.state.rank]

    def ask(self) -> None:
        """The round's first fragment leaves: have what was told of the round before waited for, on every rank."""
        if self._own and self._told is None:  # a run that was taken up
            self._tell()
        if self._told is not None:
            self._told.receive()
        self._asked, self._told = self._told, None

    def end(self) -> None:
        """The round's last fragment left: tell the others."""
        if not self._equal:
            self._own = [statistics.median(self._times or [0.0]), self._count]
            self._tell()
        self._times = []

    def state_dict(self) -> dict[str, Any] | None:
        """Return what is known between two rounds, nothing under way; ``None`` where all ranks are equal."""
        if self._equal:
            return None
        self._take()
        return {"seconds": self._seconds, "samples": self._samples, "own": self._own}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a state, or from none."""
        if state is not None and not self._equal:
            self._seconds, self._samples, self._own = (list(state[key]) for key in ("seconds", "samples", "own"))

    def _tell(self) -> None:
        rank, world = self._engine.state.rank, self._engine.state.world
        numbers = [0.0] * (2 * world)
        numbers[rank], numbers[world + rank] = self._own
        self._told = self._engine.sum_over_ranks("the ranks' step times", numbers)

    def _take(self) -> None:
        if self._asked is None:
            return
        sums, world = self._asked.result(), self._engine.state.world
        self._asked = None
        seconds, samples = sums[:world], sums[world:]
        if self.by_speed and all(0 < one < math.inf for one in seconds):
            before = self._seconds or seconds
            self._seconds = [old + NEW * (new - old) for old, new in zip(before, seconds, strict=True)]
        if any(samples):
            self._samples = samples


def steps_of(length: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the number of steps of each rank in a round, in proportion to its speed.

    Args:
        length: their mean, but for rounding.
        seconds: seconds that a step takes, by rank.

    Example:
        >>> steps_of(10, [0.1, 0.1, 0.3]), steps_of(10, [0.1, 0.11])
        ((13, 13, 4), (10, 10))
    """
    speeds = [1 / one for one in seconds]
    mean = statistics.fmean(speeds)
    if all(abs(speed - mean) <= EQUAL * mean for speed in speeds):
        return (length,) * len(speeds)
    return tuple(max(1, round(length * speed / mean)) for speed in speeds)


def weights_of(steps: Sequence[int], samples: Sequence[float]) -> tuple[float, ...]:
    """Return the factor on each rank's pseudo-gradient, by the samples of its round; their sum is the number of ranks.

    Example:
        >>> weights_of([10, 10], [32, 32]), weights_of([15, 5], [32, 32])
        ((1.0, 1.0), (1.5, 0.5))
    """
    made = [number * each for number, each in zip(steps, samples, strict=True)]
    total = math.fsum(made)
    return tuple(one * len(made) / total for one in made)
