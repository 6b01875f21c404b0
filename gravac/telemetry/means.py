# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes means over several steps: the numbers of one point of a run's curves."""

import math
import statistics
from collections.abc import Iterable, Sequence

from gravac.telemetry.page import STEP_TAGS
from gravac.telemetry.records import StepRecord

MEAN_FIELDS = tuple(name for name in STEP_TAGS if name not in ("t_system", "t_compression"))
"""Fields of ``StepRecord`` that a point shows as arithmetic means over steps: all of ``page.STEP_TAGS`` but
throughputs.

For ``wire_ratio``, ``means`` replaces the arithmetic mean by a ratio of sums.
"""


def means(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Return the means of consecutive steps that ran the same candidate, by field name of ``StepRecord``.

    Numbers that are not finite, and unknown gains, are ignored. If no number of a field remains, the result lacks the
    field.

    Bytes and seconds are means per training step: if a record stands for several training steps (outer steps, native
    steps), its bytes are divided by their number. ``wire_ratio`` is the ratio of sums. ``t_system`` (samples/s) is the
    harmonic mean, which is samples / time. ``t_compression`` is ``t_system * max(gain, 0)`` of these means.
    """
    means_by_name = {
        name: mean for name in MEAN_FIELDS if (mean := _finite_mean(per_step(step, name) for step in steps)) is not None
    }
    if means_by_name.get("wire_bytes"):
        dense_wire_bytes = _finite_mean(per_step(step, "dense_wire_bytes") for step in steps)
        means_by_name["wire_ratio"] = (dense_wire_bytes or 0.0) / means_by_name["wire_bytes"]
    seconds_per_sample = _finite_mean(1 / step.t_system for step in steps if step.t_system > 0)
    if seconds_per_sample:
        means_by_name["t_system"] = 1 / seconds_per_sample
        if "gain" in means_by_name:
            means_by_name["t_compression"] = means_by_name["t_system"] * max(means_by_name["gain"], 0.0)
    return means_by_name


def per_step(step: StepRecord, name: str) -> float | None:
    """Return a number of a record by its field's name; bytes are divided by the record's number of training steps."""
    number: float | None = getattr(step, name)
    return number if number is None or step.steps == 1 or not name.endswith("_bytes") else number / step.steps


def _finite_mean(numbers: Iterable[float | None]) -> float | None:
    """Return the mean of the numbers that are known and finite; ``None`` if there are no such numbers."""
    finite_numbers = [number for number in numbers if number is not None and math.isfinite(number)]
    return statistics.fmean(finite_numbers) if finite_numbers else None
