# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What predicts the steps a compressor needs: its gain, or its worth on other tasks? From the runs of the matrix.

For each task, over its static methods unthrottled: worth = dense's steps to the target / the method's (of a method that
did not reach it, a bound: dense's steps / those it made). Spearman's rank correlation of worth with mean gain, and with
the geometric mean of worth over the *other* tasks.

    python -m tests.measure.efficiency [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.tta import record
from gravac.lab.tta.matrix import REFERENCE_METHOD
from tests.measure.results import write


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) + 1) / 2 for value in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.correlation(ranks(a), ranks(b))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    parser.add_argument("--mixed", action="store_true", help="allow runs of several commits, with a note")
    arguments = parser.parse_args()
    there = record.read([arguments.runs])
    print(record.commits_of([arguments.runs], there, arguments.mixed))
    runs = [run for run in there if run.link == UNTHROTTLED and not run.adaptive]
    dense = {(run.task, run.seed): run.steps_to_target for run in runs if run.method == REFERENCE_METHOD}
    worths: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        of = dense[run.task, run.seed]
        assert of is not None
        worths[run.task][run.method].append(of / (run.steps_to_target or run.steps))
        if run.gain is not None:
            gains[run.task][run.method].append(run.gain)
    worth = {
        t: {m: statistics.geometric_mean(v) for m, v in by.items() if m != REFERENCE_METHOD} for t, by in worths.items()
    }
    rows: list[dict[str, Any]] = []
    for task, own in worth.items():
        others = [worth[other] for other in worth if other != task]
        prior = {
            m: statistics.geometric_mean([w[m] for w in others if m in w]) for m in own if any(m in w for w in others)
        }
        gained = {m: statistics.fmean(gains[task][m]) for m in own if m in gains[task]}
        shared = sorted(set(own) & set(prior))
        with_gain = sorted(gained)
        rows.append(
            {
                "task": task,
                "methods": len(own),
                "gain": spearman([gained[m] for m in with_gain], [own[m] for m in with_gain]),
                "worth_elsewhere": spearman([prior[m] for m in shared], [own[m] for m in shared])
                if shared
                else math.nan,
                "worth": {m: round(own[m], 3) for m in sorted(own, key=lambda name: -own[name])},
                "mean_gain": {m: round(value, 3) for m, value in gained.items()},
            }
        )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
