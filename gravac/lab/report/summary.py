# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's tables: runs grouped by where they ran, and one row per method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gravac.lab.links.rates import parse_rate
from gravac.lab.report.numbers import (
    BASELINE,
    DENSE,
    LIMIT_LINK,
    LIMIT_METHOD,
    Amount,
    ReportRow,
    amount,
    bytes_per_step,
    compress_share,
    paired,
    steps_to_target,
    time_to_target,
)
from gravac.lab.report.words import notes, spread_note, verdict
from gravac.lab.tta.record import TrainingRecord


class Place(NamedTuple):
    """The place at which methods are compared: one section of the page."""

    task: str
    scale: float
    link: str
    workers: int


UNKNOWN = Amount(0.0, 0.0, 0.0, 0, ">")
"""Steps to the target of runs that made none."""


@dataclass(frozen=True)
class Section:
    """All methods at one place.

    Attributes:
        place: task, scale, link and workers.
        rows: methods, fastest first, those that did not reach the target last.
        limit: seconds to the target on a network that costs nothing; ``None`` when not known.
        dense_steps: what fp32 needs to the target, here or, when it did not get there, at the limit.
        verdict: sentence on which method is fastest.
        notes: sentences that a reader must know before believing the numbers.
    """

    place: Place
    rows: tuple[ReportRow, ...]
    limit: float | None
    dense_steps: float | None
    verdict: str
    notes: tuple[str, ...]

    @property
    def run(self) -> TrainingRecord:
        """Any run of the section: for what all of them share."""
        return self.rows[0].runs[0]

    @property
    def paced(self) -> bool:
        """Tell whether a run had no real link."""
        return any(row.paced for row in self.rows)

    @property
    def factored(self) -> bool:
        """Tell whether steps of a run came from another link."""
        return any(row.factored for row in self.rows)

    @property
    def fastest(self) -> ReportRow | None:
        """Fastest method; ``None`` when no method reached the target."""
        return self.rows[0] if self.rows[0].tta.exact else None

    def row(self, method: str) -> ReportRow | None:
        """Return the row of a method; ``None`` when it did not run."""
        return next((row for row in self.rows if row.method == method), None)


def sections(runs: Sequence[TrainingRecord]) -> list[Section]:
    """Group runs by task, scale, workers and link, slow links first; of a run that is there twice the later counts."""
    latest = {(run.cell, run.method): run for run in runs}
    places: dict[Place, list[TrainingRecord]] = {}
    for run in latest.values():
        places.setdefault(Place(run.task, run.scale, run.link, run.workers), []).append(run)
    order = sorted(places, key=lambda place: (place.task, place.scale, place.workers, link_order(place.link)))
    return [_section(place, places[place], places) for place in order]


def link_order(link: str) -> tuple[float, str]:
    """Return a sort key of links: slowest first, ``unthrottled`` and what is no rate last."""
    try:
        return parse_rate(link.split(",")[0]), link
    except ValueError:
        return math.inf, link


def methods(found: Iterable[Section]) -> list[str]:
    """Return all methods' names: dense ones first, then fixed ones, then adaptive ones."""
    kinds = {row.method: row.adaptive for section in found for row in section.rows}
    return sorted(kinds, key=lambda name: (kinds[name], _dense_order(name), name))


def _dense_order(method: str) -> int:
    return DENSE.index(method) if method in DENSE else len(DENSE)


def _section(place: Place, runs: Sequence[TrainingRecord], places: dict[Place, list[TrainingRecord]]) -> Section:
    free = [run for run in places.get(place._replace(link=LIMIT_LINK), []) if run.method == LIMIT_METHOD]
    limit_tta = amount([time_to_target(run) for run in free])
    limit = limit_tta.median if limit_tta and limit_tta.exact and limit_tta.median > 0 else None
    by_method: dict[str, list[TrainingRecord]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_method.setdefault(run.method, []).append(run)
    dense_bytes = _middle(by_method.get("fp32", free), bytes_per_step)
    baseline = by_method.get(BASELINE, [])
    rows = [_row(ran, limit, dense_bytes, baseline) for ran in by_method.values()]
    rows.sort(key=lambda row: (not row.tta.exact, row.tta.median, row.method))
    return Section(
        place=place,
        rows=tuple(rows),
        limit=limit,
        dense_steps=_steps(by_method.get(LIMIT_METHOD, [])) or _steps(free),
        verdict=verdict(rows, limit),
        notes=tuple(notes(rows, limit, limit_tta, by_method, dense_bytes)),
    )


def _steps(runs: Sequence[TrainingRecord]) -> float | None:
    steps = amount([steps_to_target(run) for run in runs])
    return steps.median if steps and steps.exact else None


def _row(
    runs: Sequence[TrainingRecord], limit: float | None, dense_bytes: float | None, baseline: Sequence[TrainingRecord]
) -> ReportRow:
    tta = amount([time_to_target(run) for run in runs]) or UNKNOWN
    steps = amount([steps_to_target(run) for run in runs]) or UNKNOWN
    own_bytes = _middle(runs, bytes_per_step)
    return ReportRow(
        method=runs[0].method,
        adaptive=runs[0].adaptive,
        runs=tuple(runs),
        reached=sum(run.tta_s is not None for run in runs),
        tta=tta,
        relative=tta.over(limit) if limit else None,
        speedup=paired(runs, baseline),
        steps=steps,
        every=statistics.median(run.every or 1 for run in runs),
        samples_per_s=statistics.median(run.samples_per_s for run in runs),
        efficiency=_middle(runs, lambda run: run.efficiency),
        bytes_per_step=own_bytes,
        wire_ratio=dense_bytes / own_bytes if dense_bytes and own_bytes else None,
        gain=_middle(runs, lambda run: run.gain),
        compress_share=_middle(runs, compress_share),
        spread=spread_note(tta),
    )


def _middle(runs: Iterable[TrainingRecord], get: Callable[[TrainingRecord], float | None]) -> float | None:
    known = [value for value in map(get, runs) if value is not None]
    return statistics.median(known) if known else None
