# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers in the sentences about modes, of docs/evidence/modes.md and other pages; see ``tests.measure.claims``."""

import math
import statistics
from typing import Any

from tests.measure import changing_link, fast_links, nanogpt_links, native
from tests.measure.judgement import interval
from tests.measure.published import rows
from tests.measure.rendering import Estimate

BEST = "outer, every 10"
"""The fastest fixed method if the link changes."""


def modes() -> dict[str, Any]:
    """Return the numbers of docs/evidence/modes.md, and those that other pages have of the three modes."""
    return {
        "upper_ends": upper_ends(),
        "changing_link": changing_link_ratio,
        "best": BEST,
        "fast_links": fast_links_ratios(),
        "worst_on_fast_links": worst_on_fast_links(),
        "nanogpt": nanogpt_ratios(),
    }


def upper_ends() -> dict[str, float]:
    """Return the upper ends of the intervals of a step settled on native over one without gravac, by task."""
    ends = {}
    for task in native.TASKS:
        means = [row["mean_s"] for row in rows("native") if row["task"] == task]
        ends[task] = native.interval([math.log(seconds["settled"] / seconds["native"]) for seconds in means])[2]
    return ends


def changing_link_ratio(setting: str, other: str, program: str) -> float:
    """Return a setting's time over another's on the link that changes, geometric mean over seeds."""
    times = changing_link.times_of(rows("changing_link"), program)
    assert changing_link.best_fixed(times) == BEST
    return statistics.geometric_mean(times[setting][seed] / times[other][seed] for seed in times[setting])


def fast_links_ratios() -> dict[str, Estimate]:
    """Return what both settings, and the best static method once more, took of that method's time on fast links."""
    every_1, every_100 = (fast_links.logs_of(rows("fast_links"), setting) for setting in fast_links.ADAPTIVE)
    logs = {"every_1": every_1, "every_100": every_100, "again": fast_links.control_of(rows("fast_links"))}
    return {name: fast_links.pooled(of_cells) for name, of_cells in logs.items()}


def worst_on_fast_links() -> float:
    """Return the highest ratio of a cell of ``every=1`` over the best static method on fast links."""
    logs = fast_links.logs_of(rows("fast_links"), fast_links.ADAPTIVE[0])
    return math.exp(max(statistics.fmean(of_cell.values()) for of_cell in logs.values()))


def nanogpt_ratios() -> dict[str, Any]:
    """Return the time of ``every=(1, 100)`` over that of ``every=1`` on nanoGPT: by link, and over both."""
    by_link = nanogpt_links.ratios_of(rows("nanogpt_links"))
    return {
        "by_link": {link: statistics.geometric_mean(ratios) for link, ratios in by_link.items()},
        "pooled": interval([ratio for ratios in by_link.values() for ratio in ratios]),
    }
