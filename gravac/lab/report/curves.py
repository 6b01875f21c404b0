# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Figures of the metric against time, steps and bytes: each seed's run, and the median over seeds. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gravac.lab.report.style import (
    INK,
    Looks,
    escape_formula,
    finish,
    label_log_axis,
    label_of,
    single_axes,
    title,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import CurvePoint, TrainingRecord


def metric_against_time(section: Section, looks: Looks) -> Figure:
    """Draw the metric of each method over training time."""
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, lambda run: [point.seconds for point in run.curve])
    axes.set_xlabel("training time, without evaluation [s]")
    return finish(figure, axes, title(section, "Metric against time"))


def metric_against_steps(section: Section, looks: Looks) -> Figure:
    """Draw the metric of each method over steps: the progress lost by compression, whatever the link."""
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, lambda run: [float(point.step) for point in run.curve])
    axes.set_xlabel("steps")
    return finish(figure, axes, title(section, "Metric against steps"))


def metric_against_bytes(section: Section, looks: Looks) -> Figure | None:
    """Draw the metric of each method over the bytes that a rank sent; ``None`` if no method's bytes are known."""
    if not any(row.bytes_per_step for row in section.rows):
        return None
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, bytes_sent)
    axes.set_xscale("log")
    axes.set_xlabel("sent by one rank [MB]")
    label_log_axis(axes, "x")
    return finish(figure, axes, title(section, "Metric against bytes sent"))


def bytes_sent(run: TrainingRecord) -> list[float]:
    """Return megabytes sent at each point of the curve: the run's total, divided over steps by 1 / (CF * every).

    Nan before the first step: a logarithmic axis has no zero.
    """
    if run.wire_bytes is None:
        return []
    weights = np.ones(max(run.steps, 1))
    for decision in sorted(run.turns, key=lambda decision: decision.step):
        weights[decision.step :] = 1 / (decision.cf * decision.every) if decision.cf > 0 else 1.0
    total = np.concatenate([[0.0], np.cumsum(weights)])
    total *= run.wire_bytes / 1e6 / total[-1]
    return [float(total[min(point.step, run.steps)]) if point.step else math.nan for point in run.curve]


def _plot_curves(
    axes: Axes, section: Section, looks: Looks, along: Callable[[TrainingRecord], Sequence[float]]
) -> None:
    """Plot each seed's run thin and the median over seeds thick, adaptive methods above the others.

    Args:
        axes: axes to plot into.
        section: section of the report.
        looks: looks of the methods.
        along: function that returns the x coordinate of each point of a run's curve.
    """
    metrics: list[float] = []
    for row in section.rows:
        look, layer = looks[row.method], 2.2 if row.adaptive else 2.1
        tracks = [_track(run.curve, along(run)) for run in row.runs]
        tracks = [track for track in tracks if len(track.steps)]
        for track in tracks:
            metrics += [float(metric) for metric in track.metric if math.isfinite(metric)]
            if len(tracks) > 1:
                axes.plot(
                    track.x,
                    track.metric,
                    color=look.colour,
                    linestyle=look.dash,
                    linewidth=0.7,
                    alpha=0.35,
                    zorder=layer,
                )
        if tracks:
            axes.plot(
                *_median(tracks),
                color=look.colour,
                linestyle=look.dash,
                linewidth=look.width,
                label=label_of(row),
                zorder=layer,
            )
    run = section.run
    axes.axhline(run.target, color=INK, linewidth=1, linestyle=(0, (1, 2)), label="target", zorder=2.3)
    axes.set_ylabel(escape_formula(run.metric))
    _set_y_limits(axes, metrics, section)


class Track(NamedTuple):
    """The curve of one run.

    Attributes:
        steps: number of steps of each point.
        x: x coordinate of each point.
        metric: metric of each point.
    """

    steps: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    metric: npt.NDArray[np.float64]


def _track(curve: Sequence[CurvePoint], along: Sequence[float]) -> Track:
    points = [(point, x) for point, x in zip(curve, along, strict=False) if math.isfinite(x)]
    return Track(
        np.array([point.step for point, _ in points], dtype=float),
        np.array([x for _, x in points], dtype=float),
        np.array([point.metric for point, _ in points], dtype=float),
    )


def _median(tracks: Sequence[Track]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return median x coordinates and metrics over seeds, step by step, up to the end of the shortest run."""
    steps = tracks[0].steps
    steps = steps[steps <= min(track.steps[-1] for track in tracks)]
    return (
        np.median([np.interp(steps, track.steps, track.x) for track in tracks], axis=0),
        np.median([np.interp(steps, track.steps, track.metric) for track in tracks], axis=0),
    )


def _set_y_limits(axes: Axes, metrics: Sequence[float], section: Section) -> None:
    """Set the y limits from a little beyond the best metric to the initial metric; diverging curves leave the figure.

    Args:
        axes: axes to set the limits of.
        metrics: all metrics in the figure.
        section: section of the report.
    """
    run = section.run
    initial = [each.curve[0].metric for row in section.rows for each in row.runs if each.curve]
    initial = [metric for metric in initial if math.isfinite(metric)]
    if not metrics or not initial:
        return
    best = (max if run.higher_is_better else min)([*metrics, run.target])
    begin = float(np.median(initial))
    margin = 0.05 * abs(best - begin) or 1.0
    ends = (begin - margin, best + margin) if run.higher_is_better else (best - margin, begin + margin)
    axes.set_ylim(*ends)
