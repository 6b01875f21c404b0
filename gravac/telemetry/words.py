# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run and its decisions in words, Markdown for TensorBoard's text page; records hold data alone.

A compression factor means something else for each compressor: at 32 the default ladder runs low rank 16, which on small
matrices sends but 15 times fewer bytes. So whatever shows a candidate to people shows ``described``: method and bytes.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gravac.candidate import Candidate, Dropped, Forecast, Mode
from gravac.telemetry.records import DecisionRecord, ModeRecord, ProgressRecord, RunRecord, StepRecord

WAYS: Mapping[Mode, str] = {
    "native": "DDP exchanges by itself",
    "hook": "gravac exchanges gradients in each step",
    "outer": "ranks train apart between exchanges",
}
"""Each mode of a candidate in words."""

AS_MANY = 0.05
"""Largest relative difference of bytes that counts as none."""


def described(forecast: Forecast) -> str:
    """A candidate in words: its method with the method's own setting, how many times fewer bytes it sends, how often.

    Example:
        >>> described(Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16"))
        'low rank 16, 15x fewer bytes'
        >>> described(Forecast(Candidate("outer", "topk", 10.0, every=5, delay=2), 0.5))
        'topk 10x, 2x more bytes, every 5 steps, behind 2'
        >>> described(Forecast(Candidate("hook", "dense", 1.0), 1.0, method="dense float32"))
        'dense float32'
        >>> described(Forecast(Candidate("native", "dense", 2.0), 2.0))
        'native float16, 2x fewer bytes'
    """
    candidate = forecast.candidate
    method = forecast.method or f"{candidate.compressor} {candidate.cf:.4g}x"
    if candidate.mode == "native":
        method = str(candidate)
    sent = bytes_words(forecast.wire_ratio)
    often = f"every {candidate.every} steps" if candidate.every > 1 else ""
    behind = f"behind {candidate.delay}" if candidate.delay else ""
    return ", ".join(part for part in (method, sent, often, behind) if part)


def bytes_words(wire_ratio: float) -> str:
    """A wire ratio in words; empty where as many bytes are sent as by dense float32, or where that is not known.

    Example:
        >>> bytes_words(15.06), bytes_words(3.88), bytes_words(2.0), bytes_words(0.5)
        ('15x fewer bytes', '3.9x fewer bytes', '2x fewer bytes', '2x more bytes')
    """
    if not (math.isfinite(wire_ratio) and wire_ratio > 0) or abs(wire_ratio - 1) <= AS_MANY:
        return ""
    times, what = (wire_ratio, "fewer") if wire_ratio > 1 else (1 / wire_ratio, "more")
    return f"{times:.0f}x {what} bytes" if times >= 10 else f"{round(times, 1):g}x {what} bytes"


def forecast_of(record: DecisionRecord | StepRecord, forecasts: Sequence[Forecast]) -> Forecast:
    """The forecast of the candidate that a record names by mode, compressor, CF, ``every`` and ``delay``.

    If the run has no forecast of that candidate, return that of the same compressor and CF, of the same mode if there
    is one, with a wire ratio in proportion to ``every``.
    """
    candidate = Candidate(record.mode, record.compressor, record.cf, record.every, record.delay)
    exact = next((forecast for forecast in forecasts if forecast.candidate == candidate), None)
    if exact is not None:
        return exact
    same = [
        forecast
        for forecast in forecasts
        if (forecast.candidate.compressor, forecast.candidate.cf) == (record.compressor, record.cf)
    ]
    same.sort(key=lambda forecast: forecast.candidate.mode != record.mode)
    known = same[0] if same else Forecast(candidate, math.nan)
    ratio = known.wire_ratio / known.candidate.every * record.every
    method = "" if "native" in (known.candidate.mode, record.mode) else known.method
    return replace(known, candidate=candidate, wire_ratio=ratio, method=method)


def reason_words(reason: str, forecasts: Iterable[Forecast]) -> str:
    """A reason with each candidate ``described``, if the reason names candidates as ``str`` does.

    Example:
        >>> rank = Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16")
        >>> reason_words("try ladder 32x", [rank]), reason_words("try ladder 320x", [rank])
        ('try low rank 16, 15x fewer bytes', 'try ladder 320x')
    """
    words = {str(forecast.candidate): described(forecast) for forecast in forecasts}
    if not words:
        return reason
    names = "|".join(re.escape(name) for name in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<!\S)(?:{names})(?!\w)", lambda match: words[match.group()], reason)


def run_words(run: RunRecord) -> str:
    """A run in words: its ranks, candidates, dropped candidates with their reason, and settings."""
    parts = [f"**{run.world_size} ranks**"]
    if run.forecasts:
        parts.append("**Candidates**\n\n" + "\n".join(f"- {forecast_words(forecast)}" for forecast in run.forecasts))
    if run.timed:
        methods = {forecast.candidate.cf: forecast.method for forecast in run.forecasts if not forecast.candidate.dense}
        timed = ", ".join(methods.get(cf) or f"{cf:g}x" for cf in run.timed)
        parts.append(f"Coding was timed where the gradients lie, at {timed}.")
    if run.dropped:
        parts.append(
            "**Dropped**\n\n" + "\n".join(f"- {dropped_words(dropped, run.world_size)}" for dropped in run.dropped)
        )
    if run.settings:
        parts.append("**Settings**\n\n" + _table(("setting", "value"), run.settings.items()))
    return "\n\n".join(parts)


def forecast_words(forecast: Forecast) -> str:
    """A forecast in words: the candidate, its predicted wire ratio, its efficiency, its CF and its milliseconds."""
    text = f"{described(forecast)} (predicted wire ratio {forecast.wire_ratio:.2f}, "
    text += f"efficiency {forecast.efficiency:g}, CF {forecast.candidate.cf:g}"
    if forecast.coding_s is not None and forecast.exchange_s is not None:
        text += f", coding {1e3 * forecast.coding_s:.4g} ms, exchange {1e3 * forecast.exchange_s:.4g} ms"
    return text + ")"


def dropped_words(dropped: Dropped, world_size: int | None = None) -> str:
    """One dropped candidate in words, and why it was dropped; with the number of ranks, where that is told."""
    name, other = _method(dropped.forecast), _method(dropped.other)
    if dropped.cause == "same_bytes":
        return f"{name}: would send what {other} does"
    if dropped.cause == "too_little_progress":
        bound = dropped.forecast.least_efficiency
        return f"{name}: lower bound of efficiency {bound:.2g}, below least_efficiency {bound / dropped.ratio:.2g}"
    over = "" if world_size is None else f" over {world_size} ranks"
    return f"{name}: would send {dropped.ratio:.2f} times the bytes of {other}{over}"


def decision_words(
    decision: DecisionRecord, before: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast] = ()
) -> str:
    """One decision as one line: what runs, in which phase it was decided, why, and what was measured.

    Args:
        decision: the decision.
        before: record of what ran until then; ``None`` when not known.
        forecasts: forecasts of the candidates that the run may choose.
    """
    change = _change(decision, before, forecasts)
    phase = f" ({decision.phase})" if decision.phase else ""
    measured = _measured(decision)
    what = f"**{change}**" if decision.changed else change
    reason = reason_words(decision.reason, forecasts)
    return f"{what}{phase}: {reason}" + (f" — {measured}" if measured else "")


def changes_words(
    changes: Iterable[tuple[DecisionRecord, DecisionRecord | StepRecord | None]],
    decisions: int,
    forecasts: Sequence[Forecast] = (),
) -> str:
    """All changes of what runs as a table, one row each.

    Args:
        changes: decisions that changed what runs, each with the record of what ran before.
        decisions: number of decisions in all.
        forecasts: forecasts of the candidates that the run may choose.
    """
    rows = [
        (
            f"step {it.step}: {_change(it, before, forecasts)}",
            reason_words(it.reason, forecasts),
            f"{it.phase}: {_measured(it)}",
        )
        for it, before in changes
    ]
    title = f"{len(rows)} of {decisions} decisions changed what runs"
    return title + ("\n\n" + _table(("change", "reason", "measured in the window before"), rows) if rows else "")


def _change(decision: DecisionRecord, before: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast]) -> str:
    after = described(forecast_of(decision, forecasts))
    then = after if before is None else described(forecast_of(before, forecasts))
    modes = "" if before is None or before.mode == decision.mode else f" ({WAYS[before.mode]} → {WAYS[decision.mode]})"
    return after if then == after and not modes else f"{then} → {after}{modes}"


def _method(forecast: Forecast) -> str:
    """The name of a candidate beside which its bytes stand."""
    return forecast.method or str(forecast.candidate)


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


def mode_words(change: ModeRecord) -> str:
    """Return a change of mode in words."""
    sent = f", {change.wire_bytes / 1e6:.3g} MB sent" if change.wire_bytes else ""
    return (
        f"from step {change.step} on: {WAYS[change.before]} → {WAYS[change.after]}; the change took "
        f"{1000 * change.seconds:.3g} ms{sent}"
    )


def progress_name(candidate: Candidate) -> str:
    """Return a candidate's name for a tag, of letters, digits and dots.

    Example:
        >>> progress_name(Candidate("outer", "quantize", 16.0, every=10, delay=5))
        'quantize_16x_every_10_steps_behind_5'
    """
    return re.sub(r"[^\w.]+", "_", str(candidate))


def progress_words(progress: ProgressRecord, forecasts: Sequence[Forecast]) -> str:
    """Return in words what trials have shown of a candidate's progress, and what is believed by now."""
    compared = (
        f"a step of {progress.candidate} made {progress.ratio:.2f} ± {progress.error:.2f} of the progress of a step of "
        f"{progress.reference} ({progress.trials} {'trial' if progress.trials == 1 else 'trials'})"
    )
    believed = f"its efficiency is believed to be {progress.efficiency:.2f} [{progress.low:.2f}, {progress.high:.2f}]"
    return f"{reason_words(compared, forecasts)}; {believed}"
