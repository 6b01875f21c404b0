# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Plots validation loss against seconds of training, in the terminal and as a PNG (needs matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gravac.lab.demo.decisions import longest_running
from gravac.lab.demo.outcome import Comparison, DemoOutcome

COLUMNS, ROWS = 49, 16
"""Size of the terminal's plot in characters; labels stand to the right of the plot, within 80 columns."""

MARKS = {"dense-fp32": ".", "dense-fp16": "o", "adaptive": "+", "adaptive-100": "#"}
"""Character of each run in the terminal's plot."""

COLOURS = {"dense-fp32": "#8a8a8a", "dense-fp16": "#222222", "adaptive": "#0072b2", "adaptive-100": "#d55e00"}
"""Colour of each run in the PNG; people with any kind of colour blindness can tell them apart."""

EARLY = 0.1
"""Fraction of a run to cut off at its beginning: its steep fall would take most of the plot's height."""


def loss_range(comparison: Comparison) -> tuple[float, float]:
    """Return the lowest and the highest loss to plot, without the steep beginning."""
    runs, seconds = comparison.outcomes, comparison.equal_seconds
    low = min(point.metric for run in runs for point in run.curve)
    high = max(run.at_time(EARLY * seconds) for run in runs)
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def in_terminal(comparison: Comparison) -> str:
    """Return the plot as lines of at most 80 characters."""
    low, high = loss_range(comparison)
    seconds = comparison.equal_seconds
    grid = [[" "] * COLUMNS for _ in range(ROWS)]

    def row_of(loss: float) -> int:
        return round((high - loss) / (high - low) * (ROWS - 1))

    for run in comparison.outcomes:
        for column in range(COLUMNS):
            row = row_of(run.at_time(seconds * column / (COLUMNS - 1)))
            if 0 <= row < ROWS:
                grid[row][column] = MARKS[run.method]
    ends = {run.method: run.at_time(seconds) for run in comparison.outcomes}
    rows = spread([row_of(loss) for loss in ends.values()], 1, (0, ROWS - 1))
    run_at_row = {math.floor(row + 0.5): run for row, run in zip(rows, comparison.outcomes, strict=True)}
    lines = ["validation loss, nats"]
    for row, cells in enumerate(grid):
        axis = f"{high - (high - low) * row / (ROWS - 1):5.2f} |" if row % 3 == 0 else "      |"
        ending = run_at_row.get(row)
        label = f" {MARKS[ending.method]} {ending.label} {ends[ending.method]:.3f}" if ending else ""
        lines.append((axis + "".join(cells) + label).rstrip())
    ticks = [f"{seconds * quarter / 4:.0f}" for quarter in range(5)]
    scale = [" "] * (COLUMNS + 3)
    for quarter, tick in enumerate(ticks):
        column = round((COLUMNS - 1) * quarter / 4)
        scale[column : column + len(tick)] = tick
    return "\n".join(
        [*lines, "      +" + "-" * COLUMNS, ("       " + "".join(scale)).rstrip() + " seconds of training"]
    )


def draw(comparison: Comparison, title: str, path: Path) -> None:
    """Write the plot as a PNG.

    Args:
        comparison: runs to plot.
        title: text about the link, and about other facts that hold for all runs.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    seconds, target = comparison.equal_seconds, comparison.target
    low, high = loss_range(comparison)
    figure = Figure(figsize=(8.6, 4.6), dpi=130, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    target_style: dict[str, Any] = {
        "color": COLOURS["dense-fp16"],
        "linewidth": 0.9,
        "linestyle": (0, (1, 3)),
        "label": "float16's final loss",
    }
    target_times = [_time_to_target(run, target) for run in comparison.outcomes]
    soonest = min((time for time in target_times if time is not None), default=0.0)
    for run, reached in zip(comparison.outcomes, target_times, strict=True):
        adaptive = run.method.startswith("adaptive")
        times, losses = [point.seconds for point in run.curve], [point.metric for point in run.curve]
        style: dict[str, Any] = {
            "color": COLOURS[run.method],
            "linewidth": 2.4 if adaptive else 1.5,
            "zorder": 3 if adaptive else 2,
        }
        label = f"{run.label}: mostly {longest_running(run)}" if adaptive else run.label
        axes.plot(times, losses, label=label, **style)
        if reached:
            axes.plot(reached, target, marker="o", markersize=6, color=COLOURS[run.method], zorder=4)
            axes.annotate(
                f"{reached:.0f} s",
                (reached, target),
                xytext=(-4 if reached == soonest else 4, -13),
                textcoords="offset points",
                ha="right" if reached == soonest else "left",
                color=COLOURS[run.method],
                fontsize=9,
            )
    axes.plot([0, seconds], [target] * 2, zorder=1, **target_style)
    axes.legend(loc="upper right", frameon=False, fontsize=9, handlelength=2.2)
    ends = [run.at_time(seconds) for run in comparison.outcomes]
    for run, height in zip(comparison.outcomes, spread(ends, 0.065 * (high - low), (low, high)), strict=True):
        axes.annotate(
            f"{run.label}  {run.at_time(seconds):.2f}",
            (seconds, height),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=COLOURS[run.method],
            fontsize=10,
            fontweight="bold" if run.method.startswith("adaptive") else "normal",
            annotation_clip=False,
        )
    axes.set_xlim(0, seconds)
    axes.set_ylim(low, high)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss [nats]")
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")
    figure.savefig(path, format="png")


def _time_to_target(run: DemoOutcome, target: float) -> float | None:
    """Return the seconds until a run with gravac reached the target loss; ``None`` for other runs, or if never."""
    return run.time_to(target) if run.method.startswith("adaptive") else None


def spread(positions: Sequence[float], distance: float, bounds: tuple[float, float]) -> list[float]:
    """Return positions moved until neighbours are at least ``distance`` apart, in the original order.

    Positions that are too near each other move about their mean, by the smallest change that separates them.

    Args:
        positions: positions to move.
        distance: minimum distance of neighbours.
        bounds: lowest and highest position that is allowed.

    Example:
        >>> spread([3, 1, 3], 1, (0, 9))
        [2.5, 1.0, 3.5]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[list[float]] = []  # positions of neighbours that touch, less the distances below each of them
    for i, index in enumerate(order):
        groups.append([positions[index] - i * distance])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            upper = groups.pop()
            groups[-1] += upper
    moved = [fmean(group) for group in groups for _ in group]
    moved = [position + i * distance for i, position in enumerate(moved)]
    low, high = bounds
    for i in range(len(moved)):
        moved[i] = max(moved[i], low + i * distance)
    for i in range(len(moved)):
        moved[-1 - i] = min(moved[-1 - i], high - i * distance)
    by_index = dict(zip(order, moved, strict=True))
    return [by_index[index] for index in range(len(positions))]
