# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Results of the demo: the numbers of each run, a comparison of all runs, and both as JSON."""

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
    "adaptive": "gravac",
    "adaptive-100": "gravac, every=(1, 100)",
}
"""Label of each method in tables and plots: its number format, or ``gravac`` with its argument of the compressor."""

DRAW_MARGIN = 0.01
"""Two validation losses count as equal if they differ by less, in nats; another seed changes a loss by as much."""


@dataclass(frozen=True)
class DemoOutcome:
    """Result of a run of the demo, in which a model trained with one method.

    Attributes:
        method: name of the method, a key of ``LABELS``.
        steps: number of training steps.
        seconds: training time without evaluations, in seconds.
        samples_per_s: samples per second over all ranks.
        wire_bytes: bytes that a rank sent in the whole run. With emulated links: as the network interfaces counted,
            mean over the ranks. Otherwise: as counted or computed for rank 0.
        curve: validation loss (nats) at each evaluation, from the start to the end of the run.
        cf_path: a dict for the first candidate (way to run steps) and for each later one, in order. The keys are
            ``"step"`` (the candidate's first step), ``"mode"``, ``"compressor"``, ``"cf"``, ``"every"``, ``"delay"``,
            ``"sends"`` (missing in older files) and ``"reason"``.
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
        """Label of the method in tables and plots."""
        return LABELS.get(self.method, self.method)

    def fraction_by_mode(self) -> dict[Mode, float]:
        """Return the fraction of the run's steps in each mode that occurred: ``native``, ``hook`` or ``outer``."""
        end_steps = [*(change["step"] for change in self.cf_path[1:]), self.steps]
        steps_by_mode: Counter[Mode] = Counter()
        for change, end_step in zip(self.cf_path, end_steps, strict=True):
            steps_by_mode[change["mode"]] += max(0, min(end_step, self.steps) - change["step"])
        return {mode: steps / self.steps for mode, steps in steps_by_mode.items()}

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a rank sent in the run / number of steps."""
        return self.wire_bytes / self.steps

    @property
    def val_loss(self) -> float:
        """Validation loss at the end of the run, nats."""
        return self.curve[-1].metric

    def loss_at_step(self, step: float) -> float:
        """Return the validation loss (nats) after a number of steps, interpolated linearly between evaluations."""
        return _interpolate([(point.step, point.metric) for point in self.curve], step)

    def loss_at_time(self, seconds: float) -> float:
        """Return the validation loss (nats) at a training time of ``seconds``, linear between two evaluations."""
        return _interpolate([(point.seconds, point.metric) for point in self.curve], seconds)

    def time_to_loss(self, loss: float) -> float | None:
        """Return the seconds of training until the validation loss first reached ``loss`` (nats); ``None`` if never."""
        first_seconds_and_step = first_reached(self.curve, loss, higher_is_better=False)
        return first_seconds_and_step[0] if first_seconds_and_step else None


@dataclass(frozen=True)
class Comparison:
    """Comparison of the demo's runs, which train for about the same time.

    Attributes:
        outcomes: result of the run of each method in ``LABELS``.
    """

    outcomes: tuple[DemoOutcome, ...]

    def __getitem__(self, method: str) -> DemoOutcome:
        return next(outcome for outcome in self.outcomes if outcome.method == method)

    @property
    def equal_steps(self) -> int:
        """Number of steps of the run with the fewest steps; all other runs made at least as many."""
        return min(outcome.steps for outcome in self.outcomes)

    @property
    def equal_seconds(self) -> float:
        """Training time of the shortest run, in seconds; all other runs trained at least as long."""
        return min(outcome.seconds for outcome in self.outcomes)

    def wire_ratio(self, outcome: DemoOutcome) -> float:
        """Return bytes per step of the dense float32 run / bytes per step of ``outcome``; inf if the latter is 0."""
        return self["dense-fp32"].bytes_per_step / outcome.bytes_per_step if outcome.bytes_per_step else float("inf")

    @property
    def target(self) -> float:
        """Final validation loss of the run with dense float16 gradients, in nats, which other runs are to reach."""
        return self["dense-fp16"].val_loss

    @property
    def speed_up(self) -> float | None:
        """Seconds in which float16 reached its own final loss / seconds in which gravac reached that loss.

        gravac here is the run that averages in each step. ``None`` if gravac did not reach the loss.
        """
        adaptive_s, dense_s = self["adaptive"].time_to_loss(self.target), self["dense-fp16"].time_to_loss(self.target)
        return dense_s / adaptive_s if adaptive_s and dense_s else None

    def verdict(self) -> str:
        """Return a text that says whether gravac, averaging in each step, reached a lower loss than dense gradients.

        The losses are those after ``equal_seconds``. gravac competes with the better one of float32 and float16.
        """
        adaptive_loss = self["adaptive"].loss_at_time(self.equal_seconds)
        best_dense = min(
            (self["dense-fp32"], self["dense-fp16"]), key=lambda outcome: outcome.loss_at_time(self.equal_seconds)
        )
        dense_loss = best_dense.loss_at_time(self.equal_seconds)
        after_text = f"after {self.equal_seconds:.0f} s"
        loss_text = f"validation loss {adaptive_loss:.3f} against {dense_loss:.3f} of {best_dense.label} {after_text}"
        if abs(adaptive_loss - dense_loss) < DRAW_MARGIN:
            return f"A draw: {loss_text}. The simpler method is then the better choice: {best_dense.label}."
        if adaptive_loss > dense_loss:
            advice = f"On this link, with this model and in this time, use {best_dense.label}."
            return f"gravac LOST: {loss_text}. {advice}"
        if self.speed_up is None:
            return f"gravac won: {loss_text}."
        speed_up_text = f"{self.speed_up:.1f} times as fast as float16"
        return f"gravac won: {loss_text}. gravac reached the final loss of float16 {speed_up_text}."

    def verdict_of_outer_steps(self) -> str:
        """Return a text that says whether allowing outer steps (up to 100 steps between exchanges) lowered the loss.

        The text compares gravac's run with ``every=(1, 100)`` and its run with ``every=1``, after ``equal_seconds``.
        """
        losses = [self[method].loss_at_time(self.equal_seconds) for method in ("adaptive-100", "adaptive")]
        loss_text = (
            f"validation loss {losses[0]:.3f} against {losses[1]:.3f} of gravac after {self.equal_seconds:.0f} s"
        )
        if abs(losses[0] - losses[1]) < DRAW_MARGIN:
            return f"With every=(1, 100), a draw: {loss_text}."
        return f"With every=(1, 100), gravac {'won' if losses[0] < losses[1] else 'LOST'}: {loss_text}."

    def to_json(self, *, rate: float, workers: int, paced: bool, log_dir: Path) -> dict[str, Any]:
        """Return the settings and the results of all runs as a dict of JSON types, in the units of ``DemoOutcome``.

        Args:
            rate: bits per second of each worker's link.
            workers: number of workers.
            paced: whether gravac slept in exchanges to imitate a slow link, instead of using emulated links.
            log_dir: folder of the TensorBoard logs.
        """
        run_fields = [
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
        return {"rate": rate, "workers": workers, "paced": paced, "log_dir": str(log_dir), "runs": run_fields}


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at ``x``, interpolated linearly between points; outside the points, the y of the nearest point.

    Args:
        points: pairs ``(x, y)``, by ascending x.
        x: where to interpolate.
    """
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y1
    return points[0][1] if x < points[0][0] else points[-1][1]
