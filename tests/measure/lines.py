# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A race of methods on links: seconds to the loss that torch's float16 hook reaches in a minute.

Methods are torch's own hooks and lines that a user may write (``tests.measure.programs.methods``). They train programs
of others (nanoGPT, minGPT-ddp) and tasks of ``tests.measure.programs``, by two ranks with an emulated link each; root
is needed. All have the same schedule of the learning rate. The runs over a link take turns from each evaluation to the
next one; float32 makes a few steps over each link, since its losses by step are float16's. A link that changes, such as
``1gbit,20s:20mbit,40s:1gbit``, changes by the clock: there all methods, float32 too, run one after the other.

    python -m tests.measure.lines [--nanogpt CLONE] [--examples CLONE] [--tasks NAME ...] [--links LINK ...]
        [--methods NAME ...] [--seeds N] [--seconds N] [--minutes N] [--json FILE] [--show METHOD]
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import EmulatedNetwork
from tests.measure.programs import PROGRAMS, nanogpt
from tests.measure.programs.methods import (
    EVERY,
    FLOAT16,
    FLOAT32,
    LADDER,
    LINE,
    LINE_BY_GOODPUT,
    METHODS,
    RANKS,
)
from tests.measure.programs.ranks import (
    Curve,
    MinGPT,
    NanoGPT,
    Program,
    TaskProgram,
    curve_and_report,
    trained,
)
from tests.measure.resuming import Book, Progress, parser_of, resumable, until
from tests.measure.turns import in_turns

LINKS = ("20mbit", "100mbit", UNTHROTTLED)

LINES = (FLOAT16, LADDER, LINE, EVERY, LINE_BY_GOODPUT)

DECAY_STEPS = 400
"""Number of steps in which the learning rate falls."""

EVALUATIONS = 12

TIMED_STEPS = 8
"""Number of steps by which a method's time of a step is estimated."""

LONGEST = {"20mbit": 2.5, "100mbit": 1.4, UNTHROTTLED: 1.2}
"""Number of steps that other methods make, over float16's, by link; 2.5 on other links."""


class Line(NamedTuple):
    """One run of a program.

    Attributes:
        program: the program.
        method: one of ``METHODS``.
        seed: of weights and batches.
        link: the link.
        total: number of steps that are made.
    """

    program: Program
    method: str
    seed: int
    link: str
    total: int

    @property
    def identity(self) -> dict[str, Any]:
        """Fields of the run's row that tell it from others."""
        return {"program": self.program.name, "method": self.method, "seed": self.seed, "link": self.link}


def run(
    line: Line, environment: Mapping[str, str] = MappingProxyType({}), given_up: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Train once over a link; return the row.

    Raises:
        RunFailed: the program failed, or did not evaluate to its end.
    """
    evaluations = min(EVALUATIONS, line.total // 2)
    total = evaluations * max(1, round(line.total / evaluations))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-measure-")))
        command = line.program.command(folder, line.method, line.seed, DECAY_STEPS, total, evaluations)
        network = stack.enter_context(EmulatedNetwork(RANKS, parse_link(line.link)))
        output = trained(folder, command, network, environment, given_up)
    curve, report = curve_and_report(output, total, str(line.identity))
    return {**line.identity, "call": METHODS[line.method].call, "made": total, "curve": curve, **report}


class Race(NamedTuple):
    """What is raced.

    Attributes:
        book: the file, whose cells are not run again.
        programs: programs.
        methods: methods beside float16 and float32.
        links: links.
        seeds: number of seeds.
        seconds: time for which each method trains over each link, about.
    """

    book: Book
    programs: Sequence[Program]
    methods: Sequence[str]
    links: Sequence[str]
    seeds: int
    seconds: float

    def go(self, minutes: float) -> None:
        """Run all that is missing."""
        over = until(minutes)
        cells = [(p, link, seed) for seed in range(self.seeds) for p in self.programs for link in self.links]
        progress = Progress(len(cells))
        for program, link, seed in cells:
            if over():
                return
            if self.book.find(program=program.name, link=link, seed=seed, method=FLOAT32) is None:
                self._cell(program, link, seed)
            progress.say(f"{program.name}, {link}, seed {seed}")

    def _cell(self, program: Program, link: str, seed: int) -> None:
        """Run all methods with one program, link and seed; float32's row is the last."""
        phases = parse_link(link).phases
        changes = len(phases) > 1
        ends = [*(phase.at_seconds for phase in phases[1:]), max(self.seconds, phases[-1].at_seconds)]
        steps = 0.0
        for phase, end in zip(phases, ends, strict=True):
            rate = str(replace(phase, at_seconds=0.0)) if changes else link
            timed = in_turns([partial(run, Line(program, m, seed, rate, TIMED_STEPS)) for m in (FLOAT16, FLOAT32)])
            float16_s, float32_s = (step_seconds(row["curve"]) for row in timed)
            steps += (end - phase.at_seconds) / float16_s
        total = max(2 * EVALUATIONS, round(steps))
        longer = round(total * LONGEST.get(link, 2.5))
        methods = dict.fromkeys((FLOAT16, *self.methods, *([FLOAT32] if changes else [])))
        lines = [Line(program, m, seed, link, total if m == FLOAT16 else longer) for m in methods]
        if changes:
            for line in lines:
                if self.book.find(**line.identity) is None:
                    self.book.add(run(line))
            return
        for row in in_turns([partial(run, line) for line in lines]):
            self.book.add(row)
        self.book.add({**timed[1], "step_s": float32_s, "float16_step_s": float16_s})


def step_seconds(curve: Curve) -> float:
    """Return the mean seconds of a step from the second evaluation on.

    Example:
        >>> step_seconds([(0, 4.0, 0.0), (10, 3.0, 9.0), (20, 2.0, 11.0), (40, 1.0, 15.0)])
        0.2
    """
    first, last = curve[1], curve[-1]
    return round((last[2] - first[2]) / (last[0] - first[0]), 6)


def time_to(curve: Curve, loss: float) -> float | None:
    """Return the seconds to a loss, linear between evaluations; ``None`` if it was never reached.

    Example:
        >>> curve = [(0, 4.0, 0.0), (50, 3.0, 5.0), (100, 2.0, 11.0)]
        >>> time_to(curve, 2.5), time_to(curve, 1.0)
        (8.0, None)
    """
    for before, after in pairwise(curve):
        if after[1] <= loss:
            share = 0.0 if before[1] <= loss else (before[1] - loss) / (before[1] - after[1])
            return float(before[2] + share * (after[2] - before[2]))
    return None


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """Return, by program, link and method, for each seed: seconds to float16's last loss, and that over float16's.

    A method that did not come there has infinite seconds.
    """
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for float16 in rows:
        if float16["method"] != FLOAT16:
            continue
        place = {name: float16[name] for name in ("program", "link", "seed")}
        target = float16["curve"][-1][1]
        own_s = time_to(float16["curve"], target) or float16["curve"][-1][2]
        for row in rows:
            if all(row[name] == value for name, value in place.items()):
                if "step_s" in row:  # float32, of which a few steps were timed
                    seconds: float | None = own_s * row["step_s"] / row["float16_step_s"]
                else:
                    seconds = time_to(row["curve"], target)
                key = (row["program"], row["link"], row["method"])
                seconds = float("inf") if seconds is None else seconds
                found.setdefault(key, []).append((seconds, seconds / own_s))
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table: median seconds to float16's loss, and the range of the ratios to float16's seconds."""
    found = ratios(rows)
    methods = [FLOAT32, *dict.fromkeys(method for _, _, method in found if method != FLOAT32)]
    lines = ["| program | link | " + " | ".join(methods) + " |", "|" + " --- |" * (len(methods) + 2)]
    for program, link in dict.fromkeys((program, link) for program, link, _ in found):
        cells = []
        for method in methods:
            pairs = found.get((program, link, method), [])
            shares = [share for _, share in pairs]
            text = f"{statistics.median(seconds for seconds, _ in pairs):.0f} s" if pairs else ""
            cells.append(f"{text} ({min(shares):.2f}-{max(shares):.2f})" if pairs else "")
        lines.append(f"| {program} | {link} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, and print the table."""
    parser = parser_of(__doc__, "lines.json")
    tasks = [name for name in PROGRAMS if name != "nanogpt"]
    parser.add_argument("--nanogpt", type=Path, help="clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--examples", type=Path, help="clone of github.com/pytorch/examples, for minGPT-ddp")
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=[], help="tasks to train, too")
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=LINES, help="another list needs another file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for which each method trains, about")
    parser.add_argument("--show", choices=METHODS, help="print nanoGPT's train.py with a method's edits; train nothing")
    options = parser.parse_args()
    if options.show and options.nanogpt:
        text = (options.nanogpt / "train.py").read_text(encoding="utf-8")
        print(nanogpt.patched(text, nanogpt.edits(options.show, 0)))
        return 0
    programs: list[Program] = [TaskProgram(name) for name in options.tasks]
    programs += [NanoGPT(options.nanogpt.resolve())] if options.nanogpt else []
    programs += [MinGPT(options.examples.resolve())] if options.examples else []
    if not programs:
        parser.error("there is nothing to train; give --nanogpt CLONE, --examples CLONE or --tasks NAME")
    book = Book(options.json)
    race = Race(book, programs, options.methods, options.links, options.seeds, options.seconds)
    status = resumable(lambda: race.go(options.minutes))
    print(table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
