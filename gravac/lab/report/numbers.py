# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers of runs: amounts over seeds with their range, and what one run says of a method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gravac.lab.tta.record import TrainingRecord

LIMIT_METHOD, LIMIT_LINK = "fp32", "unthrottled"
"""Method and link whose median time to target is the limit: what a network that costs nothing would give."""


BASELINE = "fp16"
"""Method that speed-ups are relative to: the compression that everybody has."""


DENSE = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Amount:
    """A number over seeds, some of which may be known only to lie above or below a value.

    Attributes:
        median: median over seeds; a bound when ``sense`` is not empty.
        low: smallest value of a seed.
        high: largest value of a seed.
        runs: number of seeds.
        sense: ``">"`` when the median is only known to be above ``median``, ``"<"`` when below, else empty.
        low_sense: ``">"``, ``"<"`` or empty, for ``low``.
        high_sense: ``">"``, ``"<"`` or empty, for ``high``.
    """

    median: float
    low: float
    high: float
    runs: int
    sense: str = ""
    low_sense: str = ""
    high_sense: str = ""

    def over(self, unit: float) -> Amount:
        """Return the amount in multiples of ``unit``.

        Example:
            >>> Amount(30.0, 20.0, 40.0, runs=3).over(10.0).median
            3.0
        """
        return Amount(
            self.median / unit,
            self.low / unit,
            self.high / unit,
            self.runs,
            self.sense,
            self.low_sense,
            self.high_sense,
        )

    @property
    def exact(self) -> bool:
        """Tell whether the median itself is known."""
        return not self.sense

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (self.high - self.low) / self.median if self.median else 0.0


Interval = tuple[float, float]
"""Lowest and highest value that a number may have; both are the same when it is known."""


def amount(intervals: Sequence[Interval]) -> Amount | None:
    """Return the median of one interval per seed, ``(x, x)`` where x is known; ``None`` when nothing can be said of it.

    Example:
        >>> amount([(10.0, 10.0), (60.0, math.inf)])
        Amount(median=35.0, low=10.0, high=60.0, runs=2, sense='>', low_sense='', high_sense='>')
    """
    if not intervals:
        return None
    lower, upper = [low for low, _ in intervals], [high for _, high in intervals]
    at_least, at_most = statistics.median(lower), statistics.median(upper)
    if math.isinf(at_most) and at_least == 0:
        return None
    sense = "" if at_least == at_most else ">" if math.isinf(at_most) else "<"
    least, most = min(intervals), max(intervals, key=lambda interval: (interval[1], interval[0]))
    return Amount(
        median=at_most if sense == "<" else at_least,
        low=least[0] or min(upper),
        high=most[0] if math.isinf(most[1]) else most[1],
        runs=len(intervals),
        sense=sense,
        low_sense="" if least[0] == least[1] else ">" if least[0] else "<",
        high_sense="" if most[0] == most[1] else ">" if math.isinf(most[1]) else "<",
    )


@dataclass(frozen=True)
class ReportRow:
    """One method at one place; ``None`` is what was not measured.

    Attributes:
        method: name of the method, as it was given.
        adaptive: whether a controller decides.
        runs: its runs, by seed.
        reached: number of runs that reached the target.
        tta: seconds to the target.
        relative: ``tta`` in multiples of the limit.
        speedup: fp16's time to target / its own, paired by seed.
        steps: number of steps to the target.
        every: number of steps from one exchange to the next, mean over a run.
        samples_per_s: samples per second over all ranks.
        efficiency: samples per second over those of as many workers alone; 1 is linear scaling.
        bytes_per_step: bytes on the wire, per rank and step.
        wire_ratio: fp32's bytes a step / its own.
        gain: mean over the steps.
        compress_share: share of a step's time spent on compression.
        spread: a note when seeds differ too much, or empty.
    """

    method: str
    adaptive: bool
    runs: tuple[TrainingRecord, ...]
    reached: int
    tta: Amount
    relative: Amount | None
    speedup: Amount | None
    steps: Amount
    every: float
    samples_per_s: float
    efficiency: float | None
    bytes_per_step: float | None
    wire_ratio: float | None
    gain: float | None
    compress_share: float | None
    spread: str

    @property
    def paced(self) -> bool:
        """Tell whether a run had no real link."""
        return any(run.paced for run in self.runs)

    @property
    def factored(self) -> bool:
        """Tell whether steps of a run came from another link."""
        return any(run.factored for run in self.runs)


def time_to_target(run: TrainingRecord) -> Interval:
    """Return a run's seconds to the target; at least its length, when it did not reach the target."""
    return (run.tta_s, run.tta_s) if run.tta_s is not None else (run.seconds, math.inf)


def steps_to_target(run: TrainingRecord) -> Interval:
    """Return a run's steps to the target; at least all it made, when it did not reach the target."""
    return (run.steps_to_target, run.steps_to_target) if run.steps_to_target is not None else (run.steps, math.inf)


def faster(run: TrainingRecord, other: TrainingRecord) -> Interval | None:
    """Return how many times faster than ``other`` a run reached the target; ``None`` when nothing is known."""
    (low, high), (other_low, other_high) = time_to_target(run), time_to_target(other)
    if low <= 0 or (math.isinf(high) and math.isinf(other_high)):
        return None
    return other_low / high, other_high / low


def bytes_per_step(run: TrainingRecord) -> float | None:
    """Return the bytes on the wire, per rank and step; ``None`` when they are not known."""
    return run.wire_bytes / run.steps if run.wire_bytes is not None and run.steps else None


def compress_share(run: TrainingRecord) -> float | None:
    """Return the share of a median step's time spent on compression, which overlaps with compute."""
    if run.split is None or run.split.compress is None or run.step_s <= 0:
        return None
    return run.split.compress / run.step_s


def paired(runs: Sequence[TrainingRecord], others: Sequence[TrainingRecord]) -> Amount | None:
    """Return how many times faster a method is than another, seed by seed; ``None`` without a seed in common."""
    by_seed = {run.seed: run for run in others}
    pairs = [faster(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    return amount([pair for pair in pairs if pair is not None])


def inside_spread(speedup: Amount) -> bool:
    """Tell whether seeds disagree about who is faster; one seed alone cannot."""
    low = 0.0 if speedup.low_sense == "<" else speedup.low
    high = math.inf if speedup.high_sense == ">" else speedup.high
    return speedup.runs > 1 and low <= 1 <= high
