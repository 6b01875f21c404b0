# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes the report's sentences: a verdict on which method is fastest, and notes on how far to trust the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gravac.lab.report.numbers import (
    BASELINE,
    DENSE_METHODS,
    LIMIT_LINK,
    LIMIT_METHOD,
    Amount,
    ReportRow,
    inside_spread,
    paired_speedup,
)
from gravac.lab.tta.record import SPREAD, TrainingRecord


def spread_note(tta: Amount) -> str:
    """Return a note that asks for more seeds if the spread of ``tta`` is above ``SPREAD``; otherwise an empty text.

    Args:
        tta: time to the target over seeds.

    Example:
        >>> spread_note(Amount(10.0, 9.0, 11.3, runs=3))
        'spread 23 %, 3 runs: add seeds'
    """
    if not tta.exact or tta.spread <= SPREAD:
        return ""
    over_text = "over " if tta.high_sign else ""
    percent = f"{100 * tta.spread:.{1 if tta.spread < 0.11 else 0}f}"
    return f"spread {over_text}{percent} %, {tta.runs} runs: add seeds"


def verdict(rows: Sequence[ReportRow], limit: float | None) -> str:
    """Return a sentence on the fastest method: its speed relative to fp16, and its time to the target / ``limit``.

    The sentence also says if the fastest method is dense, or if seeds disagree on whether fp16 is faster.

    Args:
        rows: rows of all methods of a setup, fastest first.
        limit: median seconds to the target of fp32 on an unthrottled link; ``None`` if not known.
    """
    best_row = rows[0]
    if not best_row.tta.exact:
        return "No method reached the target in its time."
    limit_text = "" if best_row.relative is None else f", at {ratio_text(best_row.relative.median)} the limit"
    if best_row.method in DENSE_METHODS:
        return _dense_verdict(best_row, rows, limit_text)
    if best_row.speedup is None:
        missing_text = "did not run" if not any(row.method == BASELINE for row in rows) else "has no comparable run"
        return f"{best_row.method} is fastest{limit_text}; {BASELINE} {missing_text} here, so no speed-up is known."
    if inside_spread(best_row.speedup):
        return (
            f"No clear winner: {best_row.method} has the shortest median time{limit_text}, but its difference to "
            f"{BASELINE} lies inside the spread: {speedup_text(best_row.speedup, BASELINE)}."
        )
    return f"{best_row.method} is fastest: {speedup_text(best_row.speedup, BASELINE)}{limit_text}."


def _dense_verdict(best_row: ReportRow, rows: Sequence[ReportRow], limit_text: str) -> str:
    """Return the verdict for a setup in which a dense method is fastest.

    Args:
        best_row: row of the fastest method.
        rows: rows of all methods, fastest first.
        limit_text: part of the sentence on the time relative to the limit; empty if the limit is not known.
    """
    text = f"{best_row.method} is fastest{limit_text}: compressing further does not pay here"
    if best_row.method != BASELINE and best_row.speedup is not None:
        text += f"; {speedup_text(best_row.speedup, BASELINE)}"
        text += ", which lies inside the spread" if inside_spread(best_row.speedup) else ""
    first_compressed_row = next((row for row in rows if row.method not in DENSE_METHODS and row.tta.exact), None)
    if first_compressed_row is None:
        missing_text = (
            "no method that compresses further reached the target" if len(rows) > 1 else "nothing else was run"
        )
        return f"{text}; {missing_text}."
    speedup_of_compressed = paired_speedup(first_compressed_row.runs, best_row.runs)
    draw_text = (
        ", a difference inside the spread"
        if speedup_of_compressed and speedup_of_compressed.runs > 1 and inside_spread(speedup_of_compressed)
        else ""
    )
    time_ratio_text = ratio_text(first_compressed_row.tta.median / best_row.tta.median)
    return (
        f"{text}; the fastest method that compresses further, {first_compressed_row.method}, takes {time_ratio_text} "
        f"as long{draw_text}."
    )


def _is_draw(best_row: ReportRow, other_row: ReportRow) -> bool:
    """True if seeds disagree on which of two methods is faster."""
    speedup = paired_speedup(best_row.runs, other_row.runs)
    return speedup is not None and inside_spread(speedup)


def speedup_text(speedup: Amount, other_method: str) -> str:
    """Return a text that states a speed-up, and its range over seeds.

    Args:
        speedup: time to target of the other method / time to target of a method.
        other_method: the other method in text form, such as ``"fp16"``.

    Example:
        >>> speedup_text(Amount(2.0, 1.5, 2.5, runs=3), "fp16")
        '2.00x as fast as fp16 (1.50 to 2.50 over 3 seeds)'
    """
    bound_text = {"": "", ">": "more than ", "<": "less than "}[speedup.median_sign]
    text = f"{bound_text}{ratio_text(speedup.median)} as fast as {other_method}"
    if speedup.runs == 1:
        return f"{text} (one seed)"
    low_text, high_text = f"{speedup.low_sign}{speedup.low:.2f}", f"{speedup.high_sign}{speedup.high:.2f}"
    return f"{text} ({low_text} to {high_text} over {speedup.runs} seeds)"


def ratio_text(ratio: float) -> str:
    """Return a ratio as short text, such as ``1.23x``.

    Example:
        >>> ratio_text(1.234), ratio_text(0.9), ratio_text(34.5)
        ('1.23x', '0.90x', '34x')
    """
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def notes(
    rows: Sequence[ReportRow],
    limit: float | None,
    limit_tta: Amount | None,
    runs_by_method: dict[str, list[TrainingRecord]],
    dense_bytes: float | None,
) -> Iterable[str]:
    """Yield warnings about the numbers of a table, a sentence each; nothing if there is nothing to warn of.

    Args:
        rows: rows of the table, fastest method first.
        limit: median seconds to the target of fp32 on an unthrottled link; ``None`` if not known.
        limit_tta: seconds to the target of fp32 on an unthrottled link, over seeds; ``None`` without such runs.
        runs_by_method: records of runs, by the method's text.
        dense_bytes: wire bytes that a rank sends in a step of fp32; ``None`` if not known.
    """
    first_run = rows[0].runs[0]
    if limit is None:
        limit_reason = "did not reach the target" if limit_tta else "was not run"
        yield (
            f"The limit is not known: {LIMIT_METHOD} on an {LIMIT_LINK} link {limit_reason} for this task, scale and "
            "number of workers, so no time relative to the limit is shown. "
            f"Add --link {LIMIT_LINK} --methods {LIMIT_METHOD}."
        )
    elif limit_tta and limit_tta.runs == 1:
        yield "The limit is that of a single seed: how much the limit varies by chance is not known. Add seeds."
    if BASELINE not in runs_by_method:
        yield f"{BASELINE} was not run on this link: no speed-ups are shown."
    if dense_bytes is None:
        yield "The bytes that fp32 sends are not known: no wire ratios are shown."
    targets_by_seed: dict[int, set[float]] = {}
    for run in (run for row in rows for run in row.runs):
        targets_by_seed.setdefault(run.seed, set()).add(run.target)
    mixed_targets = next(
        (sorted(seed_targets) for seed_targets in targets_by_seed.values() if len(seed_targets) > 1), None
    )
    if mixed_targets:
        yield (
            f"This table mixes runs with different targets ({', '.join(f'{target:g}' for target in mixed_targets)}), "
            f"whose times do not compare. Report files of one target, such as {first_run.target:g}, at a time."
        )
    if len({run.paced for row in rows for run in row.runs}) > 1:
        yield (
            "This table mixes paced runs and runs on an emulated link, whose times do not compare. Report these runs "
            "separately."
        )
    if len({run.seed for row in rows for run in row.runs}) == 1:
        yield "One seed only: how much these numbers vary by chance is not known. Add seeds."
    spread_methods = [f"{row.method} ({row.spread})" for row in rows if row.spread]
    if spread_methods:
        yield f"Seeds differ by more than {100 * SPREAD:.0f} %: {'; '.join(spread_methods)}."
    partly_reached_methods = [
        f"{row.method} ({row.reached} of {len(row.runs)})" for row in rows if 0 < row.reached < len(row.runs)
    ]
    undecided_methods = [row.method for row in rows[1:] if row.tta.exact and _is_draw(rows[0], row)]
    if undecided_methods:
        yield f"Seeds disagree on whether {rows[0].method} is faster than {', '.join(undecided_methods)}."
    if partly_reached_methods:
        yield f"Not every run reached the target: {', '.join(partly_reached_methods)}."
