# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the report: runs grouped by where they ran, one row per method, and a verdict in one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gravac.lab.rates import parse_rate
from gravac.lab.record import RunRecord

LIMIT_METHOD, LIMIT_LINK = "fp32", "unthrottled"
"""Their median time to target is the limit: what a network that costs nothing would give."""

BASELINE = "fp16"
"""What speed-ups are told over: the compression that everybody has."""

DENSE = ("fp32", "fp16", "bf16")

SPREAD = 0.10
"""(max - min) / median over seeds; above it the page asks for more seeds."""


class Place(NamedTuple):
    """What methods are compared at: one section of the page."""

    task: str
    scale: float
    link: str
    workers: int


@dataclass(frozen=True)
class Amount:
    """A number over seeds, some of which may be known only to lie above or below a value.

    Attributes:
        median: over seeds; a bound when ``sense`` is not empty.
        low: the smallest.
        high: the largest.
        runs: how many seeds.
        sense: ``">"`` when the median is only known to be above ``median``, ``"<"`` when below, else empty.
        low_sense: the same of ``low``.
        high_sense: the same of ``high``.
    """

    median: float
    low: float
    high: float
    runs: int
    sense: str = ""
    low_sense: str = ""
    high_sense: str = ""

    def over(self, unit: float) -> Amount:
        """In multiples of ``unit``."""
        return Amount(
            self.median / unit,
            self.low / unit,
            self.high / unit,
            self.runs,
            self.sense,
            self.low_sense,
            self.high_sense,
        )

    @property
    def exact(self) -> bool:
        """Whether the median itself is known."""
        return not self.sense

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (self.high - self.low) / self.median if self.median else 0.0


UNKNOWN = Amount(0.0, 0.0, 0.0, 0, ">")
"""Of runs that made no step."""

Interval = tuple[float, float]
"""What a number is known to lie in; both ends are the same when it is known."""


def amount(intervals: Sequence[Interval]) -> Amount | None:
    """Of one interval per seed, ``(x, x)`` when x is known; ``None`` when nothing can be said of the median.

    Example:
        >>> amount([(10.0, 10.0), (60.0, math.inf)])
        Amount(median=35.0, low=10.0, high=60.0, runs=2, sense='>', low_sense='', high_sense='>')
    """
    if not intervals:
        return None
    lower, upper = [low for low, _ in intervals], [high for _, high in intervals]
    at_least, at_most = statistics.median(lower), statistics.median(upper)
    if math.isinf(at_most) and at_least == 0:
        return None
    sense = "" if at_least == at_most else ">" if math.isinf(at_most) else "<"
    least, most = min(intervals), max(intervals, key=lambda interval: (interval[1], interval[0]))
    return Amount(
        median=at_most if sense == "<" else at_least,
        low=least[0] or min(upper),
        high=most[0] if math.isinf(most[1]) else most[1],
        runs=len(intervals),
        sense=sense,
        low_sense="" if least[0] == least[1] else ">" if least[0] else "<",
        high_sense="" if most[0] == most[1] else ">" if math.isinf(most[1]) else "<",
    )


@dataclass(frozen=True)
class Row:
    """One method at one place; ``None`` is what was not measured.

    Attributes:
        method: as given.
        adaptive: whether a controller decides.
        runs: its runs, by seed.
        reached: how many of them reached the target.
        tta: seconds to the target.
        relative: ``tta`` in multiples of the limit.
        speedup: fp16's time to target / its own, paired by seed.
        steps: to the target.
        samples_per_s: over all ranks.
        efficiency: 1 is linear scaling.
        bytes_per_step: on the wire, a rank.
        wire_ratio: fp32's bytes a step / its own.
        gain: mean over the steps.
        compress_share: of a step's time.
        spread: a note when seeds differ too much, or empty.
    """

    method: str
    adaptive: bool
    runs: tuple[RunRecord, ...]
    reached: int
    tta: Amount
    relative: Amount | None
    speedup: Amount | None
    steps: Amount
    samples_per_s: float
    efficiency: float | None
    bytes_per_step: float | None
    wire_ratio: float | None
    gain: float | None
    compress_share: float | None
    spread: str

    @property
    def paced(self) -> bool:
        """Whether a run had no real link."""
        return any(run.paced for run in self.runs)

    @property
    def factored(self) -> bool:
        """Whether steps of a run came from another link."""
        return any(run.factored for run in self.runs)


@dataclass(frozen=True)
class Section:
    """All methods at one place.

    Attributes:
        place: where.
        rows: fastest first, those that did not reach the target last.
        limit: seconds; ``None`` when it is not known.
        dense_steps: what fp32 needs to the target, here or, when it did not get there, at the limit.
        verdict: one sentence.
        notes: what a reader must know before believing the numbers.
    """

    place: Place
    rows: tuple[Row, ...]
    limit: float | None
    dense_steps: float | None
    verdict: str
    notes: tuple[str, ...]

    @property
    def run(self) -> RunRecord:
        """Any run of it: for what all of them share."""
        return self.rows[0].runs[0]

    @property
    def paced(self) -> bool:
        """Whether a run had no real link."""
        return any(row.paced for row in self.rows)

    @property
    def factored(self) -> bool:
        """Whether steps of a run came from another link."""
        return any(row.factored for row in self.rows)

    @property
    def fastest(self) -> Row | None:
        """``None`` when no method reached the target."""
        return self.rows[0] if self.rows[0].tta.exact else None

    def row(self, method: str) -> Row | None:
        """That of a method."""
        return next((row for row in self.rows if row.method == method), None)


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """All places, by task, scale and workers, slow links first; of a run that is there twice the later counts."""
    latest = {(run.cell, run.method): run for run in runs}
    places: dict[Place, list[RunRecord]] = {}
    for run in latest.values():
        places.setdefault(Place(run.task, run.scale, run.link, run.workers), []).append(run)
    order = sorted(places, key=lambda place: (place.task, place.scale, place.workers, link_order(place.link)))
    return [_section(place, places[place], places) for place in order]


def link_order(link: str) -> tuple[float, str]:
    """A sort key: slowest first, ``unthrottled`` and what is no rate last."""
    try:
        return parse_rate(link.split(",")[0]), link
    except ValueError:
        return math.inf, link


def methods(found: Iterable[Section]) -> list[str]:
    """All names: dense ones first, then fixed ones, then adaptive ones."""
    kinds = {row.method: row.adaptive for section in found for row in section.rows}
    return sorted(kinds, key=lambda name: (kinds[name], _dense_order(name), name))


def _dense_order(method: str) -> int:
    return DENSE.index(method) if method in DENSE else len(DENSE)


def _section(place: Place, runs: Sequence[RunRecord], places: dict[Place, list[RunRecord]]) -> Section:
    free = [run for run in places.get(place._replace(link=LIMIT_LINK), []) if run.method == LIMIT_METHOD]
    limit_tta = amount([time_to_target(run) for run in free])
    limit = limit_tta.median if limit_tta and limit_tta.exact and limit_tta.median > 0 else None
    by_method: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_method.setdefault(run.method, []).append(run)
    dense_bytes = _middle(by_method.get("fp32", free), bytes_per_step)
    baseline = by_method.get(BASELINE, [])
    rows = [_row(own, limit, dense_bytes, baseline) for own in by_method.values()]
    rows.sort(key=lambda row: (not row.tta.exact, row.tta.median, row.method))
    return Section(
        place=place,
        rows=tuple(rows),
        limit=limit,
        dense_steps=_steps(by_method.get(LIMIT_METHOD, [])) or _steps(free),
        verdict=verdict(rows, limit),
        notes=tuple(_notes(rows, limit, limit_tta, by_method, dense_bytes)),
    )


def _steps(runs: Sequence[RunRecord]) -> float | None:
    steps = amount([steps_to_target(run) for run in runs])
    return steps.median if steps and steps.exact else None


def _row(
    runs: Sequence[RunRecord], limit: float | None, dense_bytes: float | None, baseline: Sequence[RunRecord]
) -> Row:
    tta = amount([time_to_target(run) for run in runs]) or UNKNOWN
    steps = amount([steps_to_target(run) for run in runs]) or UNKNOWN
    own_bytes = _middle(runs, bytes_per_step)
    return Row(
        method=runs[0].method,
        adaptive=runs[0].adaptive,
        runs=tuple(runs),
        reached=sum(run.tta_s is not None for run in runs),
        tta=tta,
        relative=tta.over(limit) if limit else None,
        speedup=paired(runs, baseline),
        steps=steps,
        samples_per_s=statistics.median(run.samples_per_s for run in runs),
        efficiency=_middle(runs, lambda run: run.efficiency),
        bytes_per_step=own_bytes,
        wire_ratio=dense_bytes / own_bytes if dense_bytes and own_bytes else None,
        gain=_middle(runs, lambda run: run.gain),
        compress_share=_middle(runs, compress_share),
        spread=spread_note(tta),
    )


def time_to_target(run: RunRecord) -> Interval:
    """Seconds; of a run that did not reach it, from its end on."""
    return (run.tta_s, run.tta_s) if run.tta_s is not None else (run.seconds, math.inf)


def steps_to_target(run: RunRecord) -> Interval:
    """Steps; of a run that did not reach it, from its last on."""
    return (run.steps_to_target, run.steps_to_target) if run.steps_to_target is not None else (run.steps, math.inf)


def faster(run: RunRecord, other: RunRecord) -> Interval | None:
    """How many times faster than ``other`` a run reached the target; ``None`` when nothing is known."""
    (low, high), (other_low, other_high) = time_to_target(run), time_to_target(other)
    if low <= 0 or (math.isinf(high) and math.isinf(other_high)):
        return None
    return other_low / high, other_high / low


def bytes_per_step(run: RunRecord) -> float | None:
    """On the wire, a rank."""
    return run.wire_bytes / run.steps if run.wire_bytes is not None and run.steps else None


def compress_share(run: RunRecord) -> float | None:
    """Of a median step's time; it overlaps with compute."""
    if run.split is None or run.split.compress is None or run.step_s <= 0:
        return None
    return run.split.compress / run.step_s


def _middle(runs: Iterable[RunRecord], get: Callable[[RunRecord], float | None]) -> float | None:
    known = [value for value in map(get, runs) if value is not None]
    return statistics.median(known) if known else None


def spread_note(tta: Amount) -> str:
    """What to do about seeds that differ by more than 10 %.

    Example:
        >>> spread_note(Amount(10.0, 9.0, 11.3, runs=3))
        'spread 23 %, 3 runs: add seeds'
    """
    if not tta.exact or tta.spread <= SPREAD:
        return ""
    more = "over " if tta.high_sense else ""
    percent = f"{100 * tta.spread:.{1 if tta.spread < 0.11 else 0}f}"
    return f"spread {more}{percent} %, {tta.runs} runs: add seeds"


def verdict(rows: Sequence[Row], limit: float | None) -> str:
    """Who is fastest, by how much, how far from the limit; plainly when it is a dense method, or a draw."""
    best = rows[0]
    if not best.tta.exact:
        return "No method reached the target in its time."
    far = "" if best.relative is None else f", at {times(best.relative.median)} the limit"
    if best.method in DENSE:
        return _dense_wins(best, rows, far)
    if best.speedup is None:
        missing = "did not run" if not any(row.method == BASELINE for row in rows) else "has no run to compare it with"
        return f"{best.method} is fastest{far}; {BASELINE} {missing} here, so there is no speed-up to tell."
    if inside_spread(best.speedup):
        return (
            f"No clear winner: {best.method} has the shortest median time{far}, but its difference to {BASELINE} lies "
            f"inside the spread: {as_fast(best.speedup, BASELINE)}."
        )
    return f"{best.method} is fastest: {as_fast(best.speedup, BASELINE)}{far}."


def _dense_wins(best: Row, rows: Sequence[Row], far: str) -> str:
    text = f"{best.method} is fastest{far}: compressing further does not pay here"
    if best.method != BASELINE and best.speedup is not None:
        text += f"; {as_fast(best.speedup, BASELINE)}"
        text += ", which lies inside the spread" if inside_spread(best.speedup) else ""
    other = next((row for row in rows if row.method not in DENSE and row.tta.exact), None)
    if other is None:
        missing = "no other kind of method reached the target" if len(rows) > 1 else "nothing else was run"
        return f"{text}; {missing}."
    pairs = paired(other.runs, best.runs)
    draw = ", a difference inside the spread" if pairs and pairs.runs > 1 and inside_spread(pairs) else ""
    return (
        f"{text}; the best that does, {other.method}, takes {times(other.tta.median / best.tta.median)} as long{draw}."
    )


def paired(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> Amount | None:
    """How many times faster a method is than another, seed by seed; ``None`` without a seed in common."""
    by_seed = {run.seed: run for run in others}
    pairs = [faster(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    return amount([pair for pair in pairs if pair is not None])


def inside_spread(speedup: Amount) -> bool:
    """Whether seeds disagree about who is faster; one seed alone cannot."""
    low = 0.0 if speedup.low_sense == "<" else speedup.low
    high = math.inf if speedup.high_sense == ">" else speedup.high
    return speedup.runs > 1 and low <= 1 <= high


def _is_draw(best: Row, row: Row) -> bool:
    pairs = paired(best.runs, row.runs)
    return pairs is not None and inside_spread(pairs)


def as_fast(speedup: Amount, other: str) -> str:
    """With its range, or with how little is known.

    Example:
        >>> as_fast(Amount(2.0, 1.5, 2.5, runs=3), "fp16")
        '2.00x as fast as fp16 (1.50 to 2.50 over 3 seeds)'
    """
    more = {"": "", ">": "more than ", "<": "less than "}[speedup.sense]
    text = f"{more}{times(speedup.median)} as fast as {other}"
    if speedup.runs == 1:
        return f"{text} (one seed)"
    low, high = f"{speedup.low_sense}{speedup.low:.2f}", f"{speedup.high_sense}{speedup.high:.2f}"
    return f"{text} ({low} to {high} over {speedup.runs} seeds)"


def times(value: float) -> str:
    """A multiple.

    Example:
        >>> times(1.234), times(0.9), times(34.5)
        ('1.23x', '0.90x', '34x')
    """
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def _notes(
    rows: Sequence[Row],
    limit: float | None,
    limit_tta: Amount | None,
    by_method: dict[str, list[RunRecord]],
    dense_bytes: float | None,
) -> Iterable[str]:
    first = rows[0].runs[0]
    if limit is None:
        why = "did not reach the target" if limit_tta else "was not run"
        yield (
            f"The limit is not known: {LIMIT_METHOD} on an {LIMIT_LINK} link {why} for this task, scale and number of "
            f"workers, so no distance from it is shown. Add --link {LIMIT_LINK} --methods {LIMIT_METHOD}."
        )
    elif limit_tta and limit_tta.runs == 1:
        yield "The limit rests on one seed."
    if BASELINE not in by_method:
        yield f"{BASELINE} was not run here: no speed-ups are shown."
    if dense_bytes is None:
        yield "What fp32 sends is not known here: no wire ratios are shown."
    targets: dict[int, set[float]] = {}
    for run in (run for row in rows for run in row.runs):
        targets.setdefault(run.seed, set()).add(run.target)
    mixed = next((sorted(values) for values in targets.values() if len(values) > 1), None)
    if mixed:
        yield (
            f"Runs with different targets ({', '.join(f'{target:g}' for target in mixed)}) are mixed here: their "
            f"times do not compare. Report files of one target, such as {first.target:g}, at a time."
        )
    if len({run.paced for row in rows for run in row.runs}) > 1:
        yield "Paced runs and runs on a real link are mixed here: their times do not compare."
    if len({run.seed for row in rows for run in row.runs}) == 1:
        yield "One seed only: how much chance moves these numbers is not known. Add seeds."
    wide = [f"{row.method} ({row.spread})" for row in rows if row.spread]
    if wide:
        yield f"Seeds differ by more than {100 * SPREAD:.0f} %: {'; '.join(wide)}."
    part = [f"{row.method} ({row.reached} of {len(row.runs)})" for row in rows if 0 < row.reached < len(row.runs)]
    draws = [row.method for row in rows[1:] if row.tta.exact and _is_draw(rows[0], row)]
    if draws:
        yield f"Seeds disagree on whether {rows[0].method} is faster than {', '.join(draws)}."
    if part:
        yield f"Not every run reached the target: {', '.join(part)}."
