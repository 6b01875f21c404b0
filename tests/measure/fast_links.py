# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether gravac is ever a regret on fast links: against the best static method of each cell, in pairs.

A cell is a task on a link. Both ``every=1`` and ``every=(1, 100)`` run in each cell, each against a run of its own of
the cell's best static method, with the same seed, in one session, in random order. The best static method is that of
the lowest median time on other seeds, of float32, float16 and the two best compressed ones of ``make measure-tta``.
The time is that to native's loss after 80 % of its steps.

    python -m tests.measure.fast_links [--json FILE] [--seeds N] [--short] [--minutes N]
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.tta import record
from tests.measure.judgement import interval
from tests.measure.racing import Entrant, Goal, Training, race_into, target_row, two_way
from tests.measure.resuming import Book, Progress, parser_of, resumable, until

TRAININGS = (Training("charlm", 0.4, 120), Training("lstm", 1.0, 160), Training("denoise", 1.0, 330))
"""Each takes native some ten seconds to the target."""

SHORT = 16
"""Number of native's steps where the program itself is tried."""

LINKS = ("1gbit", UNTHROTTLED)

DENSE = ("fp32", "fp16")

COMPRESSED = 2
"""Number of compressed static methods that are tried in each cell."""

ADAPTIVE = ("adaptive", "adaptive(every=(1, 100))")

PICKING = (0, 1)
"""Seeds by which the best static method of a cell is picked."""

FIRST_SEED = 10

LIMIT = 4.0
"""Multiple of native's seconds at which a run is given up."""


def compressed(runs: Sequence[record.TrainingRecord], task: str, link: str) -> list[str]:
    """Return the compressed static methods of the lowest median times in a cell of the matrix."""
    times: dict[str, list[float]] = {}
    for run in runs:
        if (run.task, run.link) == (task, link) and not run.adaptive and run.method not in DENSE:
            times.setdefault(run.method, []).append(math.inf if run.tta_s is None else run.tta_s)
    return sorted(times, key=lambda method: statistics.median(times[method]))[:COMPRESSED]


def best_statics(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the static method of the lowest median time on the seeds that pick, for each cell."""
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["part"] == "pick":
            cell = times.setdefault((row["task"], row["link"]), {})
            cell.setdefault(row["method"], []).append(row["seconds"] if row["reached"] else math.inf)
    return {cell: min(of, key=lambda method: statistics.median(of[method])) for cell, of in times.items()}


class Measurement:
    """The runs that the file does not have yet.

    Args:
        book: the file.
        trainings: what is trained.
        seeds: seeds of the pairs.
        runs: runs of ``make measure-tta``.
    """

    def __init__(
        self,
        book: Book,
        trainings: Sequence[Training],
        seeds: Sequence[int],
        runs: Sequence[record.TrainingRecord],
    ) -> None:
        self.book, self.trainings, self.seeds, self.runs = book, trainings, seeds, runs

    def go(self, minutes: float) -> None:
        """Take targets, pick, then race."""
        over = until(minutes)
        targets, picks, races = list(self._targets()), list(self._sessions("pick")), list(self._sessions("race"))
        progress = Progress(len(targets) + sum(map(len, (entrants for *_, entrants in [*picks, *races]))))
        for training, seed in targets:
            if over():
                return
            about = {"part": "target", "task": training.task, "seed": seed, "native": training.steps}
            self.book.add({**about, **target_row(training, seed)})
            progress.say(f"target of {training.task}, seed {seed}")
        for training, link, seed, entrants in picks:
            if over():
                return
            self._session("pick", training, link, seed, entrants, progress)
        best = best_statics(self.book.rows)
        for training, link, seed, entrants in races:
            if over():
                return
            fixed = best[training.task, link]
            named = [Entrant(fixed if one.method == "" else one.method, one.about) for one in entrants]
            self._session("race", training, link, seed, named, progress)

    def _targets(self) -> Iterator[tuple[Training, int]]:
        for seed, training in product((*PICKING, *self.seeds), self.trainings):
            if not self.book.find(part="target", task=training.task, seed=seed, native=training.steps):
                yield training, seed

    def _sessions(self, part: str) -> Iterator[tuple[Training, str, int, list[Entrant]]]:
        """Yield sessions with the entrants that have no row yet; a static method that is not picked yet is ``""``."""
        for seed in PICKING if part == "pick" else self.seeds:
            cells = list(product(self.trainings, LINKS))
            random.Random(f"{part} {seed}").shuffle(cells)
            for training, link in cells:
                entrants = self._entrants(part, training, link)
                random.Random(f"{part} {seed} {training.task} {link}").shuffle(entrants)
                place = {"part": part, "task": training.task, "link": link, "seed": seed, "native": training.steps}
                left = [one for one in entrants if not self.book.find(**place, **dict(one.about))]
                if left:
                    yield training, link, seed, left

    def _entrants(self, part: str, training: Training, link: str) -> list[Entrant]:
        if part == "pick":
            methods = [*DENSE, *compressed(self.runs, training.task, link)]
            return [Entrant(method, (("method", method),)) for method in methods]
        return [
            Entrant(method, (("pair", pair), ("static", method == ""))) for pair in ADAPTIVE for method in (pair, "")
        ]

    def _session(
        self, part: str, training: Training, link: str, seed: int, entrants: list[Entrant], progress: Progress
    ) -> None:
        told = self.book.find(part="target", task=training.task, seed=seed, native=training.steps)
        assert told is not None
        about = {"part": part, "task": training.task, "link": link, "seed": seed, "native": training.steps}
        goal = Goal(told["target"], LIMIT * told["native_seconds"])
        race_into(self.book, progress, about, training, goal, entrants)


def logs_of(rows: Sequence[dict[str, Any]], pair: str) -> dict[tuple[str, str], dict[int, float]]:
    """Return logarithms of the ratios of an adaptive method to the static one, by cell and seed."""
    raced = [row for row in rows if row["part"] == "race" and row["pair"] == pair]
    times = {(row["task"], row["link"], row["seed"], row["static"]): row["seconds"] for row in raced}
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (task, link, seed, static), seconds in sorted(times.items()):
        if not static and (task, link, seed, True) in times:
            ratio = seconds / times[task, link, seed, True]
            found.setdefault((task, link), {})[seed] = math.log(ratio)
    return found


def control_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """Return logarithms of the ratios of the static method's two runs of a session, by cell and seed."""
    times = {
        (row["task"], row["link"], row["seed"], row["pair"]): row["seconds"]
        for row in rows
        if row["part"] == "race" and row["static"]
    }
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (task, link, seed, pair), seconds in sorted(times.items()):
        if pair == ADAPTIVE[1] and (task, link, seed, ADAPTIVE[0]) in times:
            found.setdefault((task, link), {})[seed] = math.log(seconds / times[task, link, seed, ADAPTIVE[0]])
    return found


def pooled(logs: dict[tuple[str, str], dict[int, float]]) -> tuple[float, float, float]:
    """Return the geometric mean over cells with its interval, over the seeds that all cells have."""
    common = sorted(set.intersection(*(set(of) for of in logs.values())))
    return two_way([[of[seed] for seed in common] for of in logs.values()])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the cells of both settings as Markdown, and what they come to."""
    best, lines = best_statics(rows), []
    lines = [
        "| setting | task | link | best static | over it | 95 % interval | by pair | its steps |",
        "|" + " --- |" * 8,
    ]
    sums = []
    for pair in ADAPTIVE:
        logs = logs_of(rows, pair)
        for (task, link), of in logs.items():
            mean, low, high = interval([math.exp(value) for value in of.values()])
            reach = f"{low:.3f}-{high:.3f}" if len(of) > 1 else ""
            by_pair = " ".join(f"{math.exp(value):.2f}" for value in of.values())
            own = [
                r for r in rows if r["part"] == "race" and r["pair"] == pair and (r["task"], r["link"]) == (task, link)
            ]
            shares = shares_of([row for row in own if not row["static"]])
            lines.append(
                f"| `{pair}` | {task} | {link} | `{best[task, link]}` | {mean:.3f} | {reach} | {by_pair} | {shares} |"
            )
        if logs:
            mean, low, high = pooled(logs)
            sums.append(f"`{pair}` over the best static: {mean:.3f} [{low:.3f}-{high:.3f}] over {len(logs)} cells.")
    if control := control_of(rows):
        mean, low, high = pooled(control)
        sums.append(f"The static method over itself: {mean:.3f} [{low:.3f}-{high:.3f}].")
    raced = [row for row in rows if row["part"] == "race"]
    failed, missed = sum("failed" in row for row in raced), sum(not row["reached"] for row in raced)
    sums.append(f"Of {len(raced)} runs {missed} did not reach the loss, and {failed} of these failed.")
    return "\n".join([*lines, "", *sums])


def shares_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the shares of steps in each mode, in words."""
    counts: dict[str, int] = {}
    for row in rows:
        for mode, count in row.get("modes", {}).items():
            counts[mode] = counts.get(mode, 0) + count
    total = sum(counts.values()) or 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{mode} {100 * count / total:.0f} %" for mode, count in ordered)


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/fast_links.json")
    parser.add_argument("--seeds", type=int, default=10, help="number of pairs in a cell")
    parser.add_argument("--short", action="store_true", help="make only a few steps in each run, to try the program")
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--show", action="store_true", help="measure nothing, print the table")
    options = parser.parse_args()
    trainings = [Training(one.task, one.scale, SHORT) if options.short else one for one in TRAININGS]
    book = Book(options.json)
    measurement = Measurement(
        book, trainings, range(FIRST_SEED, FIRST_SEED + options.seeds), record.read([options.runs])
    )
    status = 0 if options.show else resumable(lambda: measurement.go(options.minutes))
    if any(row["part"] == "race" for row in book.rows):
        print(table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
