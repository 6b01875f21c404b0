# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Steps as points of curves, for whatever draws curves: TensorBoard, or a tracker that takes numbers by name."""

import math
from collections.abc import Callable

from gravac.telemetry import page
from gravac.telemetry.means import means, of_a_step
from gravac.telemetry.records import StepRecord

Write = Callable[[dict[str, float], int], None]
"""Takes numbers by tag, all finite, and the step that they are of."""


class Points:
    """Makes points of steps: means over ``every`` training steps, never across a change of what runs.

    ``gravac.telemetry.means`` says which means. The CF, and what follows from it, is written besides at the last step
    before and the first step of a change, so its curve is a true staircase.

    Args:
        every: steps per point, at least 1.
        write: takes the points.
    """

    def __init__(self, every: int, write: Write) -> None:
        self._every, self._write = every, write
        self._steps: list[StepRecord] = []
        self._last: StepRecord | None = None
        self._gigabytes = [0.0, 0.0]

    def add(self, step: StepRecord) -> None:
        """Take a step in, and write the point that it completes."""
        if self._last is None or _what(self._last) != _what(step):
            self.flush()
            self._finite(
                _runs(step) | {page.STEPS[name]: of_a_step(step, name) or 0.0 for name in page.STAIRS}, step.step
            )
        self._steps.append(step)
        self._last = step
        self._gigabytes[0] += step.wire_bytes / 1e9
        self._gigabytes[1] += step.dense_wire_bytes / 1e9
        if sum(step.steps for step in self._steps) >= self._every:
            self.flush()

    def flush(self) -> None:
        """Write the means of the steps since the last point, at the last of these steps."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        values = _runs(steps[-1]) | {page.STEPS[name]: value for name, value in means(steps).items()}
        values[page.WIRE_GIGABYTES], values[page.DENSE_WIRE_GIGABYTES] = self._gigabytes
        self._finite(values, steps[-1].step)

    def _finite(self, values: dict[str, float], step: int) -> None:
        self._write({tag: value for tag, value in values.items() if math.isfinite(value)}, step)


def _what(step: StepRecord) -> tuple[object, ...]:
    return step.mode, step.compressor, step.cf, step.every, step.delay, step.steps_of_ranks


def _runs(step: StepRecord) -> dict[str, float]:
    """What runs, as numbers: the CF of a step with an exchange; of outer steps, what a round sends and how often."""
    if step.mode != "outer":
        return {page.CF: step.cf, page.CF_LOG10: math.log10(step.cf)}
    often = {page.EVERY: float(step.every), page.DELAY: float(step.delay), page.DRIFT: step.drift}
    often |= {f"{page.STEPS_OF_RANKS}{rank}": float(made) for rank, made in enumerate(step.steps_of_ranks)}
    return {page.OUTER_WIRE_RATIO: step.wire_ratio, **often}
