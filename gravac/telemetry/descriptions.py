# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes a run and its decisions in words: Markdown for TensorBoard's text page. Records contain no such texts.

A compression factor has a different meaning for each compressor: at 32 the default ladder runs low rank 16, which on
small matrices sends only 15 times fewer bytes. So all pages and tables that people read show a candidate's method and
bytes (``describe_candidate``).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gravac.candidate import Candidate, Dropped, Forecast, Mode
from gravac.telemetry.records import DecisionRecord, ModeRecord, ProgressRecord, RunRecord, StepRecord

MODES: Mapping[Mode, str] = {
    "native": "DDP exchanges by itself",
    "hook": "gravac exchanges gradients in each step",
    "outer": "ranks train on their own between exchanges",
}
"""Description of each mode of a candidate."""

SAME_BYTES = 0.05
"""Relative difference up to which two numbers of bytes count as equal."""


def describe_candidate(forecast: Forecast) -> str:
    """Describe a candidate: method, the method's setting, how many times fewer bytes it sends, and how often.

    Example:
        >>> describe_candidate(Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16"))
        'low rank 16, 15x fewer bytes'
        >>> describe_candidate(Forecast(Candidate("outer", "topk", 10.0, every=5, delay=2), 0.5))
        'topk 10x, 2x more bytes, every 5 steps, behind 2'
        >>> describe_candidate(Forecast(Candidate("hook", "dense", 1.0), 1.0, method="dense float32"))
        'dense float32'
        >>> describe_candidate(Forecast(Candidate("native", "dense", 2.0), 2.0))
        'native float16, 2x fewer bytes'
    """
    phrases = (_name(forecast), describe_bytes(forecast.wire_ratio), *_pace(forecast))
    return ", ".join(phrase for phrase in phrases if phrase)


def _in_sentence(forecast: Forecast) -> str:
    """Describe a candidate for use within a sentence: bytes in parentheses, no commas.

    Example:
        >>> _in_sentence(Forecast(Candidate("outer", "topk", 10.0, every=5, delay=2), 0.5))
        'topk 10x (2x more bytes) every 5 steps behind 2'
    """
    saving = describe_bytes(forecast.wire_ratio)
    return " ".join((_name(forecast), *([f"({saving})"] if saving else []), *_pace(forecast)))


def _name(forecast: Forecast) -> str:
    """Return a candidate's method with the method's own setting."""
    candidate = forecast.candidate
    if candidate.mode == "native":
        return str(candidate)
    return forecast.method or f"{candidate.compressor} {candidate.cf:.4g}x"


def _pace(forecast: Forecast) -> list[str]:
    """Describe how often ranks exchange, and after which delay they apply a mean; empty if in each step, at once."""
    candidate = forecast.candidate
    every = [f"every {candidate.every} steps"] if candidate.every > 1 else []
    return [*every, *([f"behind {candidate.delay}"] if candidate.delay else [])]


def describe_bytes(wire_ratio: float) -> str:
    """Describe a wire ratio; return ``""`` if it is not known, or is that of dense float32.

    Example:
        >>> describe_bytes(15.06), describe_bytes(3.88), describe_bytes(2.0), describe_bytes(0.5)
        ('15x fewer bytes', '3.9x fewer bytes', '2x fewer bytes', '2x more bytes')
    """
    if not (math.isfinite(wire_ratio) and wire_ratio > 0) or abs(wire_ratio - 1) <= SAME_BYTES:
        return ""
    times, comparative = (wire_ratio, "fewer") if wire_ratio > 1 else (1 / wire_ratio, "more")
    return f"{times:.0f}x {comparative} bytes" if times >= 10 else f"{round(times, 1):g}x {comparative} bytes"


def forecast_of(record: DecisionRecord | StepRecord, forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of the candidate that a record names by mode, compressor, CF, ``every`` and ``delay``.

    If the run has no forecast of that candidate, return a forecast of the same compressor and CF, preferably of the
    same mode, with a wire ratio in proportion to ``every``.
    """
    candidate = Candidate(record.mode, record.compressor, record.cf, record.every, record.delay)
    exact = next((forecast for forecast in forecasts if forecast.candidate == candidate), None)
    if exact is not None:
        return exact
    similar = [
        forecast
        for forecast in forecasts
        if (forecast.candidate.compressor, forecast.candidate.cf) == (record.compressor, record.cf)
    ]
    similar.sort(key=lambda forecast: forecast.candidate.mode != record.mode)
    nearest = similar[0] if similar else Forecast(candidate, math.nan)
    ratio = nearest.wire_ratio / nearest.candidate.every * record.every
    method = "" if "native" in (nearest.candidate.mode, record.mode) else nearest.method
    return replace(nearest, candidate=candidate, wire_ratio=ratio, method=method)


def describe_reason(reason: str, forecasts: Iterable[Forecast]) -> str:
    """Return a reason with descriptions in place of the candidates' names, which are those that ``str`` returns.

    Example:
        >>> rank = Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16")
        >>> describe_reason("try ladder 32x", [rank]), describe_reason("try ladder 320x", [rank])
        ('try low rank 16 (15x fewer bytes)', 'try ladder 320x')
    """
    descriptions = {str(forecast.candidate): _in_sentence(forecast) for forecast in forecasts}
    if not descriptions:
        return reason
    names = "|".join(re.escape(name) for name in sorted(descriptions, key=len, reverse=True))
    return re.sub(rf"(?<!\S)(?:{names})(?!\w)", lambda match: descriptions[match.group()], reason)


def describe_run(run: RunRecord) -> str:
    """Describe a run: its ranks, candidates, dropped candidates with their reason, and settings."""
    paragraphs = [f"**{run.world_size} ranks**"]
    if run.forecasts:
        candidates = "\n".join(f"- {describe_forecast(forecast)}" for forecast in run.forecasts)
        paragraphs.append("**Candidates**\n\n" + candidates)
    if run.timed:
        methods = {forecast.candidate.cf: forecast.method for forecast in run.forecasts if not forecast.candidate.dense}
        timed = ", ".join(methods.get(cf) or f"{cf:g}x" for cf in run.timed)
        paragraphs.append(f"Coding was timed where the gradients lie, at {timed}.")
    if run.dropped:
        dropped = "\n".join(f"- {describe_dropped(candidate, run.world_size)}" for candidate in run.dropped)
        paragraphs.append("**Dropped**\n\n" + dropped)
    if run.settings:
        paragraphs.append("**Settings**\n\n" + _table(("setting", "value"), run.settings.items()))
    return "\n\n".join(paragraphs)


def describe_forecast(forecast: Forecast) -> str:
    """Describe a forecast: the candidate, predicted wire ratio, efficiency, CF, and coding and exchange in ms."""
    text = f"{describe_candidate(forecast)} (predicted wire ratio {forecast.wire_ratio:.2f}, "
    text += f"efficiency {forecast.efficiency:g}, CF {forecast.candidate.cf:g}"
    if forecast.coding_s is not None and forecast.exchange_s is not None:
        text += f", coding {1e3 * forecast.coding_s:.4g} ms, exchange {1e3 * forecast.exchange_s:.4g} ms"
    return text + ")"


def describe_dropped(dropped: Dropped, world_size: int | None = None) -> str:
    """Describe a dropped candidate, and why it was dropped.

    Args:
        dropped: the dropped candidate.
        world_size: number of ranks; ``None``: the text does not mention it.
    """
    name, other = _method(dropped.forecast), _method(dropped.other)
    if dropped.cause == "same_bytes":
        return f"{name}: would send what {other} does"
    if dropped.cause == "too_little_progress":
        bound = dropped.forecast.least_efficiency
        return f"{name}: lower bound of efficiency {bound:.2g}, below least_efficiency {bound / dropped.ratio:.2g}"
    over = "" if world_size is None else f" over {world_size} ranks"
    return f"{name}: would send {dropped.ratio:.2f} times the bytes of {other}{over}"


def describe_decision(
    decision: DecisionRecord, previous: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast] = ()
) -> str:
    """Describe a decision in a line: the candidate that runs, phase and reason of the decision, and measurements.

    Args:
        decision: the decision.
        previous: record of the candidate that ran before; ``None`` if not known.
        forecasts: forecasts of the candidates that the run may choose.
    """
    change = _describe_change(decision, previous, forecasts)
    phase = f" ({decision.phase})" if decision.phase else ""
    measured = _describe_window(decision)
    emphasized = f"**{change}**" if decision.changed else change
    reason = describe_reason(decision.reason, forecasts)
    return f"{emphasized}{phase}: {reason}" + (f" — {measured}" if measured else "")


def tabulate_changes(
    changes: Iterable[tuple[DecisionRecord, DecisionRecord | StepRecord | None]],
    decisions: int,
    forecasts: Sequence[Forecast] = (),
) -> str:
    """Return a table of all changes of the candidate, with a row for each.

    Args:
        changes: decisions that changed the candidate, each with the record of the candidate that ran before.
        decisions: number of all decisions.
        forecasts: forecasts of the candidates that the run may choose.
    """
    rows = [
        (
            f"step {decision.step}: {_describe_change(decision, previous, forecasts)}",
            describe_reason(decision.reason, forecasts),
            f"{decision.phase}: {_describe_window(decision)}",
        )
        for decision, previous in changes
    ]
    title = f"{len(rows)} of {decisions} decisions changed what runs"
    return title + ("\n\n" + _table(("change", "reason", "measured in the window before"), rows) if rows else "")


def _describe_change(
    decision: DecisionRecord, previous: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast]
) -> str:
    """Describe the candidate after a decision, and if it changed, also the candidate before."""
    after = describe_candidate(forecast_of(decision, forecasts))
    before = after if previous is None else describe_candidate(forecast_of(previous, forecasts))
    modes = (
        ""
        if previous is None or previous.mode == decision.mode
        else f" ({MODES[previous.mode]} → {MODES[decision.mode]})"
    )
    return after if before == after and not modes else f"{before} → {after}{modes}"


def _method(forecast: Forecast) -> str:
    """Return the name of a candidate's method, for texts that also state its bytes."""
    return forecast.method or str(forecast.candidate)


def _describe_window(decision: DecisionRecord) -> str:
    """Describe the measurements of the window that ended with a decision."""
    phrases = []
    if math.isfinite(decision.gain):
        band = f" [{decision.gain_low:.3f}, {decision.gain_high:.3f}]" if math.isfinite(decision.gain_low) else ""
        phrases.append(f"gain {decision.gain:.3f}{band}")
    if decision.t_system is not None:
        phrases.append(f"T_system {decision.t_system:.4g} samples/s")
    if decision.t_compression is not None:
        phrases.append(f"T_compression {decision.t_compression:.4g} samples/s")
    return "; ".join(phrases)


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(content: object) -> str:
    return str(content).replace("|", "\\|").replace("\n", " ")


def describe_mode_change(change: ModeRecord) -> str:
    """Describe a change of mode, with its milliseconds and megabytes."""
    sent = f", {change.wire_bytes / 1e6:.3g} MB sent" if change.wire_bytes else ""
    return (
        f"from step {change.step} on: {MODES[change.before]} → {MODES[change.after]}; the change took "
        f"{1000 * change.seconds:.3g} ms{sent}"
    )


def tag_name(candidate: Candidate) -> str:
    """Return a candidate's name for a tag: only letters, digits, dots and underscores.

    Example:
        >>> tag_name(Candidate("outer", "quantize", 16.0, every=10, delay=5))
        'quantize_16x_every_10_steps_behind_5'
    """
    return re.sub(r"[^\w.]+", "_", str(candidate))


def describe_progress(progress: ProgressRecord, forecasts: Sequence[Forecast]) -> str:
    """Describe the results of a candidate's trials, and the belief about its efficiency after them."""
    compared = (
        f"a step of {progress.candidate} made {progress.ratio:.2f} ± {progress.error:.2f} of the progress of a step of "
        f"{progress.reference} ({progress.trials} {'trial' if progress.trials == 1 else 'trials'})"
    )
    believed = f"its efficiency is believed to be {progress.efficiency:.2f} [{progress.low:.2f}, {progress.high:.2f}]"
    return f"{describe_reason(compared, forecasts)}; {believed}"
