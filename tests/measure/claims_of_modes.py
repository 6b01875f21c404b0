# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences about modes that are checked, of docs/evidence/modes.md and other pages; see ``tests.measure.claims``."""

import math
import statistics

from tests.measure import changing_link, fast_links, nanogpt_links, native
from tests.measure.changing_link import CHARLM, NANOGPT
from tests.measure.judgement import interval
from tests.measure.published import rows

ONE, APART = changing_link.ADAPTIVE

BEST = "outer, every 10"
"""The fastest fixed method where the link changes."""


def measured() -> list[str]:
    """The sentences about what was measured of the three modes."""
    return [*_native(), *_fast(), *_changing(), *_nanogpt()]


def readme() -> list[str]:
    """The sentences of the README about fast links: ``every=1`` over the best static method."""
    logs = fast_links.logs_of(rows("fast_links"), fast_links.ADAPTIVE[0])
    worst = max(statistics.fmean(of.values()) for of in logs.values())
    return [
        f"`AdaptiveCompressor()` took {_reach(fast_links.pooled(logs))} of the best fixed method's time, picked from "
        f"other seeds, and in the worst cell {math.exp(worst):.2f}"
    ]


def results() -> list[str]:
    """The sentences of docs/evidence/results.md about fast links, outer steps and a link that changes."""
    every_1, outer, control = _over_six_cells()
    return [
        f"`AdaptiveCompressor()` took {_reach(every_1)} times as long as the best fixed method, which took "
        f"{_reach(control)} of its own time in a second run.",
        f"With `every=(1, 100)` it took {_reach(outer)}.",
        f"relative to DDP's own step, its 95 % intervals end at {_upper_ends()}.",
        f"`every=(1, 100)` took {_over(APART, BEST, CHARLM)} times as long as outer steps throughout on `charlm`, and "
        f"{_over(APART, BEST, NANOGPT)} on nanoGPT. Over native DDP it took {_over(APART, 'native', CHARLM)} and "
        f"{_over(APART, 'native', NANOGPT)}.",
        *_nanogpt(),
    ]


def _native() -> list[str]:
    """Of a step settled on native, over one of DDP without gravac."""
    return [f"The intervals of settled native steps end at {_upper_ends()}"]


def _upper_ends() -> str:
    """Return the upper ends of the three tasks' intervals of a step settled on native, in words."""
    upper = []
    for task in native.TASKS:
        means = [row["mean_s"] for row in rows("native") if row["task"] == task]
        upper.append(native.interval([math.log(of["settled"] / of["native"]) for of in means])[2])
    first, second, third = (f"{high:.3f}" for high in upper)
    return f"{first} (`denoise`), {second} (`lstm`) and {third} (`charlm`)"


def _changing() -> list[str]:
    """Of a link that changes: over native, and over the best fixed method."""
    return [
        f"`every=1` took {_over(ONE, 'native', CHARLM)} of native's time on `charlm` and "
        f"{_over(ONE, 'native', NANOGPT)} on nanoGPT, `every=(1, 100)` {_over(APART, 'native', CHARLM)} and "
        f"{_over(APART, 'native', NANOGPT)}.",
        f"On nanoGPT `every=(1, 100)` took {_over(APART, BEST, NANOGPT)} of their time, on `charlm` "
        f"{_over(APART, BEST, CHARLM)}, which is a regret",
    ]


def _over(name: str, other: str, program: str) -> str:
    """Return a setting's time over another's where the link changes, geometric mean over seeds, in words."""
    of = changing_link.times_of(rows("changing_link"), program)
    assert changing_link.best_fixed(of) == BEST
    return f"{statistics.geometric_mean(of[name][seed] / of[other][seed] for seed in of[name]):.2f}"


def _fast() -> list[str]:
    """Of fast links: over the best static methods, and of the largest cells."""
    every_1, outer, control = _over_six_cells()
    return [
        f"`every=1` took {_reach(every_1)} of the best static method's time over the six cells, `every=(1, 100)` "
        f"{_reach(outer)}, and that method itself {_reach(control)} of its own in its second run.",
    ]


def _over_six_cells() -> tuple[tuple[float, float, float], ...]:
    """Return what both settings, and the best static method once more, took of that method's time on fast links."""
    found = [fast_links.logs_of(rows("fast_links"), pair) for pair in fast_links.ADAPTIVE]
    return tuple(fast_links.pooled(logs) for logs in (*found, fast_links.control_of(rows("fast_links"))))


def _nanogpt() -> list[str]:
    """Of nanoGPT on slow links: ``every=(1, 100)`` over ``every=1``."""
    ratios = nanogpt_links.ratios_of(rows("nanogpt_links"))
    pooled = interval([ratio for of in ratios.values() for ratio in of])
    means = {link: f"{statistics.geometric_mean(of):.2f}" for link, of in ratios.items()}
    return [
        f"`every=(1, 100)` took {means['20mbit']} of the time of `every=1` at 20 Mbit/s and {means['100mbit']} at 100 "
        f"Mbit/s; over both {_reach(pooled, 2)}.",
    ]


def _reach(figures: tuple[float, float, float], places: int = 3) -> str:
    """Return a mean and its interval in words."""
    mean, low, high = (f"{figure:.{places}f}" for figure in figures)
    return f"{mean} [{low}-{high}]"
