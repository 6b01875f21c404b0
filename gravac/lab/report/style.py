# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How the report's figures look: colours and marks of methods, axes, legends, PNGs. Needs matplotlib."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

from gravac.lab.links.link import PACED
from gravac.lab.report.numbers import DENSE, ReportRow
from gravac.lab.report.summary import Section

DPI = 130


WIDTH = 8.6
"""Width of a figure in inches; about 1100 pixels, shown at 800."""


INK, PALE = "#222222", "#8a8a8a"


_DENSE_COLOURS = {"fp32": "#000000", "fp16": "#6b6b6b", "bf16": "#a6a6a6"}


_ADAPTIVE_COLOURS = ("#d55e00", "#0072b2", "#882255", "#e69f00")


_FIXED_COLOURS = ("#117733", "#88ccee", "#aa4499", "#999933", "#332288", "#44aa99", "#cc6677", "#c9b23c")
"""Okabe and Ito's, and Tol's muted ones: told apart with every kind of colour blindness; lines and marks differ too."""


DASHES: tuple[tuple[float, tuple[float, ...]], ...] = ((0, ()), (0, (4, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.5)))
"""Line styles, as matplotlib takes them: solid, dashed, dash-dot, dotted."""


MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")


@dataclass(frozen=True)
class Look:
    """The look of a method, the same in every figure."""

    colour: str
    dash: tuple[float, tuple[float, ...]]
    mark: str
    width: float


Looks = Mapping[str, Look]


def looks(methods: Sequence[str], adaptive: Iterable[str]) -> dict[str, Look]:
    """Return a look for each method, by its place in the list; adaptive ones are thick, in the strongest colours."""
    thick = set(adaptive)
    adaptives, fixed = itertools.count(), itertools.count()
    found = {}
    for at, method in enumerate(methods):
        if method in _DENSE_COLOURS:
            colour, dash = _DENSE_COLOURS[method], DASHES[DENSE.index(method)]
        elif method in thick:
            number = next(adaptives)
            colour, dash = _ADAPTIVE_COLOURS[number % 4], DASHES[number // 4 % len(DASHES)]
        else:
            number = next(fixed)
            colour, dash = _FIXED_COLOURS[number % 8], DASHES[(1 + number // 8) % len(DASHES) if number >= 8 else 0]
        found[method] = Look(colour, dash, MARKS[at % len(MARKS)], 2.8 if method in thick else 1.4)
    return found


def title(section: Section, what: str) -> str:
    """Return the title of a figure: what it shows, where, and whether the link was real."""
    place = section.place
    text = f"{what}\n{place.task} on {place.link}, {place.workers} workers"
    text += f", scale {place.scale:g}" if place.scale != 1 else ""
    return text + (f" ({PACED})" if section.paced else "")


def png(figure: Figure) -> bytes:
    """Return a figure as PNG of its 256 most frequent colours: a third of the size; lines and marks keep theirs."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(full) as opened:
        pixels = np.asarray(opened.convert("RGB"), dtype=np.int32)
    codes, where, counts = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    shades = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    frequent = np.argsort(-counts, kind="stable")[:256]
    nearest = np.abs(shades[:, None] - shades[None, frequent]).sum(axis=2).argmin(axis=1).astype(np.uint8)
    picture = Image.fromarray(nearest[where.reshape(pixels.shape[:2])])
    picture.putpalette(shades[frequent].astype(np.uint8).tobytes())
    picture.save(small, "PNG")
    return small.getvalue()


def blank(height: float) -> Figure:
    """Return an empty figure, ``height`` inches high."""
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")


def one_axes(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, ``height`` inches high."""
    figure = blank(height)
    axes = figure.add_subplot()
    tidy(axes)
    return figure, axes


def tidy(axes: Axes) -> None:
    """Give axes a pale grid, and no more frame than is needed."""
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def finish(figure: Figure, axes: Axes, text: str, names: Sequence[Line2D | Patch]) -> Figure:
    """Add a title, and the legend to the right of the axes, where no data is."""
    axes.set_title(text, fontsize=11, loc="left")
    figure.legend(handles=list(names), loc="outside right center", frameon=False, fontsize=9, handlelength=2.6)
    return figure


def names_of(rows: Sequence[ReportRow], drawn: Looks) -> list[Line2D | Patch]:
    """Return what the legend shows of methods, in the order of rows."""
    names: list[Line2D | Patch] = [
        Line2D(
            [],
            [],
            color=drawn[row.method].colour,
            linestyle=drawn[row.method].dash,
            linewidth=drawn[row.method].width,
            label=marked(row),
        )
        for row in rows
    ]
    return [*names, Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2)), label="target")]


def mark_of(row: ReportRow, drawn: Looks) -> Line2D:
    """Return a method's mark, by itself: hollow where it is only a bound."""
    look = drawn[row.method]
    face = look.colour if row.steps.exact else "white"
    label = marked(row) if row.steps.exact else f"{marked(row)}: not reached"
    return Line2D([], [], color=look.colour, marker=look.mark, markerfacecolor=face, linestyle="", label=label)


def marked(row: ReportRow) -> str:
    """Return a method's name for a legend, cut where too long, with a dagger where factored."""
    name = row.method if len(row.method) <= 30 else row.method[:29] + "…"
    return literally(name) + ("†" if row.factored else "")


def literally(text: str) -> str:
    """Return text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def plain_log(axes: Axes, which: str) -> None:
    """Label a logarithmic axis with plain numbers; in between, too, when it spans little."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_formatter(plain)
    few = low > 0 and high / low < 12
    axis.set_minor_formatter(FuncFormatter(short) if few else NullFormatter())
    axis.set_tick_params(which="minor", labelsize=8)


def short(value: float, _: int | None = None) -> str:
    """Return a label for 2, 3 and 5 times a power of ten, and none for others, which would touch."""
    lead = value / 10 ** math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:g}" if any(abs(lead - kept) < 1e-6 for kept in (2, 3, 5)) else ""
