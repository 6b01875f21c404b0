# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's numbers as Markdown tables, to stand in a document between two marks that say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gravac.lab.report.numbers import Amount, ReportRow
from gravac.lab.report.summary import Section, methods, sections
from gravac.lab.tta.record import TrainingRecord
from gravac.settings import SettingsError

BEGIN, END = "<!-- gravac report: begin -->", "<!-- gravac report: end -->"
"""Marks in a document; what stands between them is replaced."""


def tables(runs: Sequence[TrainingRecord], made_with: str = "") -> str:
    """Return the report's tables as Markdown, for each task: times to target relative to the limit, and verdicts.

    Times stand by method and link, with the speed-up over fp16. Before the tables stands ``made_with``, a sentence on
    the runs' commits.
    """
    found = sections(runs)
    tasks: dict[tuple[str, float, int], list[Section]] = {}
    for section in found:
        place = section.place
        tasks.setdefault((place.task, place.scale, place.workers), []).append(section)
    opening = [f"{made_with[0].upper()}{made_with[1:]}."] if made_with else []
    return "\n\n".join(opening + [_task(*key, group) for key, group in tasks.items()])


def insert(path: Path, runs: Sequence[TrainingRecord], made_with: str = "") -> None:
    """Replace what stands between the two marks of a Markdown file.

    Raises:
        SettingsError: the file does not have the marks, in this order and once.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SettingsError(f"{path}: needs the two lines {BEGIN!r} and {END!r}, once and in this order")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{tables(runs, made_with)}\n\n{END}{after}", encoding="utf-8")


def _task(task: str, scale: float, workers: int, group: Sequence[Section]) -> str:
    first = group[0].run
    free = group[0].limit
    seeds = sorted({run.seed for section in group for row in section.rows for run in row.runs})
    targets = sorted({run.target for section in group for row in section.rows for run in row.runs})
    target = f"{targets[0]:.3f}" if len(targets) == 1 else f"{targets[0]:.3f} to {targets[-1]:.3f}, by seed"
    head = f"### {task}, scale {scale:g}, {workers} workers"
    about = f"{first.metric}; target {target}; seeds {', '.join(map(str, seeds))}; " + (
        f"the limit is {free:.1f} s." if free else "the limit is not known."
    )
    lines = [f"| method | {' | '.join(section.place.link for section in group)} |"]
    lines.append("| --- |" + " --- |" * len(group))
    for method in methods(group):
        cells = [_cell(row) if (row := section.row(method)) else "-" for section in group]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    verdicts = "\n".join(f"- {section.place.link}: {section.verdict}" for section in group)
    return "\n\n".join((head, about, "\n".join(lines), verdicts))


def _cell(row: ReportRow) -> str:
    """Return time to target in multiples of the limit, with its range over seeds; then the speed-up over fp16."""
    amount = row.relative or row.tta
    words = f"{amount.sense}{amount.median:.2f}"
    if amount.runs > 1:
        words += f" [{_end(amount, low=True)}, {_end(amount, low=False)}]"
    if row.speedup is not None and row.method != "fp16":
        words += f", {row.speedup.sense}{row.speedup.median:.2f}x"
    return words + ("†" if row.factored else "")


def _end(amount: Amount, *, low: bool) -> str:
    return f"{amount.low_sense}{amount.low:.2f}" if low else f"{amount.high_sense}{amount.high:.2f}"
