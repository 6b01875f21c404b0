# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The look of plots of training runs. Needs matplotlib."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DENSE_COLOURS = {"fp32": "#8a8a8a", "fp16": "#222222", "bf16": "#5c4a3a"}
"""Colours of torch's own ways to average gradients, by method."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933")
"""Colours of all other methods, from the palettes of Okabe and Ito, and of Tol, made for colour-blind people, too."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure.

    Args:
        width: width in inches, of 130 pixels each.
        height: height in inches.
    """
    return Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")


def tidy_axes(axes: Axes, title: str) -> None:
    """Give axes a title at the left and a pale grid, and remove the top and the right edge of their frame."""
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")
