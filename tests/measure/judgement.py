# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether adaptive compression is ever a regret: against the best static method of each cell, in hindsight.

The best static method of a (task, link) is picked from the matrix of ``make measure-tta``, then run again in full
beside the adaptive one, on seeds that picked nothing; every run stands in the file. A cell's ratio is the adaptive
method's time to accuracy over the static one's, seed by seed; one that did not reach the target counts with the time it
had, and a seed on which neither did not at all.

    python -m tests.measure.judgement [--seeds N] [--adaptive METHOD] [--among METHOD ...] [--json FILE]
        [--cells TASK/LINK ...] [--limit N] [--minutes N] [--mixed]
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from gravac.lab.tta.matrix import REFERENCE_METHOD, RunMatrix
from gravac.lab.tta.record import TrainingRecord
from gravac.lab.tta.runner import run_matrix
from tests.measure.rendering import Estimate, render
from tests.measure.resuming import until

FIRST_SEED = 10
"""The matrix has lower ones."""

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
STUDENT |= {12: 2.20, 15: 2.14, 18: 2.11, 21: 2.09, 24: 2.07, 27: 2.06, 30: 2.05}
"""97.5 % quantile of Student's t for a mean of so many."""

Cell = tuple[str, str]


class Verdict(NamedTuple):
    """A cell's: the best static method, the ratio's geometric mean over seeds, its 95 % interval, and the ratios."""

    cell: Cell
    best: str
    ratio: float
    low: float
    high: float
    ratios: tuple[float, ...]


def best_static(runs: Sequence[TrainingRecord], among: Sequence[str] = ()) -> dict[Cell, str]:
    """The static method of the lowest median time to accuracy, for every task and link."""
    return best_of([run for run in runs if not run.adaptive and (not among or run.method in among)])


def best_of(runs: Sequence[TrainingRecord]) -> dict[Cell, str]:
    """The method of the lowest median time to accuracy, for every task and link."""
    times: dict[Cell, dict[str, list[float]]] = {}
    for run in runs:
        of_method = times.setdefault((run.task, run.link), {}).setdefault(run.method, [])
        of_method.append(math.inf if run.tta_s is None else run.tta_s)
    return {cell: min(methods, key=lambda m: statistics.median(methods[m])) for cell, methods in times.items()}


def interval(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of ratios with its 95 % interval, which one ratio leaves open."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = student(len(logs)) * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 99.0))


def student(count: int) -> float:
    """The 97.5 % quantile of Student's t for a mean of so many, at most of some more."""
    return STUDENT[max(listed for listed in STUDENT if listed <= count)]


def verdicts(runs: Iterable[TrainingRecord], best: dict[Cell, str], adaptive: str) -> list[Verdict]:
    """Of every cell that has both methods with the same seed."""
    runs = list(runs)
    cells = []
    for cell, method in best.items():
        of_cell = {(run.method, run.seed): run for run in runs if (run.task, run.link) == cell}
        seeds = sorted(
            seed
            for (name, seed), run in of_cell.items()
            if name == adaptive and (other := of_cell.get((method, seed))) and (run.tta_s or other.tta_s)
        )
        if not seeds:
            continue
        ratios = tuple(seconds_spent(of_cell[adaptive, seed]) / seconds_spent(of_cell[method, seed]) for seed in seeds)
        cells.append(Verdict(cell, method, *interval(ratios), ratios))
    return cells


def seconds_spent(run: TrainingRecord) -> float:
    """Seconds to the target, or all that the run had."""
    return run.seconds if run.tta_s is None else run.tta_s


def mean_ratio(cells: Iterable[Verdict]) -> float:
    """The geometric mean of the ratios of cells."""
    return math.exp(statistics.fmean(math.log(cell.ratio) for cell in cells))


def table(cells: Sequence[Verdict]) -> str:
    """As Markdown, with what all cells come to."""
    return render("tables/judgement", verdicts=cells, mean=mean_ratio(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json", type=Path, default=Path("docs/measurements/judgement.json"))
    parser.add_argument("--adaptive", default="goodput:ladder@2-1000")
    parser.add_argument(
        "--among",
        nargs="*",
        default=(),
        help="static methods among which the best is selected (default: all in --runs)",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--cells", nargs="+", metavar="TASK/LINK", help="tasks and links to run (default: all in --runs)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=RunMatrix.limit,
        help="stop a run after this multiple of the reference run's time to the target",
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell after this many minutes")
    parser.add_argument("--mixed", action="store_true", help="allow runs of several commits in the table, with a note")
    arguments = parser.parse_args()
    time_is_up = until(arguments.minutes)
    picked_from = record.read([arguments.runs])
    best = best_static(picked_from, arguments.among)
    if unknown := set(arguments.cells or ()) - {"/".join(cell) for cell in best}:
        parser.error(
            f"--cells: {arguments.runs} has no {', '.join(sorted(unknown))}; give task and link, such as charlm/100mbit"
        )
    best = {cell: method for cell, method in best.items() if not arguments.cells or "/".join(cell) in arguments.cells}
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        for (task, link), method in best.items():
            if time_is_up():
                break
            reference = next(
                run for run in picked_from if (run.task, run.method, run.link) == (task, REFERENCE_METHOD, UNTHROTTLED)
            )
            with TtaLive(Console(), paced=False) as live:
                matrix = RunMatrix(
                    tasks=(task,),
                    links=(link,),
                    methods=(method, arguments.adaptive),
                    seeds=(seed,),
                    scale=reference.scale,
                    budget=reference.steps,
                    limit=arguments.limit,
                    json=arguments.json,
                )
                run_matrix(matrix, live)
    runs = record.read([arguments.json])
    print(record.commits_of([arguments.json], runs, arguments.mixed))
    print(table(verdicts(runs, best, arguments.adaptive)))


if __name__ == "__main__":
    main()
