# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link of 1 Gbit/s, then 20 Mbit/s, then 1 Gbit/s: time to native's loss, and what changes of mode took.

The link changes after the first third of native's time to that loss on this link, and back after the second; what these
times are is worked out from native's step on either link, which is taken first. The loss is native's own after 80 % of
its steps. The programs are ``charlm``, and nanoGPT's ``train.py`` where a clone is given.

    python -m tests.measure.changing_link [--nanogpt CLONE] [--json FILE] [--seeds N] [--short] [--minutes N]
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.training.session import Leg
from tests.measure import nanogpt_links
from tests.measure.judgement import interval
from tests.measure.nanogpt import Case
from tests.measure.racing import AT, NATIVE, Entrant, Goal, Training, ended, race, target_row
from tests.measure.resuming import Book, Progress, parser_of, resumable, until

FAST, SLOW = "1gbit", "20mbit"

CHARLM, NANOGPT = "charlm", "nanogpt"

METHODS = {
    "native": NATIVE,
    "hook": "adaptive(native=False)",
    "outer, every 10": "adaptive(every=10)",
    "every=1": "adaptive",
    "every=(1, 100)": "adaptive(every=(1, 100))",
}
"""Methods by name, as the lab has them; nanoGPT's are those of ``nanogpt_links`` of the same names."""

FIXED = ("native", "hook", "outer, every 10")
"""Methods that keep one mode throughout."""

ADAPTIVE = ("every=1", "every=(1, 100)")

STEPS = {CHARLM: 400, NANOGPT: 1000}
"""Number of native's steps."""

SHORT = {CHARLM: 24, NANOGPT: 50}
"""The same where the program itself is tried."""

SCALE = 0.4

PROBE = {FAST: 40, SLOW: 8}
"""Number of steps by which native's step is timed on each link."""

EVALUATED = 20
"""Number of steps between two evaluations of ``charlm``: the link's clock does not stop for these."""

LIMIT = 4.0
"""Multiple of native's time at which a run is given up."""


def schedule(fast_s: float, slow_s: float, steps: float) -> tuple[str, float]:
    """Return the link in words, and native's seconds on it.

    Args:
        fast_s: seconds of native's step at 1 Gbit/s.
        slow_s: seconds of native's step at 20 Mbit/s.
        steps: number of steps that native makes.

    Example:
        >>> schedule(0.1, 1.0, 210)
        ('1gbit,10s:20mbit,20s:1gbit', 30.0)
    """
    third = max(0.5, round(steps / (2 / fast_s + 1 / slow_s), 1))
    return f"{FAST},{third:g}s:{SLOW},{2 * third:g}s:{FAST}", 3 * third


class Measurement:
    """The runs that the file does not have yet.

    Args:
        book: the file.
        steps: number of native's steps, by program.
        seeds: seeds.
        clone: nanoGPT's folder; ``None``: ``charlm`` alone.
    """

    def __init__(self, book: Book, steps: dict[str, int], seeds: int, clone: Path | None) -> None:
        self.book, self.steps, self.seeds, self.clone = book, steps, range(seeds), clone
        self.programs = [CHARLM] + ([NANOGPT] if clone is not None else [])

    def go(self, minutes: float) -> None:
        """Time native's steps, take targets, then race."""
        over = until(minutes)
        todo = list(self._todo())
        progress = Progress(len(todo))
        for part, program, seed, name in todo:
            if over():
                return
            about = {"part": part, "program": program, "native": self.steps[program], "seed": seed, "name": name}
            row = {"probe": self._probe, "target": self._target, "race": self._race}[part](program, seed, name)
            self.book.add({**about, **row})
            words = " ".join(str(row.get(field)) for field in ("step_s", "target", "seconds") if field in row)
            progress.say(f"{part} {program} seed {seed} {name}: {words}")

    def _todo(self) -> Iterator[tuple[str, str, int, str]]:
        for program in self.programs:
            parts = [("probe", 0, link) for link in PROBE] + [("target", seed, "native") for seed in self.seeds]
            for seed in self.seeds:
                names = list(METHODS)
                random.Random(f"{program} {seed}").shuffle(names)
                parts += [("race", seed, name) for name in names]
            for part, seed, name in parts:
                if not self._find(part, program, seed, name):
                    yield part, program, seed, name

    def _find(self, part: str, program: str, seed: int, name: str) -> dict[str, Any] | None:
        return self.book.find(part=part, program=program, native=self.steps[program], seed=seed, name=name)

    def _known(self, part: str, program: str, seed: int, name: str) -> dict[str, Any]:
        found = self._find(part, program, seed, name)
        assert found is not None
        return found

    def _training(self) -> Training:
        return Training(CHARLM, SCALE, self.steps[CHARLM])

    def _probe(self, program: str, seed: int, link: str) -> dict[str, Any]:
        """Time native's step on a link."""
        if program == CHARLM:
            legs = [Leg(NATIVE, NATIVE, steps=PROBE[link])] * 2
            seconds = [finished.end["step_s"] for finished in ended(self._training(), link, seed, legs)]
            return {"step_s": statistics.median(seconds)}
        assert self.clone is not None
        curve = nanogpt_links.run(self.clone, _case("native", seed), PROBE[link], link)["curve"]
        return {"step_s": (curve[-1][2] - curve[1][2]) / (curve[-1][0] - curve[1][0])}

    def _target(self, program: str, seed: int, name: str) -> dict[str, Any]:
        if program == CHARLM:
            return target_row(self._training(), seed)
        assert self.clone is not None
        row = nanogpt_links.run(self.clone, _case(name, seed), self.steps[program], UNTHROTTLED)
        return {**row, "target": nanogpt_links.target_of(row["curve"], row["native"])}

    def _race(self, program: str, seed: int, name: str) -> dict[str, Any]:
        times = [self._known("probe", program, 0, link)["step_s"] for link in (FAST, SLOW)]
        link, native_s = schedule(times[0], times[1], AT * self.steps[program])
        target = self._known("target", program, seed, "native")["target"]
        if program == CHARLM:
            entrants = [Entrant(METHODS[name], (("link", link),))]
            return next(race(self._training(), link, seed, Goal(target, LIMIT * native_s, EVALUATED), entrants))
        assert self.clone is not None
        row = nanogpt_links.run(self.clone, _case(name, seed), self.steps[program], link)
        seconds, there = nanogpt_links.reached(row["curve"], target)
        changes = [
            {"step": step, "before": before, "after": after, "seconds": round(took, 4), "wire_bytes": sent}
            for step, before, after, took, sent in row.get("changes", ())
        ]
        return {**row, "seconds": round(seconds, 3), "reached": there, "changes": changes}


def _case(name: str, seed: int) -> Case:
    return Case({one.name: one for one in nanogpt_links.METHODS}[name], nanogpt_links.RATE, seed)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return times and ratios as Markdown."""
    lines = [
        "| program | method | seconds to native's loss, by seed | over the best fixed | over native |",
        "|" + " --- |" * 5,
    ]
    sums = []
    for program in dict.fromkeys(row["program"] for row in rows):
        raced = [row for row in rows if row["program"] == program and row["part"] == "race"]
        times = times_of(rows, program)
        seeds = sorted(next(iter(times.values())))
        if not seeds:
            continue
        best = best_fixed(times)
        for name, of in times.items():
            own = {row["seed"]: row for row in raced if row["name"] == name}
            shown = " ".join(f"{'' if own[seed]['reached'] else 'over '}{of[seed]:.1f}" for seed in seeds)
            ratios = [_ratio(of, times[other], seeds) for other in (best, "native")]
            lines.append(f"| {program} | `{name}` | {shown} | {ratios[0]} | {ratios[1]} |")
        link = raced[0]["link"]
        sums.append(f"{program}: the link is `{link}`; the best fixed method is `{best}`.")
    return "\n".join([*lines, "", *sums])


def times_of(rows: Sequence[dict[str, Any]], program: str) -> dict[str, dict[int, float]]:
    """Return each method's seconds by seed, of the seeds that all methods have."""
    raced = [row for row in rows if row["program"] == program and row["part"] == "race"]
    times = {name: {row["seed"]: row["seconds"] for row in raced if row["name"] == name} for name in METHODS}
    seeds = set.intersection(*(set(of) for of in times.values()))
    return {name: {seed: of[seed] for seed in sorted(seeds)} for name, of in times.items()}


def best_fixed(times: dict[str, dict[int, float]]) -> str:
    """Return the method of a single mode that was the fastest, by all seeds."""
    return min(FIXED, key=lambda name: statistics.geometric_mean(times[name].values()))


def _ratio(times: dict[int, float], others: dict[int, float], seeds: Sequence[int]) -> str:
    mean, low, high = interval([times[seed] / others[seed] for seed in seeds])
    return f"{mean:.2f} [{low:.2f}-{high:.2f}]" if len(seeds) > 1 else f"{mean:.2f}"


def changes_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the changes of mode, with the seconds that each kind took on rank 0, as Markdown."""
    lines = [
        "| program | setting | change | number, by seed | median seconds | most | bytes, most |",
        "|" + " --- |" * 7,
    ]
    raced = [row for row in rows if row["part"] == "race" and row["name"] in ADAPTIVE]
    for program in dict.fromkeys(row["program"] for row in raced):
        for name in ADAPTIVE:
            own = [row for row in raced if (row["program"], row["name"]) == (program, name)]
            kinds = {(change["before"], change["after"]) for row in own for change in row.get("changes", ())}
            for before, after in sorted(kinds):
                found = [
                    [c for c in row.get("changes", ()) if (c["before"], c["after"]) == (before, after)] for row in own
                ]
                taken = [change["seconds"] for of in found for change in of]
                sent = max(change["wire_bytes"] for of in found for change in of)
                numbers = " ".join(str(len(of)) for of in found)
                lines.append(
                    f"| {program} | `{name}` | {before} to {after} | {numbers} | {statistics.median(taken):.4f} | "
                    f"{max(taken):.4f} | {sent:,} |"
                )
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/changing_link.json")
    parser.add_argument(
        "--nanogpt", type=Path, help="folder of a clone of github.com/karpathy/nanoGPT (default: only charlm runs)"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="make only a few steps in each run, to try the program")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the tables")
    options = parser.parse_args()
    book = Book(options.json)
    clone = options.nanogpt.resolve() if options.nanogpt else None
    measurement = Measurement(book, SHORT if options.short else STEPS, options.seeds, clone)
    status = 0 if options.show else resumable(lambda: measurement.go(options.minutes))
    print(table(book.rows))
    print(changes_table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
