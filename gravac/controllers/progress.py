# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switchback trials: what a step of one candidate is worth, by the loss on fixed batches, while the run goes on.

A run cannot branch, so it alternates: a stretch of the reference, a stretch of the candidate, steps of the reference
in which the ranks settle, a stretch of the reference, and so on. The loss on fixed batches (``AdaptiveCompressor``'s
``probe``) is read a few times at both ends of each stretch of the reference. It is never read at the end of a stretch
of the candidate: a candidate that averages weights lowers the loss for the moment, and one that adds noise raises it,
and neither lasts. The drop over the candidate's stretch is then compared with the drops in the stretches of the
reference beside it.

Everything here is a pure function of agreed measurements, as controllers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

from gravac.beliefs import MeasuredRatio
from gravac.controllers.base import Measurement
from gravac.controllers.plain import Above0, Count, Finite

TRIAL = 100
"""Number of steps of the candidate in a trial; more where a round has more than half as many."""

LENGTHS = (100, 50)
"""Numbers of steps that a stretch of the reference may have: where steps of it cost much, it is short."""

SETTLE = 30
"""Number of steps of the reference after a trial, before the loss is read."""

READINGS, APART = 3, 5
"""Number of readings at each end of a stretch of the reference, and of steps from one to the next: what a single one
says varies with the last few batches."""

UNEVEN = 0.2
"""Standard deviation of what a trial tells of a ratio of efficiencies, besides the readings' own noise: a run makes
more progress in some stretches than in others."""

BIAS = 0.1
"""What trials are off by on average, whatever their number."""

NOISE = 0.2
"""Standard deviation of what a trial with stretches of 100 steps tells by the readings' noise alone, as it is taken to
be before a run has shown its own; it grows as stretches get shorter."""

LEAST_RATIO = 0.05
"""Smallest ratio of efficiencies that trials are taken to show: the loss may even have risen."""

PATIENCE, GIVE_UP = 6, 3
"""Number of measurements after which a reading that has not come is asked for again, and how often."""

SETTLING: Final = "settling"
REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"

Stage = Literal["settling", "reference", "candidate"]
"""What runs within a trial."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Reading:
    """The loss on fixed batches at some point of the run.

    Attributes:
        step: number of training steps made before.
        loss: mean over the batches and the ranks.
    """

    step: Count
    loss: Finite


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials of one candidate that are under way.

    Attributes:
        candidate: place of the candidate in the controller's list.
        reference: place of the candidate that it is compared with.
        length: number of steps of a stretch of the reference.
        steps: number of steps of a stretch of the candidate.
        stage: what was decided to run.
        made: number of steps made in this stage.
        asked: whether a reading was asked for that has not come.
        readings: losses so far, two for each stretch of the reference.
        of_candidate: number of steps that each trial had so far.
        earlier: what earlier trials of the same pair have shown, if there were any.
        slow: number of steps on end that took far too long.
        waited: number of measurements since the reading was asked for.
    """

    candidate: Count
    reference: Count
    length: Count = LENGTHS[0]
    steps: Count = TRIAL
    stage: Stage = SETTLING
    made: Count = 0
    asked: bool = False
    readings: tuple[Reading, ...] = ()
    of_candidate: tuple[Count, ...] = ()
    earlier: Learned | None = None
    slow: Count = 0
    waited: Count = 0

    @property
    def running(self) -> int:
        """Place of the candidate that is to run."""
        return self.candidate if self.stage == CANDIDATE else self.reference

    @property
    def offsets(self) -> tuple[int, ...]:
        """Numbers of steps after which the loss is read, from the first reading of a stretch of the reference on."""
        first = tuple(APART * number for number in range(READINGS))
        return (*first, *(self.length - offset for offset in reversed(first)))

    @property
    def stretches(self) -> tuple[tuple[Reading, ...], ...]:
        """Readings of each stretch of the reference that is over."""
        each = len(self.offsets)
        return tuple(self.readings[end - each : end] for end in range(each, len(self.readings) + 1, each))

    @property
    def ended(self) -> int:
        """Number of trials that are over, with a stretch of the reference after each."""
        return max(0, len(self.stretches) - 1)

    @property
    def between(self) -> bool:
        """Whether a stretch of the reference has just ended, so that trials may end here or go on."""
        return self.stage == REFERENCE and len(self.readings) % len(self.offsets) == 0

    @property
    def left(self) -> int:
        """Number of steps until something else is due in this stage: a reading, or its end."""
        due = {
            SETTLING: SETTLE,
            REFERENCE: self.offsets[len(self.readings) % len(self.offsets)],
            CANDIDATE: self.steps,
        }
        return max(0, due[self.stage] - self.made)

    @property
    def ask_again(self) -> bool:
        """Whether a reading is asked for again: it should have come by now, but a restart may have lost it."""
        return self.waited > 0 and self.waited % PATIENCE == 0

    @property
    def given_up(self) -> bool:
        """Whether no finite reading came although it was asked for several times."""
        return self.waited > GIVE_UP * PATIENCE

    def add(self, measured: Measurement, is_candidate: bool, is_reference: bool, far: bool) -> Trials:
        """Return the trials after a measurement.

        Args:
            measured: the measurement.
            is_candidate: whether the candidate ran.
            is_reference: whether the reference ran.
            far: whether it took far too long.
        """
        trials = replace(self, slow=self.slow + measured.steps if far else 0)
        trials = replace(trials, waited=trials.waited + 1 if trials.asked else 0)
        if is_candidate and trials.of_candidate and trials.stage != REFERENCE:
            trials = replace(trials, of_candidate=(*trials.of_candidate[:-1], trials.of_candidate[-1] + measured.steps))
        if trials.asked and math.isfinite(measured.probe):
            before = measured.first + (measured.candidate.mode == "native")  # where it was read one step later
            readings = (*trials.readings, Reading(before, measured.probe))
            trials = replace(trials, asked=False, readings=readings, waited=0)
            if trials.stage == SETTLING:
                trials = replace(trials, stage=REFERENCE, made=0)
        if is_candidate if trials.stage == CANDIDATE else is_reference:
            trials = replace(trials, made=trials.made + measured.steps)
        return trials

    def start_candidate(self) -> Trials:
        """Return the trials with a stretch of the candidate."""
        return replace(self, stage=CANDIDATE, made=0, of_candidate=(*self.of_candidate, 0))

    def settle(self) -> Trials:
        """Return the trials with steps of the reference, after which the loss is read."""
        return replace(self, stage=SETTLING, made=0)

    def ask(self) -> Trials:
        """Return the trials waiting for a reading."""
        return replace(self, asked=True)

    @property
    def learned(self) -> Learned:
        """What these trials have shown so far, and earlier ones of the same pair."""
        lines = [Line.through(readings) for readings in self.stretches]
        noise = math.sqrt(sum(line.noise**2 for line in lines) / len(lines)) if lines else 0.0
        estimates = (
            estimate(lines[number], lines[number + 1], self.of_candidate[number], noise) for number in range(self.ended)
        )
        before = Learned(self.candidate, self.reference, ()) if self.earlier is None else self.earlier
        return replace(
            before,
            estimates=(*before.estimates, *(told for told in estimates if math.isfinite(told[1]))),
            steps=before.steps + sum(self.of_candidate),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line through the readings of a stretch of the reference, by least squares.

    Attributes:
        first: step of the first reading.
        last: step of the last reading.
        middle: mean step of the readings.
        loss: loss on the line at ``middle``.
        fall: fall of the loss in a step.
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
            >>> line.fall, line.at(100), line.noise
            (0.02, 2.0, 0.0)
        """
        count = len(readings)
        middle = sum(reading.step for reading in readings) / count
        loss = sum(reading.loss for reading in readings) / count
        spread = sum((reading.step - middle) ** 2 for reading in readings)
        fall = -sum((reading.step - middle) * (reading.loss - loss) for reading in readings) / spread
        off = sum((reading.loss - (loss - fall * (reading.step - middle))) ** 2 for reading in readings)
        noise = math.sqrt(off / max(1, count - 2))
        return cls(readings[0].step, readings[-1].step, middle, loss, fall, spread, count, noise)

    def at(self, step: float) -> float:
        """Return the loss on the line at a step."""
        return self.loss - self.fall * (step - self.middle)

    def variance_at(self, step: float) -> float:
        """Return the variance of ``at``, over that of a reading."""
        return 1 / self.count + (step - self.middle) ** 2 / self.spread


def estimate(before: Line, after: Line, steps: int, noise: float) -> tuple[float, float]:
    """Return the progress of a step of the candidate over that of the reference, by one trial.

    Between the two stretches the reference is taken to fall by the geometric mean of what it falls by in them.

    Args:
        before: the stretch of the reference before the candidate's.
        after: the stretch of the reference after it, and after settling.
        steps: number of steps of the candidate between them.
        noise: standard deviation of a reading.

    Returns:
        The ratio, and its standard error; infinite if the loss did not fall in both stretches of the reference.

    Example:
        >>> before = Line.through([Reading(0, 4.0), Reading(50, 3.5), Reading(100, 3.0)])
        >>> after = Line.through([Reading(230, 2.1), Reading(280, 1.6), Reading(330, 1.1)])
        >>> ratio, error = estimate(before, after, steps=100, noise=0.0)  # 130 steps fell by 0.9, 30 of them by 0.3
        >>> round(ratio, 3), error
        (0.6, 0.2)
    """
    if min(before.fall, after.fall) <= 0 or not steps:
        return 0.0, math.inf
    a_step = math.sqrt(before.fall * after.fall)
    fell = (before.at(before.last) - after.at(after.first)) / a_step
    ratio = (fell - (after.first - before.last - steps)) / steps
    ends = (before.variance_at(before.last) + after.variance_at(after.first)) / a_step**2
    slopes = sum(1 / (line.spread * line.fall**2) for line in (before, after)) / 4
    by_noise = noise * math.sqrt(ends + fell**2 * slopes) / steps
    return ratio, math.hypot(UNEVEN, by_noise)


@dataclass(frozen=True, slots=True)
class Learned:
    """What trials of a candidate have shown.

    Attributes:
        candidate: place of the candidate in the controller's list.
        reference: place of the candidate that it was compared with.
        estimates: ratio of efficiencies by each trial, with its standard error; of those that tell something.
        steps: number of steps that the candidate had.
    """

    candidate: Count
    reference: Count
    estimates: tuple[tuple[Finite, Above0], ...]
    steps: Count = 0

    @property
    def trials(self) -> int:
        """Number of trials that tell something."""
        return len(self.estimates)

    @property
    def ratio(self) -> float:
        """Mean ratio of the efficiencies, each trial weighed by its error, at least ``LEAST_RATIO``."""
        return max(LEAST_RATIO, self._mean)

    @property
    def error(self) -> float:
        """Standard error of the mean; larger if the trials differ by more than their errors say (Birge's ratio).

        ``BIAS`` is in it, which no number of trials makes smaller.
        """
        if not self.estimates:
            return math.inf
        weight = sum(error**-2 for _, error in self.estimates)
        differ = sum(((ratio - self._mean) / error) ** 2 for ratio, error in self.estimates)
        birge = max(1.0, differ / max(1, self.trials - 1))
        return math.hypot(BIAS, math.sqrt(birge / weight))

    @property
    def _mean(self) -> float:
        weights = [(ratio, error**-2) for ratio, error in self.estimates]
        total = sum(weight for _, weight in weights)
        return sum(ratio * weight for ratio, weight in weights) / total if total else 1.0

    @property
    def comparison(self) -> MeasuredRatio:
        """The same for ``gravac.beliefs.posterior``."""
        return MeasuredRatio(self.candidate, self.reference, self.ratio, self.error)


def expected_scatter(learned: Learned | None, length: int) -> float:
    """Return the standard deviation that the next trial is taken to have.

    Args:
        learned: what trials of the same candidate have shown; ``None``: there were none.
        length: number of steps of a stretch of the reference.
    """
    if learned is None or not learned.estimates:
        return math.hypot(UNEVEN, NOISE * LENGTHS[0] / length)
    return math.sqrt(learned.trials / sum(error**-2 for _, error in learned.estimates))


def value_of_trials(advantage: float, deviation: float, scatter: float, trials: int, chosen: bool) -> float:
    """Return what so many trials are expected to gain, relative to all progress to come.

    What is decided afterwards goes by the lower bound, as always; it is compared with what is decided now.

    Args:
        advantage: mean of the logarithm of the candidate's goodput over the reference's.
        deviation: its standard deviation.
        scatter: standard deviation of what a single trial tells of that logarithm.
        trials: number of trials.
        chosen: whether the candidate is chosen now, and not the reference.

    Example:
        >>> value_of_trials(0.1, 0.2, 0.3, trials=4, chosen=False) > value_of_trials(0.1, 0.2, 0.3, 1, False) > 0
        True
        >>> value_of_trials(0.1, 0.0, 0.3, trials=4, chosen=True)
        0.0
    """
    noise = scatter / math.sqrt(trials)
    variance = deviation**2 + noise**2
    if not variance or not deviation:
        return 0.0
    moves, remains = deviation**2 / math.sqrt(variance), deviation * noise / math.sqrt(variance)
    least = _NORMAL.inv_cdf(0.8) * remains
    beyond = (advantage - least) / moves
    decided = advantage * _NORMAL.cdf(beyond) + moves * _NORMAL.pdf(beyond)
    return decided - (advantage if chosen else 0.0)
