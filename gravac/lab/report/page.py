# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes a report as a self-contained HTML page, and its figures as PNG files beside the page.

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
from gravac.lab.report.sentences import times
from gravac.lab.report.style import Looks
from gravac.lab.report.summary import Section, Setup, link_order, methods, sections
from gravac.lab.training.methods import running
from gravac.lab.tta.record import DecisionPoint, TrainingRecord
from gravac.settings import SettingsError
from gravac.telemetry.descriptions import describe_reason


class CandidateChange(NamedTuple):
    """A decision that changed something, for a table.

    Attributes:
        step: first step for which the decision holds.
        seconds: training time at the step; ``None`` if it was not recorded.
        method: name of the compression that runs from the step on.
        cf: compression factor.
        gain: gain of the window that ended; ``None`` at the start.
        reason: reason of the decision.
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
        file: name of the figure's file.
        png: the file's content in base64.
        title: text for readers who do not see the figure.
        caption: text below the figure.
        changes: changes to list below the caption; ``None`` for no list.
        collapsed: whether the page shows the caption alone until a reader opens it.
    """

    file: str
    png: str
    title: str
    caption: str
    changes: list[CandidateChange] | None
    collapsed: bool


@dataclass(frozen=True)
class PageSection:
    """A section of the report, for the page.

    Attributes:
        section: the section.
        name: anchor of the section, with which the names of its figures' files begin.
        label: name of the task, with scale and workers if the page's sections differ in them.
        figures: figures in the order of the page.
    """

    section: Section
    name: str
    label: str
    figures: list[PageFigure]


def write_report(runs: Sequence[TrainingRecord], out: Path, commits_note: str = "") -> Path:
    """Write ``index.html`` and its figures into a folder, and return the page's path.

    Args:
        runs: runs to report.
        out: folder of the page; it is made if it does not exist.
        commits_note: sentence on the runs' commits, for the page; empty: no sentence.

    Raises:
        SettingsError: there are no runs, or ``out`` is a file; names the remedy.
        OSError: ``out`` cannot be written to.
    """
    if not runs:
        raise SettingsError("runs: there are none to report; give files of `gravac bench tta --json` that hold runs")
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder, or the name of one to be made")
    out.mkdir(parents=True, exist_ok=True)
    all_sections = sections(runs)
    adaptive = {row.method for section in all_sections for row in section.rows if row.adaptive}
    looks = style.assign_looks(methods(all_sections), adaptive)
    names = file_names(all_sections)
    page_sections = [
        PageSection(section, name, _label(section, all_sections), [*_figures(section, name, looks, out)])
        for section, name in zip(all_sections, names, strict=True)
    ]
    page = out / "index.html"
    page.write_text(_render(page_sections, len(runs), commits_note), encoding="utf-8")
    return page


def file_names(all_sections: Iterable[Section]) -> list[str]:
    """Return a file name for each section: task and link; scale, workers and a number only if necessary."""
    names: list[str] = []
    for section in all_sections:
        setup = section.setup
        short = f"{_slug(setup.task)}-{_slug(setup.link)}"
        full = f"{short}-scale_{_slug(f'{setup.scale:g}')}-workers_{setup.workers}"
        numbered = (f"{full}-{number}" for number in itertools.count(2))
        names.append(next(name for name in itertools.chain((short, full), numbered) if name not in names))
    return names


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.") or "x"


def _label(section: Section, all_sections: Sequence[Section]) -> str:
    """Return the task's name, with scale and workers if the page's sections differ in them."""
    setup, text = section.setup, section.setup.task
    if len({each.setup.scale for each in all_sections}) > 1:
        text += f", scale {setup.scale:g}"
    if len({each.setup.workers for each in all_sections}) > 1:
        text += f", {setup.workers} workers"
    return text


def _render(page_sections: Sequence[PageSection], count: int, commits_note: str) -> str:
    """Return the page's HTML.

    Args:
        page_sections: sections of the page.
        count: number of runs.
        commits_note: see ``write_report``.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    by_setup: dict[Setup, PageSection] = {entry.section.setup: entry for entry in page_sections}
    links = sorted({setup.link for setup in by_setup}, key=link_order)
    tasks = dict.fromkeys(setup._replace(link="") for setup in by_setup)
    return environment.get_template("page.html").render(
        page_sections=page_sections,
        links=links,
        matrix=[[by_setup.get(task._replace(link=link)) for link in links] for task in tasks],
        count=count,
        commits_note=commits_note,
        times=times,
        seconds=_seconds,
        size=_size,
        inside_spread=inside_spread,
        BASELINE=BASELINE,
        LIMIT_LINK=LIMIT_LINK,
        LIMIT_METHOD=LIMIT_METHOD,
        PACED=PACED,
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _figures(section: Section, name: str, looks: Looks, out: Path) -> Iterator[PageFigure]:
    """Draw a section's figures and write their files, except those for which the records have no numbers.

    Args:
        section: the section.
        name: beginning of the files' names.
        looks: looks of the methods.
        out: folder of the page.
    """

    def written(
        kind: str, figure: Figure, caption: str, changes: list[CandidateChange] | None = None, collapsed: bool = False
    ) -> PageFigure:
        picture, file = style.png(figure), f"{name}-{kind}.png"
        (out / file).write_bytes(picture)
        encoded = base64.b64encode(picture).decode("ascii")
        return PageFigure(file, encoded, style.title(section, caption), caption, changes, collapsed)

    seeds = "Thin lines are single seeds, thick coloured ones adaptive methods; the rest are medians over seeds."
    unknown = [row.method for row in section.rows if not row.bytes_per_step]
    not_drawn = f" Not drawn, since what they send is not known: {', '.join(unknown)}." if unknown else ""
    figures: list[tuple[str, Figure | None, str]] = [
        (
            "tta",
            plots.time_to_target(section, looks),
            "Logarithmic. Shorter is better; nothing can be expected left of the limit but by chance.",
        ),
        ("time", curves.metric_against_time(section, looks), seeds),
        ("steps", curves.metric_against_steps(section, looks), f"What compression costs in progress. {seeds}"),
        (
            "bytes",
            curves.metric_against_bytes(section, looks),
            "Within a run, bytes are shared out over steps by 1/CF of its decisions." + not_drawn,
        ),
        (
            "frontier",
            plots.frontier(section, looks),
            "Down and left is better. The line joins methods that no other beats in both. Hollow: target not reached, "
            "placed at the steps made, and left out where those are fewer than fp32 needs." + not_drawn,
        ),
        (
            "timeline",
            plots.timeline(section),
            "Compress and exchange run while backward computes; they are known for gravac's own methods only.",
        ),
    ]
    for kind, figure, caption in figures:
        if figure is not None:
            yield written(kind, figure, caption)
    for row in section.rows:
        for number, run in enumerate(row.runs if row.adaptive else ()):
            figure = plots.decisions(section, run, looks)
            if figure is not None:
                kind = f"decisions-{_slug(run.method)}-seed_{run.seed}"
                caption = f"{run.method}, seed {run.seed}: dotted lines are changes, numbered as in the list below."
                yield written(kind, figure, caption, _changes(run), collapsed=number > 0)


def _changes(run: TrainingRecord) -> list[CandidateChange]:
    """Return a run's changes with their reasons, in which names of candidates are described."""

    def method(decision: DecisionPoint) -> str:
        return running(run.method, decision.compressor, decision.cf, decision.mode or "hook")

    forecasts = [
        Forecast(
            Candidate(decision.mode or "hook", decision.compressor, decision.cf), math.nan, method=method(decision)
        )
        for decision in run.turns
    ]
    changes = []
    for change in plots.changes(run):
        every = f" every {change.every} steps" * (change.every > 1) + f", behind {change.delay}" * (change.delay > 0)
        reason = describe_reason(change.reason, forecasts)
        shown = method(change) + every
        changes.append(CandidateChange(change.step, change.seconds, shown, change.cf, change.gain, reason))
    return changes
