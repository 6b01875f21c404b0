# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers of runs: amounts over seeds with their range, and a method's row of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gravac.lab.tta.record import TrainingRecord

LIMIT_METHOD, LIMIT_LINK = "fp32", "unthrottled"
"""Method and link whose median time to target is the limit: the time on a network that costs nothing."""


BASELINE = "fp16"
"""Method to which speed-ups are relative: the compression that everybody has."""


DENSE = ("fp32", "fp16", "bf16")
"""Texts of the dense methods."""


@dataclass(frozen=True)
class Amount:
    """A number over seeds; of a seed, only a lower or an upper bound may be known.

    Attributes:
        median: median over seeds; a bound of the median if ``sense`` is not empty.
        low: lowest number of a seed.
        high: highest number of a seed.
        runs: number of seeds.
        sense: ``">"`` if the median is only known to be above ``median``, ``"<"`` if below, otherwise empty.
        low_sense: ``">"``, ``"<"`` or empty, likewise for ``low``.
        high_sense: ``">"``, ``"<"`` or empty, likewise for ``high``.
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
        """True if the median is known, not only a bound of it."""
        return not self.sense

    @property
    def spread(self) -> float:
        """Spread over seeds, (high - low) / median."""
        return (self.high - self.low) / self.median if self.median else 0.0


Interval = tuple[float, float]
"""Lower and upper bound of a number; both are the same if the number is known."""


def amount(intervals: Sequence[Interval]) -> Amount | None:
    """Return median and range of a number over seeds; ``None`` if nothing is known about its median.

    Args:
        intervals: interval of each seed; ``(x, x)`` if the number is known to be x.

    Example:
        >>> amount([(10.0, 10.0), (60.0, math.inf)])
        Amount(median=35.0, low=10.0, high=60.0, runs=2, sense='>', low_sense='', high_sense='>')
    """
    if not intervals:
        return None
    lower_bounds, upper_bounds = [low for low, _ in intervals], [high for _, high in intervals]
    median_low, median_high = statistics.median(lower_bounds), statistics.median(upper_bounds)
    if math.isinf(median_high) and median_low == 0:
        return None
    sense = "" if median_low == median_high else ">" if math.isinf(median_high) else "<"
    lowest, highest = min(intervals), max(intervals, key=lambda interval: (interval[1], interval[0]))
    return Amount(
        median=median_high if sense == "<" else median_low,
        low=lowest[0] or min(upper_bounds),
        high=highest[0] if math.isinf(highest[1]) else highest[1],
        runs=len(intervals),
        sense=sense,
        low_sense="" if lowest[0] == lowest[1] else ">" if lowest[0] else "<",
        high_sense="" if highest[0] == highest[1] else ">" if math.isinf(highest[1]) else "<",
    )


@dataclass(frozen=True)
class ReportRow:
    """The numbers of one method in one setup; ``None``: not measured.

    Attributes:
        method: text of the method.
        adaptive: whether a controller decides.
        runs: runs of the method, by seed.
        reached: number of runs that reached the target.
        tta: seconds to the target.
        relative: ``tta`` in multiples of the limit.
        speedup: time to target of fp16 / time to target of the method, paired by seed.
        steps: number of steps to the target.
        every: mean number of steps from one exchange to the next.
        samples_per_s: samples per second over all ranks.
        efficiency: samples per second over all ranks / samples per second of as many workers alone; 1 is linear
            scaling.
        bytes_per_step: bytes on the wire, per rank and step.
        wire_ratio: bytes per step of fp32 / bytes per step of the method.
        gain: mean gain over the steps.
        compress_fraction: seconds of compression / seconds of a step.
        spread: note if seeds differ too much; otherwise empty.
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
    compress_fraction: float | None
    spread: str

    @property
    def paced(self) -> bool:
        """True if a run was paced, without a real link."""
        return any(run.paced for run in self.runs)

    @property
    def factored(self) -> bool:
        """True if a run was factored, with steps from another link."""
        return any(run.factored for run in self.runs)


def time_to_target(run: TrainingRecord) -> Interval:
    """Return a run's seconds to the target; if it did not reach the target, the run's length is a lower bound."""
    return (run.tta_s, run.tta_s) if run.tta_s is not None else (run.seconds, math.inf)


def steps_to_target(run: TrainingRecord) -> Interval:
    """Return a run's steps to the target; if it did not reach the target, the run's steps are a lower bound."""
    return (run.steps_to_target, run.steps_to_target) if run.steps_to_target is not None else (run.steps, math.inf)


def faster(run: TrainingRecord, other: TrainingRecord) -> Interval | None:
    """Return how many times faster than ``other`` a run reached the target; ``None`` if nothing is known about it."""
    (low, high), (other_low, other_high) = time_to_target(run), time_to_target(other)
    if low <= 0 or (math.isinf(high) and math.isinf(other_high)):
        return None
    return other_low / high, other_high / low


def bytes_per_step(run: TrainingRecord) -> float | None:
    """Return the bytes on the wire, per rank and step; ``None`` if they are not known."""
    return run.wire_bytes / run.steps if run.wire_bytes is not None and run.steps else None


def compress_fraction(run: TrainingRecord) -> float | None:
    """Return seconds of compression / seconds of a step; compression overlaps with compute. ``None`` if not known."""
    if run.split is None or run.split.compress is None or run.step_s <= 0:
        return None
    return run.split.compress / run.step_s


def paired(runs: Sequence[TrainingRecord], others: Sequence[TrainingRecord]) -> Amount | None:
    """Return how many times faster a method is than another, paired by seed; ``None`` without a common seed.

    Args:
        runs: runs of the method.
        others: runs of the other method.
    """
    by_seed = {run.seed: run for run in others}
    ratios = [faster(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    return amount([ratio for ratio in ratios if ratio is not None])


def inside_spread(speedup: Amount) -> bool:
    """True if seeds disagree on which method is faster; false for a single seed."""
    low = 0.0 if speedup.low_sense == "<" else speedup.low
    high = math.inf if speedup.high_sense == ">" else speedup.high
    return speedup.runs > 1 and low <= 1 <= high
