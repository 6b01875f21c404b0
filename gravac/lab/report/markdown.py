# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes the report's numbers as Markdown tables, and inserts the tables into a document between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gravac.lab.report.numbers import Amount, ReportRow
from gravac.lab.report.summary import Section, methods, sections
from gravac.lab.tta.record import TrainingRecord
from gravac.settings import SettingsError

BEGIN_MARK, END_MARK = "<!-- gravac report: begin -->", "<!-- gravac report: end -->"
"""Lines of a Markdown document; the tables are inserted between the two lines."""


def markdown_tables(runs: Sequence[TrainingRecord], commits_note: str = "") -> str:
    """Return a Markdown table for each task, and below the table a sentence per link on the fastest method.

    A table has a row per method and a column per link. A cell has the time to the target and the speed-up over fp16.
    The time is divided by the limit, which is the median time of fp32 on an unthrottled link. The time is in seconds if
    the limit is not known.

    Args:
        runs: records of the runs to report.
        commits_note: sentence on the runs' commits, without full stop, to put before the tables; empty: no sentence.
    """
    sections_by_task: dict[tuple[str, float, str], list[Section]] = {}
    for section in sections(runs):
        setup = section.setup
        sections_by_task.setdefault((setup.task, setup.scale, setup.ranks_text), []).append(section)
    first_paragraphs = [f"{commits_note[0].upper()}{commits_note[1:]}."] if commits_note else []
    return "\n\n".join(first_paragraphs + [_task_tables(task_sections) for task_sections in sections_by_task.values()])


def insert_tables(path: Path, runs: Sequence[TrainingRecord], commits_note: str = "") -> None:
    """Replace the text between the two marks of a Markdown file with the tables of runs.

    Args:
        path: Markdown file to change.
        runs: records of the runs to report.
        commits_note: sentence on the runs' commits, see ``markdown_tables``.

    Raises:
        SettingsError: the file does not have each mark exactly once, ``BEGIN_MARK`` before ``END_MARK``.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN_MARK) != 1 or text.count(END_MARK) != 1 or text.index(BEGIN_MARK) > text.index(END_MARK):
        raise SettingsError(
            f"{path}: the two lines around the tables are missing, repeated or in wrong order; write {BEGIN_MARK!r} "
            f"and then {END_MARK!r}, each once"
        )
    text_before, text_after_mark = text.split(BEGIN_MARK)
    text_after = text_after_mark.split(END_MARK)[1]
    path.write_text(
        f"{text_before}{BEGIN_MARK}\n\n{markdown_tables(runs, commits_note)}\n\n{END_MARK}{text_after}",
        encoding="utf-8",
    )


def _task_tables(task_sections: Sequence[Section]) -> str:
    """Return heading, table and verdicts of a task as text; ``task_sections`` has the task's sections, one per link."""
    setup, first_run, limit = task_sections[0].setup, task_sections[0].run, task_sections[0].limit
    runs = [run for section in task_sections for row in section.rows for run in row.runs]
    seeds = sorted({run.seed for run in runs})
    targets = sorted({run.target for run in runs})
    target_text = f"{targets[0]:.3f}" if len(targets) == 1 else f"{targets[0]:.3f} to {targets[-1]:.3f}, by seed"
    heading = f"### {setup.task}, scale {setup.scale:g}, {setup.ranks_text}"
    summary_text = f"{first_run.metric}; target {target_text}; seeds {', '.join(map(str, seeds))}; " + (
        f"the limit is {limit:.1f} s." if limit else "the limit is not known."
    )
    table_lines = [f"| method | {' | '.join(section.setup.link for section in task_sections)} |"]
    table_lines.append("| --- |" + " --- |" * len(task_sections))
    for method in methods(task_sections):
        cells = [_cell_text(row) if (row := section.row(method)) else "-" for section in task_sections]
        table_lines.append(f"| `{method}` | {' | '.join(cells)} |")
    verdicts = "\n".join(f"- {section.setup.link}: {section.verdict}" for section in task_sections)
    return "\n\n".join((heading, summary_text, "\n".join(table_lines), verdicts))


def _cell_text(row: ReportRow) -> str:
    """Return a table's cell: time to target / limit (or seconds), range over seeds, speed-up; † if factored."""
    amount = row.relative or row.tta
    cell_text = f"{amount.median_sign}{amount.median:.2f}"
    if amount.runs > 1:
        cell_text += f" [{_range_end_text(amount, low=True)}, {_range_end_text(amount, low=False)}]"
    if row.speedup is not None and row.method != "fp16":
        cell_text += f", {row.speedup.median_sign}{row.speedup.median:.2f}x"
    return cell_text + ("†" if row.factored else "")


def _range_end_text(amount: Amount, *, low: bool) -> str:
    """Return a text that states the low end of an amount's range over seeds if ``low``, otherwise the high end."""
    return f"{amount.low_sign}{amount.low:.2f}" if low else f"{amount.high_sign}{amount.high:.2f}"
