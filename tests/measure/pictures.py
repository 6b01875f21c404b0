# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Pictures of README and docs, made of the records that their tables are made of.

python -m tests.measure.pictures
"""

from pathlib import Path

from gravac.lab.demo import plot
from gravac.lab.demo.outcome import Comparison
from gravac.lab.links.link import parse_link
from gravac.lab.links.rates import format_rate
from tests.measure import programs_links, published
from tests.measure.published import DEFAULT, SCALES, speedup
from tests.measure.tables_of_demo import demo_record
from tests.measure.tables_of_runs import HEADINGS, TASKS, fastest_static

FOLDER = Path("docs/screenshots")

LIMITED = ("20mbit", "100mbit", "1gbit")
"""Links with a rate, which has a place on an axis."""

LEARNED = "nanogpt, width 144, rate 0.001, 5040 steps", "20mbit"
"""Program and link of the run in which a belief was corrected."""


def demo(path: Path) -> None:
    """Draw validation loss against seconds of the demo's four runs."""
    record = demo_record()
    title = f"A transformer on Python's source, {record['workers']} workers at {format_rate(record['rate'])}"
    plot.draw(Comparison(tuple(record["runs"].values())), title, path)


def speedups(path: Path) -> None:
    """Draw how many times as fast as float16 the default and the best fixed method are, against the link's rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), dpi=110, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    rates = [parse_link(link).slowest / 1e6 for link in LIMITED]
    for number, task in enumerate(SCALES):
        own = [speedup(task, link, DEFAULT) for link in LIMITED]
        rivals = [fastest_static(task, link).method for link in LIMITED]
        best = [
            1.0 if rival == "fp16" else speedup(task, link, rival) for link, rival in zip(LIMITED, rivals, strict=True)
        ]
        color = f"C{number}"
        axes.plot(rates, own, marker="o", color=color, label=f"{TASKS[task]}: AdaptiveCompressor()")
        axes.plot(rates, best, marker="x", color=color, linestyle=":", label=f"{TASKS[task]}: best fixed method")
    axes.axhline(1, color="black", linewidth=0.9)
    axes.annotate(
        "as fast as float16: break-even", (rates[0], 1), xytext=(0, 4), textcoords="offset points", fontsize=8
    )
    axes.set(
        xscale="log", yscale="log", xlabel="rate of the link", ylabel="times as fast as float16 to the target loss"
    )
    axes.set_xticks(rates, [HEADINGS[link] for link in LIMITED])
    axes.set_yticks([0.8, 1, 2, 5, 10, 15], ["0.8", "1", "2", "5", "10", "15"])
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def main() -> None:
    """Draw all pictures whose records are there."""
    demo(FOLDER / "demo.png")
    speedups(FOLDER / "speedup.png")
    rows = published.rows("programs_links")
    if any((row["program"], row["link"]) == LEARNED for row in rows):
        programs_links.draw(rows, *LEARNED, FOLDER / "learned.png")


if __name__ == "__main__":
    main()
