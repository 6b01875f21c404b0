# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether outer steps are chosen on slow links, and what they gain: ``every=(1, 100)`` against the hook alone.

A cell is a task on a link on which the hook's exchange takes over half of a step. Both methods train in one session, in
random order, with the same seed, to the loss that native DDP has after 80 % of its steps.

    python -m tests.measure.slow_links [--json FILE] [--links LINK ...] [--seeds N] [--short] [--minutes N]
        [--show]
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tests.measure.fast_links import SHORT, shares_of
from tests.measure.racing import Entrant, Goal, Training, race_into, target_row, two_way
from tests.measure.resuming import Book, Progress, parser_of, resumable, until

TRAININGS = (Training("charlm", 0.4, 300), Training("lstm", 1.0, 300), Training("denoise", 1.0, 330))
"""Long enough for a search: outer steps are tried after some hundred steps, and not at all in a few dozen."""

LINKS = ("20mbit", "5mbit")

HOOK, OUTER = "adaptive(native=False)", "adaptive(every=(1, 100))"

LIMIT = 20.0
"""Multiple of native's seconds over an unthrottled link at which a run is given up."""


class Measurement:
    """The runs that the file does not have yet.

    Args:
        book: the file.
        trainings: what is trained.
        links: links.
        seeds: number of seeds.
    """

    def __init__(self, book: Book, trainings: Sequence[Training], links: Sequence[str], seeds: int) -> None:
        self.book, self.trainings, self.links, self.seeds = book, trainings, links, seeds

    def go(self, minutes: float) -> None:
        """Take targets, then race."""
        over, sessions = until(minutes), list(self._sessions())
        progress = Progress(sum(len(entrants) for *_, entrants in sessions))
        for training, link, seed, entrants in sessions:
            if over():
                return
            self._session(training, link, seed, entrants, progress)

    def _sessions(self) -> Iterator[tuple[Training, str, int, list[Entrant]]]:
        """Yield sessions with the entrants that have no row yet."""
        for seed in range(self.seeds):
            for training, link in product(self.trainings, self.links):
                entrants = [Entrant(method) for method in (HOOK, OUTER)]
                random.Random(f"{seed} {training.task} {link}").shuffle(entrants)
                place = {"part": "race", "task": training.task, "link": link, "seed": seed, "native": training.steps}
                missing = [entrant for entrant in entrants if not self.book.find(**place, method=entrant.method)]
                if missing:
                    yield training, link, seed, missing

    def _session(
        self, training: Training, link: str, seed: int, entrants: Sequence[Entrant], progress: Progress
    ) -> None:
        about = {"task": training.task, "seed": seed, "native": training.steps}
        target = self.book.find(part="target", **about)
        if target is None:
            target = {"part": "target", **about, **target_row(training, seed)}
            self.book.add(target)
        goal = Goal(target["target"], LIMIT * target["native_seconds"])
        race_into(self.book, progress, {"part": "race", **about, "link": link}, training, goal, entrants)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the cells as Markdown, and what they come to."""
    lines = ["| task | link | seed | hook, s | `every=(1, 100)`, s | over the hook | its steps |", "|" + " --- |" * 7]
    logs: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["part"] != "race" or row["method"] != OUTER:
            continue
        about = {name: row[name] for name in ("task", "link", "seed", "native")}
        hooks = [other for other in rows if other.get("method") == HOOK and about.items() <= other.items()]
        if not hooks:
            continue
        hook = hooks[0]
        both = row["reached"] and hook["reached"]
        over = math.log(row["seconds"] / hook["seconds"]) if both else math.inf
        logs.setdefault((row["task"], row["link"]), []).append(over)
        seconds = " | ".join(f"{run['seconds']:.1f}" if run["reached"] else "never" for run in (hook, row))
        words = f"{math.exp(over):.2f}" if both else "never"
        lines.append(f"| {row['task']} | {row['link']} | {row['seed']} | {seconds} | {words} | {shares_of([row])} |")
    seeds = min(map(len, logs.values()), default=0)
    if seeds:
        mean, low, high = two_way([cell[:seeds] for cell in logs.values()])
        lines += ["", f"Over the hook: {mean:.2f} [{low:.2f}-{high:.2f}] over {len(logs)} cells, {seeds} seeds each."]
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/slow_links.json")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="make only a few steps in each run, to try the program")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the table")
    options = parser.parse_args()
    trainings = [replace(training, steps=SHORT) if options.short else training for training in TRAININGS]
    book = Book(options.json)
    measurement = Measurement(book, trainings, options.links, options.seeds)
    status = 0 if options.show else resumable(lambda: measurement.go(options.minutes))
    if any(row["part"] == "race" for row in book.rows):
        print(table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
