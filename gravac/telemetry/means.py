# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes means over several steps: the numbers of one point of a curve."""

import math
import statistics
from collections.abc import Iterable, Sequence

from gravac.telemetry.page import STEPS
from gravac.telemetry.records import StepRecord

MEANS = tuple(name for name in STEPS if name not in ("t_system", "t_compression"))
"""Fields of ``StepRecord`` of which a point shows the arithmetic mean over steps (bytes per step, seconds per step).

These are all fields that TensorBoard shows except throughputs. ``means`` computes the wire ratio in another way."""


def means(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Return the means of consecutive steps that ran the same candidate, by the field names of ``StepRecord``.

    Numbers that are not finite and gains that are not known are ignored; a field without any number is missing in the
    result. Bytes and seconds are means per step; ``wire_ratio`` is the ratio of sums; ``t_system`` (samples/s) is the
    harmonic mean, which is samples over time; ``t_compression`` is ``t_system * max(gain, 0)`` of these means. Bytes
    are those of a training step: the bytes of a round, or of a native stretch, divided by its number of steps.
    """
    result = {name: mean for name in MEANS if (mean := _mean(per_step(step, name) for step in steps)) is not None}
    if result.get("wire_bytes"):
        dense_wire_bytes = _mean(per_step(step, "dense_wire_bytes") for step in steps)
        result["wire_ratio"] = (dense_wire_bytes or 0.0) / result["wire_bytes"]
    seconds_per_sample = _mean(1 / step.t_system for step in steps if step.t_system > 0)
    if seconds_per_sample:
        result["t_system"] = 1 / seconds_per_sample
        if "gain" in result:
            result["t_compression"] = result["t_system"] * max(result["gain"], 0.0)
    return result


def per_step(step: StepRecord, name: str) -> float | None:
    """Return a field of a record; bytes are divided by the record's number of training steps."""
    number: float | None = getattr(step, name)
    return number if number is None or step.steps == 1 or not name.endswith("_bytes") else number / step.steps


def _mean(numbers: Iterable[float | None]) -> float | None:
    """Return the mean of the numbers that are known and finite; ``None`` if there are no such numbers."""
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return statistics.fmean(finite) if finite else None
