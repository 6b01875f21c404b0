# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Many steps as one point of a curve: what the mean of each quantity is."""

import math
import statistics
from collections.abc import Iterable, Sequence

from gravac.telemetry.page import STEPS
from gravac.telemetry.records import StepRecord

MEANS = tuple(name for name in STEPS if name not in ("t_system", "t_compression"))
"""Fields of a step whose plain mean over the steps is taken (bytes a step, seconds a step): all that the page has but
throughputs; ``means`` corrects the wire ratio's."""


def means(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Return the means of steps in a row that ran the same candidate, by ``StepRecord``'s names.

    Values that are not finite (the first step has no duration) and gains that are not known are left out; a quantity
    that no step had is missing. Bytes and seconds are means a step; ``wire_ratio`` is the ratio of sums; ``t_system``
    (samples/s) is the harmonic mean, which is samples over time; ``t_compression`` is ``t_system * max(gain, 0)`` of
    these means. Bytes are those of a training step: a round's, or a native stretch's, by its number of steps.
    """
    found = {name: mean for name in MEANS if (mean := _mean(of_a_step(step, name) for step in steps)) is not None}
    if found.get("wire_bytes"):
        found["wire_ratio"] = (_mean(of_a_step(step, "dense_wire_bytes") for step in steps) or 0.0) / found[
            "wire_bytes"
        ]
    seconds_per_sample = _mean(1 / step.t_system for step in steps if step.t_system > 0)
    if seconds_per_sample:
        found["t_system"] = 1 / seconds_per_sample
        if "gain" in found:
            found["t_compression"] = found["t_system"] * max(found["gain"], 0.0)
    return found


def of_a_step(step: StepRecord, name: str) -> float | None:
    """Return a field of a step's record, bytes by the training step."""
    value: float | None = getattr(step, name)
    return value if value is None or step.steps == 1 or not name.endswith("_bytes") else value / step.steps


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are known and finite; ``None`` where none is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None
