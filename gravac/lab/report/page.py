# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes a report as a self-contained HTML page, and its figures as PNG files beside the page. Needs matplotlib."""

from __future__ import annotations

import base64
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from gravac.candidate import Candidate, Forecast
from gravac.lab.links.link import PACED
from gravac.lab.report import curves, plots, style
from gravac.lab.report.numbers import BASELINE, Amount, ReportRow, inside_spread
from gravac.lab.report.sentences import times
from gravac.lab.report.style import Looks
from gravac.lab.report.summary import Section, link_order, methods, sections
from gravac.lab.report.template import HOW_TO_READ, STYLE
from gravac.lab.training.methods import running
from gravac.lab.tta.record import DecisionPoint, TrainingRecord
from gravac.settings import SettingsError
from gravac.telemetry.descriptions import describe_reason

_NOTHING = "–"

NumberFormat = Callable[[float], str]
"""Function that returns a number as text."""


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page, with its caption.

    Attributes:
        name: end of the name of the figure's file.
        figure: the figure.
        caption: text below the figure.
        table: HTML of a table below the caption; empty for none.
        collapsed: whether the page shows the caption alone until a reader opens it.
    """

    name: str
    figure: Figure
    caption: str
    table: str = ""
    collapsed: bool = False


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
    page_sections = sections(runs)
    adaptive = {row.method for section in page_sections for row in section.rows if row.adaptive}
    looks = style.assign_looks(methods(page_sections), adaptive)
    names = file_names(page_sections)
    bodies = [_section(section, names[section.setup], looks, out) for section in page_sections]
    page = out / "index.html"
    page.write_text(_page(page_sections, names, bodies, len(runs), commits_note), encoding="utf-8")
    return page


def file_names(page_sections: Iterable[Section]) -> dict[object, str]:
    """Return a file name for each section's setup: task and link; scale, workers and a number only if necessary."""
    names: dict[object, str] = {}
    for section in page_sections:
        setup = section.setup
        short = f"{_slug(setup.task)}-{_slug(setup.link)}"
        full = f"{short}-scale_{_slug(f'{setup.scale:g}')}-workers_{setup.workers}"
        numbered = (f"{full}-{number}" for number in itertools.count(2))
        used = set(names.values())
        names[setup] = next(name for name in itertools.chain((short, full), numbered) if name not in used)
    return names


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.") or "x"


def _page(
    page_sections: Sequence[Section], names: Mapping[object, str], bodies: Sequence[str], count: int, commits_note: str
) -> str:
    """Return the page's HTML.

    Args:
        page_sections: sections of the page.
        names: file name of each section's setup.
        bodies: HTML of each section.
        count: number of runs.
        commits_note: see ``write_report``.
    """
    origin = f" ({escape(commits_note)})" if commits_note else ""
    tasks = ", ".join(dict.fromkeys(section.setup.task for section in page_sections))
    entries = "".join(
        f'<li><a href="#{names[section.setup]}">{_heading(section, page_sections)}</a></li>'
        for section in page_sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gravac report: {escape(tasks)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Time to accuracy with compressed gradients</h1>
<p class="pale">{count} runs of <code>gravac bench tta</code>{origin}. Words such as <i>the limit</i>, <i>gain</i> and
<i>paced</i> are <a href="#how-to-read">explained at the end</a>.</p>
<h2 id="one-look">One look</h2>
{_matrix(page_sections, names)}
<nav><h2 id="contents">Contents</h2>
<ul><li><a href="#one-look">One look</a></li>{entries}<li><a href="#how-to-read">How to read this</a></li></ul></nav>
{"".join(_headed(section, page_sections, names, body) for section, body in zip(page_sections, bodies, strict=True))}
{HOW_TO_READ}
</body>
</html>
"""


def _headed(section: Section, page_sections: Sequence[Section], names: Mapping[object, str], body: str) -> str:
    """Return a section's HTML, with its heading."""
    return f'<section><h2 id="{names[section.setup]}">{_heading(section, page_sections)}</h2>\n{body}</section>\n'


def _heading(section: Section, page_sections: Sequence[Section]) -> str:
    return f"{_task(section, page_sections)} on {escape(section.setup.link)}{_paced(section.paced)}"


def _task(section: Section, page_sections: Sequence[Section]) -> str:
    """Return the task's name, with scale and workers if the page's sections differ in them."""
    setup = section.setup
    text = escape(setup.task)
    if len({each.setup.scale for each in page_sections}) > 1:
        text += f", scale {setup.scale:g}"
    if len({each.setup.workers for each in page_sections}) > 1:
        text += f", {setup.workers} workers"
    return text


def _paced(is_paced: bool) -> str:
    return f' <span class="paced">{PACED}</span>' if is_paced else ""


def _dagger(factored: bool) -> str:
    return '<a href="#factored" title="factored">†</a>' if factored else ""


def _matrix(page_sections: Sequence[Section], names: Mapping[object, str]) -> str:
    """Return a table of the fastest method of each cell, with a row per task and a column per link."""
    links = sorted({section.setup.link for section in page_sections}, key=link_order)
    tasks = list(dict.fromkeys(section.setup._replace(link="") for section in page_sections))
    by_setup = {section.setup: section for section in page_sections}
    head = "".join(f'<th class="text" scope="col">{escape(link)}</th>' for link in links)
    rows = []
    for task in tasks:
        task_sections = [by_setup.get(task._replace(link=link)) for link in links]
        label = next(_task(section, page_sections) for section in task_sections if section)
        cells = "".join(_cell(section, names) if section else f"<td>{_NOTHING}</td>" for section in task_sections)
        rows.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return f"""<div class="wide"><table class="look">
<caption>The fastest method to the target, how fast it is against {BASELINE} on the same link, and its time relative to
the limit, a network that costs nothing. Shaded where an adaptive method is fastest; † <a href="#factored">factored</a>.
</caption>
<thead><tr><th scope="col">task</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>"""


def _cell(section: Section, names: Mapping[object, str]) -> str:
    """Return the cell of a section in the table of fastest methods."""
    best = section.fastest
    link = f'href="#{names[section.setup]}"'
    if best is None:
        return f"<td><strong><a {link}>none reached the target</a></strong>{_paced(section.paced)}</td>"
    draw = best.method != BASELINE and best.speedup is not None and inside_spread(best.speedup)
    if best.method == BASELINE:
        comparison = f"{BASELINE} itself is fastest"
    elif best.speedup is None:
        comparison = f"no {BASELINE} to compare with"
    else:
        seeds = "one seed" if best.speedup.runs == 1 else "inside the spread" if draw else _range(best.speedup, times)
        comparison = f"{_amount(best.speedup, times)} the speed of {BASELINE} ({seeds})"
    distance = "limit not run" if best.relative is None else f"{times(best.relative.median)} the limit"
    name = f"<strong><a {link}>{escape(best.method)}</a>{_dagger(best.factored)}</strong>"
    css_class = ' class="adaptive"' if best.adaptive else ""
    return f"<td{css_class}>{name}{comparison}<br>{distance}{'<br>' + _paced(True) if section.paced else ''}</td>"


def _section(section: Section, name: str, looks: Looks, out: Path) -> str:
    """Write a section's figures, and return the section's HTML without its heading.

    Args:
        section: the section.
        name: beginning of the names of the figures' files.
        looks: looks of the methods.
        out: folder of the page.
    """
    run = section.run
    better = "at least" if run.higher_is_better else "at most"
    limit = "not known" if section.limit is None else f"{_seconds(section.limit)} s"
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    figures = "".join(_figure(section, name, figure, out) for figure in _figures(section, looks))
    return f"""<p class="verdict">{escape(section.verdict)}</p>
<p class="pale">Target: {escape(run.metric)} of {better} {run.target:g}. The limit: {limit}. {section.setup.workers}
workers, scale {section.setup.scale:g}.</p>
{f"<ul>{notes}</ul>" if notes else ""}
{_table(section)}
{figures}"""


_COLUMNS = (
    ("method", ""),
    ("time to target", "s, median; min to max"),
    ("of the limit", "1 is a free network"),
    (f"speed over {BASELINE}", "by seed; min to max"),
    ("steps to target", ""),
    ("every", "steps to an exchange"),
    ("samples/s", "all ranks"),
    ("scaling efficiency", "1 is linear"),
    ("wire ratio", "fp32 is 1"),
    ("sent a step", "a rank"),
    ("gain", "mean"),
    ("compress", "of the step"),
    ("seeds", "reached of run"),
)


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col">{label}<small>{unit}</small></th>' for label, unit in _COLUMNS)
    rows = "".join(_row(row) for row in section.rows)
    marks = " Adaptive methods are shaded."
    marks += ' † factored, see <a href="#factored">below</a>.' if section.factored else ""
    return f"""<div class="wide"><table>
<caption>All methods, fastest first.{marks}{_paced(section.paced)}</caption>
<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"""


def _row(row: ReportRow) -> str:
    spread = f'<small class="note">{escape(row.spread)}</small>' if row.spread else ""
    cells = (
        _amount(row.tta, _seconds) + _range_below(row.tta, _seconds),
        _NOTHING if row.relative is None else _amount(row.relative, times),
        _NOTHING
        if row.speedup is None
        else _amount(row.speedup, times) + _range_below(row.speedup, lambda x: f"{x:.2f}"),
        _amount(row.steps, lambda x: f"{x:,.0f}"),
        f"{row.every:.3g}",
        f"{row.samples_per_s:,.0f}" if row.samples_per_s >= 10 else f"{row.samples_per_s:.2f}",
        _optional(row.efficiency, ".2f"),
        _NOTHING if row.wire_ratio is None else f"{row.wire_ratio:.3g}",
        _NOTHING if row.bytes_per_step is None else _bytes(row.bytes_per_step),
        _optional(row.gain, ".3f"),
        _optional(row.compress_fraction, ".0%"),
        f"{row.reached} of {len(row.runs)}{spread}",
    )
    css_class = ' class="adaptive"' if row.adaptive else ""
    label = f"{escape(row.method)}{_dagger(row.factored)}"
    return f'<tr{css_class}><th scope="row">{label}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _optional(number: float | None, format_spec: str) -> str:
    return _NOTHING if number is None else format(number, format_spec)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _amount(amount: Amount, number_format: NumberFormat) -> str:
    """Return an amount's median as text."""
    return f"{escape(amount.sense)}{' ' * bool(amount.sense)}{number_format(amount.median)}"


def _range(amount: Amount, number_format: NumberFormat) -> str:
    """Return an amount's range as text."""
    low, high = escape(amount.low_sense), escape(amount.high_sense)
    return f"{low}{number_format(amount.low)} to {high}{number_format(amount.high)}"


def _range_below(amount: Amount, number_format: NumberFormat) -> str:
    """Return the HTML of an amount's range, to stand below its median; empty for a single seed."""
    return "" if amount.runs < 2 else f'<small class="range">{_range(amount, number_format)}</small>'


def _figures(section: Section, looks: Looks) -> Iterable[PageFigure]:
    """Draw a section's figures in the order of the page, without those for which the records have no numbers."""
    seeds = "Thin lines are single seeds, thick coloured ones adaptive methods; the rest are medians over seeds."
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
            "Within a run, bytes are shared out over steps by 1/CF of its decisions." + _unknown_bytes(section),
        ),
        (
            "frontier",
            plots.frontier(section, looks),
            "Down and left is better. The line joins methods that no other beats in both. Hollow: target not reached, "
            "placed at the steps made, and left out where those are fewer than fp32 needs." + _unknown_bytes(section),
        ),
        (
            "timeline",
            plots.timeline(section),
            "Compress and exchange run while backward computes; they are known for gravac's own methods only.",
        ),
    ]
    for name, figure, caption in figures:
        if figure is not None:
            yield PageFigure(name, figure, caption)
    for row in section.rows:
        for number, run in enumerate(row.runs if row.adaptive else ()):
            figure = plots.decisions(section, run, looks)
            if figure is not None:
                name = f"decisions-{_slug(run.method)}-seed_{run.seed}"
                caption = f"{run.method}, seed {run.seed}: dotted lines are changes, numbered as in the list below."
                yield PageFigure(name, figure, caption, _changes_table(run), collapsed=number > 0)


def _unknown_bytes(section: Section) -> str:
    """Return a sentence on the methods whose bytes are not known; empty if there are none."""
    unknown = [row.method for row in section.rows if not row.bytes_per_step]
    return f" Not drawn, since what they send is not known: {', '.join(unknown)}." if unknown else ""


def _changes_table(run: TrainingRecord) -> str:
    """Return a table of a run's changes, numbered, with their reasons."""
    changes = plots.changes(run)
    if not changes:
        return '<p class="pale">It changed nothing.</p>'
    forecasts = [
        Forecast(
            Candidate(decision.mode or "hook", decision.compressor, decision.cf),
            math.nan,
            method=_method(run, decision),
        )
        for decision in run.turns
    ]
    rows = "".join(
        f'<tr><th scope="row">{number}</th><td>{change.step:,}</td><td>{_optional(change.seconds, ",.1f")}</td>'
        f'<td class="text">{escape(_method(run, change))}{_every(change.every, change.delay)}</td>'
        f"<td>{change.cf:.4g}</td>"
        f"<td>{_optional(change.gain, '.3f')}</td>"
        f'<td class="text">{escape(describe_reason(change.reason, forecasts))}</td></tr>'
        for number, change in enumerate(changes, start=1)
    )
    table = f"""<div class="wide"><table><thead><tr><th scope="col">no.</th><th scope="col">step</th>
<th scope="col">s</th><th class="text" scope="col">from here</th><th scope="col">CF</th><th scope="col">gain</th>
<th class="text" scope="col">reason</th></tr></thead><tbody>{rows}</tbody></table></div>"""
    return f"<details{' open' * (len(changes) <= 12)}><summary>{len(changes)} changes</summary>{table}</details>"


def _method(run: TrainingRecord, decision: DecisionPoint) -> str:
    """Return the name of the compression that runs after a decision."""
    return running(run.method, decision.compressor, decision.cf, decision.mode or "hook")


def _every(steps: int, delay: int) -> str:
    return f" every {steps} steps" * (steps > 1) + f", behind {delay}" * (delay > 0)


def _figure(section: Section, name: str, page_figure: PageFigure, out: Path) -> str:
    """Write a figure's file, and return the figure's HTML.

    Args:
        section: section of the figure.
        name: beginning of the file's name.
        page_figure: figure with its caption.
        out: folder of the page.
    """
    picture = style.png(page_figure.figure)
    file = f"{name}-{page_figure.name}.png"
    (out / file).write_bytes(picture)
    text = style.title(section, page_figure.caption)
    encoded = base64.b64encode(picture).decode("ascii")
    html = f"""<figure><img alt="{escape(text)}" src="data:image/png;base64,{encoded}">
<figcaption>{escape(page_figure.caption)}{_paced(section.paced)} <code>{escape(file)}</code></figcaption></figure>
{page_figure.table}"""
    if not page_figure.collapsed:
        return html
    return f"<details><summary>{escape(page_figure.caption)}</summary>{html}</details>"
