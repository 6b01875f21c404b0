# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sets the looks of the report's figures: colours and marks of methods, axes, legends, PNG files. Needs matplotlib."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

from gravac.lab.links.link import PACED
from gravac.lab.report.numbers import DENSE_METHODS, ReportRow
from gravac.lab.report.summary import Section

DPI = 130
"""Pixels per inch of the figures."""


FIGURE_WIDTH = 8.6
"""Width of a figure in inches; about 1100 pixels, which the page shows 860 wide."""


INK_COLOUR, PALE_COLOUR = "#222222", "#8a8a8a"
"""Colours of lines that belong to no method: important lines, and lines in the background."""


_DENSE_COLOURS = {"fp32": "#000000", "fp16": "#6b6b6b", "bf16": "#a6a6a6"}


_ADAPTIVE_COLOURS = ("#d55e00", "#0072b2", "#882255", "#e69f00")


_FIXED_COLOURS = ("#117733", "#88ccee", "#aa4499", "#999933", "#332288", "#44aa99", "#cc6677", "#c9b23c")
"""Colours of methods without a controller. All colours are from the palettes of Okabe and Ito, and of Tol (muted).

People with any kind of colour blindness can tell these colours apart; lines and marks differ, too.
"""


DASHES: tuple[tuple[float, tuple[float, ...]], ...] = ((0, ()), (0, (4, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.5)))
"""Line styles in matplotlib's form: solid, dashed, dash-dot, dotted."""


MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
"""Markers of methods, by matplotlib's names."""


@dataclass(frozen=True)
class Look:
    """Colour, line and marker of a method, the same in every figure.

    Attributes:
        colour: colour as ``"#rrggbb"``.
        dash: line style in matplotlib's form.
        mark: marker by matplotlib's name.
        width: width of lines in points.
    """

    colour: str
    dash: tuple[float, tuple[float, ...]]
    mark: str
    width: float


Looks = Mapping[str, Look]
"""Look of each method, by the method's text."""


def assign_looks(methods: Sequence[str], adaptive: Iterable[str]) -> dict[str, Look]:
    """Return a look for each method; looks depend on the order of ``methods``.

    Args:
        methods: texts of all methods.
        adaptive: texts of the adaptive methods, which get thick lines in the strongest colours.
    """
    adaptive_methods = set(adaptive)
    adaptive_numbers, fixed_numbers = itertools.count(), itertools.count()
    looks = {}
    for position, method in enumerate(methods):
        if method in _DENSE_COLOURS:
            colour, dash = _DENSE_COLOURS[method], DASHES[DENSE_METHODS.index(method)]
        elif method in adaptive_methods:
            style_index = next(adaptive_numbers)
            colour, dash = _ADAPTIVE_COLOURS[style_index % 4], DASHES[style_index // 4 % len(DASHES)]
        else:
            style_index = next(fixed_numbers)
            colour, dash = (
                _FIXED_COLOURS[style_index % 8],
                DASHES[(1 + style_index // 8) % len(DASHES) if style_index >= 8 else 0],
            )
        looks[method] = Look(colour, dash, MARKERS[position % len(MARKERS)], 2.8 if method in adaptive_methods else 1.4)
    return looks


def figure_title(section: Section, subject: str) -> str:
    """Return the title of a figure: its subject, the section's setup, and a note if the runs were paced."""
    setup = section.setup
    text = f"{subject}\n{setup.task} on {setup.link}, {setup.ranks_text}"
    text += f", scale {setup.scale:g}" if setup.scale != 1 else ""
    return text + (f" ({PACED})" if section.paced else "")


def png_bytes(figure: Figure) -> bytes:
    """Return the content of a PNG file of a figure, with 256 colours.

    The 256 most frequent colours include those of lines and marks. A file with all colours is about three times as
    large.
    """
    full_png, small_png = io.BytesIO(), io.BytesIO()
    figure.savefig(full_png, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(full_png) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.int32)
    colour_codes, code_index_of_pixels, pixel_counts = np.unique(
        pixels @ (65536, 256, 1), return_inverse=True, return_counts=True
    )
    colours = np.stack([colour_codes >> 16, colour_codes >> 8 & 255, colour_codes & 255], axis=1)
    frequent_indices = np.argsort(-pixel_counts, kind="stable")[:256]
    nearest_colours = (
        np.abs(colours[:, None] - colours[None, frequent_indices]).sum(axis=2).argmin(axis=1).astype(np.uint8)
    )
    palette_image = Image.fromarray(nearest_colours[code_index_of_pixels.reshape(pixels.shape[:2])])
    palette_image.putpalette(colours[frequent_indices].astype(np.uint8).tobytes())
    palette_image.save(small_png, "PNG")
    return small_png.getvalue()


def empty_figure(height: float) -> Figure:
    """Return an empty figure, ``height`` inches high."""
    return Figure(figsize=(FIGURE_WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")


def single_axes(height: float) -> tuple[Figure, Axes]:
    """Return a figure, ``height`` inches high, and its single pair of axes."""
    figure = empty_figure(height)
    axes = figure.add_subplot()
    tidy_axes(axes)
    return figure, axes


def tidy_axes(axes: Axes) -> None:
    """Add a pale grid to axes, and remove the top and the right edge of their frame."""
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def add_title_and_legend(figure: Figure, axes: Axes, text: str) -> Figure:
    """Add a title above the axes, and a legend of all labels to the right; return the figure."""
    axes.set_title(text, fontsize=11, loc="left")
    figure.legend(loc="outside right center", frameon=False, fontsize=9, handlelength=2.6)
    return figure


def legend_label(row: ReportRow) -> str:
    """Return a method's text for a legend, cut to 30 characters; a dagger marks steps measured on another link."""
    name = row.method if len(row.method) <= 30 else row.method[:29] + "…"
    return escape_formula(name) + ("†" if row.factored else "")


def escape_formula(text: str) -> str:
    """Return a text with dollar signs escaped, so that matplotlib finds no formula in the text."""
    return text.replace("$", r"\$")


def label_log_axis(axes: Axes, axis_name: str) -> None:
    """Label a logarithmic axis with plain numbers at powers of ten; on a short axis also at 2, 3 and 5 times these.

    Args:
        axes: axes to label.
        axis_name: axis to label, ``"x"`` or ``"y"``.
    """
    axis = axes.xaxis if axis_name == "x" else axes.yaxis
    axis_start, axis_end = axes.get_xlim() if axis_name == "x" else axes.get_ylim()
    axis.set_major_formatter("{x:g}")
    is_short = axis_start > 0 and axis_end / axis_start < 12
    axis.set_minor_locator(LogLocator(subs=(2.0, 3.0, 5.0)))
    axis.set_minor_formatter("{x:g}" if is_short else NullFormatter())
    axis.set_tick_params(which="minor", labelsize=8)
