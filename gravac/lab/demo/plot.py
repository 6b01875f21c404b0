# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Plots validation loss over seconds of training, as text for the terminal and as a PNG (needs matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gravac.lab.demo.decisions import describe_longest_running
from gravac.lab.demo.outcome import Comparison, DemoOutcome
from gravac.lab.rounding import describe_seconds

COLUMNS, ROWS = 42, 16
"""Width and height of the terminal's plot in characters, without axis labels; with them, lines have up to 80."""

MARKS = {"dense-fp32": ".", "dense-fp16": "o", "adaptive": "+", "adaptive-100": "#"}
"""Character that marks each method's run in the terminal's plot."""

COLOURS = {"dense-fp32": "#8a8a8a", "dense-fp16": "#222222", "adaptive": "#0072b2", "adaptive-100": "#d55e00"}
"""Colour of each method's run in the PNG, such that colour-blind people can tell the colours apart."""

STEEP_FRACTION = 0.1
"""Fraction of the training time, at its start, in which losses fall steeply, and the plot may cut off high losses."""


def loss_range(comparison: Comparison) -> tuple[float, float]:
    """Return ``(lowest, highest)`` loss of the plot's axis, in nats.

    The axis includes all losses after the first ``STEEP_FRACTION`` of the time; higher losses before may be cut off.
    """
    runs, seconds = comparison.outcomes, comparison.equal_seconds
    low_loss = min(point.metric for run in runs for point in run.curve)
    high_loss = max(run.loss_at_time(STEEP_FRACTION * seconds) for run in runs)
    margin = 0.05 * (high_loss - low_loss) or 0.05
    return low_loss - margin, high_loss + margin


def draw_as_text(comparison: Comparison) -> str:
    """Return a plot of validation loss over seconds of training, as text for a terminal of 80 columns."""
    low_loss, high_loss = loss_range(comparison)
    seconds = comparison.equal_seconds
    grid = [[" "] * COLUMNS for _ in range(ROWS)]

    def row_of(loss: float) -> int:
        return round((high_loss - loss) / (high_loss - low_loss) * (ROWS - 1))

    for run in comparison.outcomes:
        for column in range(COLUMNS):
            row = row_of(run.loss_at_time(seconds * column / (COLUMNS - 1)))
            if 0 <= row < ROWS:
                grid[row][column] = MARKS[run.method]
    final_losses = {run.method: run.loss_at_time(seconds) for run in comparison.outcomes}
    label_rows = spread_apart([row_of(loss) for loss in final_losses.values()], 1, (0, ROWS - 1))
    run_by_label_row = {math.floor(row + 0.5): run for row, run in zip(label_rows, comparison.outcomes, strict=True)}
    lines = ["validation loss, nats"]
    for row, row_characters in enumerate(grid):
        axis_text = f"{high_loss - (high_loss - low_loss) * row / (ROWS - 1):5.2f} |" if row % 3 == 0 else "      |"
        labelled_run = run_by_label_row.get(row)
        label = (
            f" {MARKS[labelled_run.method]} {labelled_run.label} {final_losses[labelled_run.method]:.3f}"
            if labelled_run
            else ""
        )
        lines.append((axis_text + "".join(row_characters) + label).rstrip())
    tick_texts = [f"{seconds * quarter / 4:.0f}" for quarter in range(5)]
    axis_labels = [" "] * (COLUMNS + 3)
    for quarter, tick in enumerate(tick_texts):
        column = round((COLUMNS - 1) * quarter / 4)
        axis_labels[column : column + len(tick)] = tick
    return "\n".join(
        [*lines, "      +" + "-" * COLUMNS, ("       " + "".join(axis_labels)).rstrip() + " seconds of training"]
    )


def draw(comparison: Comparison, title: str, path: Path) -> None:
    """Write a plot of validation loss over seconds of training as a PNG.

    Args:
        comparison: runs to plot.
        title: title of the plot, which should name the model and the link.
        path: PNG file to write.
    """
    from gravac.lab.figure import new_figure, tidy_axes

    seconds, target = comparison.equal_seconds, comparison.target
    low_loss, high_loss = loss_range(comparison)
    figure = new_figure(8.6, 4.6)
    axes = figure.add_subplot()
    target_style: dict[str, Any] = {
        "color": COLOURS["dense-fp16"],
        "linewidth": 0.9,
        "linestyle": (0, (1, 3)),
        "label": "float16's final loss",
    }
    for run in comparison.outcomes:
        is_adaptive = run.method.startswith("adaptive")
        line_style: dict[str, Any] = {
            "color": COLOURS[run.method],
            "linewidth": 2.4 if is_adaptive else 1.5,
            "zorder": 3 if is_adaptive else 2,
            "linestyle": (0, (4, 1.5)) if run.method == "adaptive-100" else "-",  # gravac's two curves often coincide
            "label": _describe_run(run, target) if is_adaptive else None,
        }
        axes.plot([point.seconds for point in run.curve], [point.metric for point in run.curve], **line_style)
        target_s = run.time_to_loss(target) if is_adaptive else None
        if target_s:
            axes.plot(target_s, target, marker="o", markersize=6, color=COLOURS[run.method], zorder=4)
    axes.plot([0, seconds], [target] * 2, zorder=1, **target_style)
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, handlelength=2.2)
    final_losses = [run.loss_at_time(seconds) for run in comparison.outcomes]
    for run, label_y in zip(
        comparison.outcomes,
        spread_apart(final_losses, 0.065 * (high_loss - low_loss), (low_loss, high_loss)),
        strict=True,
    ):
        axes.annotate(
            f"{run.label}  {run.loss_at_time(seconds):.2f}",
            (seconds, label_y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=COLOURS[run.method],
            fontsize=10,
            fontweight="bold" if run.method.startswith("adaptive") else "normal",
            annotation_clip=False,
        )
    axes.set_xlim(0, seconds)
    axes.set_ylim(low_loss, high_loss)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss [nats]")
    tidy_axes(axes, title)
    figure.savefig(path, format="png")


def _describe_run(run: DemoOutcome, target: float) -> str:
    """Return the text of the legend on a run with gravac: its label, what ran for the most steps, and how fast.

    Args:
        run: result of a run.
        target: final loss of float16, nats.
    """
    target_s = run.time_to_loss(target)
    target_text = f"; reached float16's final loss after {describe_seconds(target_s)}" if target_s else ""
    return f"{run.label}: mostly {describe_longest_running(run)}{target_text}"


def spread_apart(positions: Sequence[float], distance: float, bounds: tuple[float, float]) -> list[float]:
    """Move positions, such as heights of labels, so that no two are nearer to each other than ``distance``.

    Positions that are too near are put around their mean, just far enough apart. The positions are numbers in any unit,
    such as rows or nats.

    Args:
        positions: positions to move.
        distance: smallest allowed distance between two positions.
        bounds: ``(lowest, highest)`` position that is allowed.

    Returns:
        The moved positions, in the order of ``positions``.

    Example:
        >>> spread_apart([3, 1, 3], 1, (0, 9))
        [2.5, 1.0, 3.5]
    """
    sorted_indices = sorted(range(len(positions)), key=lambda index: positions[index])
    position_groups: list[list[float]] = []  # near positions, each minus ``distance`` x number below
    for i, index in enumerate(sorted_indices):
        position_groups.append([positions[index] - i * distance])
        while len(position_groups) > 1 and fmean(position_groups[-2]) > fmean(position_groups[-1]):
            upper_group = position_groups.pop()
            position_groups[-1] += upper_group
    moved_positions = [fmean(group) for group in position_groups for _ in group]
    moved_positions = [position + i * distance for i, position in enumerate(moved_positions)]
    lowest_position, highest_position = bounds
    for i in range(len(moved_positions)):
        moved_positions[i] = max(moved_positions[i], lowest_position + i * distance)
    for i in range(len(moved_positions)):
        moved_positions[-1 - i] = min(moved_positions[-1 - i], highest_position - i * distance)
    by_index = dict(zip(sorted_indices, moved_positions, strict=True))
    return [by_index[index] for index in range(len(positions))]
