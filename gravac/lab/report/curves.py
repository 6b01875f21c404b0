# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Draws the validation metric against time, steps or bytes: each seed's run, and their median. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gravac.lab.report.style import (
    INK_COLOUR,
    Looks,
    add_title_and_legend,
    escape_formula,
    figure_title,
    label_log_axis,
    legend_label,
    single_axes,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import CurvePoint, TrainingRecord


def metric_against_time(section: Section, looks: Looks) -> Figure:
    """Return a figure of each method's validation metric over seconds of training."""
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, lambda run: [point.seconds for point in run.curve])
    axes.set_xlabel("training time, without evaluation [s]")
    return add_title_and_legend(figure, axes, figure_title(section, "Metric against time"))


def metric_against_steps(section: Section, looks: Looks) -> Figure:
    """Return a figure of each method's validation metric over steps, to show the progress that compression loses."""
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, lambda run: [float(point.step) for point in run.curve])
    axes.set_xlabel("steps")
    return add_title_and_legend(figure, axes, figure_title(section, "Metric against steps"))


def metric_against_bytes(section: Section, looks: Looks) -> Figure | None:
    """Return a figure of each method's metric over the megabytes that a rank sent; ``None`` if no bytes are known."""
    if not any(row.bytes_per_step for row in section.rows):
        return None
    figure, axes = single_axes(4.6)
    _plot_curves(axes, section, looks, megabytes_sent)
    axes.set_xscale("log")
    axes.set_xlabel("sent by one rank [MB]")
    label_log_axis(axes, "x")
    return add_title_and_legend(figure, axes, figure_title(section, "Metric against bytes sent"))


def megabytes_sent(run: TrainingRecord) -> list[float]:
    """Return the megabytes that a rank had sent at each point of a run's curve; an empty list if they are not known.

    The run's total is known; the bytes of each step are estimated in proportion to 1 / (CF x steps per exchange). A
    point before the first step has nan, since a logarithmic axis has no zero.
    """
    if run.wire_bytes is None:
        return []
    weights = np.ones(max(run.steps, 1))
    for decision in sorted(run.turns, key=lambda decision: decision.step):
        weights[decision.step :] = 1 / (decision.cf * decision.every) if decision.cf > 0 else 1.0
    sent_mb = np.concatenate([[0.0], np.cumsum(weights)])
    sent_mb *= run.wire_bytes / 1e6 / sent_mb[-1]
    return [float(sent_mb[min(point.step, run.steps)]) if point.step else math.nan for point in run.curve]


def _plot_curves(
    axes: Axes, section: Section, looks: Looks, x_of_run: Callable[[TrainingRecord], Sequence[float]]
) -> None:
    """Plot each seed's run as a thin line, and the median over seeds as a thick line; adaptive methods on top.

    Args:
        axes: axes to plot into.
        section: section of the report, which has the runs.
        looks: colour, line style and marker of each method.
        x_of_run: function that takes the record of a run and returns the x coordinate of each point of its curve;
            empty: the run is not plotted.
    """
    metrics: list[float] = []
    for row in section.rows:
        look, layer = looks[row.method], 2.2 if row.adaptive else 2.1
        tracks = [_track(run.curve, x_of_run(run)) for run in row.runs]
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
                label=legend_label(row),
                zorder=layer,
            )
    run = section.run
    axes.axhline(run.target, color=INK_COLOUR, linewidth=1, linestyle=(0, (1, 2)), label="target", zorder=2.3)
    axes.set_ylabel(escape_formula(run.metric))
    _set_y_limits(axes, metrics, section)


class Track(NamedTuple):
    """The curve of one run to plot, arrays of shape ``(points,)``.

    Attributes:
        steps: number of steps at each point.
        x: x coordinate of each point.
        metric: validation metric at each point.
    """

    steps: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    metric: npt.NDArray[np.float64]


def _track(curve: Sequence[CurvePoint], xs: Sequence[float]) -> Track:
    """Return a run's curve with the x coordinates ``xs``, without points whose coordinate is not finite."""
    points = [(point, x) for point, x in zip(curve, xs, strict=False) if math.isfinite(x)]
    return Track(
        np.array([point.step for point, _ in points], dtype=float),
        np.array([x for _, x in points], dtype=float),
        np.array([point.metric for point, _ in points], dtype=float),
    )


def _median(tracks: Sequence[Track]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the median x coordinate and the median metric over runs, at each step of the first run's curve.

    Steps after the end of the shortest run are left out.
    """
    steps = tracks[0].steps
    steps = steps[steps <= min(track.steps[-1] for track in tracks)]
    return (
        np.median([np.interp(steps, track.steps, track.x) for track in tracks], axis=0),
        np.median([np.interp(steps, track.steps, track.metric) for track in tracks], axis=0),
    )


def _set_y_limits(axes: Axes, metrics: Sequence[float], section: Section) -> None:
    """Limit the y axis to the range from the median initial metric to the best metric, with a margin.

    The target counts as a metric. The curve of a run that diverges is cut off at the edge of the figure.

    Args:
        axes: axes to set the limits of.
        metrics: all metrics in the figure.
        section: section of the report, which has the runs.
    """
    run = section.run
    initial_metrics = [row_run.curve[0].metric for row in section.rows for row_run in row.runs if row_run.curve]
    initial_metrics = [metric for metric in initial_metrics if math.isfinite(metric)]
    if not metrics or not initial_metrics:
        return
    best = (max if run.higher_is_better else min)([*metrics, run.target])
    initial = float(np.median(initial_metrics))
    margin = 0.05 * abs(best - initial) or 1.0
    limits = (initial - margin, best + margin) if run.higher_is_better else (best - margin, initial + margin)
    axes.set_ylim(limits)
