# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's other figures, each made by one function without matplotlib's global state. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gravac.lab.report.numbers import BASELINE, ReportRow
from gravac.lab.report.style import (
    INK,
    PALE,
    Looks,
    blank,
    finish,
    mark_of,
    marked,
    one_axes,
    plain_log,
    tidy,
    title,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import TrainingRecord, Turn

_COMPUTE, _EXPOSED, _INPUT, _COMPRESS, _EXCHANGE = "#56b4e9", "#d55e00", "#999999", "#009e73", "#f0b68a"


def time_to_target(section: Section, drawn: Looks) -> Figure:
    """Draw times to target as bars, shortest on top, relative to the limit, or in seconds when it is not known."""
    rows = section.rows
    unit = section.limit or 1.0
    figure, axes = one_axes(1.6 + 0.34 * len(rows))
    least = min(row.tta.low for row in rows) / unit
    left = (min(0.8, 0.8 * least) if section.limit else 0.6 * least) or 0.1
    for at, row in enumerate(rows):
        _bar(axes, at, row, unit, left, drawn[row.method].colour)
    axes.set_yticks(range(len(rows)), [marked(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    most = max(2 * left, *(row.tta.high / unit for row in rows))
    axes.set_xlim(left, most * (most / left) ** 0.16)
    plain_log(axes, "x")
    names: list[Line2D | Patch] = []
    if section.limit:
        axes.axvline(1, color=INK, linewidth=1.4)
        names.append(Line2D([], [], color=INK, linewidth=1.4, label=f"the limit: {section.limit:.3g} s"))
    base = section.row(BASELINE)
    if base is not None and base.tta.exact:
        axes.axvline(base.tta.median / unit, color=PALE, linewidth=1.4, linestyle="--")
        names.append(Line2D([], [], color=PALE, linewidth=1.4, linestyle="--", label=f"{BASELINE} here"))
    if any(not row.tta.exact for row in rows):
        names.append(Patch(facecolor="white", edgecolor=PALE, hatch="////", label="> target not reached"))
    axes.set_xlabel("time to target / the limit" if section.limit else "time to target [s] (the limit was not run)")
    axes.grid(axis="y", visible=False)
    axes.set_title(title(section, "Time to target: median, whiskers from least to most"), fontsize=11, loc="left")
    if names:
        figure.legend(handles=names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _bar(axes: Axes, at: int, row: ReportRow, unit: float, left: float, colour: str) -> None:
    tta = row.tta.over(unit)
    open_end = not tta.exact
    axes.barh(
        at,
        tta.median - left,
        left=left,
        height=0.68,
        color="white" if open_end else colour,
        edgecolor=colour,
        hatch="////" if open_end else None,
        alpha=1.0 if row.adaptive or open_end else 0.75,
        linewidth=1.0,
    )
    if row.tta.runs > 1:
        axes.plot([tta.low, tta.high], [at, at], color=INK, linewidth=1.3, marker="|", markersize=8)
    axes.annotate(
        f"{tta.sense}{tta.median:.3g}",
        (max(tta.median, tta.high), at),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6},
        fontweight="bold" if row.adaptive else "normal",
    )


def frontier(section: Section, drawn: Looks) -> Figure | None:
    """Draw bytes a step against steps to the target; ``None`` when fp32 never got there or no bytes are known."""
    rows = [row for row in section.rows if row.bytes_per_step]
    if not section.dense_steps or not rows:
        return None
    figure, axes = one_axes(4.6)
    spots = [(row, float(row.bytes_per_step or 0) / 1e6, row.steps.median / section.dense_steps) for row in rows]
    spots = [(row, sent, steps) for row, sent, steps in spots if row.steps.exact or steps >= 1]
    for row, sent, steps in spots:
        look = drawn[row.method]
        face = look.colour if row.steps.exact else "white"
        axes.plot(
            sent,
            steps,
            marker=look.mark,
            markersize=10 if row.adaptive else 8,
            color=look.colour,
            markerfacecolor=face,
            linestyle="",
            zorder=3,
        )
        if not row.steps.exact:
            axes.annotate(
                ">", (sent, steps), xytext=(0, 7), textcoords="offset points", ha="center", rotation=90, fontsize=9
            )
    best = pareto([(sent, steps) for row, sent, steps in spots if row.steps.exact])
    axes.plot([x for x, _ in best], [y for _, y in best], color=INK, linewidth=1, linestyle="-", zorder=1)
    axes.axhline(1, color=PALE, linewidth=1, linestyle="--", zorder=0)
    axes.set_xscale("log")
    plain_log(axes, "x")
    axes.set_xlabel("bytes sent by one rank in a step [MB]")
    axes.set_ylabel("steps to target / those of fp32")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.06 * (high - low))
    names: list[Line2D | Patch] = [mark_of(row, drawn) for row, _, _ in spots]
    names.append(Line2D([], [], color=INK, linewidth=1, label="frontier"))
    return finish(figure, axes, title(section, "Rate and distortion: fewer bytes against more steps"), names)


def pareto(spots: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spots that no other beats in both numbers, ascending by the first.

    Example:
        >>> pareto([(1, 3), (2, 2), (3, 2.5)])
        [(1, 3), (2, 2)]
    """
    kept: list[tuple[float, float]] = []
    for spot in sorted(spots):
        if not kept or spot[1] < kept[-1][1]:
            kept.append(spot)
    return kept


def changes(run: TrainingRecord) -> list[Turn]:
    """Return the decisions that changed something, in order: the figure numbers them from 1."""
    return [turn for turn in run.turns if turn.changed]


def decisions(section: Section, run: TrainingRecord, drawn: Looks) -> Figure | None:
    """Draw CF and gain of an adaptive run over time, its changes numbered; ``None`` when it decided nothing."""
    if not run.turns:
        return None
    figure = blank(4.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    timed = all(turn.seconds is not None for turn in run.turns)

    def when(turn: Turn) -> float:
        return float(turn.step) if not timed or turn.seconds is None else turn.seconds

    end = run.seconds if timed else float(run.steps)
    colour = drawn[run.method].colour
    at = [when(turn) for turn in run.turns]
    upper.step(
        [*at, max(end, at[-1])], [*(turn.cf for turn in run.turns), run.turns[-1].cf], where="post", color=colour
    )
    upper.lines[0].set_linewidth(2.2)
    upper.set_yscale("log")
    plain_log(upper, "y")
    upper.set_ylabel("compression factor (CF)")
    gains = [(when(turn), turn.gain) for turn in run.turns if turn.gain is not None and math.isfinite(turn.gain)]
    lower.plot([x for x, _ in gains], [y for _, y in gains], color=colour, marker="o", markersize=4, linewidth=1.2)
    lower.set_ylabel("gain of the window")
    lower.set_xlabel("training time, without evaluation [s]" if timed else "steps")
    for axes in (upper, lower):
        tidy(axes)
        for turn in changes(run):
            axes.axvline(when(turn), color=PALE, linewidth=0.8, linestyle=":", zorder=0)
    _numbers(upper, [when(turn) for turn in changes(run)], max(end, at[-1]))
    figure.suptitle(
        title(section, f"Decisions of {run.method}, seed {run.seed}"), fontsize=11, x=0.01, horizontalalignment="left"
    )
    return figure


def _numbers(axes: Axes, at: Sequence[float], end: float) -> None:
    """Above the axes, in as many of three rows as it takes; where even that is too close, a number is left out."""
    free = [-math.inf] * 3
    for number, x in enumerate(at, start=1):
        row = next((row for row in range(3) if x - free[row] >= 0.028 * end), None)
        if row is None:
            continue
        free[row] = x
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


def timeline(section: Section) -> Figure | None:
    """Draw where a median step's time goes, a bar per method; ``None`` when no run says."""
    rows = [row for row in section.rows if any(run.split for run in row.runs)]
    if not rows:
        return None
    figure, axes = one_axes(1.7 + 0.42 * len(rows))
    ends = [_steps_bars(axes, at, row) for at, row in enumerate(rows)]
    axes.set_yticks(range(len(rows)), [marked(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends) * 1.03 or 1)
    axes.set_xlabel("time of a median step on rank 0 [ms]")
    axes.grid(axis="y", visible=False)
    axes.set_title(title(section, "A step: above what it waits for, below what overlaps"), fontsize=11, loc="left")
    shown = (
        (_COMPUTE, "compute"),
        (_EXPOSED, "exposed exchange"),
        (_INPUT, "input wait"),
        (_COMPRESS, "compress (overlaps)"),
        (_EXCHANGE, "exchange (overlaps)"),
    )
    names = [Patch(facecolor=colour, label=label) for colour, label in shown]
    figure.legend(handles=names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _steps_bars(axes: Axes, at: int, row: ReportRow) -> float:
    splits = [run.split for run in row.runs if run.split is not None]

    def middle(values: Iterable[float | None]) -> float:
        known = [value for value in values if value is not None]
        return float(np.median(known)) * 1e3 if known else 0.0

    above = (
        (_COMPUTE, middle(split.compute for split in splits)),
        (_EXPOSED, middle(split.exposed for split in splits)),
        (_INPUT, middle(split.input_wait for split in splits)),
    )
    below = (
        (_COMPRESS, middle(split.compress for split in splits)),
        (_EXCHANGE, middle(split.exchange for split in splits)),
    )
    ends = []
    for parts, offset, height in ((above, -0.12, 0.44), (below, 0.25, 0.2)):
        left = 0.0
        for colour, width in parts:
            axes.barh(at + offset, width, left=left, height=height, color=colour, linewidth=0)
            left += width
        ends.append(left)
    return max(ends)
