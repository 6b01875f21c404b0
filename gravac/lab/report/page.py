# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a report, and its figures as PNG files beside it. Needs matplotlib."""

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
from gravac.lab.report.style import Looks
from gravac.lab.report.summary import Section, link_order, methods, sections
from gravac.lab.report.template import HOW_TO_READ, STYLE
from gravac.lab.report.words import times
from gravac.lab.training.methods import running
from gravac.lab.tta.record import TrainingRecord, Turn
from gravac.settings import SettingsError
from gravac.telemetry.words import reason_words

_NOTHING = "–"

Form = Callable[[float], str]


@dataclass(frozen=True)
class PageSection:
    """One figure: the end of its file's name, the picture, the text and the list below it."""

    name: str
    figure: Figure
    caption: str
    below: str = ""
    folded: bool = False


def write_report(runs: Sequence[TrainingRecord], out: Path, made_with: str = "") -> Path:
    """Write ``index.html`` and its figures into the folder ``out``, which is made; return the page's path.

    The page says ``made_with``, a sentence on the commits that runs were made with.

    Raises:
        SettingsError: there are no runs, or ``out`` is a file; tells the remedy.
        OSError: ``out`` cannot be written to.
    """
    if not runs:
        raise SettingsError("runs: there are none to report; give files of `gravac bench tta --json` that hold runs")
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder, or the name of one to be made")
    out.mkdir(parents=True, exist_ok=True)
    found = sections(runs)
    adaptive = {row.method for section in found for row in section.rows if row.adaptive}
    drawn = style.looks(methods(found), adaptive)
    names = file_names(found)
    bodies = [_section(section, names[section.place], drawn, out) for section in found]
    page = out / "index.html"
    page.write_text(_page(found, names, bodies, len(runs), made_with), encoding="utf-8")
    return page


def file_names(found: Iterable[Section]) -> dict[object, str]:
    """Return a file name for each section's place: task and link, and what else tells it from the others."""
    names: dict[object, str] = {}
    for section in found:
        task, scale, link, workers = section.place
        short = f"{_slug(task)}-{_slug(link)}"
        full = f"{short}-scale_{_slug(f'{scale:g}')}-workers_{workers}"
        numbered = (f"{full}-{number}" for number in itertools.count(2))
        taken = set(names.values())
        names[section.place] = next(name for name in itertools.chain((short, full), numbered) if name not in taken)
    return names


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.") or "x"


def _page(
    found: Sequence[Section], names: Mapping[object, str], bodies: Sequence[str], count: int, made_with: str
) -> str:
    origin = f" ({escape(made_with)})" if made_with else ""
    tasks = ", ".join(dict.fromkeys(section.place.task for section in found))
    entries = "".join(f'<li><a href="#{names[section.place]}">{_place(section, found)}</a></li>' for section in found)
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
{_matrix(found, names)}
<nav><h2 id="contents">Contents</h2>
<ul><li><a href="#one-look">One look</a></li>{entries}<li><a href="#how-to-read">How to read this</a></li></ul></nav>
{"".join(_headed(section, found, names, body) for section, body in zip(found, bodies, strict=True))}
{HOW_TO_READ}
</body>
</html>
"""


def _headed(section: Section, found: Sequence[Section], names: Mapping[object, str], body: str) -> str:
    return f'<section><h2 id="{names[section.place]}">{_place(section, found)}</h2>\n{body}</section>\n'


def _place(section: Section, found: Sequence[Section]) -> str:
    return f"{_task(section, found)} on {escape(section.place.link)}{_paced(section.paced)}"


def _task(section: Section, found: Sequence[Section]) -> str:
    """Return the task's name, with scale and workers where sections differ in them."""
    place = section.place
    text = escape(place.task)
    if len({each.place.scale for each in found}) > 1:
        text += f", scale {place.scale:g}"
    if len({each.place.workers for each in found}) > 1:
        text += f", {place.workers} workers"
    return text


def _paced(is_paced: bool) -> str:
    return f' <span class="paced">{PACED}</span>' if is_paced else ""


def _dagger(factored: bool) -> str:
    return '<a href="#factored" title="factored">†</a>' if factored else ""


def _matrix(found: Sequence[Section], names: Mapping[object, str]) -> str:
    """Lay out the fastest method of each cell: a row per task, a column per link."""
    links = sorted({section.place.link for section in found}, key=link_order)
    tasks = list(dict.fromkeys(section.place._replace(link="") for section in found))
    at = {section.place: section for section in found}
    head = "".join(f'<th class="text" scope="col">{escape(link)}</th>' for link in links)
    rows = []
    for task in tasks:
        here = [at.get(task._replace(link=link)) for link in links]
        label = next(_task(section, found) for section in here if section)
        cells = "".join(_cell(section, names) if section else f"<td>{_NOTHING}</td>" for section in here)
        rows.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return f"""<div class="wide"><table class="look">
<caption>The fastest method to the target, how fast it is against {BASELINE} on the same link, and its time relative to
the limit, a network that costs nothing. Shaded where an adaptive method is fastest; † <a href="#factored">factored</a>.
</caption>
<thead><tr><th scope="col">task</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>"""


def _cell(section: Section, names: Mapping[object, str]) -> str:
    best = section.fastest
    link = f'href="#{names[section.place]}"'
    if best is None:
        return f"<td><strong><a {link}>none reached the target</a></strong>{_paced(section.paced)}</td>"
    draw = best.method != BASELINE and best.speedup is not None and inside_spread(best.speedup)
    if best.method == BASELINE:
        against = f"{BASELINE} itself is fastest"
    elif best.speedup is None:
        against = f"no {BASELINE} to compare with"
    else:
        seeds = "one seed" if best.speedup.runs == 1 else "inside the spread" if draw else _range(best.speedup, times)
        against = f"{_amount(best.speedup, times)} the speed of {BASELINE} ({seeds})"
    far = "limit not run" if best.relative is None else f"{times(best.relative.median)} the limit"
    name = f"<strong><a {link}>{escape(best.method)}</a>{_dagger(best.factored)}</strong>"
    kind = ' class="adaptive"' if best.adaptive else ""
    return f"<td{kind}>{name}{against}<br>{far}{'<br>' + _paced(True) if section.paced else ''}</td>"


def _section(section: Section, name: str, drawn: Looks, out: Path) -> str:
    """Return all of a section but its heading; write its figures."""
    run = section.run
    better = "at least" if run.higher_is_better else "at most"
    limit = "not known" if section.limit is None else f"{_seconds(section.limit)} s"
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    figures = "".join(_figure(section, name, shown, out) for shown in _figures(section, drawn))
    return f"""<p class="verdict">{escape(section.verdict)}</p>
<p class="pale">Target: {escape(run.metric)} of {better} {run.target:g}. The limit: {limit}. {section.place.workers}
workers, scale {section.place.scale:g}.</p>
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
        _amount(row.tta, _seconds) + _ranged(row.tta, _seconds),
        _NOTHING if row.relative is None else _amount(row.relative, times),
        _NOTHING if row.speedup is None else _amount(row.speedup, times) + _ranged(row.speedup, lambda x: f"{x:.2f}"),
        _amount(row.steps, lambda x: f"{x:,.0f}"),
        f"{row.every:.3g}",
        f"{row.samples_per_s:,.0f}" if row.samples_per_s >= 10 else f"{row.samples_per_s:.2f}",
        _maybe(row.efficiency, ".2f"),
        _NOTHING if row.wire_ratio is None else f"{row.wire_ratio:.3g}",
        _NOTHING if row.bytes_per_step is None else _bytes(row.bytes_per_step),
        _maybe(row.gain, ".3f"),
        _maybe(row.compress_share, ".0%"),
        f"{row.reached} of {len(row.runs)}{spread}",
    )
    kind = ' class="adaptive"' if row.adaptive else ""
    label = f"{escape(row.method)}{_dagger(row.factored)}"
    return f'<tr{kind}><th scope="row">{label}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _maybe(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _amount(amount: Amount, form: Form) -> str:
    return f"{escape(amount.sense)}{' ' * bool(amount.sense)}{form(amount.median)}"


def _range(amount: Amount, form: Form) -> str:
    low, high = escape(amount.low_sense), escape(amount.high_sense)
    return f"{low}{form(amount.low)} to {high}{form(amount.high)}"


def _ranged(amount: Amount, form: Form) -> str:
    return "" if amount.runs < 2 else f'<small class="range">{_range(amount, form)}</small>'


def _figures(section: Section, drawn: Looks) -> Iterable[PageSection]:
    """Draw the figures in the order they are shown, but for those that the records hold nothing for."""
    seeds = "Thin lines are single seeds, thick coloured ones adaptive methods; the rest are medians over seeds."
    shown: list[tuple[str, Figure | None, str]] = [
        (
            "tta",
            plots.time_to_target(section, drawn),
            "Logarithmic. Shorter is better; nothing can be expected left of the limit but by chance.",
        ),
        ("time", curves.metric_against_time(section, drawn), seeds),
        ("steps", curves.metric_against_steps(section, drawn), f"What compression costs in progress. {seeds}"),
        (
            "bytes",
            curves.metric_against_bytes(section, drawn),
            "Within a run, bytes are shared out over steps by 1/CF of its decisions." + _unknown_bytes(section),
        ),
        (
            "frontier",
            plots.frontier(section, drawn),
            "Down and left is better. The line joins methods that no other beats in both. Hollow: target not reached, "
            "placed at the steps made, and left out where those are fewer than fp32 needs." + _unknown_bytes(section),
        ),
        (
            "timeline",
            plots.timeline(section),
            "Compress and exchange run while backward computes; they are known for gravac's own methods only.",
        ),
    ]
    for name, figure, caption in shown:
        if figure is not None:
            yield PageSection(name, figure, caption)
    for row in section.rows:
        for number, run in enumerate(row.runs if row.adaptive else ()):
            figure = plots.decisions(section, run, drawn)
            if figure is not None:
                name = f"decisions-{_slug(run.method)}-seed_{run.seed}"
                caption = f"{run.method}, seed {run.seed}: dotted lines are changes, numbered as in the list below."
                yield PageSection(name, figure, caption, _reasons(run), folded=number > 0)


def _unknown_bytes(section: Section) -> str:
    unknown = [row.method for row in section.rows if not row.bytes_per_step]
    return f" Not drawn, since what they send is not known: {', '.join(unknown)}." if unknown else ""


def _reasons(run: TrainingRecord) -> str:
    """Return the numbered changes as a table."""
    turns = plots.changes(run)
    if not turns:
        return '<p class="pale">It changed nothing.</p>'
    ran = [
        Forecast(Candidate(turn.mode or "hook", turn.compressor, turn.cf), math.nan, method=_method(run, turn))
        for turn in run.turns
    ]
    rows = "".join(
        f'<tr><th scope="row">{number}</th><td>{turn.step:,}</td><td>{_maybe(turn.seconds, ",.1f")}</td>'
        f'<td class="text">{escape(_method(run, turn))}{_every(turn.every, turn.delay)}</td>'
        f"<td>{turn.cf:.4g}</td>"
        f"<td>{_maybe(turn.gain, '.3f')}</td>"
        f'<td class="text">{escape(reason_words(turn.reason, ran))}</td></tr>'
        for number, turn in enumerate(turns, start=1)
    )
    table = f"""<div class="wide"><table><thead><tr><th scope="col">no.</th><th scope="col">step</th>
<th scope="col">s</th><th class="text" scope="col">from here</th><th scope="col">CF</th><th scope="col">gain</th>
<th class="text" scope="col">reason</th></tr></thead><tbody>{rows}</tbody></table></div>"""
    return f"<details{' open' * (len(turns) <= 12)}><summary>{len(turns)} changes</summary>{table}</details>"


def _method(run: TrainingRecord, turn: Turn) -> str:
    return running(run.method, turn.compressor, turn.cf, turn.mode or "hook")


def _every(steps: int, delay: int) -> str:
    return f" every {steps} steps" * (steps > 1) + f", behind {delay}" * (delay > 0)


def _figure(section: Section, name: str, shown: PageSection, out: Path) -> str:
    picture = style.png(shown.figure)
    file = f"{name}-{shown.name}.png"
    (out / file).write_bytes(picture)
    text = style.title(section, shown.caption)
    data = base64.b64encode(picture).decode("ascii")
    html = f"""<figure><img alt="{escape(text)}" src="data:image/png;base64,{data}">
<figcaption>{escape(shown.caption)}{_paced(section.paced)} <code>{escape(file)}</code></figcaption></figure>
{shown.below}"""
    return f"<details><summary>{escape(shown.caption)}</summary>{html}</details>" if shown.folded else html
