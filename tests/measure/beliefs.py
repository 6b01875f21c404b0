# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fit the beliefs that ship with gravac to a CSV of ``tests.measure.efficiency``, with leave-one-program-out errors.

A program is predicted by the geometric mean over the others. Each program has the same weight, whatever the number of
its learning rates and schedules.

    python -m tests.measure.beliefs [--csv FILE] [--write]
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gravac.beliefs import Beliefs, CompressorBeliefs, EfficiencyPoints, efficiency_at, read_beliefs
from gravac.beliefs.tables import Doubt
from tests.measure.efficiency import BELIEFS, Way

RECORD = Path("docs/evidence/data/beliefs.csv")
"""File of the efficiencies that the beliefs are fitted to."""

FLOOR = 0.02
"""Least efficiency that a run is given, since 0 has no logarithm."""

CONTROL = Way("dense", 2.0)
"""16 bit: its efficiency is taken to be 1, so that what is measured instead is noise."""

ROUNDING = 0.01
"""Least deviation of any kind of method, and the deviation of 16 bit: the noise hides anything smaller."""

DELAY_EVERY = 10
"""Number of steps of a round that beliefs about delays are written for, as most of those before the record were."""

NOT_MEASURED = Doubt(least=0.1, of_loss=1.0)
"""``Doubt`` of compressors that were not measured: a guess."""

SHIPPED = Path("gravac/beliefs/shipped.json")
"""File of the beliefs that ship with gravac."""

BEFORE = Path(__file__).with_name("beliefs_before.json")
"""File of the beliefs before this record: tables of three small tasks, as certain."""

KINDS: Mapping[str, str] = {"dense": "16 bit", "quantize": "quantized", "topk": "sparse", "powersgd": "low rank"}
"""Kind of belief by the compressor's name."""


class Run(NamedTuple):
    """Efficiency that was measured in one run.

    Attributes:
        program: name of the program.
        schedule: of the learning rate.
        rate: learning rate.
        seed: of weights and batches.
        way: way to run steps.
        gain: mean gain; ``None`` for outer steps.
        efficiency: progress of a step over that of a native step, read after settling.
    """

    program: str
    schedule: str
    rate: float
    seed: int
    way: Way
    gain: float | None
    efficiency: float


def read(path: Path) -> list[Run]:
    """Return the runs of a CSV, whose first lines may be comments."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [
        Run(
            row["program"],
            row["schedule"],
            float(row["rate"]),
            int(row["seed"]),
            Way(row["label"], float(row["cf"]), int(row["every"]), int(row["delay"])),
            float(row["gain"]) if row["gain"] else None,
            float(row["efficiency"]),
        )
        for row in csv.DictReader(lines)
    ]


def kind_of(way: Way) -> str:
    """Return the kind of belief that a way belongs to."""
    if way.delay:
        return "delay"
    return "outer" if way.every else KINDS[name_of(way)]


def worths(runs: Sequence[Run], way: Way) -> list[Run]:
    """Return the runs of a way; with a delay, their efficiencies are relative to the same run without one."""
    own = [run._replace(efficiency=max(FLOOR, run.efficiency)) for run in runs if run.way == way]
    if not way.delay:
        return own
    waits = {run[:4]: run.efficiency for run in worths(runs, way._replace(delay=0))}
    return [run._replace(efficiency=min(1.0, run.efficiency / waits[run[:4]])) for run in own if run[:4] in waits]


def mean_of(found: Iterable[Run]) -> float:
    """Return the geometric mean over programs, of which each counts as one."""
    return math.exp(statistics.fmean(_by_program(found).values()))


def deviation_of(found: Sequence[Run]) -> float:
    """Return the leave-one-program-out error in log efficiency: its root mean square over programs.

    A program is predicted by the mean over the others.
    """
    means, squares = _by_program(found), []
    for program, logs in _logs(found).items():
        believed = statistics.fmean(mean for other, mean in means.items() if other != program)
        squares.append(statistics.fmean((log - believed) ** 2 for log in logs))
    return math.sqrt(statistics.fmean(squares))


def _logs(found: Iterable[Run]) -> dict[str, list[float]]:
    """Return the log efficiencies of each program."""
    logs: dict[str, list[float]] = {}
    for one in found:
        logs.setdefault(one.program, []).append(math.log(one.efficiency))
    return logs


def _by_program(found: Iterable[Run]) -> dict[str, float]:
    """Return each program's mean log efficiency."""
    return {program: statistics.fmean(logs) for program, logs in _logs(found).items()}


def noise_of(runs: Sequence[Run]) -> float:
    """Return the deviation of the measurement itself: the root mean square log efficiency of 16 bit.

    Median over programs. Where the loss hardly falls any more, as on ``tokens``, any noise is worth many steps.
    """
    squares = {
        program: statistics.fmean(log * log for log in logs) for program, logs in _logs(worths(runs, CONTROL)).items()
    }
    return math.sqrt(statistics.median(squares.values()))


def of_control(runs: Sequence[Run]) -> float:
    """Return the efficiency measured for 16 bit, median over programs: below 1, since noise cannot raise it above."""
    return math.exp(statistics.median(_by_program(worths(runs, CONTROL)).values()))


def median_of(runs: Sequence[Run], way: Way) -> float:
    """Return the median of the belief about a way: its mean efficiency relative to that of 16 bit."""
    return min(1.0, mean_of(worths(runs, way)) / (1.0 if way.delay else of_control(runs)))


def doubt_of(points: Sequence[tuple[float, float]]) -> Doubt:
    """Return the ``Doubt`` of a kind of method: a least-squares fit to squared deviations.

    Args:
        points: median and deviation of each way of a kind.
    """
    losses = np.array([math.log(median) ** 2 for median, _ in points])
    squares = np.array([deviation**2 for _, deviation in points])
    least, of_loss = np.linalg.lstsq(np.stack([np.ones_like(losses), losses], 1), squares, rcond=None)[0]
    if of_loss < 0 or len(points) < 2:
        least, of_loss = squares.mean(), 0.0
    if least < 0:
        least, of_loss = 0.0, float(losses @ squares / (losses @ losses))
    return Doubt(least=max(ROUNDING, _up(math.sqrt(least))), of_loss=_up(math.sqrt(of_loss)))


def fitted(runs: Sequence[Run], before: Beliefs) -> Beliefs:
    """Return beliefs fitted to a record.

    A measured method gets its own median. Log efficiencies of other methods of its kind are multiplied by the same
    factor as those of the measured ones. Beliefs about more than two ranks and other delays change in proportion.

    Args:
        runs: runs of the record.
        before: beliefs before the record.
    """
    noise, ways = noise_of(runs), [way for way in BELIEFS if len({one.program for one in worths(runs, way)}) > 1]
    medians = {way: median_of(runs, way) for way in ways}
    deviations = {way: math.sqrt(max(0.0, deviation_of(worths(runs, way)) ** 2 - noise**2)) for way in ways}
    doubts: dict[Any, Doubt] = {}
    for kind in dict.fromkeys(map(kind_of, ways)):
        doubts[kind] = doubt_of([(medians[way], deviations[way]) for way in ways if kind_of(way) == kind])
    doubts["16 bit"] = Doubt(least=ROUNDING)
    doubts["not measured"] = NOT_MEASURED
    in_each = {way: one for way, one in medians.items() if not way.every and way != CONTROL}
    then = {way: _before(before.of_compressor(name_of(way)), way) for way in in_each}
    compressors = {name: _of_compressor(name, believed, in_each, then) for name, believed in before.compressors.items()}
    by_gain = _power_of_gain(runs, "quantize")
    points = tuple((gain, round(gain**by_gain, 3)) for gain, _ in before.compressors["quantize"].by_gain)
    compressors["quantize"] = compressors["quantize"](by_gain=points)
    apart = {way.every: medians[way] for way in ways if kind_of(way) == "outer" and way.label == "dense"}
    two = before.outer[2]
    outer = {
        ranks: tuple(
            (every, round(share * _between(apart, every) / efficiency_at(two, every), 3)) for every, share in of
        )
        for ranks, of in before.outer.items()
    }
    behind = [(1 + DELAY_EVERY * way.delay / way.every, medians[way]) for way in ways if way.delay]
    power = statistics.fmean(math.log(one) / math.log(efficiency_at(before.delay, at)) for at, one in behind)
    delay = tuple((at, round(share**power, 3)) for at, share in before.delay)
    source = f"{RECORD.as_posix()}; what it has no run of: {before.source}"
    return Beliefs(
        source=source, compressors=compressors, outer=outer, delay=delay, delay_every=DELAY_EVERY, doubts=doubts
    )


def name_of(way: Way) -> str:
    """Return the name of a way's compressor."""
    return way.label.split("(")[0]


def _of_compressor(
    name: str, believed: CompressorBeliefs, medians: Mapping[Way, float], then: Mapping[Way, float]
) -> CompressorBeliefs:
    """Return the new beliefs about a compressor.

    Args:
        name: its name.
        believed: beliefs about it before the record.
        medians: measured medians of the ways that exchange in each step.
        then: medians of the same ways before the record.
    """
    own = {way for way in medians if name_of(way) == name}
    alike = own or {way for way in medians if kind_of(way) == believed.kind}
    if not alike:
        return believed
    power = _power({way: medians[way] for way in alike}, then)
    if believed.by_rank:
        return believed(by_rank=_raised(believed.by_rank, power))
    points = dict(_raised(believed.by_cf, power)) | {way.cf: round(medians[way], 3) for way in own}
    return believed(by_cf=_falling(sorted(points.items())))


def _power(medians: Mapping[Way, float], before: Mapping[Way, float]) -> float:
    """Return the factor by which log medians changed, by least squares."""
    pairs = [(math.log(before[way]), math.log(median)) for way, median in medians.items()]
    return sum(was * now for was, now in pairs) / sum(was * was for was, _ in pairs)


def _before(believed: CompressorBeliefs, way: Way) -> float:
    if believed.by_rank:
        return efficiency_at(believed.by_rank, float(way.label.split("(")[1].rstrip(")")))
    return efficiency_at(believed.by_cf, way.cf)


def _raised(points: EfficiencyPoints, power: float) -> EfficiencyPoints:
    return tuple((at, round(share**power, 3)) for at, share in points)


def _falling(points: Iterable[tuple[float, float]]) -> EfficiencyPoints:
    """Return the points, each lowered to the one before it if it is above that."""
    least, found = 1.0, []
    for at, share in points:
        least = min(least, share)
        found.append((at, least))
    return tuple(found)


def _power_of_gain(runs: Sequence[Run], label: str) -> float:
    """Return the exponent p of ``efficiency = gain ** p`` for a compressor, by least squares of logarithms."""
    of_one = of_control(runs)
    own = [run for run in runs if run.way.label.startswith(label) and not run.way.every and run.gain is not None]
    pairs = [
        (math.log(run.gain), math.log(max(FLOOR, min(1.0, run.efficiency / of_one))))
        for run in sorted(own, key=lambda run: (run.gain, run.efficiency))
    ]
    return sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)


def _between(points: Mapping[int, float], every: int) -> float:
    """Return the efficiency at a number of steps between two exchanges; 1 at one step."""
    return efficiency_at(((1, 1.0), *sorted(points.items())), every)


def _up(deviation: float) -> float:
    """Round up to two digits after the point."""
    return math.ceil(100 * deviation - 1e-9) / 100


def written(beliefs: Beliefs) -> str:
    """Return beliefs as JSON, a line for each table."""
    plain = beliefs.model_dump(mode="json", exclude_defaults=True)

    def lines(table: Mapping[str, Any]) -> str:
        return ",\n".join(f"  {json.dumps(str(name))}: {json.dumps(of)}" for name, of in table.items())

    parts = [f' "source": {json.dumps(plain["source"])}']
    parts += [f' "{name}": {{\n{lines(plain[name])}\n }}' for name in ("compressors", "outer")]
    parts += [f' "{name}": {json.dumps(plain[name])}' for name in ("delay", "delay_every") if name in plain]
    parts += [f' "doubts": {{\n{lines(plain.get("doubts", {}))}\n }}']
    return "{\n" + ",\n".join(parts) + "\n}\n"


def before() -> Beliefs:
    """Return the beliefs before the record: tables of three small tasks, as certain."""
    return read_beliefs(BEFORE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, default=RECORD)
    parser.add_argument("--write", action="store_true", help="write gravac/beliefs/shipped.json")
    arguments = parser.parse_args()
    runs = read(arguments.csv)
    for way in BELIEFS:
        own = worths(runs, way)
        if len({run.program for run in own}) > 1:
            print(f"{way}: mean {mean_of(own):.2f}, deviation {deviation_of(own):.2f}, {len(own)} runs")
    text = written(fitted(runs, before()))
    print(text)
    if arguments.write:
        SHIPPED.write_text(text)


if __name__ == "__main__":
    main()
