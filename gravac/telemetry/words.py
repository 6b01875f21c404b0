# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run and its decisions as Markdown, for TensorBoard's text page; records hold data alone."""

import math
from collections.abc import Iterable

from gravac.candidate import Candidate, Dropped
from gravac.telemetry.records import DecisionRecord, RunRecord


def run_words(run: RunRecord) -> str:
    """A run in words: its ranks, candidates, dropped candidates with their reason, and settings."""
    parts = [f"**{run.world_size} ranks**"]
    if run.candidates:
        parts.append("**Candidates**\n\n" + "\n".join(f"- {candidate_words(one)}" for one in run.candidates))
    if run.timed:
        parts.append(f"Coding was timed where the gradients lie at {', '.join(f'{cf:g}x' for cf in run.timed)}.")
    if run.dropped:
        parts.append("**Dropped**\n\n" + "\n".join(f"- {dropped_words(one, run.world_size)}" for one in run.dropped))
    if run.settings:
        parts.append("**Settings**\n\n" + _table(("setting", "value"), run.settings.items()))
    return "\n\n".join(parts)


def candidate_words(candidate: Candidate) -> str:
    """One candidate in words: its CF, what it is predicted to send and to take, and its efficiency."""
    said = f"{candidate} (predicted wire ratio {candidate.wire_ratio:.2f}, efficiency {candidate.efficiency:g}"
    if candidate.coding_s is not None and candidate.exchange_s is not None:
        said += f", coding {1e3 * candidate.coding_s:.4g} ms, exchange {1e3 * candidate.exchange_s:.4g} ms"
    return said + ")"


def dropped_words(dropped: Dropped, world_size: int | None = None) -> str:
    """One dropped candidate in words, and why it was dropped; with the number of ranks, where that is told."""
    if dropped.cause == "same_bytes":
        return f"{dropped.candidate}: would send what {dropped.other} does"
    sent = f"{dropped.ratio:.2f} times the bytes of {dropped.other}"
    over = "" if world_size is None else f" over {world_size} ranks"
    return f"{dropped.candidate}: would send {sent}{over}"


def decision_words(decision: DecisionRecord, before: float | None) -> str:
    """One decision as one line: what runs, in which phase it was decided, why, and what was measured.

    Args:
        decision: the decision.
        before: compression factor that ran until then; ``None`` when not known.
    """
    change = _change(decision, before)
    phase = f", {decision.phase}" if decision.phase else ""
    measured = _measured(decision)
    what = f"**{change}**" if decision.changed else change
    return f"{what} ({decision.compressor}{phase}): {decision.reason}" + (f" — {measured}" if measured else "")


def changes_words(changes: Iterable[tuple[DecisionRecord, float | None]], decisions: int) -> str:
    """All changes of what runs as a table, one row each.

    Args:
        changes: decisions that changed what runs, each with the CF before.
        decisions: number of decisions in all.
    """
    rows = [
        (f"step {it.step}: {_change(it, before)} ({it.compressor})", it.reason, f"{it.phase}: {_measured(it)}")
        for it, before in changes
    ]
    title = f"{len(rows)} of {decisions} decisions changed what runs"
    return title + ("\n\n" + _table(("change", "reason", "measured in the window before"), rows) if rows else "")


def _change(decision: DecisionRecord, before: float | None) -> str:
    often = f", every {decision.every} steps" if decision.every > 1 else ""
    often += f", behind {decision.delay}" if decision.delay else ""
    if before is None or before == decision.cf:
        return f"CF {decision.cf:g}{often}"
    return f"CF {before:g} → {decision.cf:g}{often}"


def _measured(decision: DecisionRecord) -> str:
    words = []
    if math.isfinite(decision.gain):
        band = f" [{decision.gain_low:.3f}, {decision.gain_high:.3f}]" if math.isfinite(decision.gain_low) else ""
        words.append(f"gain {decision.gain:.3f}{band}")
    if decision.t_system is not None:
        words.append(f"T_system {decision.t_system:.4g} samples/s")
    if decision.t_compression is not None:
        words.append(f"T_compression {decision.t_compression:.4g} samples/s")
    return "; ".join(words)


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
