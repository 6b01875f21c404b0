# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Draws the runs of ``gravac bench tta``: loss against seconds, and time to the target by link. Needs matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from gravac.lab.figure import COLOURS, DENSE_COLOURS, new_figure, tidy_axes
from gravac.lab.links.link import PACED, parse_link
from gravac.lab.tta.record import TrainingRecord

STEEP_FRACTION = 0.1
"""Fraction of a run's time, at its start, in which losses fall steeply, and the plot may cut off high losses."""

TARGET_STYLE: Mapping[str, Any] = {"color": DENSE_COLOURS["fp16"], "linewidth": 0.9, "linestyle": (0, (1, 3))}
"""Style of the line at the target, by matplotlib's names."""

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
"""Line styles: methods that share a colour have different ones."""

Look = dict[str, Any]
"""Colour, style, width and order of a method's line, by matplotlib's names."""


def looks_of(runs: Sequence[TrainingRecord]) -> dict[str, Look]:
    """Return the look of each method, the same in all plots; adaptive methods come first, and have thick lines.

    Args:
        runs: records of all runs of the plots.
    """
    is_adaptive = {run.method: run.adaptive for run in runs}
    styles = itertools.cycle([(colour, dash) for dash in DASHES for colour in COLOURS])
    looks: dict[str, Look] = {}
    for method in sorted(is_adaptive, key=lambda method: not is_adaptive[method]):
        colour, dash = (DENSE_COLOURS[method], "-") if method in DENSE_COLOURS else next(styles)
        width, order = (2.4, 3) if is_adaptive[method] else (1.5, 2)
        looks[method] = {"color": colour, "linestyle": dash, "linewidth": width, "zorder": order}
    return looks


def draw_losses(runs: Sequence[TrainingRecord], path: Path) -> None:
    """Write a PNG of the validation metric over seconds of training, with a panel for each task and link.

    A thick line is the median over seeds, thin lines are single seeds. A dot marks the median time to the target. A
    panel ends where the slowest of the runs that reached the target ends, so other runs may be cut off.

    Args:
        runs: records of one or more runs.
        path: file to write.
    """
    tasks, links, looks = _tasks_of(runs), _links_of(runs), looks_of(runs)
    figure = new_figure(max(8.6, 1 + 4.4 * len(links)), 1 + 3.6 * len(tasks))
    panels = figure.subplots(len(tasks), len(links), squeeze=False)
    for (row, task), (column, link) in itertools.product(enumerate(tasks), enumerate(links)):
        panel_runs = [run for run in runs if (run.task_name, run.link) == (task, link) and run.curve]
        if panel_runs:
            _draw_curves(panels[row][column], panel_runs, looks)
        else:
            panels[row][column].set_axis_off()
    handles = [Line2D([], [], label=method, **look) for method, look in looks.items()]
    _finish(figure, [*handles, Line2D([], [], label="target", **TARGET_STYLE)], path)


def draw_times(runs: Sequence[TrainingRecord], path: Path) -> None:
    """Write a PNG of the seconds to the target by link and method, with a panel for each task.

    A mark is the median over seeds, a whisker goes from the shortest to the longest time. A hollow mark is a lower
    bound: half of the runs or more did not reach the target in that time.

    Args:
        runs: records of one or more runs.
        path: file to write.
    """
    tasks, links, looks = _tasks_of(runs), _links_of(runs), looks_of(runs)
    figure = new_figure(max(8.6, len(tasks) * (1.6 + 1.2 * len(links))), 4.6)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        task_runs = [run for run in runs if run.task_name == task]
        for position, (method, look) in enumerate(looks.items()):
            shift = 0.06 * (position - (len(looks) - 1) / 2)
            _draw_times(panel, [run for run in task_runs if run.method == method], links, shift, look)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_xticks(range(len(links)), links, rotation=20 if max(map(len, links)) > 12 else 0)
        panel.set_ylabel("seconds to the target")
        tidy_axes(panel, _title(task_runs, f"Time to the target: {task}"))
    handles = [Line2D([], [], label=method, marker="o", **look) for method, look in looks.items()]
    if any(run.tta_s is None for run in runs):
        hollow_mark: Look = {"marker": "o", "markerfacecolor": "white", "color": TARGET_STYLE["color"], "linestyle": ""}
        handles.append(Line2D([], [], label="longer: not reached", **hollow_mark))
    _finish(figure, handles, path)


def median_curve(runs: Sequence[TrainingRecord]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return ``(seconds, metric)``, medians over runs at the steps of the first run's evaluations, ``(evaluations,)``.

    Steps after the end of the shortest run are left out.

    Args:
        runs: records of one or more runs, each with one evaluation or more.
    """
    last_step = min(run.curve[-1].step for run in runs)
    steps = [point.step for point in runs[0].curve if point.step <= last_step]
    steps_of_runs = [[point.step for point in run.curve] for run in runs]

    def median_at_steps(numbers_of_runs: list[list[float]]) -> npt.NDArray[np.float64]:
        interpolated = [np.interp(steps, *curve) for curve in zip(steps_of_runs, numbers_of_runs, strict=True)]
        return np.asarray(np.median(interpolated, axis=0))

    return (
        median_at_steps([[point.seconds for point in run.curve] for run in runs]),
        median_at_steps([[point.metric for point in run.curve] for run in runs]),
    )


def _draw_curves(axes: Axes, runs: Sequence[TrainingRecord], looks: Mapping[str, Look]) -> None:
    """Draw the curves of all runs of a task on a link; ``looks`` has the look of each method."""
    target = median(run.target for run in runs)
    axes.axhline(target, zorder=1, **TARGET_STYLE)
    for method, look in looks.items():
        method_runs = [run for run in runs if run.method == method]
        if not method_runs:
            continue
        for run in method_runs if len(method_runs) > 1 else ():
            points = ([point.seconds for point in run.curve], [point.metric for point in run.curve])
            axes.plot(*points, **{**look, "linewidth": 0.7, "alpha": 0.35})
        axes.plot(*median_curve(method_runs), **look)
        seconds, reached = _time_to_target(method_runs)
        if reached:
            axes.plot(seconds, target, marker="o", markersize=6, color=look["color"], zorder=4)
    shown_runs = [run for run in runs if run.tta_s is not None] or runs
    shown_metrics = [run.target for run in shown_runs] + [
        point.metric
        for run in shown_runs
        for point in run.curve
        if point.seconds >= STEEP_FRACTION * run.seconds and math.isfinite(point.metric)
    ]
    margin = 0.05 * (max(shown_metrics) - min(shown_metrics)) or 0.05
    axes.set_ylim(min(shown_metrics) - margin, max(shown_metrics) + margin)
    axes.set_xlim(0, 1.05 * max(run.seconds for run in shown_runs) or 1)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(runs[0].metric)
    tidy_axes(axes, _title(runs, f"{runs[0].task_name} over {runs[0].link}"))


def _draw_times(
    axes: Axes, runs: Sequence[TrainingRecord], links: Sequence[str], shift: float, look: Mapping[str, Any]
) -> None:
    """Draw the times to the target of one method, a mark for each link.

    Args:
        axes: axes of the task.
        runs: records of the method's runs of the task.
        links: links in the order of the x axis, where neighbours have a distance of 1.
        shift: distance of the method's marks from the place of a link, so that marks of methods do not overlap.
        look: look of the method.
    """
    places: list[float] = []
    all_seconds: list[float] = []
    for place, link in enumerate(links):
        link_runs = [run for run in runs if run.link == link]
        if not link_runs:
            continue
        seconds, reached = _time_to_target(link_runs)
        places.append(place + shift)
        all_seconds.append(seconds)
        bounds = [run.seconds if run.tta_s is None else run.tta_s for run in link_runs]
        axes.plot([places[-1]] * 2, [min(bounds), max(bounds)], color=look["color"], linewidth=1)
        face_colour = look["color"] if reached else "white"
        axes.plot(places[-1], seconds, marker="o", color=look["color"], markerfacecolor=face_colour, zorder=4)
    axes.plot(places, all_seconds, **{**look, "alpha": 0.6})


def _time_to_target(runs: Sequence[TrainingRecord]) -> tuple[float, bool]:
    """Return the median of seconds to the target, and whether the median is known; otherwise it is a lower bound.

    The median is known if more than half of the runs reached the target; for other runs, all seconds of the run count.

    Args:
        runs: records of a method's runs on one link, one for each seed.
    """
    reached_count = sum(run.tta_s is not None for run in runs)
    return median(run.seconds if run.tta_s is None else run.tta_s for run in runs), 2 * reached_count > len(runs)


def _finish(figure: Figure, handles: list[Line2D], path: Path) -> None:
    """Add a legend below the panels, with as many columns as the figure is wide, and write the figure as a PNG."""
    columns = max(1, int(figure.get_figwidth() / 2.8))
    figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=9, handlelength=2.6, ncols=columns)
    figure.savefig(path, format="png")


def _title(runs: Sequence[TrainingRecord], text: str) -> str:
    """Return a panel's title, which says "paced" if a link of its runs was not emulated."""
    return text + (f"\n({PACED})" if any(run.paced for run in runs) else "")


def _tasks_of(runs: Sequence[TrainingRecord]) -> list[str]:
    """Return the names of the runs' tasks, in the order of the runs."""
    return list(dict.fromkeys(run.task_name for run in runs))


def _links_of(runs: Sequence[TrainingRecord]) -> list[str]:
    """Return the texts of the runs' links, slowest first, by the lowest rate that a link ever has."""
    return sorted(
        dict.fromkeys(run.link for run in runs), key=lambda link: parse_link(link).lowest_rate_bps or math.inf
    )
