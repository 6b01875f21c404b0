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
    step_weights = np.ones(max(run.steps, 1))
    for decision in sorted(run.turns, key=lambda decision: decision.step):
        step_weights[decision.step :] = 1 / (decision.cf * decision.every) if decision.cf > 0 else 1.0
    sent_mb_by_step = np.concatenate([[0.0], np.cumsum(step_weights)])
    sent_mb_by_step *= run.wire_bytes / 1e6 / sent_mb_by_step[-1]
    return [float(sent_mb_by_step[min(point.step, run.steps)]) if point.step else math.nan for point in run.curve]


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
    all_metrics: list[float] = []
    for row in section.rows:
        look, z_order = looks[row.method], 2.2 if row.adaptive else 2.1
        plotted_curves = [_plotted_curve(run.curve, x_of_run(run)) for run in row.runs]
        plotted_curves = [plotted_curve for plotted_curve in plotted_curves if len(plotted_curve.steps)]
        for plotted_curve in plotted_curves:
            all_metrics += [float(metric) for metric in plotted_curve.metric if math.isfinite(metric)]
            if len(plotted_curves) > 1:
                axes.plot(
                    plotted_curve.x,
                    plotted_curve.metric,
                    color=look.colour,
                    linestyle=look.dash,
                    linewidth=0.7,
                    alpha=0.35,
                    zorder=z_order,
                )
        if plotted_curves:
            axes.plot(
                *_median_curve(plotted_curves),
                color=look.colour,
                linestyle=look.dash,
                linewidth=look.width,
                label=legend_label(row),
                zorder=z_order,
            )
    run = section.run
    axes.axhline(run.target, color=INK_COLOUR, linewidth=1, linestyle=(0, (1, 2)), label="target", zorder=2.3)
    axes.set_ylabel(escape_formula(run.metric))
    _set_y_limits(axes, all_metrics, section)


class PlottedCurve(NamedTuple):
    """The curve of one run to plot, arrays of shape ``(points,)``.

    Attributes:
        steps: number of steps at each point.
        x: x coordinate of each point.
        metric: validation metric at each point.
    """

    steps: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    metric: npt.NDArray[np.float64]


def _plotted_curve(curve: Sequence[CurvePoint], x_coordinates: Sequence[float]) -> PlottedCurve:
    """Return a run's curve with the x coordinates ``x_coordinates``, without points whose coordinate is not finite."""
    finite_points = [(point, x) for point, x in zip(curve, x_coordinates, strict=False) if math.isfinite(x)]
    return PlottedCurve(
        np.array([point.step for point, _ in finite_points], dtype=float),
        np.array([x for _, x in finite_points], dtype=float),
        np.array([point.metric for point, _ in finite_points], dtype=float),
    )


def _median_curve(curves: Sequence[PlottedCurve]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the median x coordinate and the median metric over runs, at each step of the first run's curve.

    Steps after the end of the shortest run are left out.
    """
    steps = curves[0].steps
    steps = steps[steps <= min(curve.steps[-1] for curve in curves)]
    return (
        np.median([np.interp(steps, curve.steps, curve.x) for curve in curves], axis=0),
        np.median([np.interp(steps, curve.steps, curve.metric) for curve in curves], axis=0),
    )


def _set_y_limits(axes: Axes, all_metrics: Sequence[float], section: Section) -> None:
    """Limit the y axis to the range from the median initial metric to the best metric, with a margin.

    The target counts as a metric. The curve of a run that diverges is cut off at the edge of the figure.

    Args:
        axes: axes to set the limits of.
        all_metrics: all metrics in the figure.
        section: section of the report, which has the runs.
    """
    run = section.run
    initial_metrics = [seed_run.curve[0].metric for row in section.rows for seed_run in row.runs if seed_run.curve]
    initial_metrics = [metric for metric in initial_metrics if math.isfinite(metric)]
    if not all_metrics or not initial_metrics:
        return
    best_metric = (max if run.higher_is_better else min)([*all_metrics, run.target])
    initial_metric = float(np.median(initial_metrics))
    margin = 0.05 * abs(best_metric - initial_metric) or 1.0
    limits = (
        (initial_metric - margin, best_metric + margin)
        if run.higher_is_better
        else (best_metric - margin, initial_metric + margin)
    )
    axes.set_ylim(limits)
