# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials measure the progress of a candidate's step while a run trains.

A run cannot branch, so it alternates: a stretch of the reference, a stretch of the candidate, steps of the reference
in which the ranks settle, a stretch of the reference, and so on. The loss on fixed batches (``AdaptiveCompressor``'s
``probe``) is read a few times at both ends of each stretch of the reference. It is never read at the end of a stretch
of the candidate: averaged weights lower the loss for some steps, and noise raises it for some. The fall of the loss
over the candidate's stretch is compared with its fall in the stretches of the reference before and after.

All functions of this module are pure functions of agreed measurements, as controllers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

from gravac.beliefs import SURE, MeasuredRatio
from gravac.controllers.base import Measurement
from gravac.controllers.state_dicts import Above0, Count, Finite

TRIAL = 100
"""Number of steps of the candidate in a trial; of outer steps, two rounds if these have more steps."""

LENGTHS = (100, 50)
"""Possible numbers of steps of a stretch of the reference. A shorter stretch costs less and measures less exactly."""

SETTLE = 30
"""Number of steps of the reference after a trial, before the loss is read."""

READINGS = 3
"""Number of readings at each end of a stretch of the reference. A single reading depends on the last few batches."""

BETWEEN_READINGS = 5
"""Number of steps between two of these readings."""

UNEVEN = 0.2
"""Standard deviation of the ratio that a trial measures, without the noise of the readings: a run makes more progress
in some stretches than in others."""

BIAS = 0.1
"""Error of the measured ratio of two efficiencies that further trials do not reduce."""

OUTER_OVERSTATED = 1.3
"""Ratio that a trial of outer steps reads / ratio of the efficiencies of whole runs. ``SETTLE`` steps after outer steps
ended, the averaging of weights still lowers the loss by more than it does in the end. Geometric mean over the four
programs of ``make measure-switchback``; the standard error of its logarithm is 0.09. For candidates that average
gradients the quotient is 1, within its error."""

NOISE = 0.2
"""Standard deviation of the ratio that a trial measures, due to the noise of the readings alone. It is assumed before
the first trial of a run, for stretches of 100 steps, and is inversely proportional to their length."""

SMALLEST_RATIO = 0.05
"""Lower limit of a measured ratio of efficiencies. If the loss rose, the ratio is negative and has no logarithm."""

PATIENCE = 6
"""Number of measurements that the controller waits for a reading before it requests the reading again."""

REQUESTS = 3
"""Number of times that the controller waits ``PATIENCE`` measurements for a reading before it ends the trials."""

SETTLING: Final = "settling"
REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"

Stage = Literal["settling", "reference", "candidate"]
"""Stage of a trial: steps of the reference before the first reading, a stretch of the reference, or one of the
candidate."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the loss on fixed batches.

    Attributes:
        step: number of training steps made before the reading.
        loss: mean loss over the batches and the ranks.
    """

    step: Count
    loss: Finite


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials of one candidate that have not ended.

    Attributes:
        candidate: position of the candidate in the controller's list.
        reference: position of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        steps: number of steps of a stretch of the candidate.
        stage: current stage of the trial.
        made: number of steps made in this stage.
        asked: whether the controller waits for a reading.
        readings: all readings so far, ``2 * READINGS`` for each stretch of the reference.
        candidate_steps: number of steps that the candidate made in each trial.
        earlier: results of earlier trials of the same two candidates; ``None``: no earlier trials.
        overstated: factor by which the ratio that a trial reads is too high; ratios are divided by it.
        slow: number of consecutive last steps that took far longer than the candidate's earlier steps.
        waited: number of measurements since the controller requested the reading.
    """

    candidate: Count
    reference: Count
    length: Count = LENGTHS[0]
    steps: Count = TRIAL
    stage: Stage = SETTLING
    made: Count = 0
    asked: bool = False
    readings: tuple[Reading, ...] = ()
    candidate_steps: tuple[Count, ...] = ()
    earlier: Learned | None = None
    overstated: Above0 = 1.0
    slow: Count = 0
    waited: Count = 0

    @property
    def running(self) -> int:
        """Position of the candidate that is to run."""
        return self.candidate if self.stage == CANDIDATE else self.reference

    @property
    def reading_offsets(self) -> tuple[int, ...]:
        """Numbers of steps after which the loss is read, from the first reading of a stretch of the reference on."""
        first = tuple(BETWEEN_READINGS * number for number in range(READINGS))
        return (*first, *(self.length - offset for offset in reversed(first)))

    @property
    def stretches(self) -> tuple[tuple[Reading, ...], ...]:
        """Readings of each stretch of the reference that has ended."""
        count = len(self.reading_offsets)
        return tuple(self.readings[end - count : end] for end in range(count, len(self.readings) + 1, count))

    @property
    def ended(self) -> int:
        """Number of trials that have ended, with a stretch of the reference after each."""
        return max(0, len(self.stretches) - 1)

    @property
    def between(self) -> bool:
        """True if a stretch of the reference has just ended. Only then trials end as planned."""
        return self.stage == REFERENCE and len(self.readings) % len(self.reading_offsets) == 0

    @property
    def remaining(self) -> int:
        """Number of steps until the next reading, or until this stage of the trial ends."""
        steps_until = {
            SETTLING: SETTLE,
            REFERENCE: self.reading_offsets[len(self.readings) % len(self.reading_offsets)],
            CANDIDATE: self.steps,
        }
        return max(0, steps_until[self.stage] - self.made)

    @property
    def ask_again(self) -> bool:
        """True if the controller requests the reading again, since a restart may have lost it."""
        return self.waited > 0 and self.waited % PATIENCE == 0

    @property
    def given_up(self) -> bool:
        """True if the controller has waited too long for a finite reading."""
        return self.waited > REQUESTS * PATIENCE

    def add(self, measured: Measurement, is_candidate: bool, is_reference: bool, far_slower: bool) -> Trials:
        """Return the trials after a measurement.

        Args:
            measured: the measurement.
            is_candidate: whether the candidate ran.
            is_reference: whether the reference ran.
            far_slower: whether the measured steps took far longer than the candidate's earlier steps.
        """
        trials = replace(self, slow=self.slow + measured.steps if far_slower else 0)
        trials = replace(trials, waited=trials.waited + 1 if trials.asked else 0)
        if is_candidate and trials.candidate_steps and trials.stage != REFERENCE:
            trials = replace(
                trials, candidate_steps=(*trials.candidate_steps[:-1], trials.candidate_steps[-1] + measured.steps)
            )
        if trials.asked and math.isfinite(measured.probe):
            step = measured.first + (measured.candidate.mode == "native")  # native stretches read it one step later
            readings = (*trials.readings, Reading(step, measured.probe))
            trials = replace(trials, asked=False, readings=readings, waited=0)
            if trials.stage == SETTLING:
                trials = replace(trials, stage=REFERENCE, made=0)
        if is_candidate if trials.stage == CANDIDATE else is_reference:
            trials = replace(trials, made=trials.made + measured.steps)
        return trials

    def start_candidate(self) -> Trials:
        """Begin a stretch of the candidate: return the changed trials."""
        return replace(self, stage=CANDIDATE, made=0, candidate_steps=(*self.candidate_steps, 0))

    def settle(self) -> Trials:
        """Begin the steps in which the ranks settle: return the changed trials."""
        return replace(self, stage=SETTLING, made=0)

    def ask(self) -> Trials:
        """Record that the controller requested a reading: return the changed trials."""
        return replace(self, asked=True)

    @property
    def learned(self) -> Learned:
        """Results of these trials and of earlier ones of the same two candidates."""
        lines = [Line.through(readings) for readings in self.stretches]
        noise = math.sqrt(sum(line.noise**2 for line in lines) / len(lines)) if lines else 0.0
        estimates = (
            estimate(lines[number], lines[number + 1], self.candidate_steps[number], noise)
            for number in range(self.ended)
        )
        finite = (
            (ratio / self.overstated, error / self.overstated) for ratio, error in estimates if math.isfinite(error)
        )
        earlier = self.earlier or Learned(self.candidate, self.reference, ())
        return replace(
            earlier,
            estimates=(*earlier.estimates, *finite),
            steps=earlier.steps + sum(self.candidate_steps),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line through the readings of a stretch of the reference, by least squares.

    Attributes:
        first: step of the first reading.
        last: step of the last reading.
        middle: mean step of the readings.
        loss: loss on the line at ``middle``.
        fall: fall of the loss per step.
        spread: sum of squared distances of the readings' steps from ``middle``.
        count: number of readings.
        noise: standard deviation of a reading from the line.
    """

    first: float
    last: float
    middle: float
    loss: float
    fall: float
    spread: float
    count: int
    noise: float

    @classmethod
    def through(cls, readings: Sequence[Reading]) -> Line:
        """Return the line through three readings or more, of different steps.

        Example:
            >>> line = Line.through([Reading(0, 4.0), Reading(50, 3.0), Reading(100, 2.0)])
            >>> line.fall, line.loss_at(100), line.noise
            (0.02, 2.0, 0.0)
        """
        count = len(readings)
        middle = sum(reading.step for reading in readings) / count
        loss = sum(reading.loss for reading in readings) / count
        spread = sum((reading.step - middle) ** 2 for reading in readings)
        fall = -sum((reading.step - middle) * (reading.loss - loss) for reading in readings) / spread
        squared_errors = sum((reading.loss - (loss - fall * (reading.step - middle))) ** 2 for reading in readings)
        noise = math.sqrt(squared_errors / max(1, count - 2))
        return cls(
            first=readings[0].step,
            last=readings[-1].step,
            middle=middle,
            loss=loss,
            fall=fall,
            spread=spread,
            count=count,
            noise=noise,
        )

    def loss_at(self, step: float) -> float:
        """Return the loss on the line at a step."""
        return self.loss - self.fall * (step - self.middle)

    def variance_at(self, step: float) -> float:
        """Return the variance of ``loss_at`` / the variance of a reading."""
        return 1 / self.count + (step - self.middle) ** 2 / self.spread


def estimate(before: Line, after: Line, steps: int, noise: float) -> tuple[float, float]:
    """Return the ratio of the efficiencies of candidate and reference that one trial measured.

    The estimate assumes that between the two stretches of the reference a step of the reference lowers the loss by the
    geometric mean of the loss's fall per step in each stretch.

    Args:
        before: the stretch of the reference before the candidate's.
        after: the stretch of the reference after the candidate's, and after settling.
        steps: number of steps of the candidate between them.
        noise: standard deviation of a reading.

    Returns:
        The ratio, and its standard error. The error is infinite if the loss did not fall in both stretches of the
        reference.

    Example:
        >>> before = Line.through([Reading(0, 4.0), Reading(50, 3.5), Reading(100, 3.0)])
        >>> after = Line.through([Reading(230, 2.1), Reading(280, 1.6), Reading(330, 1.1)])
        >>> ratio, error = estimate(before, after, steps=100, noise=0.0)  # 130 steps fell by 0.9, 30 of them by 0.3
        >>> round(ratio, 3), error
        (0.6, 0.2)
    """
    if min(before.fall, after.fall) <= 0 or not steps:
        return 0.0, math.inf
    fall_per_step = math.sqrt(before.fall * after.fall)
    reference_steps = (before.loss_at(before.last) - after.loss_at(after.first)) / fall_per_step
    ratio = (reference_steps - (after.first - before.last - steps)) / steps
    end_variance = (before.variance_at(before.last) + after.variance_at(after.first)) / fall_per_step**2
    slope_variance = sum(1 / (line.spread * line.fall**2) for line in (before, after)) / 4
    error_of_readings = noise * math.sqrt(end_variance + reference_steps**2 * slope_variance) / steps
    return ratio, math.hypot(UNEVEN, error_of_readings)


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of all trials of a candidate.

    Attributes:
        candidate: position of the candidate in the controller's list.
        reference: position of the candidate that it was compared with.
        estimates: ratio of efficiencies that each trial measured, and the ratio's standard error. Trials are left out
            if the loss did not fall in a stretch of the reference beside them.
        steps: number of steps that the candidate made.
    """

    candidate: Count
    reference: Count
    estimates: tuple[tuple[Finite, Above0], ...]
    steps: Count = 0

    @property
    def trials(self) -> int:
        """Number of trials that measured a ratio."""
        return len(self.estimates)

    @property
    def ratio(self) -> float:
        """Mean of the ratios, weighted by the inverse squares of their errors; at least ``SMALLEST_RATIO``."""
        return max(SMALLEST_RATIO, self._mean)

    @property
    def error(self) -> float:
        """Standard error of the mean, with ``BIAS``; infinite without trials.

        It is larger by Birge's ratio if the trials differ by more than their errors.
        """
        if not self.estimates:
            return math.inf
        weight = sum(error**-2 for _, error in self.estimates)
        chi_square = sum(((ratio - self._mean) / error) ** 2 for ratio, error in self.estimates)
        birge = max(1.0, chi_square / max(1, self.trials - 1))
        return math.hypot(BIAS, math.sqrt(birge / weight))

    @property
    def _mean(self) -> float:
        """Weighted mean of the ratios; 1 without trials."""
        weights = [(ratio, error**-2) for ratio, error in self.estimates]
        total = sum(weight for _, weight in weights)
        return sum(ratio * weight for ratio, weight in weights) / total if total else 1.0

    @property
    def measured_ratio(self) -> MeasuredRatio:
        """The mean and its error, as ``gravac.beliefs.posterior`` takes them."""
        return MeasuredRatio(self.candidate, self.reference, self.ratio, self.error)


def expected_scatter(learned: Learned | None, length: int) -> float:
    """Return the standard deviation expected of the ratio that the next trial measures.

    Args:
        learned: results of the same candidate's trials; ``None``: no trials.
        length: number of steps of a stretch of the reference.
    """
    if learned is None or not learned.estimates:
        return math.hypot(UNEVEN, NOISE * LENGTHS[0] / length)
    return math.sqrt(learned.trials / sum(error**-2 for _, error in learned.estimates))


def value_of_trials(advantage: float, deviation: float, scatter: float, trials: int, preferred: bool) -> float:
    """Return the expected gain of a number of trials, as a fraction of the progress to come.

    The gain is the difference between two decisions, both by the lower bound: after the trials, and without trials.

    Args:
        advantage: mean of log (goodput of the candidate / goodput of the reference).
        deviation: standard deviation of that logarithm.
        scatter: standard deviation of that logarithm as measured by a single trial.
        trials: number of trials.
        preferred: whether the decision without trials is for the candidate, and not for the reference.

    Example:
        >>> value_of_trials(0.1, 0.2, 0.3, trials=4, preferred=False) > value_of_trials(0.1, 0.2, 0.3, 1, False) > 0
        True
        >>> value_of_trials(0.1, 0.0, 0.3, trials=4, preferred=True)
        0.0
    """
    noise = scatter / math.sqrt(trials)
    variance = deviation**2 + noise**2
    if not variance or not deviation:
        return 0.0
    deviation_of_mean = deviation**2 / math.sqrt(variance)  # of the posterior mean, as expected before the trials
    margin = _NORMAL.inv_cdf(SURE) * deviation * noise / math.sqrt(variance)  # from posterior mean to lower bound
    normalized = (advantage - margin) / deviation_of_mean
    gain_after = advantage * _NORMAL.cdf(normalized) + deviation_of_mean * _NORMAL.pdf(normalized)
    return gain_after - (advantage if preferred else 0.0)
