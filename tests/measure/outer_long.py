# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What outer steps come to in the end, beside averaging gradients in every step: 2000 steps, ranks in memory, no clock.

All have seen the same samples. An interrupted run goes on where it was.

    python -m tests.measure.outer_long [--json FILE] [--draw FILE] [--seeds N] [--ranks N ...] [--rate R] [--workers N]
"""

import argparse
import itertools
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.measure.outer_efficiency import SENT, SETUPS, Case, key, rate_of_record, trained
from tests.measure.results import todays
from tests.measure.resuming import Book, run_in

STEPS, BETWEEN = 2000, 100
"""Steps of a run, and from one evaluation to the next."""

CHOICES = ((0, "dense"), (10, "quantize(2)"), (20, "quantize(2)"), (10, "dense"), (50, "quantize(2)"))
"""Number of steps from one exchange to the next, 0 for gradients averaged in each; and what is sent."""

LAST = 5
"""Evaluations at the end of a run whose mean is what it comes to."""


def train(case: Case) -> dict[str, Any]:
    """Run one case; what came of it."""
    return trained(case, STEPS, BETWEEN)


def final(row: dict[str, Any]) -> float:
    """What a run comes to."""
    return statistics.fmean(value for _, value in row["curve"][-LAST:])


def worse(row: dict[str, Any], synchronous: dict[str, Any]) -> float:
    """Share by which a run's end is worse than the synchronous one's: of a loss, higher; of denoise's dB, lower."""
    share = final(row) / final(synchronous) - 1
    return -share if row["task"] == "denoise" else share


def pairs(
    rows: Sequence[dict[str, Any]],
) -> dict[tuple[str, int, int, str], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """By task, ranks, H and what is sent: runs of all seeds, each with the synchronous one."""
    synchronous = {(row["task"], row["ranks"], row["seed"]): row for row in rows if row["every"] == 0}
    found: dict[tuple[str, int, int, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for row in rows:
        if row["every"] and (same := synchronous.get((row["task"], row["ranks"], row["seed"]))):
            found.setdefault((row["task"], row["ranks"], row["every"], row["label"]), []).append((row, same))
    return found


def cases(seeds: Iterable[int], ranks: Sequence[int], rate: float | None = None) -> Iterable[Case]:
    """What is run, most telling first; a ``rate`` of ``None`` is that of the recorded runs."""
    for seed, number, (every, label), name in itertools.product(seeds, ranks, CHOICES, SETUPS):
        outer = rate_of_record(every, number) if rate is None else rate
        yield Case(name, every, label, SENT[label], outer if every else 1.0, ranks=number, seed=seed)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """How much worse each run is than the synchronous one over its steps, a chart for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["task"] for row in rows))
    figure, charts = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), layout="constrained", squeeze=False)
    for name, axes in zip(names, charts[0], strict=True):
        colors = itertools.cycle(f"C{number}" for number in range(10))
        for (task, ranks, every, label), both in pairs(rows).items():
            if task != name:
                continue
            color = next(colors)
            for at, (row, same) in enumerate(both):
                then = dict(map(tuple, same["curve"]))
                sign = -1 if task == "denoise" else 1
                points = [(step, 100 * sign * (value / then[step] - 1)) for step, value in row["curve"] if step in then]
                said = f"H = {every}, {label}, {ranks} ranks" if at == 0 else None
                axes.plot(*zip(*points, strict=True), color=color, label=said)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(0.5, color="gray", linewidth=0.8, linestyle=":")
        axes.set(title=name, xlabel="steps", ylabel="worse than synchronous, %")
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/outer_long.json")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument(
        "--rate", type=float, help="learning rate of the outer optimizer (default: that of the recorded runs)"
    )
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    book = Book(arguments.json)
    todays()  # the machine's speed, before workers take it
    known = {key(row) for row in book.rows}
    wanted = [case for case in cases(range(arguments.seeds), arguments.ranks, arguments.rate) if case not in known]
    if wanted:
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            run_in(pool, train, wanted, book, describe=lambda row: f"{key(row)} {final(row):.5g}")
    if arguments.draw:
        draw(book.rows, arguments.draw)


if __name__ == "__main__":
    main()
