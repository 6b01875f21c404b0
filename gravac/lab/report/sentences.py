# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report's sentences: a verdict on which method is fastest, and notes that readers must know."""

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
    """Return a note that asks for more seeds if the spread is above ``SPREAD``; otherwise an empty text.

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
    """Return a sentence on which method is fastest, by how much, and how far from the limit.

    It also says if the fastest method is dense, or if the difference to the baseline lies inside the spread.

    Args:
        rows: rows of the methods, fastest first.
        limit: seconds of the limit; ``None`` if not known.
    """
    best = rows[0]
    if not best.tta.exact:
        return "No method reached the target in its time."
    distance = "" if best.relative is None else f", at {times(best.relative.median)} the limit"
    if best.method in DENSE:
        return _dense_verdict(best, rows, distance)
    if best.speedup is None:
        missing = "did not run" if not any(row.method == BASELINE for row in rows) else "has no run to compare it with"
        return f"{best.method} is fastest{distance}; {BASELINE} {missing} here, so there is no speed-up to tell."
    if inside_spread(best.speedup):
        return (
            f"No clear winner: {best.method} has the shortest median time{distance}, but its difference to {BASELINE} "
            f"lies inside the spread: {as_fast(best.speedup, BASELINE)}."
        )
    return f"{best.method} is fastest: {as_fast(best.speedup, BASELINE)}{distance}."


def _dense_verdict(best: ReportRow, rows: Sequence[ReportRow], distance: str) -> str:
    """Return the verdict if a dense method is fastest.

    Args:
        best: row of the fastest method.
        rows: rows of all methods, fastest first.
        distance: text on the distance to the limit; empty if not known.
    """
    text = f"{best.method} is fastest{distance}: compressing further does not pay here"
    if best.method != BASELINE and best.speedup is not None:
        text += f"; {as_fast(best.speedup, BASELINE)}"
        text += ", which lies inside the spread" if inside_spread(best.speedup) else ""
    other = next((row for row in rows if row.method not in DENSE and row.tta.exact), None)
    if other is None:
        missing = "no other kind of method reached the target" if len(rows) > 1 else "nothing else was run"
        return f"{text}; {missing}."
    speedup = paired(other.runs, best.runs)
    draw = ", a difference inside the spread" if speedup and speedup.runs > 1 and inside_spread(speedup) else ""
    return (
        f"{text}; the best that does, {other.method}, takes {times(other.tta.median / best.tta.median)} as long{draw}."
    )


def _is_draw(best: ReportRow, row: ReportRow) -> bool:
    """True if seeds disagree on which of two methods is faster."""
    speedup = paired(best.runs, row.runs)
    return speedup is not None and inside_spread(speedup)


def as_fast(speedup: Amount, other: str) -> str:
    """Return as text how many times as fast as another method, with the range over seeds or the bound that is known.

    Args:
        speedup: time to target of the other method / time to target of the method.
        other: text of the other method.

    Example:
        >>> as_fast(Amount(2.0, 1.5, 2.5, runs=3), "fp16")
        '2.00x as fast as fp16 (1.50 to 2.50 over 3 seeds)'
    """
    bound = {"": "", ">": "more than ", "<": "less than "}[speedup.sense]
    text = f"{bound}{times(speedup.median)} as fast as {other}"
    if speedup.runs == 1:
        return f"{text} (one seed)"
    low, high = f"{speedup.low_sense}{speedup.low:.2f}", f"{speedup.high_sense}{speedup.high:.2f}"
    return f"{text} ({low} to {high} over {speedup.runs} seeds)"


def times(ratio: float) -> str:
    """Return a ratio as short text, such as ``1.23x``.

    Example:
        >>> times(1.234), times(0.9), times(34.5)
        ('1.23x', '0.90x', '34x')
    """
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def notes(
    rows: Sequence[ReportRow],
    limit: float | None,
    limit_tta: Amount | None,
    by_method: dict[str, list[TrainingRecord]],
    dense_bytes: float | None,
) -> Iterable[str]:
    """Yield sentences that a reader must know before believing a table; none if there is nothing to note.

    Args:
        rows: rows of the table, fastest method first.
        limit: seconds of the limit; ``None`` if not known.
        limit_tta: time to target of the limit's runs; ``None`` without such runs.
        by_method: runs by the method's text.
        dense_bytes: bytes per step of fp32; ``None`` if not known.
    """
    first = rows[0].runs[0]
    if limit is None:
        reason = "did not reach the target" if limit_tta else "was not run"
        yield (
            f"The limit is not known: {LIMIT_METHOD} on an {LIMIT_LINK} link {reason} for this task, scale and number "
            f"of workers, so no distance from it is shown. Add --link {LIMIT_LINK} --methods {LIMIT_METHOD}."
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
    mixed = next((sorted(seed_targets) for seed_targets in targets.values() if len(seed_targets) > 1), None)
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
    partly = [f"{row.method} ({row.reached} of {len(row.runs)})" for row in rows if 0 < row.reached < len(row.runs)]
    draws = [row.method for row in rows[1:] if row.tta.exact and _is_draw(rows[0], row)]
    if draws:
        yield f"Seeds disagree on whether {rows[0].method} is faster than {', '.join(draws)}."
    if partly:
        yield f"Not every run reached the target: {', '.join(partly)}."
