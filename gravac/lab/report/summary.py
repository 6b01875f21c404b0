# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the report's sections from records of runs: a section per task, link and ranks, with a row per method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gravac.lab.links.rates import parse_rate
from gravac.lab.report.numbers import (
    BASELINE,
    DENSE_METHODS,
    LIMIT_LINK,
    LIMIT_METHOD,
    Amount,
    ReportRow,
    amount_over_seeds,
    bytes_per_step,
    compress_fraction,
    paired_speedup,
    steps_to_target,
    time_to_target,
)
from gravac.lab.report.sentences import notes, spread_note, verdict
from gravac.lab.tta.record import TrainingRecord


class Setup(NamedTuple):
    """The setup that all runs of a section of the report share: task, scale, link, workers and mesh.

    Attributes:
        task: name of the task.
        scale: scale of the task's model.
        link: the link in text form, such as ``"100mbit"``.
        workers: number of ranks.
        mesh: replicas x shards of a model in shards as text; ``None``: DDP, without shards.
    """

    task: str
    scale: float
    link: str
    workers: int
    mesh: str | None = None

    @property
    def ranks_text(self) -> str:
        """Number of workers as text, with the mesh of a model in shards: ``4 workers (mesh 2x2)``."""
        return f"{self.workers} workers" + ("" if self.mesh is None else f" (mesh {self.mesh})")


UNKNOWN_AMOUNT = Amount(0.0, 0.0, 0.0, 0, ">")
"""Seconds or steps to the target of which nothing is known except that they are above 0."""


@dataclass(frozen=True)
class Section:
    """The comparison of all methods in one setup.

    Attributes:
        setup: task, scale, link, number of workers, and mesh.
        rows: numbers of each method, fastest first; methods that did not reach the target last.
        limit: median seconds to the target of fp32 on an unthrottled link; ``None`` if not known.
        dense_steps: median number of steps that fp32 needs to the target on this link, or, if that is not known, on
            the unthrottled link; ``None`` if neither is known.
        verdict: sentence on which method is fastest.
        notes: sentences on how far the numbers can be trusted.
    """

    setup: Setup
    rows: tuple[ReportRow, ...]
    limit: float | None
    dense_steps: float | None
    verdict: str
    notes: tuple[str, ...]

    @property
    def run(self) -> TrainingRecord:
        """Record of one run of the section, for fields that are the same in all runs, such as the metric's name."""
        return self.rows[0].runs[0]

    @property
    def paced(self) -> bool:
        """True if exchanges slept to imitate a slow link in a run of the section, since no link was emulated."""
        return any(row.paced for row in self.rows)

    @property
    def factored(self) -> bool:
        """True if a run is factored: its time is steps on another link x seconds of a step on this link."""
        return any(row.factored for row in self.rows)

    @property
    def fastest(self) -> ReportRow | None:
        """Numbers of the fastest method; ``None`` if no method reached the target."""
        return self.rows[0] if self.rows[0].tta.exact else None

    def row(self, method: str) -> ReportRow | None:
        """Return the numbers of a method; ``None`` if the method did not run in this setup."""
        return next((row for row in self.rows if row.method == method), None)


def sections(runs: Sequence[TrainingRecord]) -> list[Section]:
    """Return a report's sections: one for each combination of task, scale, workers, mesh and link, slow links first.

    If two records are of the same method, setup and seed, the later record counts.
    """
    latest_runs = {(run.cell, run.method): run for run in runs}
    runs_by_setup: dict[Setup, list[TrainingRecord]] = {}
    for run in latest_runs.values():
        runs_by_setup.setdefault(Setup(run.task, run.scale, run.link, run.workers, run.mesh), []).append(run)
    ordered_setups = sorted(
        runs_by_setup,
        key=lambda setup: (setup.task, setup.scale, setup.workers, setup.mesh or "", link_order(setup.link)),
    )
    return [_section(setup, runs_by_setup[setup], runs_by_setup) for setup in ordered_setups]


def link_order(link: str) -> tuple[float, str]:
    """Return the sort key of a link's text: slowest first; texts that do not begin with a plain rate last."""
    try:
        return parse_rate(link.split(",")[0]), link
    except ValueError:
        return math.inf, link


def methods(sections: Iterable[Section]) -> list[str]:
    """Return the texts of all methods in sections: dense methods, others without controller, then adaptive methods."""
    is_adaptive = {row.method: row.adaptive for section in sections for row in section.rows}
    return sorted(is_adaptive, key=lambda name: (is_adaptive[name], _dense_order(name), name))


def _dense_order(method: str) -> int:
    """Return a sort key of a method: its index in ``DENSE_METHODS``; methods that are not dense come last."""
    return DENSE_METHODS.index(method) if method in DENSE_METHODS else len(DENSE_METHODS)


def _section(setup: Setup, runs: Sequence[TrainingRecord], runs_by_setup: dict[Setup, list[TrainingRecord]]) -> Section:
    """Return the section of a setup.

    Args:
        setup: setup of the section.
        runs: records in the setup.
        runs_by_setup: records of all setups; the runs of fp32 on an unthrottled link set the limit.
    """
    limit_runs = [run for run in runs_by_setup.get(setup._replace(link=LIMIT_LINK), []) if run.method == LIMIT_METHOD]
    limit_tta = amount_over_seeds([time_to_target(run) for run in limit_runs])
    limit = limit_tta.median if limit_tta and limit_tta.exact and limit_tta.median > 0 else None
    runs_by_method: dict[str, list[TrainingRecord]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        runs_by_method.setdefault(run.method, []).append(run)
    dense_bytes = _median_over_runs(runs_by_method.get("fp32", limit_runs), bytes_per_step)
    baseline_runs = runs_by_method.get(BASELINE, [])
    rows = [_report_row(method_runs, limit, dense_bytes, baseline_runs) for method_runs in runs_by_method.values()]
    rows.sort(key=lambda row: (not row.tta.exact, row.tta.median, row.method))
    return Section(
        setup=setup,
        rows=tuple(rows),
        limit=limit,
        dense_steps=_exact_steps(runs_by_method.get(LIMIT_METHOD, [])) or _exact_steps(limit_runs),
        verdict=verdict(rows, limit),
        notes=tuple(notes(rows, limit, limit_tta, runs_by_method, dense_bytes)),
    )


def _exact_steps(runs: Sequence[TrainingRecord]) -> float | None:
    """Return the median number of steps to the target; ``None`` if too few runs reached it to know the median."""
    steps = amount_over_seeds([steps_to_target(run) for run in runs])
    return steps.median if steps and steps.exact else None


def _report_row(
    runs: Sequence[TrainingRecord],
    limit: float | None,
    dense_bytes: float | None,
    baseline_runs: Sequence[TrainingRecord],
) -> ReportRow:
    """Return the numbers of a method in a setup.

    Args:
        runs: records of the method.
        limit: median seconds to the target of fp32 on an unthrottled link; ``None`` if not known.
        dense_bytes: wire bytes that a rank sends in a step of fp32; ``None`` if not known.
        baseline_runs: records of fp16 in the setup.
    """
    tta = amount_over_seeds([time_to_target(run) for run in runs]) or UNKNOWN_AMOUNT
    steps = amount_over_seeds([steps_to_target(run) for run in runs]) or UNKNOWN_AMOUNT
    method_bytes = _median_over_runs(runs, bytes_per_step)
    return ReportRow(
        method=runs[0].method,
        adaptive=runs[0].adaptive,
        runs=tuple(runs),
        reached=sum(run.tta_s is not None for run in runs),
        tta=tta,
        relative=tta.in_units_of(limit) if limit else None,
        speedup=paired_speedup(runs, baseline_runs),
        steps=steps,
        every=statistics.median(run.every or 1 for run in runs),
        samples_per_s=statistics.median(run.samples_per_s for run in runs),
        efficiency=_median_over_runs(runs, lambda run: run.efficiency),
        bytes_per_step=method_bytes,
        wire_ratio=dense_bytes / method_bytes if dense_bytes and method_bytes else None,
        gain=_median_over_runs(runs, lambda run: run.gain),
        compress_fraction=_median_over_runs(runs, compress_fraction),
        spread=spread_note(tta),
    )


def _median_over_runs(
    runs: Iterable[TrainingRecord], get_number: Callable[[TrainingRecord], float | None]
) -> float | None:
    """Return the median over runs of the numbers that ``get_number`` returns; ``None`` if there are no numbers.

    Args:
        runs: records of runs.
        get_number: function that takes the record of a run and returns a number, or ``None`` if the record has none.
    """
    numbers = [number for number in map(get_number, runs) if number is not None]
    return statistics.median(numbers) if numbers else None
