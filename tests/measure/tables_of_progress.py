# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of switchback trials, of outer optimizers, and of rules for the number of steps between exchanges."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from tests.measure import published
from tests.measure.beliefs import of_control
from tests.measure.efficiency import spearman
from tests.measure.predictors import PREDICTS
from tests.measure.programs import PROGRAMS
from tests.measure.progress import DECAY, NATIVE, OUTER, Way, best_rates, efficiency, key
from tests.measure.switchback import LAST, WAYS, Plan, by_curve, estimates, learned, spread
from tests.measure.tables_of_runs import head, line

RATES = ("a third", "best", "three times")
"""Learning rates, relative to the best of native training."""

FLOOR = 0.05
"""Smallest efficiency that a geometric mean takes: runs that diverged have 0."""

TRAINING = LAST[1]
"""Number of a stretch's last steps over whose training losses the mean is taken, in the table."""


def switchback() -> str:
    """Return a row for each length of trials, candidate and way to read: the ratio and its error, and whole runs'."""
    rows, whole_runs = published.rows("switchback"), published.rows("progress")
    programs = [name for name in PROGRAMS if any(row["program"] == name for row in rows)]
    lines = head("trials", "candidate", "read by", *programs, "errors")
    for plan in sorted({Plan(**row["plan"]) for row in rows}):
        for way in WAYS:
            trials_of = {row["program"]: row for row in rows if (Plan(**row["plan"]), Way(**row["way"])) == (plan, way)}
            true = {program: _of_whole_run(whole_runs, row) for program, row in trials_of.items()}
            by_probe = {program: learned(row) for program, row in trials_of.items()}
            by_training = {program: estimates(row, plan.settle, TRAINING) for program, row in trials_of.items()}
            of_probe = {program: (trials.ratio, trials.error) for program, trials in by_probe.items()}
            of_training = {
                program: spread(finite)
                for program, trials in by_training.items()
                if len(finite := [ratio for ratio in trials if math.isfinite(ratio)]) > 1
            }
            of_curve = {program: by_curve(row) for program, row in trials_of.items()}
            readers = {"probe": of_probe, "probe, one curve": of_curve, "training loss": of_training}
            for reader, measured in readers.items():
                cells = [
                    f"{measured[name][0]:.2f} ± {measured[name][1]:.2f} ({true[name]:.2f})" if name in measured else ""
                    for name in programs
                ]
                squares = [((ratio - true[name]) / error) ** 2 for name, (ratio, error) in measured.items()]
                times = f"{plan.trials} of {plan.trial} + {plan.settle} steps"
                lines.append(line(times, str(way), reader, *cells, f"{math.sqrt(statistics.fmean(squares)):.1f}"))
    return "\n".join(lines)


def overstated(way: Way) -> tuple[float, float, int]:
    """Return what long trials read over what whole runs show: geometric mean, error of its logarithm, and programs.

    As in the beliefs, whole runs of candidates are compared with runs of 16 bit, whose efficiency is 1.
    """
    whole_runs, longest = published.rows("progress"), max(Plan(**row["plan"]) for row in published.rows("switchback"))
    control = 1.0 if way == NATIVE else of_control(whole_runs)
    logs = [
        math.log(learned(row).ratio * control / _of_whole_run(whole_runs, row))
        for row in published.rows("switchback")
        if (Plan(**row["plan"]), Way(**row["way"])) == (longest, way)
    ]
    return math.exp(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(len(logs)), len(logs)


def table_of_overstated() -> str:
    """Return a row for each candidate: what trials read over what whole runs show."""
    lines = head("candidate", "read / shown by whole runs, geometric mean", "error of its logarithm", "programs")
    for way in WAYS:
        mean, error, count = overstated(way)
        lines.append(line(str(way), f"{mean:.2f}", f"{error:.2f}", str(count)))
    return "\n".join(lines)


def settling() -> str:
    """Return a row for each number of steps of settling: how far ratios of long trials lie from whole runs', mean."""
    whole_runs, longest = published.rows("progress"), max(Plan(**row["plan"]) for row in published.rows("switchback"))
    rows = [row for row in published.rows("switchback") if Plan(**row["plan"]) == longest]
    lines = head("steps of settling", *map(str, WAYS), f"{WAYS[0]}, less dense")
    for longer in range(0, 50, 10):
        off = [
            statistics.fmean(
                learned(row, longer).ratio - _of_whole_run(whole_runs, row) for row in rows if Way(**row["way"]) == way
            )
            for way in WAYS
        ]
        cells = [f"{distance:+.2f}" for distance in (*off, off[0] - off[2])]
        lines.append(line(str(longest.settle + longer), *cells))
    return "\n".join(lines)


def _of_whole_run(rows: Sequence[dict[str, Any]], trial: dict[str, Any]) -> float:
    """Return the efficiency of a whole run of the same program, learning rate and candidate; 1 of native steps."""
    way = Way(**trial["way"])
    if way == NATIVE:
        return 1.0
    same = [row for row in rows if row["program"] == trial["program"] and row["rate"] == trial["rate"]]
    native, run = (next(row for row in same if key(row).way == of) for of in (NATIVE, way))
    return efficiency(run, native)


def predictors() -> str:
    """Return a row for each candidate and quantity: its rank correlation with the efficiency of whole runs."""
    whole_runs = {key(row): row for row in published.rows("progress")}
    lines = head("candidate", "predicted by", "cases", "rank correlation with its efficiency")
    for way, names in PREDICTS.items():
        for name in names:
            pairs = [
                (row["taken"][name], efficiency(whole_runs[case._replace(way=way)], whole_runs[case]))
                for row in published.rows("predictors")
                if (case := key(row)) in whole_runs and case._replace(way=way) in whole_runs
            ]
            correlation = spearman([number for number, _ in pairs], [worth for _, worth in pairs])
            lines.append(line(str(way), name, str(len(pairs)), f"{correlation:+.2f}"))
    return "\n".join(lines)


def outer_optimizers() -> str:
    """Return a row for each outer optimizer and each rule, under a cosine: means over programs, by learning rate."""
    return _efficiencies_by_rate("cosine", (*OUTER, *DECAY))


def outer_optimizers_at_constant_rates() -> str:
    """Return a row for each outer optimizer, at constant learning rates: means over programs, by learning rate."""
    return _efficiencies_by_rate("constant", OUTER)


def _efficiencies_by_rate(schedule: str, ways: Sequence[Way]) -> str:
    """Return a row for each way to run steps: geometric mean of its efficiency over programs, by learning rate.

    The first seed counts; one program has a second.

    Args:
        schedule: of the learning rate.
        ways: ways to run steps.
    """
    rows = [row for row in published.rows("outer-optimizers") if row["schedule"] == schedule and row["seed"] == 0]
    cases = {key(row): row for row in rows}
    lines = head("outer steps", *(f"{rate} (programs)" for rate in RATES))
    for way in dict.fromkeys(ways):
        by_rate: dict[str, list[float]] = {rate: [] for rate in RATES}
        for case, row in cases.items():
            if case.way == way:
                rates = best_rates(rows, PROGRAMS[case.program], case.program, case.schedule)
                native = cases[case._replace(way=NATIVE)]
                by_rate[RATES[rates.index(case.rate)]].append(max(FLOOR, efficiency(row, native)))
        cells = [
            f"{statistics.geometric_mean(shares):.2f} ({len(shares)})" if shares else "" for shares in by_rate.values()
        ]
        lines.append(line(str(way), *cells))
    return "\n".join(lines)
