# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's numbers as Markdown tables, inserted into a document between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gravac.lab.report.numbers import Amount, ReportRow
from gravac.lab.report.summary import Section, methods, sections
from gravac.lab.tta.record import TrainingRecord
from gravac.settings import SettingsError

BEGIN, END = "<!-- gravac report: begin -->", "<!-- gravac report: end -->"
"""Marks in a document, between which the tables are inserted."""


def tables(runs: Sequence[TrainingRecord], commits_note: str = "") -> str:
    """Return a Markdown table for each task, and the verdicts: times to target relative to the limit.

    A table has a row per method and a column per link; the cells also have the speed-up over fp16.

    Args:
        runs: runs to report.
        commits_note: sentence on the runs' commits, which stands before the tables; empty: no sentence.
    """
    by_task: dict[tuple[str, float, int], list[Section]] = {}
    for section in sections(runs):
        setup = section.setup
        by_task.setdefault((setup.task, setup.scale, setup.workers), []).append(section)
    opening = [f"{commits_note[0].upper()}{commits_note[1:]}."] if commits_note else []
    return "\n\n".join(opening + [_task_tables(task_sections) for task_sections in by_task.values()])


def insert(path: Path, runs: Sequence[TrainingRecord], commits_note: str = "") -> None:
    """Replace the text between the two marks of a Markdown file by the tables.

    Args:
        path: Markdown file.
        runs: see ``tables``.
        commits_note: see ``tables``.

    Raises:
        SettingsError: the file does not have each mark exactly once, the beginning before the end.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SettingsError(f"{path}: needs the two lines {BEGIN!r} and {END!r}, once and in this order")
    text_before, rest = text.split(BEGIN)
    text_after = rest.split(END)[1]
    path.write_text(f"{text_before}{BEGIN}\n\n{tables(runs, commits_note)}\n\n{END}{text_after}", encoding="utf-8")


def _task_tables(task_sections: Sequence[Section]) -> str:
    """Return heading, table and verdicts of a task, from its sections, which differ in their links alone."""
    setup, first, limit = task_sections[0].setup, task_sections[0].run, task_sections[0].limit
    runs = [run for section in task_sections for row in section.rows for run in row.runs]
    seeds = sorted({run.seed for run in runs})
    targets = sorted({run.target for run in runs})
    target = f"{targets[0]:.3f}" if len(targets) == 1 else f"{targets[0]:.3f} to {targets[-1]:.3f}, by seed"
    heading = f"### {setup.task}, scale {setup.scale:g}, {setup.workers} workers"
    summary = f"{first.metric}; target {target}; seeds {', '.join(map(str, seeds))}; " + (
        f"the limit is {limit:.1f} s." if limit else "the limit is not known."
    )
    lines = [f"| method | {' | '.join(section.setup.link for section in task_sections)} |"]
    lines.append("| --- |" + " --- |" * len(task_sections))
    for method in methods(task_sections):
        cells = [_cell(row) if (row := section.row(method)) else "-" for section in task_sections]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    verdicts = "\n".join(f"- {section.setup.link}: {section.verdict}" for section in task_sections)
    return "\n\n".join((heading, summary, "\n".join(lines), verdicts))


def _cell(row: ReportRow) -> str:
    """Return time to target in multiples of the limit, with its range over seeds; then the speed-up over fp16."""
    amount = row.relative or row.tta
    text = f"{amount.sense}{amount.median:.2f}"
    if amount.runs > 1:
        text += f" [{_bound(amount, low=True)}, {_bound(amount, low=False)}]"
    if row.speedup is not None and row.method != "fp16":
        text += f", {row.speedup.sense}{row.speedup.median:.2f}x"
    return text + ("†" if row.factored else "")


def _bound(amount: Amount, *, low: bool) -> str:
    """Return the low or the high end of an amount's range as text."""
    return f"{amount.low_sense}{amount.low:.2f}" if low else f"{amount.high_sense}{amount.high:.2f}"
