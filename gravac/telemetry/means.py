# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Many steps as one point of a curve: what the mean of each quantity is."""

import math

from gravac.telemetry.page import STEPS
from gravac.telemetry.records import StepRecord

MEANS = tuple(name for name in STEPS if name not in ("t_system", "t_compression"))
"""Fields of a step whose plain mean over the steps is taken (bytes a step, seconds a step): all that the page has but
throughputs; ``values`` corrects the wire ratio's."""


class StepMeans:
    """Steps in a row that ran the same candidate, as one set of numbers.

    Values that are not finite (the first step has no duration) and gains that are not known are left out.

    Attributes:
        steps: number of steps that were added.
        last: record of the step added last.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.last: StepRecord | None = None
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, step: StepRecord) -> None:
        """Take one step into the means."""
        self.steps += 1
        self.last = step
        for name in MEANS:
            self._sum(name, getattr(step, name))
        self._sum("dense_wire_bytes", step.dense_wire_bytes)
        if step.t_system > 0:
            self._sum("seconds_per_sample", 1 / step.t_system)

    def values(self) -> dict[str, float]:
        """The means by name, those of ``StepRecord``; a quantity that no step had is missing.

        Bytes and seconds are means a step; ``wire_ratio`` is the ratio of sums; ``t_system`` (samples/s) is the
        harmonic mean, which is samples over time; ``t_compression`` is ``t_system * max(gain, 0)`` of these means.
        """
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        dense_wire_bytes = means.pop("dense_wire_bytes", 0.0)
        if means.get("wire_bytes"):
            means["wire_ratio"] = dense_wire_bytes / means["wire_bytes"]
        seconds_per_sample = means.pop("seconds_per_sample", 0.0)
        if seconds_per_sample:
            means["t_system"] = 1 / seconds_per_sample
            if "gain" in means:
                means["t_compression"] = means["t_system"] * max(means["gain"], 0.0)
        return means

    def _sum(self, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
