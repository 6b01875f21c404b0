# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the report says in words: a verdict in one sentence, and notes on what to be careful with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gravac.lab.report.numbers import (
    BASELINE,
    DENSE,
    LIMIT_LINK,
    LIMIT_METHOD,
    Amount,
    ReportRow,
    inside_spread,
    paired,
)
from gravac.lab.tta.record import SPREAD, TrainingRecord


def spread_note(tta: Amount) -> str:
    """Say what to do about seeds that differ by more than 10 %; nothing where they do not.

    Example:
        >>> spread_note(Amount(10.0, 9.0, 11.3, runs=3))
        'spread 23 %, 3 runs: add seeds'
    """
    if not tta.exact or tta.spread <= SPREAD:
        return ""
    more = "over " if tta.high_sense else ""
    percent = f"{100 * tta.spread:.{1 if tta.spread < 0.11 else 0}f}"
    return f"spread {more}{percent} %, {tta.runs} runs: add seeds"


def verdict(rows: Sequence[ReportRow], limit: float | None) -> str:
    """Say who is fastest, by how much, how far from the limit; plainly when it is a dense method, or a draw."""
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


def _dense_wins(best: ReportRow, rows: Sequence[ReportRow], far: str) -> str:
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


def _is_draw(best: ReportRow, row: ReportRow) -> bool:
    pairs = paired(best.runs, row.runs)
    return pairs is not None and inside_spread(pairs)


def as_fast(speedup: Amount, other: str) -> str:
    """Say how many times as fast as another method, with the range, or with how little is known.

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
    """Return a multiple in short, such as ``1.23x``.

    Example:
        >>> times(1.234), times(0.9), times(34.5)
        ('1.23x', '0.90x', '34x')
    """
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def notes(
    rows: Sequence[ReportRow],
    limit: float | None,
    limit_tta: Amount | None,
    by_method: dict[str, list[TrainingRecord]],
    dense_bytes: float | None,
) -> Iterable[str]:
    """Return what a reader should know of a table before believing it; nothing where all is well."""
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
