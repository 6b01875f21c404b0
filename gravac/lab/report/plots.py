# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Draws times, bytes, decisions and phases of steps, a function for each figure. Needs matplotlib.

``curves.py`` draws the validation metric. No function uses matplotlib's global state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gravac.lab.report.numbers import BASELINE, ReportRow
from gravac.lab.report.style import (
    INK_COLOUR,
    PALE_COLOUR,
    Looks,
    add_title_and_legend,
    empty_figure,
    figure_title,
    label_log_axis,
    legend_label,
    single_axes,
    tidy_axes,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import DecisionPoint, Split, TrainingRecord


def time_to_target(section: Section, looks: Looks) -> Figure:
    """Return a figure with a bar for each method's time to the target, shortest on top.

    The times are divided by the limit, the median time of fp32 on an unthrottled link. They are in seconds if the limit
    is not known.
    """
    rows = section.rows
    unit_s = section.limit or 1.0
    figure, axes = single_axes(1.6 + 0.34 * len(rows))
    shortest_time = min(row.tta.low for row in rows) / unit_s
    left_end = (min(0.8, 0.8 * shortest_time) if section.limit else 0.6 * shortest_time) or 0.1
    for position, row in enumerate(rows):
        _draw_bar(axes, position, row, unit_s, left_end, looks[row.method].colour)
    axes.set_yticks(range(len(rows)), [legend_label(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    longest_time = max(2 * left_end, *(row.tta.high / unit_s for row in rows))
    axes.set_xlim(left_end, longest_time * (longest_time / left_end) ** 0.16)
    label_log_axis(axes, "x")
    if section.limit:
        axes.axvline(1, color=INK_COLOUR, linewidth=1.4, label=f"the limit: {section.limit:.3g} s")
    baseline = section.row(BASELINE)
    if baseline is not None and baseline.tta.exact:
        axes.axvline(
            baseline.tta.median / unit_s,
            color=PALE_COLOUR,
            linewidth=1.4,
            linestyle="--",
            label=f"{BASELINE} on this link",
        )
    handles, _ = axes.get_legend_handles_labels()
    if any(not row.tta.exact for row in rows):
        handles.append(Patch(facecolor="white", edgecolor=PALE_COLOUR, hatch="////", label="> target not reached"))
    axes.set_xlabel("time to target / the limit" if section.limit else "time to target [s] (the limit was not run)")
    axes.grid(axis="y", visible=False)
    axes.set_title(
        figure_title(section, "Time to target: median, whiskers from shortest to longest"), fontsize=11, loc="left"
    )
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_bar(axes: Axes, y: int, row: ReportRow, unit_s: float, left_end: float, colour: str) -> None:
    """Draw a method's time to target as a bar, hatched if the median is only a bound, with a whisker over seeds.

    Args:
        axes: axes to draw into.
        y: y coordinate of the bar.
        row: numbers of the method.
        unit_s: seconds that are 1 on the x axis.
        left_end: x coordinate at which the bar begins.
        colour: colour of the method.
    """
    tta = row.tta.in_units_of(unit_s)
    is_bound = not tta.exact
    axes.barh(
        y,
        tta.median - left_end,
        left=left_end,
        height=0.68,
        color="white" if is_bound else colour,
        edgecolor=colour,
        hatch="////" if is_bound else None,
        alpha=1.0 if row.adaptive or is_bound else 0.75,
        linewidth=1.0,
    )
    if row.tta.runs > 1:
        axes.plot([tta.low, tta.high], [y, y], color=INK_COLOUR, linewidth=1.3, marker="|", markersize=8)
    axes.annotate(
        f"{tta.median_sign}{tta.median:.3g}",
        (max(tta.median, tta.high), y),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6},
        fontweight="bold" if row.adaptive else "normal",
    )


def frontier(section: Section, looks: Looks) -> Figure | None:
    """Return a figure of (steps to the target / fp32's steps) against bytes per step, with a mark for each method.

    ``None`` if the steps of fp32 are not known, or if no method's bytes are known.
    """
    rows = [row for row in section.rows if row.bytes_per_step]
    if not section.dense_steps or not rows:
        return None
    figure, axes = single_axes(4.6)
    rows_with_coordinates = [
        (row, float(row.bytes_per_step or 0) / 1e6, row.steps.median / section.dense_steps) for row in rows
    ]
    rows_with_coordinates = [
        (row, megabytes, steps_ratio)
        for row, megabytes, steps_ratio in rows_with_coordinates
        if row.steps.exact or steps_ratio >= 1
    ]
    for row, megabytes, steps_ratio in rows_with_coordinates:
        look = looks[row.method]
        face_colour = look.colour if row.steps.exact else "white"
        axes.plot(
            megabytes,
            steps_ratio,
            marker=look.mark,
            markersize=10 if row.adaptive else 8,
            color=look.colour,
            markerfacecolor=face_colour,
            linestyle="",
            label=legend_label(row) if row.steps.exact else f"{legend_label(row)}: not reached",
            zorder=3,
        )
        if not row.steps.exact:
            axes.annotate(
                ">",
                (megabytes, steps_ratio),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                rotation=90,
                fontsize=9,
            )
    frontier_points = pareto(
        [(megabytes, steps_ratio) for row, megabytes, steps_ratio in rows_with_coordinates if row.steps.exact]
    )
    axes.plot(
        [x for x, _ in frontier_points],
        [y for _, y in frontier_points],
        color=INK_COLOUR,
        linewidth=1,
        label="frontier",
        zorder=1,
    )
    axes.axhline(1, color=PALE_COLOUR, linewidth=1, linestyle="--", zorder=0)
    axes.set_xscale("log")
    label_log_axis(axes, "x")
    axes.set_xlabel("bytes sent by one rank in a step [MB]")
    axes.set_ylabel("steps to target / fp32's steps to target")
    lowest_y, highest_y = axes.get_ylim()
    axes.set_ylim(lowest_y, highest_y + 0.06 * (highest_y - lowest_y))
    return add_title_and_legend(
        figure, axes, figure_title(section, "Rate and distortion: fewer bytes against more steps")
    )


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front by ascending x: points (x, y) that no other point matches or beats in both x and y.

    Example:
        >>> pareto([(1, 3), (2, 2), (3, 2.5)])
        [(1, 3), (2, 2)]
    """
    frontier_points: list[tuple[float, float]] = []
    for point in sorted(points):
        if not frontier_points or point[1] < frontier_points[-1][1]:
            frontier_points.append(point)
    return frontier_points


def changed_decisions(run: TrainingRecord) -> list[DecisionPoint]:
    """Return the decisions of a run that changed the candidate, in order; ``decision_figure`` numbers them from 1."""
    return [decision for decision in run.turns if decision.changed]


def decision_figure(section: Section, run: TrainingRecord, looks: Looks) -> Figure | None:
    """Return a figure of an adaptive run's CF and gain over time, with numbered changes of the candidate.

    ``None`` if the run has no decisions.
    """
    if not run.turns:
        return None
    figure = empty_figure(4.8)
    cf_axes, gain_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    has_times = all(decision.seconds is not None for decision in run.turns)

    def x_of(decision: DecisionPoint) -> float:
        return float(decision.step) if not has_times or decision.seconds is None else decision.seconds

    x_end = run.seconds if has_times else float(run.steps)
    colour = looks[run.method].colour
    x_of_decisions = [x_of(decision) for decision in run.turns]
    cfs = [decision.cf for decision in run.turns]
    cf_axes.step([*x_of_decisions, max(x_end, x_of_decisions[-1])], [*cfs, cfs[-1]], where="post", color=colour)
    cf_axes.lines[0].set_linewidth(2.2)
    cf_axes.set_yscale("log")
    label_log_axis(cf_axes, "y")
    cf_axes.set_ylabel("compression factor (CF)")
    gain_points = [
        (x_of(decision), decision.gain)
        for decision in run.turns
        if decision.gain is not None and math.isfinite(decision.gain)
    ]
    gain_axes.plot(
        [x for x, _ in gain_points], [y for _, y in gain_points], color=colour, marker="o", markersize=4, linewidth=1.2
    )
    gain_axes.set_ylabel("gain of the window")
    gain_axes.set_xlabel("training time, without evaluation [s]" if has_times else "steps")
    for axes in (cf_axes, gain_axes):
        tidy_axes(axes)
        for decision in changed_decisions(run):
            axes.axvline(x_of(decision), color=PALE_COLOUR, linewidth=0.8, linestyle=":", zorder=0)
    _number_changes(cf_axes, [x_of(decision) for decision in changed_decisions(run)], max(x_end, x_of_decisions[-1]))
    figure.suptitle(
        figure_title(section, f"Decisions of {run.method}, seed {run.seed}"),
        fontsize=11,
        x=0.01,
        horizontalalignment="left",
    )
    return figure


def _number_changes(axes: Axes, x_of_changes: Sequence[float], x_end: float) -> None:
    """Write numbers from 1 above changes, in up to three rows; leave out a number that has no room in any row.

    Args:
        axes: axes to write above.
        x_of_changes: x coordinate of each change.
        x_end: highest x coordinate of the axes.
    """
    latest_x_of_rows = [-math.inf] * 3  # x of the latest number in each row
    for number, x in enumerate(x_of_changes, start=1):
        text_row = next((text_row for text_row in range(3) if x - latest_x_of_rows[text_row] >= 0.028 * x_end), None)
        if text_row is None:
            continue
        latest_x_of_rows[text_row] = x
        axes.annotate(
            str(number),
            (x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 11 * text_row),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK_COLOUR,
        )


Phase = tuple[str, str, Callable[[Split], float | None]]
"""Phase of a step: colour, label, and a function that takes the ``split`` of a run and returns the phase's seconds.

The function returns ``None`` if the seconds are not known.
"""

_SEQUENTIAL_PHASES: tuple[Phase, ...] = (
    ("#56b4e9", "compute", lambda split: split.compute),
    ("#d55e00", "exposed exchange", lambda split: split.exposed),
    ("#999999", "input wait", lambda split: split.input_wait),
)
"""Phases that follow one another, so that their seconds add up to the seconds of the step."""

_OVERLAPPING_PHASES: tuple[Phase, ...] = (
    ("#009e73", "compress (overlaps)", lambda split: split.compress),
    ("#f0b68a", "exchange (overlaps)", lambda split: split.exchange),
)
"""Phases that overlap with backward."""


def timeline(section: Section) -> Figure | None:
    """Return a figure of the milliseconds of each phase of a typical step, with two bars for each method.

    The upper bar has the phases that follow one another, the lower bar the phases that overlap with backward. ``None``
    if no run has the times of phases.
    """
    rows = [row for row in section.rows if any(run.split for run in row.runs)]
    if not rows:
        return None
    figure, axes = single_axes(1.7 + 0.42 * len(rows))
    positions, longest_ms = np.arange(len(rows)), 0.0
    for phases, offset, height in ((_SEQUENTIAL_PHASES, -0.12, 0.44), (_OVERLAPPING_PHASES, 0.25, 0.2)):
        bar_ends = np.zeros(len(rows))
        for colour, label, get_seconds in phases:
            phase_ms = np.array([_median_ms(row, get_seconds) for row in rows])
            axes.barh(
                positions + offset, phase_ms, left=bar_ends, height=height, color=colour, linewidth=0, label=label
            )
            bar_ends += phase_ms
        longest_ms = max([longest_ms, *bar_ends])
    axes.set_yticks(positions, [legend_label(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, longest_ms * 1.03 or 1)
    axes.set_xlabel("time of a median step on rank 0 [ms]")
    axes.grid(axis="y", visible=False)
    axes.set_title(
        figure_title(section, "A step: sequential phases above, phases that overlap with backward below"),
        fontsize=11,
        loc="left",
    )
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _median_ms(row: ReportRow, get_seconds: Callable[[Split], float | None]) -> float:
    """Return the milliseconds of a phase of a method's step: median over its runs; 0 if no run recorded the phase.

    Args:
        row: the method's runs.
        get_seconds: function that takes a run's ``split`` and returns the phase's seconds; ``None`` if not recorded.
    """
    phase_seconds = [
        seconds for run in row.runs if run.split is not None and (seconds := get_seconds(run.split)) is not None
    ]
    return float(np.median(phase_seconds)) * 1e3 if phase_seconds else 0.0
