# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How far off a belief about an unknown program is: leave one program out, of the record of ``tests.measure.progress``.

A program's belief is the geometric mean over the other programs. A program counts as one, whatever the number of its
learning rates and schedules. The deviation is the root mean square of what single runs are off, in natural logarithms.

    python -m tests.measure.beliefs [--json FILE]
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.measure.progress import BELIEFS, NATIVE, Case, Way, efficiency, key
from tests.measure.results import read

FLOOR = 0.02
"""Efficiency that a run counts with at least: what made no progress has no logarithm."""

KINDS: Mapping[str, str] = {"dense": "16 bit", "quantize": "quantized", "topk": "sparse", "powersgd": "low rank"}
"""Kind of belief by the compressor's name."""


class Worth(NamedTuple):
    """What a step of one run was worth.

    Attributes:
        program: name of the program.
        schedule: of the learning rate.
        rate: learning rate.
        efficiency: progress of a step over that of a native step, read after settling.
    """

    program: str
    schedule: str
    rate: float
    efficiency: float


def kind_of(way: Way) -> str:
    """Return the kind of belief that a way belongs to."""
    if way.delay:
        return "delay"
    return "outer" if way.every else KINDS[way.label.split("(")[0]]


def worths(rows: Sequence[dict[str, Any]], way: Way, settled: bool = True) -> list[Worth]:
    """Return what steps of a way were worth, of each program, schedule, learning rate and seed.

    Where an exchange travels behind steps that is relative to the same without a delay.
    """
    cases = {key(row): row for row in rows}
    found = []
    for case, row in cases.items():
        native = cases.get(case._replace(way=NATIVE))
        if case.way != way or native is None:
            continue
        worth = max(FLOOR, efficiency(row, native, settled))
        if way.delay:
            waits = cases.get(case._replace(way=way._replace(delay=0)))
            if waits is None:
                continue
            worth = min(1.0, worth / max(FLOOR, efficiency(waits, native, settled)))
        found.append(Worth(case.program, case.schedule, case.rate, worth))
    return found


def mean_of(found: Iterable[Worth]) -> float:
    """Return the geometric mean over programs, of which each counts as one."""
    return math.exp(statistics.fmean(_by_program(found).values()))


def deviation_of(found: Sequence[Worth]) -> float:
    """Return the root mean square, over programs, of what runs are off from the mean over the others, in logarithms."""
    means = _by_program(found)
    squares = []
    for program in means:
        believed = statistics.fmean(mean for other, mean in means.items() if other != program)
        off = [math.log(one.efficiency) - believed for one in found if one.program == program]
        squares.append(statistics.fmean(error * error for error in off))
    return math.sqrt(statistics.fmean(squares))


def _by_program(found: Iterable[Worth]) -> dict[str, float]:
    logs: dict[str, list[float]] = {}
    for one in found:
        logs.setdefault(one.program, []).append(math.log(one.efficiency))
    return {program: statistics.fmean(of) for program, of in logs.items()}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Each way: its efficiencies by program, ascending by learning rate, and what a belief of it would be."""
    programs = list(dict.fromkeys(row["program"] for row in rows))
    lines = ["| | " + " | ".join(programs) + " | mean | deviation | 80 % sure |", "| --- " * (len(programs) + 4) + "|"]
    for way in BELIEFS:
        found = worths(rows, way)
        if len({one.program for one in found}) < 2:
            continue
        cells = []
        for program in programs:
            of = sorted((one for one in found if one.program == program), key=lambda one: (one.schedule, one.rate))
            cells.append(" ".join(f"{one.efficiency:.2f}" for one in of))
        mean, deviation = mean_of(found), deviation_of(found)
        sure = mean * math.exp(-statistics.NormalDist().inv_cdf(0.8) * deviation)
        lines.append(f"| {way} | " + " | ".join(cells) + f" | {mean:.2f} | {deviation:.2f} | {sure:.2f} |")
    return "\n".join(lines)


def gains(rows: Sequence[dict[str, Any]], label: str) -> list[tuple[float, float, Case]]:
    """Return ``(gain, efficiency, case)`` of each run of a compressor in each step, ascending."""
    cases = {key(row): row for row in rows}
    return sorted(
        (row["gain"], efficiency(row, native), case)
        for case, row in cases.items()
        if case.way.label.startswith(label) and not case.way.every
        if (native := cases.get(case._replace(way=NATIVE))) is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/progress.json")
    rows = read(Path(parser.parse_args().json))
    print(table(rows))


if __name__ == "__main__":
    main()
