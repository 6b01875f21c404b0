# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes a report as an HTML page that contains its figures, and the figures as PNG files beside the page.

Needs matplotlib and jinja2. ``page.html`` is the page's template.
"""

from __future__ import annotations

import base64
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from gravac.candidate import Candidate, Forecast
from gravac.lab.links.link import PACED
from gravac.lab.report import curves, plots, style
from gravac.lab.report.numbers import BASELINE, LIMIT_LINK, LIMIT_METHOD, inside_spread
from gravac.lab.report.sentences import ratio_text
from gravac.lab.report.style import Looks
from gravac.lab.report.summary import Section, Setup, link_order, methods, sections
from gravac.lab.training.methods import compression_name
from gravac.lab.tta.record import DecisionPoint, TrainingRecord
from gravac.settings import SettingsError
from gravac.telemetry.descriptions import describe_reason


class CandidateChange(NamedTuple):
    """A decision that changed the candidate, as a row of a table on the page.

    Attributes:
        step: first step for which the decision holds.
        seconds: seconds of training before the step; ``None`` if they were not recorded.
        method: what runs from the step on, as text such as ``low rank 16``.
        cf: compression factor from the step on.
        gain: gain of the window of steps before the decision; ``None`` if not known.
        reason: reason of the decision, as text.
    """

    step: int
    seconds: float | None
    method: str
    cf: float
    gain: float | None
    reason: str


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page, with its caption.

    Attributes:
        file: name of the figure's PNG file, beside the page.
        png: content of the file in base64.
        title: text for readers who cannot see the figure (``alt``).
        caption: text below the figure.
        changes: decisions that changed the candidate, to list below the caption; ``None`` for no list.
        collapsed: whether the page hides the figure until a reader clicks on its caption.
    """

    file: str
    png: str
    title: str
    caption: str
    changes: list[CandidateChange] | None
    collapsed: bool


@dataclass(frozen=True)
class PageSection:
    """A section of the page: the comparison of methods in one setup, with its figures.

    Attributes:
        section: results that the section shows.
        name: HTML anchor of the section, and beginning of the file names of its figures.
        label: name of the task, with scale and number of workers if these differ between sections of the page.
        figures: figures in the order of the page.
    """

    section: Section
    name: str
    label: str
    figures: list[PageFigure]


def write_report(runs: Sequence[TrainingRecord], out: Path, commits_note: str = "") -> Path:
    """Write ``index.html`` and its figures into a folder, and return the page's path.

    Args:
        runs: records of the runs to report.
        out: folder for the page, which is created if it does not exist.
        commits_note: sentence on the runs' commits, to show on the page; empty: no sentence.

    Raises:
        SettingsError: there are no runs, or ``out`` is a file.
        OSError: ``out`` cannot be written to.
    """
    if not runs:
        raise SettingsError(
            "runs: the files have no runs to report; give files of `gravac bench tta --json` that have runs"
        )
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder, which may be a new one")
    out.mkdir(parents=True, exist_ok=True)
    all_sections = sections(runs)
    adaptive_methods = {row.method for section in all_sections for row in section.rows if row.adaptive}
    looks = style.assign_looks(methods(all_sections), adaptive_methods)
    section_names = file_names(all_sections)
    page_sections = [
        PageSection(section, name, _section_label(section, all_sections), [*_figures(section, name, looks, out)])
        for section, name in zip(all_sections, section_names, strict=True)
    ]
    page_path = out / "index.html"
    page_path.write_text(_render_page(page_sections, len(runs), commits_note), encoding="utf-8")
    return page_path


def file_names(all_sections: Iterable[Section]) -> list[str]:
    """Return a unique name without spaces for each section; the names of its files begin with that name.

    A name has task and link. Scale, number of workers, mesh and a number are added only to tell equal names apart.
    """
    names: list[str] = []
    for section in all_sections:
        setup = section.setup
        short_name = f"{_slug(setup.task)}-{_slug(setup.link)}"
        full_name = f"{short_name}-scale_{_slug(f'{setup.scale:g}')}-workers_{setup.workers}"
        full_name += "" if setup.mesh is None else f"-mesh_{setup.mesh}"
        numbered_names = (f"{full_name}-{number}" for number in itertools.count(2))
        possible_names = itertools.chain((short_name, full_name), numbered_names)
        names.append(next(name for name in possible_names if name not in names))
    return names


def _slug(text: str) -> str:
    """Return a text for a file name: characters other than letters, digits and dots become ``_``."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.") or "x"


def _section_label(section: Section, all_sections: Sequence[Section]) -> str:
    """Return a section's task name, with scale and number of workers if these differ between sections of the page.

    A mesh is always named.
    """
    setup, label = section.setup, section.setup.task
    if len({other.setup.scale for other in all_sections}) > 1:
        label += f", scale {setup.scale:g}"
    if len({other.setup.ranks_text for other in all_sections}) > 1 or setup.mesh is not None:
        label += f", {setup.ranks_text}"
    return label


def _render_page(page_sections: Sequence[PageSection], run_count: int, commits_note: str) -> str:
    """Return the page's HTML.

    Args:
        page_sections: sections of the page.
        run_count: number of runs on the page.
        commits_note: sentence on the runs' commits, see ``write_report``.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    by_setup: dict[Setup, PageSection] = {page_section.section.setup: page_section for page_section in page_sections}
    links = sorted({setup.link for setup in by_setup}, key=link_order)
    tasks = dict.fromkeys(setup._replace(link="") for setup in by_setup)
    return environment.get_template("page.html").render(
        page_sections=page_sections,
        links=links,
        matrix=[[by_setup.get(task._replace(link=link)) for link in links] for task in tasks],
        count=run_count,
        commits_note=commits_note,
        times=ratio_text,
        seconds=_seconds_text,
        size=_bytes_text,
        inside_spread=inside_spread,
        BASELINE=BASELINE,
        LIMIT_LINK=LIMIT_LINK,
        LIMIT_METHOD=LIMIT_METHOD,
        PACED=PACED,
    )


def _seconds_text(seconds: float) -> str:
    """Return seconds as text without a unit: an integer if 100 or more, otherwise with three significant digits."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _bytes_text(byte_count: float) -> str:
    """Return a number of bytes as text, with a unit."""
    for unit, unit_bytes in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if byte_count >= unit_bytes:
            return f"{byte_count / unit_bytes:.3g} {unit}"
    return f"{byte_count:.0f} B"


def _figures(section: Section, name: str, looks: Looks, page_folder: Path) -> Iterator[PageFigure]:
    """Draw a section's figures, write their PNG files, and yield the figures for the page.

    Figures for which the records have no numbers are left out.

    Args:
        section: results that the section shows.
        name: beginning of the files' names.
        looks: colour, line style and marker of each method.
        page_folder: folder of the page.
    """

    def write_figure(
        figure_kind: str,
        figure: Figure,
        caption: str,
        changes: list[CandidateChange] | None = None,
        collapsed: bool = False,
    ) -> PageFigure:
        png, file_name = style.png_bytes(figure), f"{name}-{figure_kind}.png"
        (page_folder / file_name).write_bytes(png)
        encoded_picture = base64.b64encode(png).decode("ascii")
        return PageFigure(file_name, encoded_picture, style.figure_title(section, caption), caption, changes, collapsed)

    seeds_note = (
        "Thin lines are runs of single seeds; other lines are medians over seeds, thickest for adaptive methods."
    )
    methods_without_bytes = [row.method for row in section.rows if not row.bytes_per_step]
    not_drawn_text = (
        f" Not drawn, since their bytes are not known: {', '.join(methods_without_bytes)}."
        if methods_without_bytes
        else ""
    )
    figures: list[tuple[str, Figure | None, str]] = [
        (
            "tta",
            plots.time_to_target(section, looks),
            "Logarithmic axis; shorter is better. The limit is the time without a slow link, which a method can "
            "beat only by chance.",
        ),
        ("time", curves.metric_against_time(section, looks), seeds_note),
        (
            "steps",
            curves.metric_against_steps(section, looks),
            f"Shows how much progress per step compression costs. {seeds_note}",
        ),
        (
            "bytes",
            curves.metric_against_bytes(section, looks),
            "The bytes of each step are estimated: a run's total, divided in proportion to "
            "1 / (CF x steps per exchange)." + not_drawn_text,
        ),
        (
            "frontier",
            plots.frontier(section, looks),
            "Down and left is better. The line joins the methods that no other method beats in both bytes and steps. A "
            "hollow mark is a method that did not reach the target, at the number of steps of its run. Such a "
            "mark is left out if fp32 needs more steps than the run had." + not_drawn_text,
        ),
        (
            "timeline",
            plots.timeline(section),
            "Compression and exchange run while backward computes; their times are known for gravac's methods only.",
        ),
    ]
    for figure_kind, figure, caption in figures:
        if figure is not None:
            yield write_figure(figure_kind, figure, caption)
    for row in section.rows:
        for run_index, run in enumerate(row.runs if row.adaptive else ()):
            figure = plots.decision_figure(section, run, looks)
            if figure is not None:
                figure_kind = f"decisions-{_slug(run.method)}-seed_{run.seed}"
                caption = f"{run.method}, seed {run.seed}: dotted lines mark changes of candidate, numbered as below."
                yield write_figure(figure_kind, figure, caption, _candidate_changes(run), collapsed=run_index > 0)


def _candidate_changes(run: TrainingRecord) -> list[CandidateChange]:
    """Return the decisions of a run that changed the candidate, each with a text that describes the candidate."""

    def method_text_of(decision: DecisionPoint) -> str:
        return compression_name(run.method, decision.compressor, decision.cf, decision.mode or "hook")

    forecasts = [
        Forecast(
            Candidate(decision.mode or "hook", decision.compressor, decision.cf),
            math.nan,
            method=method_text_of(decision),
        )
        for decision in run.turns
    ]
    changes = []
    for change in plots.changed_decisions(run):
        candidate = Candidate(change.mode or "hook", change.compressor, change.cf, change.every, change.delay)
        reason = describe_reason(change.reason, forecasts)
        method_text = method_text_of(change) + candidate.pace_suffix
        changes.append(CandidateChange(change.step, change.seconds, method_text, change.cf, change.gain, reason))
    return changes
