# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the points of a run's curves from records of steps, for TensorBoard."""

import math
from collections.abc import Callable

from gravac.telemetry import page
from gravac.telemetry.means import means, per_step
from gravac.telemetry.records import StepRecord

WritePoint = Callable[[dict[str, float], int], None]
"""Function that takes a dict of finite numbers by tag, and the number of the training step of these numbers."""


class Points:
    """Computes points of curves from records of steps: means over ``every`` training steps that ran the same candidate.

    ``gravac.telemetry.means`` defines the means. The curves of the CF, and of fields that depend on the CF, are
    staircases: when the candidate changes, points are written at the last step before the change and at the first step
    after it.

    Args:
        every: number of training steps per point, 1 or more.
        write: function that writes a point, see ``WritePoint``.
    """

    def __init__(self, every: int, write: WritePoint) -> None:
        self._every, self._write = every, write
        self._steps_of_point: list[StepRecord] = []
        self._previous_step: StepRecord | None = None
        self._sent_gigabytes = [0.0, 0.0]

    def add(self, step: StepRecord) -> None:
        """Add a step; write a point if the steps since the last point cover ``every`` training steps or more."""
        if self._previous_step is None or _fields_equal_in_point(self._previous_step) != _fields_equal_in_point(step):
            self.flush()
            staircase_numbers = {page.STEP_TAGS[name]: per_step(step, name) or 0.0 for name in page.STAIRCASE_FIELDS}
            self._write_finite(_candidate_numbers(step) | staircase_numbers, step.step)
        self._steps_of_point.append(step)
        self._previous_step = step
        self._sent_gigabytes[0] += step.wire_bytes / 1e9
        self._sent_gigabytes[1] += step.dense_wire_bytes / 1e9
        if sum(added_step.steps for added_step in self._steps_of_point) >= self._every:
            self.flush()

    def flush(self) -> None:
        """Write a point: the means of the steps since the last point, at the number of the newest step.

        Without such steps, write nothing.
        """
        if not self._steps_of_point:
            return
        steps, self._steps_of_point = self._steps_of_point, []
        numbers_by_tag = _candidate_numbers(steps[-1]) | {
            page.STEP_TAGS[name]: mean for name, mean in means(steps).items()
        }
        numbers_by_tag[page.WIRE_GIGABYTES], numbers_by_tag[page.DENSE_WIRE_GIGABYTES] = self._sent_gigabytes
        self._write_finite(numbers_by_tag, steps[-1].step)

    def _write_finite(self, numbers_by_tag: dict[str, float], step: int) -> None:
        """Write those numbers that are finite.

        Args:
            numbers_by_tag: numbers by tag.
            step: number of the training step of these numbers.
        """
        self._write({tag: number for tag, number in numbers_by_tag.items() if math.isfinite(number)}, step)


def _fields_equal_in_point(step: StepRecord) -> tuple[object, ...]:
    """Return the fields of a record that are equal in all steps of a point: those of the candidate."""
    return step.mode, step.compressor, step.cf, step.every, step.delay


def _candidate_numbers(step: StepRecord) -> dict[str, float]:
    """Return the numbers, by tag, that show which candidate ran in a step: the CF and its decimal logarithm.

    For a round of outer steps, return other numbers: steps from one exchange to the next, delay, drift, and wire ratio.
    """
    if step.mode != "outer":
        return {page.CF: step.cf, page.CF_LOG10: math.log10(step.cf)}
    return {
        page.OUTER_WIRE_RATIO: step.wire_ratio,
        page.EVERY: float(step.every),
        page.DELAY: float(step.delay),
        page.DRIFT: step.drift,
    }
