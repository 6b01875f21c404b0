# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Results of the demo: the numbers of a run, the comparison of several runs, and their JSON."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac.candidate import Mode
from gravac.lab.tta.record import CurvePoint, first_reached

LABELS = {
    "dense-fp32": "float32",
    "dense-fp16": "float16",
    "adaptive": "every=1",
    "adaptive-100": "every=(1, 100)",
}
"""Labels of methods: the number format of dense runs, the argument of ``AdaptiveCompressor`` otherwise."""

DRAW = 0.01
"""Difference of validation losses (nats) below which they count as equal: another seed changes them as much."""


@dataclass(frozen=True)
class DemoOutcome:
    """Result of a run.

    Attributes:
        method: name of the method.
        steps: number of steps.
        seconds: training time without evaluation.
        samples_per_s: samples per second over all ranks.
        wire_bytes: bytes that a rank sent in the run, mean over the ranks.
        curve: validation loss over the run, from its start to its end.
        cf_path: the first candidate and each later candidate, as ``{"step", "mode", "compressor", "cf", "every",
            "delay", "reason"}``; ``"step"`` is the candidate's first step.
    """

    method: str
    steps: int
    seconds: float
    samples_per_s: float
    wire_bytes: int
    curve: tuple[CurvePoint, ...]
    cf_path: tuple[dict[str, Any], ...]

    @property
    def label(self) -> str:
        """Label of the method, for people."""
        return LABELS.get(self.method, self.method)

    def fraction_by_mode(self) -> dict[Mode, float]:
        """Return the fraction of steps in each mode."""
        ends = [*(change["step"] for change in self.cf_path[1:]), self.steps]
        steps_by_mode: Counter[Mode] = Counter()
        for change, end in zip(self.cf_path, ends, strict=True):
            steps_by_mode[change["mode"]] += max(0, min(end, self.steps) - change["step"])
        return {mode: steps / self.steps for mode, steps in steps_by_mode.items()}

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a rank sent per step."""
        return self.wire_bytes / self.steps

    @property
    def val_loss(self) -> float:
        """Validation loss at the end, nats."""
        return self.curve[-1].metric

    def at_step(self, step: float) -> float:
        """Validation loss at a step, linear between evaluations."""
        return _interpolate([(point.step, point.metric) for point in self.curve], step)

    def at_time(self, seconds: float) -> float:
        """Validation loss after ``seconds`` of training, linear between evaluations."""
        return _interpolate([(point.seconds, point.metric) for point in self.curve], seconds)

    def time_to(self, loss: float) -> float | None:
        """Return the seconds until the validation loss first reached ``loss``; ``None`` if the loss never did."""
        reached = first_reached(self.curve, loss, higher_is_better=False)
        return reached[0] if reached else None


@dataclass(frozen=True)
class Comparison:
    """Comparison of runs that trained for the same time. ``outcomes`` has a run of each method in ``LABELS``."""

    outcomes: tuple[DemoOutcome, ...]

    def __getitem__(self, method: str) -> DemoOutcome:
        return next(outcome for outcome in self.outcomes if outcome.method == method)

    @property
    def equal_steps(self) -> int:
        """Number of steps that every run made."""
        return min(outcome.steps for outcome in self.outcomes)

    @property
    def equal_seconds(self) -> float:
        """Training time that every run had, in seconds."""
        return min(outcome.seconds for outcome in self.outcomes)

    def wire_ratio(self, outcome: DemoOutcome) -> float:
        """Return bytes per step of dense float32 / bytes per step of a run, counted in the same way."""
        return self["dense-fp32"].bytes_per_step / outcome.bytes_per_step if outcome.bytes_per_step else float("inf")

    @property
    def target(self) -> float:
        """Final validation loss of the dense run in 16 bit, nats."""
        return self["dense-fp16"].val_loss

    def verdict(self) -> str:
        """Return a text that says whether compressed gradients won against dense gradients."""
        adaptive = self["adaptive"].at_time(self.equal_seconds)
        best = min((self["dense-fp32"], self["dense-fp16"]), key=lambda outcome: outcome.at_time(self.equal_seconds))
        rival = best.at_time(self.equal_seconds)
        after = f"after {self.equal_seconds:.0f} s"
        figures = f"validation loss {adaptive:.3f} against {rival:.3f} of {best.label} {after}"
        if abs(adaptive - rival) < DRAW:
            return f"With every=1 a draw: {figures}. The simpler one is then the better choice: {best.label}."
        if adaptive > rival:
            return f"With every=1 it LOST: {figures}. On this link, with this model and in this time, use {best.label}."
        adaptive_s, dense_s = self["adaptive"].time_to(self.target), self["dense-fp16"].time_to(self.target)
        if not adaptive_s or not dense_s:
            return f"With every=1 it won: {figures}."
        faster = f"{dense_s / adaptive_s:.1f} times as fast"
        return f"With every=1 it won: {figures}. It reached the final loss of float16 {faster}."

    def verdict_of_outer_steps(self) -> str:
        """Return a text that compares the run that may take outer steps with the run that exchanges in each step."""
        losses = [self[method].at_time(self.equal_seconds) for method in ("adaptive-100", "adaptive")]
        figures = f"validation loss {losses[0]:.3f} against {losses[1]:.3f} of every=1 after {self.equal_seconds:.0f} s"
        if abs(losses[0] - losses[1]) < DRAW:
            return f"With every=(1, 100) a draw: {figures}."
        return f"With every=(1, 100) it {'won' if losses[0] < losses[1] else 'LOST'}: {figures}."

    def to_json(self, *, rate: float, workers: int, paced: bool, log_dir: Path) -> dict[str, Any]:
        """Return the content of the JSON file: bytes are per rank and run, losses in nats.

        Args:
            rate: bits per second of each worker's link.
            workers: number of workers.
            paced: whether the exchange slowed itself down instead of using emulated links.
            log_dir: folder of the TensorBoard logs.
        """
        runs = [
            {
                "method": outcome.method,
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "samples_per_s": outcome.samples_per_s,
                "wire_bytes": outcome.wire_bytes,
                "wire_ratio": self.wire_ratio(outcome),
                "val_loss": outcome.val_loss,
                "curve": [point.model_dump() for point in outcome.curve],
                "cf_path": list(outcome.cf_path),
            }
            for outcome in self.outcomes
        ]
        return {"rate": rate, "workers": workers, "paced": paced, "log_dir": str(log_dir), "runs": runs}


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at ``x``, linear between the points (x, y), which ascend by x, and constant outside."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y1
    return points[0][1] if x < points[0][0] else points[-1][1]
