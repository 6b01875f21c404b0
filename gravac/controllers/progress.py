# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials measure the progress of a candidate's step while a run trains.

A run cannot branch, so it alternates between stretches (successive steps of one candidate): a stretch of the reference,
which is the candidate to compare with; a stretch of the candidate; some steps of the reference, until the candidate's
after-effects are over; a stretch of the reference; and so on. The loss on fixed batches (``AdaptiveCompressor``'s
``probe``) is read a few times at both ends of each stretch of the reference. It is never read at the end of a stretch
of the candidate, since averaged weights lower the loss for some steps, and noise raises it for some. The fall of the
loss over the candidate's stretch is compared with its fall in the stretches of the reference before and after.

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

TRIAL_STEPS = 100
"""Number of steps of the candidate in a switchback trial; with outer steps, those of two exchanges if that is more."""

STRETCH_LENGTHS = (100, 50)
"""Possible numbers of successive steps of the reference, the candidate that a trial compares with. Fewer steps cost
less and measure less exactly."""

SETTLING_STEPS = 30
"""Number of steps of the reference (the candidate compared with) between a stretch of the candidate and the next
reading of the loss: enough for the candidate's after-effects to end."""

READINGS_AT_END = 3
"""Number of times that the loss is read at each end of a stretch of the reference (the candidate compared with). A
single reading depends on the last few batches."""

STEPS_BETWEEN_READINGS = 5
"""Number of steps between two readings of the loss at an end of a stretch."""

UNEVEN_PROGRESS_DEVIATION = 0.2
"""Standard deviation of the ratio of efficiencies that a trial measures, without the noise of the readings of the loss:
a run makes more progress in some steps than in others."""

RATIO_BIAS = 0.1
"""Error of the measured ratio of two efficiencies that further trials do not reduce."""

OUTER_OVERSTATEMENT = 1.3
"""Ratio of efficiencies that a trial of outer steps measures / ratio that whole runs show. ``SETTLING_STEPS`` after
outer steps ended, the averaging of weights still lowers the loss by more than it does in the end. Geometric mean over
the four programs of ``make measure-switchback``; the standard error of its logarithm is 0.09. For candidates that
average gradients the quotient is 1, within its error."""

READING_NOISE = 0.2
"""Standard deviation of the ratio of efficiencies that a trial measures, due to the noise of the readings of the loss
alone. Assumed before the first trial of a run, for stretches of 100 steps; inversely proportional to their length."""

SMALLEST_RATIO = 0.05
"""Lower limit of a measured ratio of efficiencies. If the loss rose, the ratio is negative and has no logarithm."""

MEASUREMENTS_PER_REQUEST = 6
"""Number of measurements after which the controller requests a reading of the loss again, if none came."""

MOST_REQUESTS = 3
"""Number of times that the controller waits ``MEASUREMENTS_PER_REQUEST`` measurements for a reading before it ends the
trials."""

SETTLING: Final = "settling"
REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"

Stage = Literal["settling", "reference", "candidate"]
"""Stage of a switchback trial: steps of the reference (the candidate compared with) before the loss is read (settling),
the compared steps of the reference, or steps of the candidate."""

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
    """Switchback trials of one candidate that have not ended, as plain data.

    Attributes:
        candidate: position of the candidate in the controller's list.
        reference: position of the candidate that ``candidate`` is compared with.
        length: number of steps of a stretch of the reference (successive steps with readings at both ends).
        steps: number of steps of a stretch of the candidate.
        stage: current stage of the trial.
        made: number of steps made in this stage.
        asked: whether the controller waits for a requested reading of the loss.
        readings: all readings of the loss so far, ``2 * READINGS_AT_END`` for each stretch of the reference.
        candidate_steps: number of steps that the candidate made in each trial.
        earlier: results of earlier trials of the same two candidates; ``None``: no earlier trials.
        overstatement: ratio of efficiencies that a trial measures / true ratio; ``results`` divides measured ratios by
            this number.
        slow: number of newest steps, in a row, that took far longer than earlier steps of the running candidate.
        waited: number of measurements since the controller requested the reading that it waits for.
    """

    candidate: Count
    reference: Count
    length: Count = STRETCH_LENGTHS[0]
    steps: Count = TRIAL_STEPS
    stage: Stage = SETTLING
    made: Count = 0
    asked: bool = False
    readings: tuple[Reading, ...] = ()
    candidate_steps: tuple[Count, ...] = ()
    earlier: Learned | None = None
    overstatement: Above0 = 1.0
    slow: Count = 0
    waited: Count = 0

    @property
    def running(self) -> int:
        """Position of the candidate that is to run in the current stage."""
        return self.candidate if self.stage == CANDIDATE else self.reference

    @property
    def reading_offsets(self) -> tuple[int, ...]:
        """Steps at which the loss is read in a stretch of the reference, the candidate compared with.

        Counted in steps from the first reading of the stretch; ascending.
        """
        first_offsets = tuple(STEPS_BETWEEN_READINGS * number for number in range(READINGS_AT_END))
        return (*first_offsets, *(self.length - offset for offset in reversed(first_offsets)))

    @property
    def reference_readings(self) -> tuple[tuple[Reading, ...], ...]:
        """Readings of the loss in each ended stretch of the reference, oldest first.

        The reference is the candidate that trials compare with; a stretch is a number of its successive steps.
        """
        count = len(self.reading_offsets)
        return tuple(self.readings[end - count : end] for end in range(count, len(self.readings) + 1, count))

    @property
    def ended_count(self) -> int:
        """Number of ended trials: the reference (the candidate compared with) has run a whole stretch at the end."""
        return max(0, len(self.reference_readings) - 1)

    @property
    def reference_has_ended(self) -> bool:
        """True if a stretch of the reference, the candidate compared with, has just ended: trials may end now."""
        return self.stage == REFERENCE and len(self.readings) % len(self.reading_offsets) == 0

    @property
    def remaining_steps(self) -> int:
        """Number of steps until the next reading of the loss, or until the current stage of the trial ends."""
        steps_until = {
            SETTLING: SETTLING_STEPS,
            REFERENCE: self.reading_offsets[len(self.readings) % len(self.reading_offsets)],
            CANDIDATE: self.steps,
        }
        return max(0, steps_until[self.stage] - self.made)

    @property
    def requests_again(self) -> bool:
        """True if the controller requests the reading of the loss again, since a restart may have lost the request."""
        return self.waited > 0 and self.waited % MEASUREMENTS_PER_REQUEST == 0

    @property
    def gave_up_waiting(self) -> bool:
        """True if the controller has waited too long for a finite reading of the loss."""
        return self.waited > MOST_REQUESTS * MEASUREMENTS_PER_REQUEST

    def add(self, measured: Measurement, is_candidate: bool, is_reference: bool, far_slower: bool) -> Trials:
        """Return the trials after a measurement.

        Args:
            measured: the measurement.
            is_candidate: whether the candidate under trial ran.
            is_reference: whether the reference ran, the candidate compared with.
            far_slower: whether the measured steps took far longer than earlier steps of the running candidate.
        """
        trials = replace(self, slow=self.slow + measured.steps if far_slower else 0)
        trials = replace(trials, waited=trials.waited + 1 if trials.asked else 0)
        if is_candidate and trials.candidate_steps and trials.stage != REFERENCE:
            trials = replace(
                trials, candidate_steps=(*trials.candidate_steps[:-1], trials.candidate_steps[-1] + measured.steps)
            )
        if trials.asked and math.isfinite(measured.probe):
            step = measured.first + (measured.candidate.mode == "native")  # native steps: read before the second step
            readings = (*trials.readings, Reading(step, measured.probe))
            trials = replace(trials, asked=False, readings=readings, waited=0)
            if trials.stage == SETTLING:
                trials = replace(trials, stage=REFERENCE, made=0)
        if is_candidate if trials.stage == CANDIDATE else is_reference:
            trials = replace(trials, made=trials.made + measured.steps)
        return trials

    def start_candidate(self) -> Trials:
        """Return the trials in the stage ``"candidate"``: a stretch of the candidate begins."""
        return replace(self, stage=CANDIDATE, made=0, candidate_steps=(*self.candidate_steps, 0))

    def start_settling(self) -> Trials:
        """Return the trials in the stage ``"settling"``: the candidate compared with runs; the loss is not read yet."""
        return replace(self, stage=SETTLING, made=0)

    def request_reading(self) -> Trials:
        """Return the trials after the controller requested a reading of the loss."""
        return replace(self, asked=True)

    @property
    def results(self) -> Learned:
        """Results of these trials and of earlier trials of the same two candidates."""
        lines = [Line.through(readings) for readings in self.reference_readings]
        noise = math.sqrt(sum(line.noise**2 for line in lines) / len(lines)) if lines else 0.0
        estimates = (
            estimate_ratio(lines[number], lines[number + 1], self.candidate_steps[number], noise)
            for number in range(self.ended_count)
        )
        finite_estimates = (
            (ratio / self.overstatement, error / self.overstatement)
            for ratio, error in estimates
            if math.isfinite(error)
        )
        earlier = self.earlier or Learned(self.candidate, self.reference, ())
        return replace(
            earlier,
            estimates=(*earlier.estimates, *finite_estimates),
            steps=earlier.steps + sum(self.candidate_steps),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The least-squares line of loss against step, through the readings of successive steps of one candidate.

    Attributes:
        first_step: step of the first reading.
        last_step: step of the last reading.
        mean_step: mean step of the readings.
        mean_loss: loss on the line at ``mean_step``.
        fall_per_step: fall of the loss per step; below 0 if the loss rises.
        squared_distances: sum of squared distances of the readings' steps from ``mean_step``.
        reading_count: number of readings.
        noise: standard deviation of a reading from the line.
    """

    first_step: float
    last_step: float
    mean_step: float
    mean_loss: float
    fall_per_step: float
    squared_distances: float
    reading_count: int
    noise: float

    @classmethod
    def through(cls, readings: Sequence[Reading]) -> Line:
        """Return the line through three readings or more, of different steps.

        Example:
            >>> line = Line.through([Reading(0, 4.0), Reading(50, 3.0), Reading(100, 2.0)])
            >>> line.fall_per_step, line.loss_at(100), line.noise
            (0.02, 2.0, 0.0)
        """
        count = len(readings)
        mean_step = sum(reading.step for reading in readings) / count
        mean_loss = sum(reading.loss for reading in readings) / count
        squared_distances = sum((reading.step - mean_step) ** 2 for reading in readings)
        covariance = sum((reading.step - mean_step) * (reading.loss - mean_loss) for reading in readings)
        fall_per_step = -covariance / squared_distances
        squared_errors = sum(
            (reading.loss - (mean_loss - fall_per_step * (reading.step - mean_step))) ** 2 for reading in readings
        )
        noise = math.sqrt(squared_errors / max(1, count - 2))
        return cls(
            first_step=readings[0].step,
            last_step=readings[-1].step,
            mean_step=mean_step,
            mean_loss=mean_loss,
            fall_per_step=fall_per_step,
            squared_distances=squared_distances,
            reading_count=count,
            noise=noise,
        )

    def loss_at(self, step: float) -> float:
        """Return the loss on the line at a step."""
        return self.mean_loss - self.fall_per_step * (step - self.mean_step)

    def variance_at(self, step: float) -> float:
        """Return the variance of ``loss_at`` at a step / the variance of a reading."""
        return 1 / self.reading_count + (step - self.mean_step) ** 2 / self.squared_distances


def estimate_ratio(before: Line, after: Line, steps: int, noise: float) -> tuple[float, float]:
    """Return the ratio of the efficiencies of candidate and reference that one switchback trial measured.

    The reference is the candidate compared with; its steps run in a stretch before and a stretch after the candidate's.
    The estimate assumes that between these two stretches a step of the reference lowers the loss by the geometric mean
    of the loss's fall per step in each stretch.

    Args:
        before: line through the readings in the reference's stretch before the candidate's.
        after: line through the readings in the reference's stretch after the candidate's, without settling steps.
        steps: number of the candidate's steps between the two lines.
        noise: standard deviation of a reading of the loss.

    Returns:
        The ratio, and its standard error. The error is infinite if the loss did not fall in both stretches of the
        reference.

    Example:
        >>> before = Line.through([Reading(0, 4.0), Reading(50, 3.5), Reading(100, 3.0)])
        >>> after = Line.through([Reading(230, 2.1), Reading(280, 1.6), Reading(330, 1.1)])
        >>> ratio, error = estimate_ratio(before, after, steps=100, noise=0.0)  # 130 steps: 0.9 less loss; 30: 0.3
        >>> round(ratio, 3), error
        (0.6, 0.2)
    """
    if min(before.fall_per_step, after.fall_per_step) <= 0 or not steps:
        return 0.0, math.inf
    fall_per_step = math.sqrt(before.fall_per_step * after.fall_per_step)
    reference_steps = (before.loss_at(before.last_step) - after.loss_at(after.first_step)) / fall_per_step
    ratio = (reference_steps - (after.first_step - before.last_step - steps)) / steps
    end_variance = (before.variance_at(before.last_step) + after.variance_at(after.first_step)) / fall_per_step**2
    slope_variance = sum(1 / (line.squared_distances * line.fall_per_step**2) for line in (before, after)) / 4
    error_of_readings = noise * math.sqrt(end_variance + reference_steps**2 * slope_variance) / steps
    return ratio, math.hypot(UNEVEN_PROGRESS_DEVIATION, error_of_readings)


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of all switchback trials of a candidate.

    Attributes:
        candidate: position of the candidate in the controller's list.
        reference: position of the candidate that ``candidate`` was compared with.
        estimates: ``(ratio of efficiencies, its standard error)`` of each trial. Trials are left out if the loss did
            not fall in the reference's steps before or after the candidate's.
        steps: number of steps that the candidate made in trials.
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
        """Mean of the trials' ratios, weighted by the inverse squares of their errors; at least ``SMALLEST_RATIO``."""
        return max(SMALLEST_RATIO, self._mean)

    @property
    def error(self) -> float:
        """Standard error of ``ratio``, with ``RATIO_BIAS``; infinite without trials.

        If the trials differ by more than their errors, the error is larger by Birge's ratio.
        """
        if not self.estimates:
            return math.inf
        weight = sum(error**-2 for _, error in self.estimates)
        chi_square = sum(((ratio - self._mean) / error) ** 2 for ratio, error in self.estimates)
        birge_squared = max(1.0, chi_square / max(1, self.trials - 1))
        return math.hypot(RATIO_BIAS, math.sqrt(birge_squared / weight))

    @property
    def _mean(self) -> float:
        """Weighted mean of the trials' ratios; 1 without trials."""
        weighted_ratios = [(ratio, error**-2) for ratio, error in self.estimates]
        total_weight = sum(weight for _, weight in weighted_ratios)
        return sum(ratio * weight for ratio, weight in weighted_ratios) / total_weight if total_weight else 1.0

    @property
    def measured_ratio(self) -> MeasuredRatio:
        """``ratio`` and ``error``, in the form that ``gravac.beliefs.posterior`` takes."""
        return MeasuredRatio(self.candidate, self.reference, self.ratio, self.error)


def expected_scatter(results: Learned | None, length: int) -> float:
    """Return the expected standard deviation of the ratio of efficiencies that the next switchback trial measures.

    Args:
        results: results of the same candidate's trials so far; ``None``: no trials.
        length: number of steps of the reference (the candidate compared with) before, and again after, the candidate's.
    """
    if results is None or not results.estimates:
        return math.hypot(UNEVEN_PROGRESS_DEVIATION, READING_NOISE * STRETCH_LENGTHS[0] / length)
    return math.sqrt(results.trials / sum(error**-2 for _, error in results.estimates))


def value_of_trials(advantage: float, deviation: float, scatter: float, trials: int, preferred: bool) -> float:
    """Return the expected gain of a number of switchback trials, as a fraction of the progress to come.

    The gain is the difference in goodput between two decisions, both by the lower bound: after the trials, and without
    trials. The trials compare a candidate with another candidate, the reference.

    Args:
        advantage: mean of log (goodput of the candidate / goodput of the reference).
        deviation: standard deviation of that logarithm.
        scatter: standard deviation of that logarithm as measured by a single trial.
        trials: number of trials.
        preferred: whether the decision without trials is for the candidate, rather than for the reference.

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
    standardized = (advantage - margin) / deviation_of_mean
    gain_after = advantage * _NORMAL.cdf(standardized) + deviation_of_mean * _NORMAL.pdf(standardized)
    return gain_after - (advantage if preferred else 0.0)
