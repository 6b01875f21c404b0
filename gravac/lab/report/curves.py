# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Figures of the metric against time, steps and bytes: each seed's run, and their median. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gravac.lab.report.style import (
    INK,
    Looks,
    finish,
    literally,
    names_of,
    one_axes,
    plain_log,
    title,
)
from gravac.lab.report.summary import Section
from gravac.lab.tta.record import CurvePoint, TrainingRecord


def metric_against_time(section: Section, drawn: Looks) -> Figure:
    """Draw the metric of each method over training time."""
    figure, axes = one_axes(4.6)
    _curves(axes, section, drawn, lambda run: [point.seconds for point in run.curve])
    axes.set_xlabel("training time, without evaluation [s]")
    return finish(figure, axes, title(section, "Metric against time"), names_of(section.rows, drawn))


def metric_against_steps(section: Section, drawn: Looks) -> Figure:
    """Draw the metric of each method over steps: what compression costs in quality, whatever the link."""
    figure, axes = one_axes(4.6)
    _curves(axes, section, drawn, lambda run: [float(point.step) for point in run.curve])
    axes.set_xlabel("steps")
    return finish(figure, axes, title(section, "Metric against steps"), names_of(section.rows, drawn))


def metric_against_bytes(section: Section, drawn: Looks) -> Figure | None:
    """Draw the metric of each method over what a rank sent; ``None`` when no method's bytes are known."""
    rows = [row for row in section.rows if row.bytes_per_step]
    if not rows:
        return None
    figure, axes = one_axes(4.6)
    _curves(axes, section, drawn, bytes_sent)
    axes.set_xscale("log")
    axes.set_xlabel("sent by one rank [MB]")
    plain_log(axes, "x")
    return finish(figure, axes, title(section, "Metric against bytes sent"), names_of(rows, drawn))


def bytes_sent(run: TrainingRecord) -> list[float]:
    """Return megabytes sent at each point of the curve: the run's total, shared out by decisions' CF and every.

    Not a number before the first step: there is no zero on a logarithmic axis.
    """
    if run.wire_bytes is None:
        return []
    weights = np.ones(max(run.steps, 1))
    for turn in sorted(run.turns, key=lambda turn: turn.step):
        weights[turn.step :] = 1 / (turn.cf * turn.every) if turn.cf > 0 else 1.0
    total = np.concatenate([[0.0], np.cumsum(weights)])
    total *= run.wire_bytes / 1e6 / total[-1]
    return [float(total[min(point.step, run.steps)]) if point.step else math.nan for point in run.curve]


def _curves(axes: Axes, section: Section, drawn: Looks, along: Callable[[TrainingRecord], Sequence[float]]) -> None:
    """Each seed thin, their median over it; in the order that leaves adaptive methods on top."""
    seen: list[float] = []
    for row in sorted(section.rows, key=lambda row: row.adaptive):
        look = drawn[row.method]
        tracks = [_track(run.curve, along(run)) for run in row.runs]
        tracks = [track for track in tracks if len(track[0])]
        for _, x, y in tracks:
            seen += [float(value) for value in y if math.isfinite(value)]
            if len(tracks) > 1:
                axes.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=0.7, alpha=0.35)
        if tracks:
            x, y = _median(tracks)
            axes.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=look.width)
    run = section.run
    axes.axhline(run.target, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    axes.set_ylabel(literally(run.metric))
    _focus(axes, seen, section)


Track = tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", ...]
"""Steps, where along the axis, and metric, of one run."""


def _track(curve: Sequence[CurvePoint], along: Sequence[float]) -> Track:
    points = [(point, x) for point, x in zip(curve, along, strict=False) if math.isfinite(x)]
    return (
        np.array([point.step for point, _ in points], dtype=float),
        np.array([x for _, x in points], dtype=float),
        np.array([point.metric for point, _ in points], dtype=float),
    )


def _median(tracks: Sequence[Track]) -> Track:
    """Over the seeds, step by step, as far as all of them went."""
    steps = tracks[0][0]
    steps = steps[steps <= min(track[0][-1] for track in tracks)]
    return (
        np.median([np.interp(steps, track[0], track[1]) for track in tracks], axis=0),
        np.median([np.interp(steps, track[0], track[2]) for track in tracks], axis=0),
    )


def _focus(axes: Axes, seen: Sequence[float], section: Section) -> None:
    """From a little beyond the best value to where runs began: what diverges further leaves the figure."""
    run = section.run
    begins = [each.curve[0].metric for row in section.rows for each in row.runs if each.curve]
    begins = [value for value in begins if math.isfinite(value)]
    if not seen or not begins:
        return
    best = max(*seen, run.target) if run.higher_is_better else min(*seen, run.target)
    begin = float(np.median(begins))
    margin = 0.05 * abs(best - begin) or 1.0
    ends = (begin - margin, best + margin) if run.higher_is_better else (best - margin, begin + margin)
    axes.set_ylim(*ends)
