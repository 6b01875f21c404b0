# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials: they measure, while a run trains, how much progress a step of a candidate makes.

A trial compares a candidate with another candidate, the reference. A run cannot train both from the same weights, so it
alternates between them in stretches, which are successive steps of one candidate:

1. a stretch of the reference;
2. a stretch of the candidate under trial;
3. ``SETTLING_STEPS`` steps of the reference, until the candidate's after-effects are over;
4. a stretch of the reference, which is also step 1 of the next trial.

The loss on fixed batches (argument ``probe`` of ``AdaptiveCompressor``) is read a few times at both ends of each
stretch of the reference. The loss is not read right after a candidate's steps, since it would mislead: averaged weights
make it too low after outer steps, and the noise of compressed gradients makes it too high. The fall of the loss from
before to after the candidate's stretch is compared with its fall in the two stretches of the reference.

The functions of this module are pure functions of measurements that all ranks agreed on, as controllers are.
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
"""Number of steps of the candidate in a switchback trial. Outer steps run at least until their second exchange."""

STRETCH_LENGTHS = (100, 50)
"""Numbers of steps to choose from for a stretch of the reference, the candidate that a trial compares with. A short
stretch costs less, and measures less exactly."""

SETTLING_STEPS = 30
"""Number of steps of the reference (the candidate that a trial compares with) after the candidate's steps, before the
loss is read: enough for the candidate's after-effects to end."""

READINGS_AT_END = 3
"""Number of times that the loss is read at each end of a stretch of the reference, the candidate that a trial compares
with. A single reading depends on the last few training batches."""

STEPS_BETWEEN_READINGS = 5
"""The loss is read several times at the start and at the end of a stretch; number of steps between two readings."""

UNEVEN_PROGRESS_DEVIATION = 0.2
"""Standard deviation, between switchback trials, of the ratio of efficiencies that a trial measures. The reason: a run
makes more progress in some steps than in others. The noise of the readings of the loss comes on top."""

RATIO_BIAS = 0.1
"""Standard error that a measured ratio of two efficiencies keeps after any number of switchback trials."""

OUTER_OVERSTATEMENT = 1.3
"""Factor by which switchback trials of outer steps overstate a ratio of efficiencies, in comparison with whole runs.
The reason: ``SETTLING_STEPS`` after outer steps ended, averaged weights still lower the loss by an amount that later
shrinks. The factor is a geometric mean over the four training programs of record switchback.json of commit 43b3fe07;
the standard error of its logarithm is 0.09. For candidates that average gradients in each step, the factor is 1 within
its error."""

READING_NOISE = 0.2
"""Standard deviation of the ratio of efficiencies that a switchback trial measures, due to the noise of the readings of
the loss alone. gravac assumes this number before the first trial, for stretches of 100 steps of the reference. For
other lengths, the number is inversely proportional to the length."""

SMALLEST_RATIO = 0.05
"""Lower limit of a measured ratio of efficiencies. If the loss rose, the measured ratio is negative, and its logarithm
does not exist."""

MEASUREMENTS_PER_REQUEST = 6
"""Number of measurements without a reading of the loss after which the controller requests the reading again."""

MOST_REQUESTS = 3
"""Number of times that the controller waits ``MEASUREMENTS_PER_REQUEST`` measurements for a reading of the loss. After
that, the controller ends the trials."""

SETTLING: Final = "settling"
REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"

Stage = Literal["settling", "reference", "candidate"]
"""Stage of a switchback trial. ``"settling"``: the reference (the candidate that a trial compares with) runs, and the
loss is not read yet; ``"reference"``: the reference runs between its first and last reading of the loss;
``"candidate"``: the candidate under trial runs."""

_STANDARD_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class LossReading:
    """A reading of the loss on fixed batches.

    Attributes:
        step: number of training steps made before the reading.
        loss: mean loss over the batches and the ranks.
    """

    step: Count
    loss: Finite


@dataclass(frozen=True, slots=True)
class Trials:
    """Switchback trials that are being made: they compare a candidate with another candidate, the reference.

    Attributes:
        candidate: index of the candidate under trial, in the controller's list of candidates.
        reference: index of the candidate that ``candidate`` is compared with.
        length: number of successive steps of the reference (a stretch) from its first to its last reading of the loss.
        steps: number of steps of the candidate in each trial.
        stage: current stage of the trial.
        made: number of steps made in the current stage.
        asked: whether the controller has requested a reading of the loss that has not come yet.
        readings: all readings of the loss so far, ``2 * READINGS_AT_END`` for each stretch of the reference.
        candidate_steps: number of steps that the candidate has made in each trial, oldest trial first.
        earlier: results of earlier trials of the same two candidates; ``None``: no earlier trials.
        overstatement: ratio of efficiencies that a trial measures / true ratio; ``results`` divides measured ratios by
            this number.
        slow: number of the newest successive steps that took far longer than earlier steps of the same candidate.
        waited: number of measurements since the controller requested a reading of the loss; 0: no request.
    """

    candidate: Count
    reference: Count
    length: Count = STRETCH_LENGTHS[0]
    steps: Count = TRIAL_STEPS
    stage: Stage = SETTLING
    made: Count = 0
    asked: bool = False
    readings: tuple[LossReading, ...] = ()
    candidate_steps: tuple[Count, ...] = ()
    earlier: TrialResults | None = None
    overstatement: Above0 = 1.0
    slow: Count = 0
    waited: Count = 0

    @property
    def running(self) -> int:
        """Index, in the controller's list of candidates, of the candidate that runs in the current stage."""
        return self.candidate if self.stage == CANDIDATE else self.reference

    @property
    def reading_offsets(self) -> tuple[int, ...]:
        """Steps of a stretch at which the loss is read, counted from the stretch's first reading: ascending, from 0.

        A stretch is successive steps of the reference, the candidate that trials compare with.
        """
        first_offsets = tuple(STEPS_BETWEEN_READINGS * number for number in range(READINGS_AT_END))
        return (*first_offsets, *(self.length - offset for offset in reversed(first_offsets)))

    @property
    def reference_readings(self) -> tuple[tuple[LossReading, ...], ...]:
        """Readings of the loss in each ended stretch of the reference, oldest stretch first.

        A stretch is successive steps of the reference, the candidate that trials compare with.
        """
        readings_per_stretch = len(self.reading_offsets)
        return tuple(
            self.readings[end - readings_per_stretch : end]
            for end in range(readings_per_stretch, len(self.readings) + 1, readings_per_stretch)
        )

    @property
    def ended_count(self) -> int:
        """Number of ended trials.

        In a trial, a candidate runs between two stretches of steps of the reference, the candidate to compare with. The
        last reading of the loss in the second stretch ends the trial.
        """
        return max(0, len(self.reference_readings) - 1)

    @property
    def reference_has_ended(self) -> bool:
        """True if the last loss in the reference's steps was just read, so that a trial can begin or trials can end.

        The reference is the candidate that trials compare with.
        """
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
        """True if a reading of the loss must be requested again, since a restart may have lost the request."""
        return self.waited > 0 and self.waited % MEASUREMENTS_PER_REQUEST == 0

    @property
    def gave_up_waiting(self) -> bool:
        """True if no finite reading of the loss came after ``MOST_REQUESTS`` requests, so that trials must end."""
        return self.waited > MOST_REQUESTS * MEASUREMENTS_PER_REQUEST

    def add(self, measured: Measurement, candidate_ran: bool, reference_ran: bool, is_far_slower: bool) -> Trials:
        """Return the trials after a measurement, with its steps counted and its reading of the loss added, if any.

        Args:
            measured: the newest measurement.
            candidate_ran: whether the candidate under trial ran.
            reference_ran: whether the reference ran, which is the candidate that trials compare with.
            is_far_slower: whether the measured steps took far longer than earlier steps of the same candidate.
        """
        trials = replace(self, slow=self.slow + measured.steps if is_far_slower else 0)
        trials = replace(trials, waited=trials.waited + 1 if trials.asked else 0)
        if candidate_ran and trials.candidate_steps and trials.stage != REFERENCE:
            trials = replace(
                trials, candidate_steps=(*trials.candidate_steps[:-1], trials.candidate_steps[-1] + measured.steps)
            )
        if trials.asked and math.isfinite(measured.probe):
            step = measured.first + (measured.candidate.mode == "native")  # native steps: loss read before the second
            readings = (*trials.readings, LossReading(step, measured.probe))
            trials = replace(trials, asked=False, readings=readings, waited=0)
            if trials.stage == SETTLING:
                trials = replace(trials, stage=REFERENCE, made=0)
        if candidate_ran if trials.stage == CANDIDATE else reference_ran:
            trials = replace(trials, made=trials.made + measured.steps)
        return trials

    def start_candidate(self) -> Trials:
        """Return the trials in the stage ``"candidate"``, in which the steps of the candidate under trial begin."""
        return replace(self, stage=CANDIDATE, made=0, candidate_steps=(*self.candidate_steps, 0))

    def start_settling(self) -> Trials:
        """Return the trials in the stage ``"settling"``, in which the reference runs before the loss is read again.

        The reference is the candidate that trials compare with.
        """
        return replace(self, stage=SETTLING, made=0)

    def request_reading(self) -> Trials:
        """Return the trials in a state in which the controller waits for a requested reading of the loss."""
        return replace(self, asked=True)

    @property
    def results(self) -> TrialResults:
        """Results of the ended trials, together with those of earlier trials of the same two candidates."""
        loss_lines = [LossLine.through(readings) for readings in self.reference_readings]
        reading_noise = (
            math.sqrt(sum(loss_line.noise**2 for loss_line in loss_lines) / len(loss_lines)) if loss_lines else 0.0
        )
        ratios_and_errors = (
            estimate_ratio(loss_lines[trial], loss_lines[trial + 1], self.candidate_steps[trial], reading_noise)
            for trial in range(self.ended_count)
        )
        finite_estimates = (
            (ratio / self.overstatement, error / self.overstatement)
            for ratio, error in ratios_and_errors
            if math.isfinite(error)
        )
        earlier = self.earlier or TrialResults(self.candidate, self.reference, ())
        return replace(
            earlier,
            estimates=(*earlier.estimates, *finite_estimates),
            steps=earlier.steps + sum(self.candidate_steps),
        )


@dataclass(frozen=True, slots=True)
class LossLine:
    """Least-squares line of loss over step, through the readings of the loss in successive steps of one candidate.

    Attributes:
        first_step: number of training steps made before the first reading.
        last_step: number of training steps made before the last reading.
        mean_step: mean of these numbers over all readings.
        mean_loss: mean loss of the readings, which is the loss on the line at ``mean_step``.
        fall_per_step: decrease of the loss per step; below 0 if the loss rises.
        squared_distances: sum over the readings of the squared distance, in steps, from ``mean_step``.
        reading_count: number of readings.
        noise: standard deviation of the readings from the line, in units of loss.
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
    def through(cls, readings: Sequence[LossReading]) -> LossLine:
        """Return the least-squares line through three or more readings, which must be of different steps.

        Example:
            >>> line = LossLine.through([LossReading(0, 4.0), LossReading(50, 3.0), LossReading(100, 2.0)])
            >>> line.fall_per_step, line.loss_at(100), line.noise
            (0.02, 2.0, 0.0)
        """
        reading_count = len(readings)
        mean_step = sum(reading.step for reading in readings) / reading_count
        mean_loss = sum(reading.loss for reading in readings) / reading_count
        squared_distances = sum((reading.step - mean_step) ** 2 for reading in readings)
        covariance = sum((reading.step - mean_step) * (reading.loss - mean_loss) for reading in readings)
        fall_per_step = -covariance / squared_distances
        squared_errors = sum(
            (reading.loss - (mean_loss - fall_per_step * (reading.step - mean_step))) ** 2 for reading in readings
        )
        noise = math.sqrt(squared_errors / max(1, reading_count - 2))
        return cls(
            first_step=readings[0].step,
            last_step=readings[-1].step,
            mean_step=mean_step,
            mean_loss=mean_loss,
            fall_per_step=fall_per_step,
            squared_distances=squared_distances,
            reading_count=reading_count,
            noise=noise,
        )

    def loss_at(self, step: float) -> float:
        """Return the loss on the line after ``step`` training steps."""
        return self.mean_loss - self.fall_per_step * (step - self.mean_step)

    def variance_at(self, step: float) -> float:
        """Return variance of ``loss_at(step)`` / variance of a single reading of the loss."""
        return 1 / self.reading_count + (step - self.mean_step) ** 2 / self.squared_distances


def estimate_ratio(before: LossLine, after: LossLine, steps: int, noise: float) -> tuple[float, float]:
    """Return the ratio that a switchback trial measured: progress of a candidate's step / progress of a reference step.

    The reference is the candidate that the trial compares with. It runs before and after the candidate under trial. The
    estimate assumes that between the two lines a step of the reference would lower the loss by the geometric mean of
    the lines' ``fall_per_step``.

    Args:
        before: line through the readings of the loss in the reference's steps before those of the candidate.
        after: line through the readings in the reference's steps after those of the candidate, without settling steps.
        steps: number of the candidate's steps between the two lines.
        noise: standard deviation of a reading of the loss.

    Returns:
        The ratio, and its standard error. If the loss does not fall along one of the lines, or if ``steps`` is 0, no
        ratio can be measured: the ratio is then 0, and the error infinite.

    Example:
        >>> before = LossLine.through([LossReading(0, 4.0), LossReading(50, 3.5), LossReading(100, 3.0)])
        >>> after = LossLine.through([LossReading(230, 2.1), LossReading(280, 1.6), LossReading(330, 1.1)])
        >>> ratio, error = estimate_ratio(before, after, steps=100, noise=0.0)  # 130 steps: 0.9 less loss; 30: 0.3
        >>> round(ratio, 3), error
        (0.6, 0.2)
    """
    if min(before.fall_per_step, after.fall_per_step) <= 0 or not steps:
        return 0.0, math.inf
    fall_per_step = math.sqrt(before.fall_per_step * after.fall_per_step)
    equivalent_reference_steps = (before.loss_at(before.last_step) - after.loss_at(after.first_step)) / fall_per_step
    ratio = (equivalent_reference_steps - (after.first_step - before.last_step - steps)) / steps
    end_variance = (before.variance_at(before.last_step) + after.variance_at(after.first_step)) / fall_per_step**2
    slope_variance = sum(1 / (line.squared_distances * line.fall_per_step**2) for line in (before, after)) / 4
    error_of_readings = noise * math.sqrt(end_variance + equivalent_reference_steps**2 * slope_variance) / steps
    return ratio, math.hypot(UNEVEN_PROGRESS_DEVIATION, error_of_readings)


@dataclass(frozen=True, slots=True)
class TrialResults:
    """Results of all switchback trials of a candidate.

    Attributes:
        candidate: index of the candidate in the controller's list of candidates.
        reference: index of the candidate that ``candidate`` was compared with.
        estimates: ``(ratio, its standard error)`` of each trial: efficiency of the candidate / efficiency of the
            reference. A trial is left out if the loss did not fall in the reference's steps before the candidate's
            steps, or did not fall in those after.
        steps: number of steps that the candidate made in all trials.
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
        """Efficiency of the candidate / efficiency of the reference: weighted mean, at least ``SMALLEST_RATIO``.

        The mean is over the trials, with the inverse squares of their standard errors as weights; 1 without trials.
        """
        return max(SMALLEST_RATIO, self._weighted_mean)

    @property
    def error(self) -> float:
        """Standard error of ``ratio``, which includes ``RATIO_BIAS``; infinite without trials.

        If the trials differ by more than their own errors explain, the error is multiplied by Birge's ratio.
        """
        if not self.estimates:
            return math.inf
        total_weight = sum(ratio_error**-2 for _, ratio_error in self.estimates)
        chi_square = sum(((ratio - self._weighted_mean) / ratio_error) ** 2 for ratio, ratio_error in self.estimates)
        birge_squared = max(1.0, chi_square / max(1, self.trials - 1))
        return math.hypot(RATIO_BIAS, math.sqrt(birge_squared / total_weight))

    @property
    def _weighted_mean(self) -> float:
        """Mean of the trials' ratios, with the inverse squares of their errors as weights; 1 without trials."""
        ratios_and_weights = [(ratio, error**-2) for ratio, error in self.estimates]
        total_weight = sum(weight for _, weight in ratios_and_weights)
        return sum(ratio * weight for ratio, weight in ratios_and_weights) / total_weight if total_weight else 1.0

    @property
    def measured_ratio(self) -> MeasuredRatio:
        """The measured ratio and its standard error, in the type that ``gravac.beliefs.posterior`` takes."""
        return MeasuredRatio(self.candidate, self.reference, self.ratio, self.error)


def expected_scatter(results: TrialResults | None, length: int) -> float:
    """Return the standard deviation expected for the ratio of efficiencies that the next switchback trial measures.

    Args:
        results: results of the candidate's trials so far; ``None``: no trials.
        length: number of successive steps of the reference before the candidate's steps, and again after them. The
            reference is the candidate that the trial compares with.
    """
    if results is None or not results.estimates:
        return math.hypot(UNEVEN_PROGRESS_DEVIATION, READING_NOISE * STRETCH_LENGTHS[0] / length)
    return math.sqrt(results.trials / sum(error**-2 for _, error in results.estimates))


def value_of_trials(
    log_goodput_ratio: float,
    deviation: float,
    scatter: float,
    trial_count: int,
    is_preferred: bool,
    largest_log_goodput_ratio: float = math.inf,
) -> float:
    """Return the expected gain of a number of switchback trials, as a fraction of the progress to come.

    The trials help to decide between a candidate and another candidate, the reference. The gain is the goodput
    expected of the decision after the trials, minus the goodput of the decision without trials. Both decisions are by
    the lower bound of efficiency.

    Args:
        log_goodput_ratio: mean of log (goodput of the candidate / goodput of the reference), as assumed before the
            trials.
        deviation: standard deviation of that logarithm: the uncertainty before the trials.
        scatter: standard deviation of that logarithm as a single trial measures it.
        trial_count: number of trials.
        is_preferred: whether the decision without trials is for the candidate, rather than for the reference.
        largest_log_goodput_ratio: largest possible value of that logarithm; higher values count as this value.

    Example:
        >>> after_1, after_4 = (value_of_trials(0.1, 0.2, 0.3, count, is_preferred=False) for count in (1, 4))
        >>> after_4 > after_1 > 0
        True
        >>> value_of_trials(0.1, 0.0, 0.3, trial_count=4, is_preferred=True)
        0.0
        >>> value_of_trials(-1.0, 3.0, 0.3, trial_count=4, is_preferred=False, largest_log_goodput_ratio=-0.1)
        0.0
    """
    deviation_of_trials = scatter / math.sqrt(trial_count)
    variance = deviation**2 + deviation_of_trials**2
    if not variance or not deviation or (largest_log_goodput_ratio <= 0 and not is_preferred):
        return 0.0
    deviation_of_mean = deviation**2 / math.sqrt(variance)  # of the posterior mean, as expected before the trials
    # margin: from posterior mean to lower bound
    margin = _STANDARD_NORMAL.inv_cdf(SURE) * deviation * deviation_of_trials / math.sqrt(variance)
    gain_if_chosen = _limited_mean_above(margin, log_goodput_ratio, deviation_of_mean, largest_log_goodput_ratio)
    return gain_if_chosen - (
        _limited_mean_above(-math.inf, log_goodput_ratio, deviation_of_mean, largest_log_goodput_ratio)
        if is_preferred
        else 0.0
    )


def _limited_mean_above(threshold: float, mean: float, deviation: float, limit: float) -> float:
    """Return the expectation of a normal variable where it exceeds a threshold: values above ``limit`` count as that.

    Values up to the threshold count as 0.

    Args:
        threshold: value up to which the variable counts as 0; may be negative infinity.
        mean: mean of the variable.
        deviation: standard deviation of the variable; above 0.
        limit: largest value that the variable counts as; may be infinite.
    """
    threshold_z = (threshold - mean) / deviation
    limit_z = max(threshold_z, (limit - mean) / deviation)
    below_limit = mean * (_STANDARD_NORMAL.cdf(limit_z) - _STANDARD_NORMAL.cdf(threshold_z)) + deviation * (
        _STANDARD_NORMAL.pdf(threshold_z) - _STANDARD_NORMAL.pdf(limit_z)
    )
    above_limit = 1 - _STANDARD_NORMAL.cdf(limit_z)
    return below_limit + (limit * above_limit if above_limit else 0.0)
