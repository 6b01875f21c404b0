# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Time to a loss of a model in shards, its replicas on two sites with an emulated link between them.

Four ranks on two sites: each site holds a replica in two shards, and only what is exchanged over the replicas crosses
the link. The baseline is torch's own HSDP that reduces gradients in bfloat16. Its loss by step is that of a run over a
link without a limit, its time by step that of ``TIMED`` steps over the link; gravac's runs are made in full over the
link. The target is the loss that the baseline has after ``AT`` of its steps.

    .venv-integrations/bin/python -m tests.measure.hsdp_links [--task NAME] [--scales X ...] [--links LINK ...]
        [--seeds N] [--steps N] [--methods NAME ...] [--json FILE] [--minutes N]
"""

import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.links.schedule import Schedule
from tests.measure.nanogpt import RANKS, REPORT
from tests.measure.nanogpt_links import SEEN, RunFailed, interpolated, reached, trained
from tests.measure.programs.methods import ADAPTIVE, BFLOAT16, HOOK, SETTINGS
from tests.measure.programs_links import step_seconds
from tests.measure.resuming import Book, Progress, parser_of, resumable, until

LINKS = ("100mbit", "20mbit")

SCALES = (0.45, 1.0, 1.8)
"""Scales of the task's model; the widths of GPT-2 are 128, 192 and 256."""

STEPS, EVALUATIONS = 200, 20

TIMED, EVALUATIONS_TIMED = 24, 4
"""Numbers of steps and of evaluations of a run that only takes the time of a step; the first quarter warms up."""

AT = 0.8
"""Share of the baseline's steps after which its loss is the target."""

PROGRAM = "tests.measure.programs.with_hsdp"

METHODS = (HOOK, ADAPTIVE)
"""Methods of gravac: an exchange in every step, and ``every=(1, 100)`` without a probe."""


class Case(NamedTuple):
    """A run, and what its row is found by."""

    task: str
    scale: float
    method: str
    seed: int
    link: str
    steps: int


def run(case: Case) -> dict[str, Any]:
    """Train once; return the row.

    Raises:
        RunFailed: the program failed, or did not evaluate to its end.
    """
    evaluations = EVALUATIONS_TIMED if case.steps == TIMED else EVALUATIONS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-measure-")))
        network = stack.enter_context(EmulatedNetwork(RANKS, parse_link(case.link)))
        schedule = stack.enter_context(Schedule(network))
        numbers = (case.task, case.scale, case.method, case.seed, case.steps, evaluations)
        output = trained(folder, [sys.executable, "-m", PROGRAM, *map(str, numbers)], network, schedule)
        sent = network.interface_bytes(0)[0]
    curve = [(int(step), float(loss), float(seconds)) for step, _, loss, seconds in SEEN.findall(output)]
    if not curve or curve[-1][0] != case.steps:
        raise RunFailed(f"{case}: no evaluation after step {case.steps}; end of the output: {output[-4000:]}")
    reports = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
    return {
        **case._asdict(),
        "settings": dict(SETTINGS.get(case.method, {})),
        "curve": curve,
        "step_s": step_seconds(curve),
        "interface_bytes": sent,
        **(json.loads(reports[0]) if reports else {}),
    }


def cases(task: str, scales: Sequence[float], links: Sequence[str], seeds: int, steps: int) -> Iterator[Case]:
    """Yield all runs, those of a cell one after the other in random order."""
    for seed, scale in itertools.product(range(seeds), scales):
        yield Case(task, scale, BFLOAT16, seed, UNTHROTTLED, steps)
        for link in links:
            cell = [Case(task, scale, method, seed, link, steps) for method in METHODS]
            cell.append(Case(task, scale, BFLOAT16, seed, link, TIMED))
            random.Random(f"{scale} {seed} {link}").shuffle(cell)
            yield from cell


class Cell(NamedTuple):
    """What a method came to at one scale, on one link, with one seed.

    Attributes:
        row: the method's row.
        target: loss to be reached.
        seconds: seconds to it, of bfloat16 and of the method; the method's ``None`` if it never came there.
        exposed: share of a step of bfloat16 that the link adds: 1 - step without a limit / step over the link.
    """

    row: dict[str, Any]
    target: float
    seconds: tuple[float, float | None]
    exposed: float

    @property
    def ratio(self) -> str:
        """Seconds of the method over those of bfloat16, in words."""
        of_bfloat16, of_method = self.seconds
        return "never" if of_method is None else f"{of_method / of_bfloat16:.2f}"


def cells_of(rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """Return the cells of which all runs are there."""
    found = []
    for row in rows:
        if row["method"] not in METHODS:
            continue
        same = {name: row[name] for name in ("task", "scale", "seed")} | {"method": BFLOAT16}
        free = _find(rows, link=UNTHROTTLED, steps=row["steps"], **same)
        timed = _find(rows, link=row["link"], steps=TIMED, **same)
        if free is None or timed is None:
            continue
        target = interpolated([(step, loss) for step, loss, _ in free["curve"]], AT * row["steps"])
        steps_to_target, _ = reached([(step, loss, step) for step, loss, _ in free["curve"]], target)
        seconds, there = reached(row["curve"], target)
        times = steps_to_target * timed["step_s"], seconds if there else None
        found.append(Cell(row, target, times, 1 - free["step_s"] / timed["step_s"]))
    return found


def _find(rows: Sequence[dict[str, Any]], **about: Any) -> dict[str, Any] | None:
    return next((row for row in rows if all(row[name] == value for name, value in about.items())), None)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return each cell as Markdown."""
    lines = [
        "| scale | link | seed | the link's share of bfloat16's step | loss to reach | bfloat16 | method | "
        "time to it | over bfloat16's | loss after all steps | ended with |",
        "|" + " --- |" * 11,
    ]
    for cell in sorted(cells_of(rows), key=lambda one: (one.row["scale"], one.row["link"], one.row["seed"])):
        row, (of_bfloat16, of_method) = cell.row, cell.seconds
        name = "every step" if row["method"] == HOOK else "`every=(1, 100)`"
        took = "never" if of_method is None else f"{of_method:.0f} s"
        last = row["turns"][-1][1] if row["turns"] else row["mode"]
        lines.append(
            f"| {row['scale']:g} | {row['link']} | {row['seed']} | {100 * cell.exposed:.0f} % | {cell.target:.3f} | "
            f"{of_bfloat16:.0f} s | {name} | {took} | {cell.ratio} | {row['curve'][-1][1]:.3f} | "
            f"{last.removesuffix(', every 1, delay 0')} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], scale: float, link: str, path: Path) -> None:
    """Draw validation loss by seconds of a scale's runs on a link, of the first seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), dpi=110, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    about = {"scale": scale, "seed": 0}
    free, timed = (
        _find(rows, method=BFLOAT16, link=of, **about, **steps)
        for of, steps in ((UNTHROTTLED, {}), (link, {"steps": TIMED}))
    )
    assert free is not None
    assert timed is not None
    axes.plot(
        [step * timed["step_s"] for step, *_ in free["curve"]],
        [loss for _, loss, _ in free["curve"]],
        label="torch's HSDP, reduced in bfloat16",
    )
    for method, label in ((HOOK, "gravac, an exchange in every step"), (ADAPTIVE, "gravac, every=(1, 100)")):
        row = _find(rows, method=method, link=link, steps=free["steps"], **about)
        if row is not None:
            axes.plot([seconds for *_, seconds in row["curve"]], [loss for _, loss, _ in row["curve"]], label=label)
    axes.set(xlabel="seconds", ylabel="validation loss", ylim=(None, free["curve"][1][1]))
    axes.set_title(f"{free['task']} at scale {scale:g}, {link} between two replicas of two shards", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/hsdp_links.json")
    parser.add_argument("--task", default="gpt2")
    parser.add_argument("--scales", nargs="+", type=float, default=SCALES)
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--methods", nargs="+", help="methods to run, each by the beginning of its name (default: all)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    book = Book(options.json)
    chosen = tuple(options.methods or ("",))

    def measure() -> None:
        over = until(options.minutes)
        every = cases(options.task, options.scales, options.links, options.seeds, options.steps)
        todo = [case for case in every if case.method.startswith(chosen) and not book.find(**case._asdict())]
        progress = Progress(len(todo))
        for case in todo:
            if over():
                return
            row = run(case)
            book.add(row)
            steps, loss, seconds = row["curve"][-1]
            progress.say(f"{case}: {steps} steps, {seconds:.1f} s, loss {loss:.4f}; {row.get('reason', '')}")

    status = resumable(measure)
    print(table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
