# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes points of curves from records of steps, for TensorBoard and for trackers that take numbers by name."""

import math
from collections.abc import Callable

from gravac.telemetry import page
from gravac.telemetry.means import means, per_step
from gravac.telemetry.records import StepRecord

Write = Callable[[dict[str, float], int], None]
"""Function that takes numbers by tag, all finite, and the number of their training step."""


class Points:
    """Makes points from records of steps: means over ``every`` training steps that ran the same candidate.

    ``gravac.telemetry.means`` defines the means. The CF, and fields that depend on the CF, are also written at the last
    step before a change and at the first step after it, so that their curves are staircases.

    Args:
        every: training steps per point, at least 1.
        write: function that takes the points.
    """

    def __init__(self, every: int, write: Write) -> None:
        self._every, self._write = every, write
        self._steps: list[StepRecord] = []
        self._previous: StepRecord | None = None
        self._gigabytes = [0.0, 0.0]

    def add(self, step: StepRecord) -> None:
        """Add a step, and write the point that it completes, if it completes one."""
        if self._previous is None or _identity(self._previous) != _identity(step):
            self.flush()
            stairs = {page.STEPS[name]: per_step(step, name) or 0.0 for name in page.STAIRS}
            self._write_finite(_candidate_numbers(step) | stairs, step.step)
        self._steps.append(step)
        self._previous = step
        self._gigabytes[0] += step.wire_bytes / 1e9
        self._gigabytes[1] += step.dense_wire_bytes / 1e9
        if sum(step.steps for step in self._steps) >= self._every:
            self.flush()

    def flush(self) -> None:
        """Write the means of the steps since the last point, at the last of these steps."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        numbers = _candidate_numbers(steps[-1]) | {page.STEPS[name]: mean for name, mean in means(steps).items()}
        numbers[page.WIRE_GIGABYTES], numbers[page.DENSE_WIRE_GIGABYTES] = self._gigabytes
        self._write_finite(numbers, steps[-1].step)

    def _write_finite(self, numbers: dict[str, float], step: int) -> None:
        """Write the numbers that are finite.

        Args:
            numbers: numbers by tag.
            step: number of their training step.
        """
        self._write({tag: number for tag, number in numbers.items() if math.isfinite(number)}, step)


def _identity(step: StepRecord) -> tuple[object, ...]:
    """Return what must be equal in all steps of a point: the candidate, and each rank's number of steps in a round."""
    return step.mode, step.compressor, step.cf, step.every, step.delay, step.steps_of_ranks


def _candidate_numbers(step: StepRecord) -> dict[str, float]:
    """Return a step's CF, or an outer step's wire ratio and number of steps of the round, by tag."""
    if step.mode != "outer":
        return {page.CF: step.cf, page.CF_LOG10: math.log10(step.cf)}
    round_numbers = {page.EVERY: float(step.every), page.DELAY: float(step.delay), page.DRIFT: step.drift}
    round_numbers |= {f"{page.STEPS_OF_RANKS}{rank}": float(steps) for rank, steps in enumerate(step.steps_of_ranks)}
    return {page.OUTER_WIRE_RATIO: step.wire_ratio, **round_numbers}
