# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the report's numbers: medians and ranges over seeds, speed-ups, and each method's row of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gravac.lab.tta.record import TrainingRecord

LIMIT_METHOD, LIMIT_LINK = "fp32", "unthrottled"
"""Method and link whose median time to the target is the limit: the time over a network that costs nothing."""


BASELINE = "fp16"
"""Method that speed-ups are relative to: DDP with torch's own hook for 16-bit gradients, without gravac."""


DENSE_METHODS = ("fp32", "fp16", "bf16")
"""Texts of the methods that do not compress, except to 16 bit."""


@dataclass(frozen=True)
class Amount:
    """Median and range of a number over runs with several seeds.

    If a run did not reach the target, only a bound of its number may be known.

    Attributes:
        median: median over seeds, or a bound of the median if ``median_sign`` is not empty.
        low: lowest number of any seed, or a bound.
        high: highest number of any seed, or a bound.
        runs: number of seeds.
        median_sign: ``">"`` if the number is only known to be above ``median``, ``"<"`` if below, otherwise empty.
        low_sign: ``">"``, ``"<"`` or empty: the same for ``low``.
        high_sign: ``">"``, ``"<"`` or empty: the same for ``high``.
    """

    median: float
    low: float
    high: float
    runs: int
    median_sign: str = ""
    low_sign: str = ""
    high_sign: str = ""

    def in_units_of(self, unit: float) -> Amount:
        """Return a copy of the amount whose numbers are divided by ``unit``.

        Example:
            >>> Amount(30.0, 20.0, 40.0, runs=3).in_units_of(10.0).median
            3.0
        """
        return Amount(
            self.median / unit,
            self.low / unit,
            self.high / unit,
            self.runs,
            self.median_sign,
            self.low_sign,
            self.high_sign,
        )

    @property
    def exact(self) -> bool:
        """True if the median itself is known, not only a bound."""
        return not self.median_sign

    @property
    def spread(self) -> float:
        """Spread over seeds, (high - low) / median; 0 if the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


Interval = tuple[float, float]
"""Lower and upper bound of a number; two equal bounds if the number is known."""


def amount_over_seeds(intervals: Sequence[Interval]) -> Amount | None:
    """Return median and range of a number over seeds; ``None`` if nothing is known about the median.

    Args:
        intervals: lower and upper bound of each seed's number; ``(x, x)`` if the number is known to be x.

    Example:
        >>> amount_over_seeds([(10.0, 10.0), (60.0, math.inf)])
        Amount(median=35.0, low=10.0, high=60.0, runs=2, median_sign='>', low_sign='', high_sign='>')
    """
    if not intervals:
        return None
    lower_bounds, upper_bounds = [low for low, _ in intervals], [high for _, high in intervals]
    median_low, median_high = statistics.median(lower_bounds), statistics.median(upper_bounds)
    if math.isinf(median_high) and median_low == 0:
        return None
    median_sign = "" if median_low == median_high else ">" if math.isinf(median_high) else "<"
    lowest_interval, highest_interval = min(intervals), max(intervals, key=lambda interval: (interval[1], interval[0]))
    return Amount(
        median=median_high if median_sign == "<" else median_low,
        low=lowest_interval[0] or min(upper_bounds),
        high=highest_interval[0] if math.isinf(highest_interval[1]) else highest_interval[1],
        runs=len(intervals),
        median_sign=median_sign,
        low_sign="" if lowest_interval[0] == lowest_interval[1] else ">" if lowest_interval[0] else "<",
        high_sign="" if highest_interval[0] == highest_interval[1] else ">" if math.isinf(highest_interval[1]) else "<",
    )


@dataclass(frozen=True)
class ReportRow:
    """The numbers of one method in one setup (task, scale, link, workers, mesh).

    Numbers that are no ``Amount`` are medians over the runs. ``None`` stands for a number that is not known.

    Attributes:
        method: text of the method.
        adaptive: whether a controller chooses candidates during a run.
        runs: records of the method's runs, by ascending seed.
        reached: number of runs that reached the target.
        tta: seconds to the target.
        relative: ``tta`` / the limit, which is the median time to the target of fp32 on an unthrottled link.
        speedup: fp16's seconds to the target / the method's, with the same seed; median and range over seeds.
        steps: number of steps to the target.
        every: mean number of steps from one exchange to the next, over a run.
        samples_per_s: samples per second over all ranks.
        efficiency: scaling efficiency: samples per second over all ranks / (ranks x samples per second of one worker
            alone).
        bytes_per_step: wire bytes that a rank sends in a step.
        wire_ratio: bytes per step of fp32 / bytes per step of the method.
        gain: mean gain over the steps of a run.
        compress_fraction: seconds of compression / seconds of a step.
        spread: note that asks for more seeds if times differ too much between seeds; otherwise empty.
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
        """True if exchanges slept to imitate a slow link in a run of the row, since no link was emulated."""
        return any(run.paced for run in self.runs)

    @property
    def factored(self) -> bool:
        """True if a run of the row is factored: its time is steps on another link x seconds of a step on this link."""
        return any(run.factored for run in self.runs)


def time_to_target(run: TrainingRecord) -> Interval:
    """Return bounds of a run's seconds to the target: equal if it was reached, otherwise (seconds of the run, inf)."""
    return (run.tta_s, run.tta_s) if run.tta_s is not None else (run.seconds, math.inf)


def steps_to_target(run: TrainingRecord) -> Interval:
    """Return bounds of a run's steps to the target: equal if it was reached, otherwise (steps of the run, inf)."""
    return (run.steps_to_target, run.steps_to_target) if run.steps_to_target is not None else (run.steps, math.inf)


def speedup_interval(run: TrainingRecord, other_run: TrainingRecord) -> Interval | None:
    """Return bounds of time to target of ``other_run`` / time to target of ``run``; ``None`` if nothing is known.

    Args:
        run: record of a run.
        other_run: record of a run of another method, with the same seed.
    """
    (low, high), (other_low, other_high) = time_to_target(run), time_to_target(other_run)
    if low <= 0 or (math.isinf(high) and math.isinf(other_high)):
        return None
    return other_low / high, other_high / low


def bytes_per_step(run: TrainingRecord) -> float | None:
    """Return the mean wire bytes that a rank sent in a step; ``None`` if they are not known."""
    return run.wire_bytes / run.steps if run.wire_bytes is not None and run.steps else None


def compress_fraction(run: TrainingRecord) -> float | None:
    """Return seconds of compression / seconds of a step; ``None`` if not known. Compression overlaps with backward."""
    if run.split is None or run.split.compress is None or run.step_s <= 0:
        return None
    return run.split.compress / run.step_s


def paired_speedup(runs: Sequence[TrainingRecord], other_runs: Sequence[TrainingRecord]) -> Amount | None:
    """Return the speed-up of a method over another method: median and range over the seeds that both methods have.

    The speed-up of a seed is the other method's time to the target / the method's time. The result is ``None`` if the
    methods have no seed in common, or if no ratio is known.

    Args:
        runs: records of the method.
        other_runs: records of the other method.
    """
    other_run_by_seed = {run.seed: run for run in other_runs}
    speedup_intervals = [
        speedup_interval(run, other_run_by_seed[run.seed]) for run in runs if run.seed in other_run_by_seed
    ]
    return amount_over_seeds([interval for interval in speedup_intervals if interval is not None])


def inside_spread(speedup: Amount) -> bool:
    """True if 1 lies in the range of a speed-up: seeds disagree on which method is faster. False for a single seed."""
    low = 0.0 if speedup.low_sign == "<" else speedup.low
    high = math.inf if speedup.high_sign == ">" else speedup.high
    return speedup.runs > 1 and low <= 1 <= high
