# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The demo's plot: validation loss against seconds of training, in the terminal and as a PNG (needs matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gravac.lab.demo.decided import mostly
from gravac.lab.demo.outcome import Comparison, DemoOutcome

COLUMNS, ROWS = 49, 16
"""Size of the terminal's plot in characters; names stand to its right, within 80 columns."""

MARKS = {"dense-fp32": ".", "dense-fp16": "o", "adaptive": "+", "adaptive-100": "#"}
"""Character of each run in the terminal's plot."""

COLOURS = {"dense-fp32": "#8a8a8a", "dense-fp16": "#222222", "adaptive": "#0072b2", "adaptive-100": "#d55e00"}
"""Colour of each run in the PNG, told apart with every kind of colour blindness."""

EARLY = 0.1
"""Share of a run before which the loss falls so fast that it would take most of the plot's height: it is cut off."""


def loss_range(comparison: Comparison) -> tuple[float, float]:
    """Return the lowest and the highest loss that are drawn: what comes after the steep beginning."""
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
    names = {math.floor(row + 0.5): run for row, run in zip(rows, comparison.outcomes, strict=True)}
    lines = ["validation loss, nats"]
    for at, cells in enumerate(grid):
        axis = f"{high - (high - low) * at / (ROWS - 1):5.2f} |" if at % 3 == 0 else "      |"
        ended = names.get(at)
        name = f" {MARKS[ended.method]} {ended.label} {ends[ended.method]:.3f}" if ended else ""
        lines.append((axis + "".join(cells) + name).rstrip())
    ticks = [f"{seconds * share / 4:.0f}" for share in range(5)]
    scale = [" "] * (COLUMNS + 3)
    for share, tick in enumerate(ticks):
        at = round((COLUMNS - 1) * share / 4)
        scale[at : at + len(tick)] = tick
    return "\n".join(
        [*lines, "      +" + "-" * COLUMNS, ("       " + "".join(scale)).rstrip() + " seconds of training"]
    )


def draw(comparison: Comparison, title: str, path: Path) -> None:
    """Write the plot as a PNG.

    Args:
        comparison: runs to draw.
        title: the link, and whatever else holds for all runs.
        path: file to write.
    """
    from matplotlib.figure import Figure

    seconds, target = comparison.equal_seconds, comparison.target
    low, high = loss_range(comparison)
    figure = Figure(figsize=(8.6, 4.6), dpi=130, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    reach: dict[str, Any] = {
        "color": COLOURS["dense-fp16"],
        "linewidth": 0.9,
        "linestyle": (0, (1, 3)),
        "label": "float16's final loss",
    }
    reaches = [_reached(run, target) for run in comparison.outcomes]
    soonest = min((time for time in reaches if time is not None), default=0.0)
    for run, reached in zip(comparison.outcomes, reaches, strict=True):
        ours = run.method.startswith("adaptive")
        times, losses = [point.seconds for point in run.curve], [point.metric for point in run.curve]
        look: dict[str, Any] = {
            "color": COLOURS[run.method],
            "linewidth": 2.4 if ours else 1.5,
            "zorder": 3 if ours else 2,
        }
        axes.plot(times, losses, label=f"{run.label}: mostly {mostly(run)}" if ours else run.label, **look)
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
    axes.plot([0, seconds], [target] * 2, zorder=1, **reach)
    axes.legend(loc="upper right", frameon=False, fontsize=9, handlelength=2.2)
    ends = [run.at_time(seconds) for run in comparison.outcomes]
    for run, at in zip(comparison.outcomes, spread(ends, 0.065 * (high - low), (low, high)), strict=True):
        axes.annotate(
            f"{run.label}  {run.at_time(seconds):.2f}",
            (seconds, at),
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


def _reached(run: DemoOutcome, target: float) -> float | None:
    """Return the seconds of training after which a run with gravac reached the target loss; ``None`` of other runs."""
    return run.time_to(target) if run.method.startswith("adaptive") else None


def spread(places: Sequence[float], apart: float, within: tuple[float, float]) -> list[float]:
    """Return places moved so that each is at least so far from its neighbours, in the order they were in.

    Those that would touch are moved about their mean, as little as it takes.

    Example:
        >>> spread([3, 1, 3], 1, (0, 9))
        [2.5, 1.0, 3.5]
    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    groups: list[list[float]] = []  # of places, less what lies between them
    for number, at in enumerate(order):
        groups.append([places[at] - number * apart])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    moved = [fmean(group) for group in groups for _ in group]
    moved = [place + number * apart for number, place in enumerate(moved)]
    low, high = within
    for number in range(len(moved)):
        moved[number] = max(moved[number], low + number * apart)
    for number in range(len(moved)):
        moved[-1 - number] = min(moved[-1 - number], high - number * apart)
    by_place = dict(zip(order, moved, strict=True))
    return [by_place[at] for at in range(len(places))]
