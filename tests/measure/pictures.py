# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Pictures of README and docs: of the records that their tables are made of, and of a simulated run.

python -m tests.measure.pictures
"""

from dataclasses import replace
from pathlib import Path

from gravac.lab.demo import plot
from gravac.lab.demo.outcome import Comparison
from gravac.lab.links.link import parse_link
from gravac.lab.links.rates import format_rate
from tests.controllers.progress_world import Played, play
from tests.controllers.test_progress import world
from tests.measure import hsdp_links, programs_links, published
from tests.measure.published import DEFAULT, SCALES, speedup
from tests.measure.tables_of_demo import demo_record
from tests.measure.tables_of_runs import HEADINGS, TASKS, fastest_static

FOLDER = Path("docs/screenshots")

LIMITED = ("20mbit", "100mbit", "1gbit")
"""Links with a rate, which has a place on an axis."""

LONG_RUN = "nanogpt, width 144, rate 0.001, 5040 steps", "20mbit"
"""Program and link of a long run."""

CORRECTED_RUN = "trainer", "100mbit"
"""Program and link of a run in which a trial corrected a belief."""

BELIEVED, TRUE = 0.99, 0.6
"""Efficiency of outer steps in the simulated run: what is believed at the start, and what is true."""


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
    rates = [parse_link(link).lowest_rate_bps / 1e6 for link in LIMITED]
    for number, task in enumerate(SCALES):
        adaptive = [speedup(task, link, DEFAULT) for link in LIMITED]
        rivals = [fastest_static(task, link).method for link in LIMITED]
        best = [
            1.0 if rival == "fp16" else speedup(task, link, rival) for link, rival in zip(LIMITED, rivals, strict=True)
        ]
        color = f"C{number}"
        axes.plot(rates, adaptive, marker="o", color=color, label=f"{TASKS[task]}: AdaptiveCompressor()")
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


def learned(path: Path) -> None:
    """Draw the belief of a simulated run that is wrong at first, and the progress that the run loses by it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), dpi=110, layout="constrained", facecolor="white")
    beliefs, losses = figure.subplots(2, 1, sharex=True)
    made_up = world(outer=TRUE, believed=BELIEVED)
    for probe, label in ((True, "with a probe"), (False, "without a probe")):
        run: list[tuple[int, float]] = []

        def note(played: Played, run: list[tuple[int, float]] = run) -> bool:
            if played.seconds:
                run.append((sum(played.steps_at.values()), 100 * played.lost(made_up, made_up.best)))
            return False

        played = play(replace(made_up, probe=probe), until=note)
        losses.plot(*zip(*run, strict=True), label=label, color="C0" if probe else "C3")
        if probe:
            points = [(0, *made_up.forecasts[2].belief.band)]
            for step, decision in played.decisions:
                if decision.progress is not None:
                    progress = decision.progress
                    points.append((step, progress.efficiency, progress.low, progress.high))
            points.append((made_up.total, *points[-1][1:]))
            steps, median, low, high = zip(*points, strict=True)
            beliefs.plot(steps, median, drawstyle="steps-post", label="efficiency believed, with its 80 % bounds")
            beliefs.fill_between(steps, low, high, alpha=0.25, step="post")
            beliefs.axhline(TRUE, color="black", linestyle=":", label="true efficiency")
    beliefs.set(title="Simulated: outer steps every 10 steps", ylabel="efficiency", ylim=(0.3, 1.15))
    losses.set(xlabel="steps", ylabel="progress lost, %", ylim=(0, None))
    for axes in (beliefs, losses):
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    demo(FOLDER / "demo.png")
    speedups(FOLDER / "speedup.png")
    learned(FOLDER / "learned.png")
    for (program, link), name in ((LONG_RUN, "long_run"), (CORRECTED_RUN, "corrected")):
        programs_links.draw(published.rows("programs_links"), program, link, FOLDER / f"{name}.png")
    hsdp_links.draw(published.rows("hsdp_links"), 1.0, "20mbit", FOLDER / "hsdp_links.png")


if __name__ == "__main__":
    main()
