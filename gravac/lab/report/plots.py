# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's other figures, one function each, without matplotlib's global state. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gravac.lab.report.numbers import BASELINE, ReportRow
from gravac.lab.report.style import (
    INK,
    PALE,
    Looks,
    empty_figure,
    finish,
    label_log_axis,
    label_of,
    single_axes,
    tidy,
    title,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import DecisionPoint, Split, TrainingRecord


def time_to_target(section: Section, looks: Looks) -> Figure:
    """Draw times to target as bars, shortest on top, relative to the limit, or in seconds if the limit is not known."""
    rows = section.rows
    unit_s = section.limit or 1.0
    figure, axes = single_axes(1.6 + 0.34 * len(rows))
    lowest = min(row.tta.low for row in rows) / unit_s
    left_end = (min(0.8, 0.8 * lowest) if section.limit else 0.6 * lowest) or 0.1
    for position, row in enumerate(rows):
        _draw_bar(axes, position, row, unit_s, left_end, looks[row.method].colour)
    axes.set_yticks(range(len(rows)), [label_of(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    highest = max(2 * left_end, *(row.tta.high / unit_s for row in rows))
    axes.set_xlim(left_end, highest * (highest / left_end) ** 0.16)
    label_log_axis(axes, "x")
    if section.limit:
        axes.axvline(1, color=INK, linewidth=1.4, label=f"the limit: {section.limit:.3g} s")
    baseline = section.row(BASELINE)
    if baseline is not None and baseline.tta.exact:
        axes.axvline(baseline.tta.median / unit_s, color=PALE, linewidth=1.4, linestyle="--", label=f"{BASELINE} here")
    handles, _ = axes.get_legend_handles_labels()
    if any(not row.tta.exact for row in rows):
        handles.append(Patch(facecolor="white", edgecolor=PALE, hatch="////", label="> target not reached"))
    axes.set_xlabel("time to target / the limit" if section.limit else "time to target [s] (the limit was not run)")
    axes.grid(axis="y", visible=False)
    axes.set_title(title(section, "Time to target: median, whiskers from least to most"), fontsize=11, loc="left")
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_bar(axes: Axes, position: int, row: ReportRow, unit_s: float, left_end: float, colour: str) -> None:
    """Draw a method's bar, with whiskers over seeds, hatched if the target was not reached.

    Args:
        axes: axes to draw into.
        position: y coordinate of the bar.
        row: row of the method.
        unit_s: seconds to which times are relative.
        left_end: x coordinate at which the bar begins.
        colour: colour of the method.
    """
    tta = row.tta.over(unit_s)
    open_end = not tta.exact
    axes.barh(
        position,
        tta.median - left_end,
        left=left_end,
        height=0.68,
        color="white" if open_end else colour,
        edgecolor=colour,
        hatch="////" if open_end else None,
        alpha=1.0 if row.adaptive or open_end else 0.75,
        linewidth=1.0,
    )
    if row.tta.runs > 1:
        axes.plot([tta.low, tta.high], [position, position], color=INK, linewidth=1.3, marker="|", markersize=8)
    axes.annotate(
        f"{tta.sense}{tta.median:.3g}",
        (max(tta.median, tta.high), position),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6},
        fontweight="bold" if row.adaptive else "normal",
    )


def frontier(section: Section, looks: Looks) -> Figure | None:
    """Draw steps to the target against bytes per step; ``None`` if steps of fp32, or all bytes, are not known."""
    rows = [row for row in section.rows if row.bytes_per_step]
    if not section.dense_steps or not rows:
        return None
    figure, axes = single_axes(4.6)
    spots = [(row, float(row.bytes_per_step or 0) / 1e6, row.steps.median / section.dense_steps) for row in rows]
    spots = [(row, megabytes, steps) for row, megabytes, steps in spots if row.steps.exact or steps >= 1]
    for row, megabytes, steps in spots:
        look = looks[row.method]
        face = look.colour if row.steps.exact else "white"
        axes.plot(
            megabytes,
            steps,
            marker=look.mark,
            markersize=10 if row.adaptive else 8,
            color=look.colour,
            markerfacecolor=face,
            linestyle="",
            label=label_of(row) if row.steps.exact else f"{label_of(row)}: not reached",
            zorder=3,
        )
        if not row.steps.exact:
            axes.annotate(
                ">", (megabytes, steps), xytext=(0, 7), textcoords="offset points", ha="center", rotation=90, fontsize=9
            )
    best = pareto([(megabytes, steps) for row, megabytes, steps in spots if row.steps.exact])
    axes.plot([x for x, _ in best], [y for _, y in best], color=INK, linewidth=1, label="frontier", zorder=1)
    axes.axhline(1, color=PALE, linewidth=1, linestyle="--", zorder=0)
    axes.set_xscale("log")
    label_log_axis(axes, "x")
    axes.set_xlabel("bytes sent by one rank in a step [MB]")
    axes.set_ylabel("steps to target / those of fp32")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.06 * (high - low))
    return finish(figure, axes, title(section, "Rate and distortion: fewer bytes against more steps"))


def pareto(spots: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spots that no other spot beats in both numbers, ascending by the first number.

    Example:
        >>> pareto([(1, 3), (2, 2), (3, 2.5)])
        [(1, 3), (2, 2)]
    """
    efficient: list[tuple[float, float]] = []
    for spot in sorted(spots):
        if not efficient or spot[1] < efficient[-1][1]:
            efficient.append(spot)
    return efficient


def changes(run: TrainingRecord) -> list[DecisionPoint]:
    """Return the decisions that changed something, in order; the figure numbers them from 1."""
    return [decision for decision in run.turns if decision.changed]


def decisions(section: Section, run: TrainingRecord, looks: Looks) -> Figure | None:
    """Draw CF and gain of an adaptive run over time, with its changes numbered; ``None`` if it has no decisions."""
    if not run.turns:
        return None
    figure = empty_figure(4.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    timed = all(decision.seconds is not None for decision in run.turns)

    def x_of(decision: DecisionPoint) -> float:
        return float(decision.step) if not timed or decision.seconds is None else decision.seconds

    end = run.seconds if timed else float(run.steps)
    colour = looks[run.method].colour
    positions = [x_of(decision) for decision in run.turns]
    cfs = [decision.cf for decision in run.turns]
    upper.step([*positions, max(end, positions[-1])], [*cfs, cfs[-1]], where="post", color=colour)
    upper.lines[0].set_linewidth(2.2)
    upper.set_yscale("log")
    label_log_axis(upper, "y")
    upper.set_ylabel("compression factor (CF)")
    gains = [
        (x_of(decision), decision.gain)
        for decision in run.turns
        if decision.gain is not None and math.isfinite(decision.gain)
    ]
    lower.plot([x for x, _ in gains], [y for _, y in gains], color=colour, marker="o", markersize=4, linewidth=1.2)
    lower.set_ylabel("gain of the window")
    lower.set_xlabel("training time, without evaluation [s]" if timed else "steps")
    for axes in (upper, lower):
        tidy(axes)
        for decision in changes(run):
            axes.axvline(x_of(decision), color=PALE, linewidth=0.8, linestyle=":", zorder=0)
    _number_changes(upper, [x_of(decision) for decision in changes(run)], max(end, positions[-1]))
    figure.suptitle(
        title(section, f"Decisions of {run.method}, seed {run.seed}"), fontsize=11, x=0.01, horizontalalignment="left"
    )
    return figure


def _number_changes(axes: Axes, positions: Sequence[float], end: float) -> None:
    """Write the numbers of changes above the axes, in up to three rows; leave out numbers that would still touch.

    Args:
        axes: axes of the changes.
        positions: x coordinate of each change.
        end: x coordinate at which the axis ends.
    """
    latest_x = [-math.inf] * 3  # in each row
    for number, x in enumerate(positions, start=1):
        row = next((row for row in range(3) if x - latest_x[row] >= 0.028 * end), None)
        if row is None:
            continue
        latest_x[row] = x
        axes.annotate(
            str(number),
            (x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 11 * row),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )


Phase = tuple[str, str, Callable[[Split], float | None]]
"""A phase of a step: its colour, its label, and a function that returns its seconds."""

_WAITED_FOR: tuple[Phase, ...] = (
    ("#56b4e9", "compute", lambda split: split.compute),
    ("#d55e00", "exposed exchange", lambda split: split.exposed),
    ("#999999", "input wait", lambda split: split.input_wait),
)
"""Phases that add up to the step."""

_OVERLAPPING: tuple[Phase, ...] = (
    ("#009e73", "compress (overlaps)", lambda split: split.compress),
    ("#f0b68a", "exchange (overlaps)", lambda split: split.exchange),
)
"""Phases that overlap with backward."""


def timeline(section: Section) -> Figure | None:
    """Draw the seconds of each phase of a median step as bars, by method; ``None`` if no run has them."""
    rows = [row for row in section.rows if any(run.split for run in row.runs)]
    if not rows:
        return None
    figure, axes = single_axes(1.7 + 0.42 * len(rows))
    positions, longest = np.arange(len(rows)), 0.0
    for phases, offset, height in ((_WAITED_FOR, -0.12, 0.44), (_OVERLAPPING, 0.25, 0.2)):
        ends = np.zeros(len(rows))
        for colour, label, seconds in phases:
            widths = np.array([_median_ms(row, seconds) for row in rows])
            axes.barh(positions + offset, widths, left=ends, height=height, color=colour, linewidth=0, label=label)
            ends += widths
        longest = max(longest, *ends)
    axes.set_yticks(positions, [label_of(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.03 or 1)
    axes.set_xlabel("time of a median step on rank 0 [ms]")
    axes.grid(axis="y", visible=False)
    axes.set_title(title(section, "A step: above what it waits for, below what overlaps"), fontsize=11, loc="left")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _median_ms(row: ReportRow, seconds: Callable[[Split], float | None]) -> float:
    """Return the median of a phase over a method's runs in milliseconds; 0 if no run has the phase."""
    measured = [phase for run in row.runs if run.split is not None and (phase := seconds(run.split)) is not None]
    return float(np.median(measured)) * 1e3 if measured else 0.0
