# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How far off a belief about an unknown program is: leave one program out, of the record of ``tests.measure.progress``.

A program's belief is the geometric mean over the other programs. A program counts as one, whatever the number of its
learning rates and schedules. The deviation is the root mean square of what single runs are off, in natural logarithms.

    python -m tests.measure.beliefs [--json FILE] [--write]
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gravac.beliefs import Beliefs, EfficiencyPoints, OfCompressor, efficiency_at
from gravac.beliefs.tables import Doubt
from tests.measure.progress import BELIEFS, NATIVE, Case, Way, efficiency, key
from tests.measure.results import read

FLOOR = 0.02
"""Efficiency that a run counts with at least: what made no progress has no logarithm."""

CONTROL = Way("dense", 2.0)
"""16 bit, which loses nothing but by the noise of the measurement."""

ROUNDING = 0.01
"""Least deviation of any kind: the measurement's noise hides less. It is all that is said of 16 bit."""

NOT_MEASURED = Doubt(least=0.1, of_loss=1.0)
"""Doubt about what was not measured: it may lose nothing, or twice as much as is said, within a standard deviation."""

KNOWN = Path("gravac/beliefs/known.json")

BEFORE = Path(__file__).with_name("beliefs_before.json")
"""What was believed before."""

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
    return "outer" if way.every else KINDS[name_of(way)]


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


def noise_of(rows: Sequence[dict[str, Any]]) -> float:
    """Return the deviation that the measurement itself has: that of 16 bit from a step that loses nothing.

    The median over programs: on one whose loss hardly falls any more, any noise is worth many steps.
    """
    squares: dict[str, list[float]] = {}
    for one in worths(rows, CONTROL):
        squares.setdefault(one.program, []).append(math.log(one.efficiency) ** 2)
    return math.sqrt(statistics.median(map(statistics.fmean, squares.values())))


def of_control(rows: Sequence[dict[str, Any]]) -> float:
    """Return what noise makes of an efficiency of 1, which is at most 1: the median over programs of 16 bit's."""
    return math.exp(statistics.median(_by_program(worths(rows, CONTROL)).values()))


def median_of(rows: Sequence[dict[str, Any]], way: Way) -> float:
    """Return the median to believe of a way: its mean over what noise makes of an efficiency of 1."""
    return min(1.0, mean_of(worths(rows, way)) / (1.0 if way.delay else of_control(rows)))


def doubt_of(points: Sequence[tuple[float, float]]) -> Doubt:
    """Return the doubt that fits deviations best, by least squares of their squares.

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


def fitted(rows: Sequence[dict[str, Any]], before: Beliefs) -> Beliefs:
    """Return beliefs by a record; what it has no run of is put by what was believed before.

    Where a kind was measured, all of its methods are believed to lose so many times what was believed, as the measured
    ones did; these have their own medians.

    Args:
        rows: of the record.
        before: what was believed before.
    """
    noise, ways = noise_of(rows), [way for way in BELIEFS if len({one.program for one in worths(rows, way)}) > 1]
    medians = {way: median_of(rows, way) for way in ways}
    deviations = {way: math.sqrt(max(0.0, deviation_of(worths(rows, way)) ** 2 - noise**2)) for way in ways}
    doubts: dict[Any, Doubt] = {}
    for kind in dict.fromkeys(map(kind_of, ways)):
        doubts[kind] = doubt_of([(medians[way], deviations[way]) for way in ways if kind_of(way) == kind])
    doubts["16 bit"] = Doubt(least=ROUNDING)
    doubts["not measured"] = NOT_MEASURED
    in_each = {way: one for way, one in medians.items() if not way.every and way != CONTROL}
    then = {way: _before(before.of(name_of(way)), way) for way in in_each}
    compressors = {name: _of_compressor(name, believed, in_each, then) for name, believed in before.compressors.items()}
    by_gain = _power_of_gain(rows, "quantize")
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
    behind = {1 + way.delay: medians[way] for way in ways if way.delay}
    power = statistics.fmean(math.log(one) / math.log(efficiency_at(before.delay, at)) for at, one in behind.items())
    delay = tuple((at, round(share**power, 3)) for at, share in before.delay)
    source = (
        f"docs/measurements/progress.json; what it has no run of: {before.source.removeprefix('docs/measurements: ')}"
    )
    return Beliefs(source=source, compressors=compressors, outer=outer, delay=delay, doubts=doubts)


def name_of(way: Way) -> str:
    """Return the name of a way's compressor."""
    return way.label.split("(")[0]


def _of_compressor(
    name: str, believed: OfCompressor, medians: Mapping[Way, float], then: Mapping[Way, float]
) -> OfCompressor:
    """Return what is believed of a compressor now.

    Args:
        name: its name.
        believed: what was believed before.
        medians: of the ways that exchange in each step, as measured.
        then: what was believed of these before.
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
    """Return by how much more is lost than was believed: the power that fits medians best, in logarithms."""
    pairs = [(math.log(before[way]), math.log(median)) for way, median in medians.items()]
    return sum(was * now for was, now in pairs) / sum(was * was for was, _ in pairs)


def _before(believed: OfCompressor, way: Way) -> float:
    if believed.by_rank:
        return efficiency_at(believed.by_rank, float(way.label.split("(")[1].rstrip(")")))
    return efficiency_at(believed.by_cf, way.cf)


def _raised(points: EfficiencyPoints, power: float) -> EfficiencyPoints:
    return tuple((at, round(share**power, 3)) for at, share in points)


def _falling(points: Iterable[tuple[float, float]]) -> EfficiencyPoints:
    """Return points of which none is above the one before."""
    least, found = 1.0, []
    for at, share in points:
        least = min(least, share)
        found.append((at, least))
    return tuple(found)


def _power_of_gain(rows: Sequence[dict[str, Any]], label: str) -> float:
    """Return the power of the gain that fits efficiencies of a compressor best, in logarithms."""
    of_one = of_control(rows)
    pairs = [
        (math.log(gain), math.log(max(FLOOR, min(1.0, share / of_one))))
        for gain, share, case in gains(rows, label)
        if case.way != NATIVE
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
    parts += [f' "delay": {json.dumps(plain["delay"])}', f' "doubts": {{\n{lines(plain.get("doubts", {}))}\n }}']
    return "{\n" + ",\n".join(parts) + "\n}\n"


def before() -> Beliefs:
    """Return what was believed before the record: the tables of three small tasks, without doubt."""
    return Beliefs(**json.loads(BEFORE.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/progress.json")
    parser.add_argument("--write", action="store_true", help="write gravac/beliefs/known.json")
    arguments = parser.parse_args()
    rows = read(Path(arguments.json))
    print(table(rows))
    text = written(fitted(rows, before()))
    print(text)
    if arguments.write:
        KNOWN.write_text(text)


if __name__ == "__main__":
    main()
