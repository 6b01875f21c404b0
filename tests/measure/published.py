# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The committed records, each read once: what published tables and claims are made of.

What stands in one of them is of one commit, or says that it is not; see ``gravac.lab.provenance``.
"""

import functools
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

from gravac.lab.report.numbers import Amount
from gravac.lab.report.summary import ReportRow, Section, Setup, sections
from gravac.lab.tta import record
from gravac.lab.tta.record import TrainingRecord
from tests.measure import results
from tests.measure.judgement import Cell, Verdict, best_static, interval, verdicts
from tests.measure.rendering import Estimate

FOLDER = Path("docs/measurements")

LINKS = ("20mbit", "100mbit", "1gbit", "unthrottled")

SCALES = {"charlm": 0.4, "lstm": 1.0, "denoise": 1.0}
"""The matrix's tasks with their scale."""

DEFAULT = "goodput:ladder@2-1000"
"""``AdaptiveCompressor()`` as a method of the lab."""

MIXED: list[bool] = [False]
"""Whether records of several commits may stand in one table."""

OF_MANY_HOURS = ("programs_links", "progress", "hsdp_links", "torch_fsdp", "outer-optimizers")
"""Records that take more hours than code stays the same: their tables may be of several commits, and name them."""


@functools.cache
def runs(name: str) -> tuple[TrainingRecord, ...]:
    """Of ``gravac bench tta``.

    Raises:
        SettingsError: they are of several commits, and that is not asked for.
    """
    path = FOLDER / f"{name}.json"
    of_file = record.read([path])
    record.commits_of([path], of_file, MIXED[0])
    return tuple(of_file)


@functools.cache
def _rows(name: str) -> tuple[results.Rows, str]:
    path = FOLDER / f"{name}.json"
    of_file = results.read(path)
    return of_file, results.commits(of_file, path, MIXED[0] or name in OF_MANY_HOURS)


def rows(name: str) -> results.Rows:
    """Of a measurement, with the same refusal."""
    return _rows(name)[0]


def commits(name: str) -> str:
    """What is said of the commits of a file's runs or rows."""
    content = (FOLDER / f"{name}.json").read_text(encoding="utf-8")[:400]
    if '"task"' in content and '"link"' in content and content.lstrip().startswith("["):
        return record.commits_of([FOLDER / f"{name}.json"], runs(name), MIXED[0])
    return _rows(name)[1]


@functools.cache
def _sections(name: str) -> dict[Setup, Section]:
    return {section.setup: section for section in sections(runs(name))}


def section(task: str, link: str, name: str = "tta") -> Section:
    """A cell of the matrix."""
    return _sections(name)[Setup(task, SCALES[task], link, 2)]


def row(task: str, link: str, method: str, name: str = "tta") -> ReportRow:
    """A method's in a cell."""
    of_method = section(task, link, name).row(method)
    assert of_method is not None, (task, link, method)
    return of_method


def speedup(task: str, link: str, method: str, name: str = "tta") -> float:
    """How many times as fast as fp16, median of the pairs."""
    amount = row(task, link, method, name).speedup
    assert isinstance(amount, Amount)
    return amount.median


def fastest_static(task: str, link: str) -> ReportRow:
    """By the median time to the target."""
    return next(row for row in section(task, link).rows if not row.adaptive)


@functools.cache
def best() -> dict[Cell, str]:
    """The matrix's best static method of every cell, by which the judgement was made."""
    return best_static(runs("tta"))


@functools.cache
def judged(name: str = "judgement") -> tuple[Verdict, ...]:
    """Every cell's verdict."""
    if name == "judgement":
        return tuple(verdicts(runs(name), best(), DEFAULT))
    among = ("topk@10", "topk@100", "fp16", "fp32")
    return tuple(verdicts(runs(name), best_static(runs("tta"), among), "goodput:topk@10-1000"))


@functools.cache
def language_verdicts() -> tuple[Verdict, ...]:
    """The default against the best static method of each language model's cell, picked from these same runs."""
    return tuple(verdicts(runs("language"), best_static(runs("language")), DEFAULT))


def over_seeds(cells: Iterable[Verdict]) -> Estimate:
    """Geometric mean of the ratios of cells that have the same seeds, and its 95 % interval over means of a seed."""
    by_seed = [statistics.fmean(map(math.log, ratios)) for ratios in zip(*(cell.ratios for cell in cells), strict=True)]
    return interval([math.exp(mean) for mean in by_seed])


def on_links(cells: Iterable[Verdict], *links: str) -> list[Verdict]:
    """Those of these links."""
    return [cell for cell in cells if cell.cell[1] in links]
