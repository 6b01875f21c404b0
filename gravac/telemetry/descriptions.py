# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes a run and its decisions as texts, in Markdown for TensorBoard's text page; records have only data.

A compression factor (CF) has a different meaning for each compressor. For example, at CF 32 the default ladder runs low
rank 16, which on small matrices sends only 15 times fewer bytes. So all pages and tables for readers show a candidate's
method and bytes (``describe_candidate``) instead of a CF.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gravac.candidate import Candidate, Dropped, Forecast, Mode
from gravac.telemetry.records import DecisionRecord, ModeRecord, ProgressRecord, RunRecord, StepRecord

MODE_TEXTS: Mapping[Mode, str] = {
    "native": "DDP exchanges by itself",
    "hook": "gravac exchanges gradients in each step",
    "outer": "ranks train on their own between exchanges",
}
"""Texts for readers that say who exchanges gradients in a step, by the step's mode."""

EQUAL_BYTES_MARGIN = 0.05
"""Texts do not mention a candidate's bytes if its wire ratio differs from 1 by at most this number."""


def describe_candidate(forecast: Forecast) -> str:
    """Return a description of a candidate: its method, how many times fewer bytes it sends, and how often.

    Example:
        >>> describe_candidate(Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16"))
        'low rank 16, 15x fewer bytes'
        >>> describe_candidate(Forecast(Candidate("outer", "topk", 10.0, every=5, delay=2), 0.5))
        'topk 10x, 2x more bytes, every 5 steps, applied 2 steps later'
        >>> describe_candidate(Forecast(Candidate("hook", "dense", 1.0), 1.0, method="dense float32"))
        'dense float32'
        >>> describe_candidate(Forecast(Candidate("native", "dense", 2.0), 2.0))
        'native float16, 2x fewer bytes'
    """
    phrases = (_method_with_setting(forecast), describe_bytes(forecast.wire_ratio), *forecast.candidate.pace_phrases)
    return ", ".join(phrase for phrase in phrases if phrase)


def _in_sentence(forecast: Forecast) -> str:
    """Return a description of a candidate for use within a sentence: bytes and delay in parentheses, no commas.

    Example:
        >>> _in_sentence(Forecast(Candidate("outer", "topk", 10.0, every=5, delay=2), 0.5))
        'topk 10x (2x more bytes) every 5 steps (applied 2 steps later)'
    """
    bytes_text = describe_bytes(forecast.wire_ratio)
    bytes_suffix = f" ({bytes_text})" if bytes_text else ""
    return f"{_method_with_setting(forecast)}{bytes_suffix}{forecast.candidate.pace_suffix}"


def _method_with_setting(forecast: Forecast) -> str:
    """Return the name of a candidate's method with its setting, such as ``low rank 16``."""
    candidate = forecast.candidate
    if candidate.mode == "native":
        return str(candidate)
    return forecast.method or f"{candidate.compressor} {candidate.cf:.4g}x"


def describe_bytes(wire_ratio: float) -> str:
    """Return a text that states a wire ratio, such as ``"15x fewer bytes"``; ``""`` if not known, or if about 1.

    Example:
        >>> describe_bytes(15.06), describe_bytes(3.88), describe_bytes(2.0), describe_bytes(0.5)
        ('15x fewer bytes', '3.9x fewer bytes', '2x fewer bytes', '2x more bytes')
    """
    if not (math.isfinite(wire_ratio) and wire_ratio > 0) or abs(wire_ratio - 1) <= EQUAL_BYTES_MARGIN:
        return ""
    factor, comparative = (wire_ratio, "fewer") if wire_ratio > 1 else (1 / wire_ratio, "more")
    return f"{factor:.0f}x {comparative} bytes" if factor >= 10 else f"{round(factor, 1):g}x {comparative} bytes"


def forecast_of(record: DecisionRecord | StepRecord, forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of the candidate that a record is about.

    If the run has no forecast of this candidate, adapt the forecast of another candidate with the same compressor and
    CF, preferably of the same mode: divide its wire ratio by its ``every``, and multiply by the record's ``every``. If
    there is no such candidate either, the wire ratio is nan.

    Args:
        record: record with mode, compressor, CF, ``every`` and ``delay`` of the candidate.
        forecasts: forecasts of the candidates that the run may choose.
    """
    candidate = Candidate(record.mode, record.compressor, record.cf, record.every, record.delay)
    exact_forecast = next((forecast for forecast in forecasts if forecast.candidate == candidate), None)
    if exact_forecast is not None:
        return exact_forecast
    similar_forecasts = [
        forecast
        for forecast in forecasts
        if (forecast.candidate.compressor, forecast.candidate.cf) == (record.compressor, record.cf)
    ]
    similar_forecasts.sort(key=lambda forecast: forecast.candidate.mode != record.mode)
    nearest_forecast = similar_forecasts[0] if similar_forecasts else Forecast(candidate, math.nan)
    wire_ratio = nearest_forecast.wire_ratio / nearest_forecast.candidate.every * record.every
    method = "" if "native" in (nearest_forecast.candidate.mode, record.mode) else nearest_forecast.method
    return replace(nearest_forecast, candidate=candidate, wire_ratio=wire_ratio, method=method)


def describe_reason(reason: str, forecasts: Iterable[Forecast]) -> str:
    """Return the reason of a decision with each candidate's name replaced by a description of the candidate.

    A candidate's name is its ``str``.

    Example:
        >>> rank = Forecast(Candidate("hook", "ladder", 32.0), 15.1, method="low rank 16")
        >>> describe_reason("try ladder 32x", [rank]), describe_reason("try ladder 320x", [rank])
        ('try low rank 16 (15x fewer bytes)', 'try ladder 320x')
    """
    descriptions = {str(forecast.candidate): _in_sentence(forecast) for forecast in forecasts}
    if not descriptions:
        return reason
    names_pattern = "|".join(re.escape(name) for name in sorted(descriptions, key=len, reverse=True))
    return re.sub(rf"(?<!\S)(?:{names_pattern})(?!\w)", lambda match: descriptions[match.group()], reason)


def describe_run(run: RunRecord) -> str:
    """Return a description of a run: ranks, candidates, dropped candidates and why, and settings."""
    paragraphs = [f"**{run.world_size} ranks**"]
    if run.forecasts:
        candidate_lines = "\n".join(f"- {describe_forecast(forecast)}" for forecast in run.forecasts)
        paragraphs.append("**Candidates**\n\n" + candidate_lines)
    if run.timed:
        method_by_cf = {
            forecast.candidate.cf: forecast.method for forecast in run.forecasts if not forecast.candidate.dense
        }
        timed_methods = ", ".join(method_by_cf.get(cf) or f"{cf:g}x" for cf in run.timed)
        paragraphs.append(f"Encode and decode were timed on the gradients' device, at {timed_methods}.")
    if run.dropped:
        dropped_lines = "\n".join(f"- {describe_dropped(candidate, run.world_size)}" for candidate in run.dropped)
        paragraphs.append("**Dropped**\n\n" + dropped_lines)
    if run.settings:
        paragraphs.append("**Settings**\n\n" + _markdown_table(("setting", "value"), run.settings.items()))
    return "\n\n".join(paragraphs)


def describe_forecast(forecast: Forecast) -> str:
    """Return a description of a forecast: the candidate, wire ratio, efficiency, CF, and ms of coding and exchange."""
    text = f"{describe_candidate(forecast)} (predicted wire ratio {forecast.wire_ratio:.2f}, "
    text += f"efficiency {forecast.efficiency:g}, CF {forecast.candidate.cf:g}"
    if forecast.coding_s is not None and forecast.exchange_s is not None:
        text += f", encode and decode {1e3 * forecast.coding_s:.4g} ms, exchange {1e3 * forecast.exchange_s:.4g} ms"
    return text + ")"


def describe_dropped(dropped: Dropped, world_size: int | None = None) -> str:
    """Return a text that names a candidate, and says why the run may not choose the candidate.

    Args:
        dropped: candidate that may not be chosen, and the cause.
        world_size: number of ranks; ``None``: the text does not mention the number.
    """
    name, other_name = _method_name(dropped.forecast), _method_name(dropped.other)
    if dropped.cause == "same_bytes":
        return f"{name}: would send the same bytes as {other_name}"
    if dropped.cause == "too_little_progress":
        efficiency_bound = dropped.forecast.least_efficiency
        least_efficiency = efficiency_bound / dropped.ratio
        return (
            f"{name}: lower bound of efficiency {efficiency_bound:.2g}, below least_efficiency {least_efficiency:.2g}"
        )
    ranks_text = "" if world_size is None else f" over {world_size} ranks"
    return f"{name}: would send {dropped.ratio:.2f} times the bytes of {other_name}{ranks_text}"


def describe_decision(
    decision: DecisionRecord, previous: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast] = ()
) -> str:
    """Return a line of Markdown about a decision: candidate, phase, reason, and measurements of the window before.

    Args:
        decision: record of what the controller decided.
        previous: record that names the candidate that ran before; ``None`` if not known.
        forecasts: forecasts of the candidates that the run may choose.
    """
    change = _describe_change(decision, previous, forecasts)
    phase_text = f" ({decision.phase})" if decision.phase else ""
    window_text = _describe_window(decision)
    bold_change_text = f"**{change}**" if decision.changed else change
    reason = describe_reason(decision.reason, forecasts)
    return f"{bold_change_text}{phase_text}: {reason}" + (f" — {window_text}" if window_text else "")


def tabulate_changes(
    changes: Iterable[tuple[DecisionRecord, DecisionRecord | StepRecord | None]],
    decisions: int,
    forecasts: Sequence[Forecast] = (),
) -> str:
    """Return a Markdown table of the decisions that changed the candidate that runs, one row for each.

    Args:
        changes: these decisions, each with a record that names the candidate that ran before (``None`` if not known).
        decisions: number of all decisions of the run.
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
    title = f"{len(rows)} of {decisions} decisions changed the candidate that runs"
    return title + (
        "\n\n" + _markdown_table(("change", "reason", "measured in the window before"), rows) if rows else ""
    )


def _describe_change(
    decision: DecisionRecord, previous: DecisionRecord | StepRecord | None, forecasts: Sequence[Forecast]
) -> str:
    """Return a description of a decision's candidate; if another candidate ran before, ``before → after``.

    Args:
        decision: record of the decision.
        previous: record that names the candidate that ran before; ``None`` if not known.
        forecasts: forecasts of the candidates that the run may choose.
    """
    text_after = describe_candidate(forecast_of(decision, forecasts))
    text_before = text_after if previous is None else describe_candidate(forecast_of(previous, forecasts))
    modes_text = (
        ""
        if previous is None or previous.mode == decision.mode
        else f" ({MODE_TEXTS[previous.mode]} → {MODE_TEXTS[decision.mode]})"
    )
    return text_after if text_before == text_after and not modes_text else f"{text_before} → {text_after}{modes_text}"


def _method_name(forecast: Forecast) -> str:
    """Return the name of a candidate's method, such as ``low rank 16``; without a method, the candidate's name."""
    return forecast.method or str(forecast.candidate)


def _describe_window(decision: DecisionRecord) -> str:
    """Return a text with gain and throughputs of the window before a decision, as far as they are known."""
    phrases = []
    if math.isfinite(decision.gain):
        gain_band = f" [{decision.gain_low:.3f}, {decision.gain_high:.3f}]" if math.isfinite(decision.gain_low) else ""
        phrases.append(f"gain {decision.gain:.3f}{gain_band}")
    if decision.t_system is not None:
        phrases.append(f"T_system {decision.t_system:.4g} samples/s")
    if decision.t_compression is not None:
        phrases.append(f"T_compression {decision.t_compression:.4g} samples/s")
    return "; ".join(phrases)


def _markdown_table(headings: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(_cell_text(content) for content in line) + " |" for line in lines)


def _cell_text(content: object) -> str:
    """Return the text of a table's cell: vertical bars are escaped, and line breaks become spaces."""
    return str(content).replace("|", "\\|").replace("\n", " ")


def describe_mode_change(change: ModeRecord) -> str:
    """Return a text about a change of the mode in which steps run, with its milliseconds and megabytes."""
    sent_text = f", {change.wire_bytes / 1e6:.3g} MB sent" if change.wire_bytes else ""
    return (
        f"from step {change.step} on: {MODE_TEXTS[change.before]} → {MODE_TEXTS[change.after]}; the change took "
        f"{1000 * change.seconds:.3g} ms{sent_text}"
    )


def tag_name(candidate: Candidate) -> str:
    """Return a candidate's name for use in a TensorBoard tag: only letters, digits, dots and underscores.

    Example:
        >>> tag_name(Candidate("outer", "quantize", 16.0, every=10, delay=5))
        'quantize_16x_every_10_steps_applied_5_steps_later'
    """
    return re.sub(r"[^\w.]+", "_", str(candidate)).strip("_")


def describe_progress(progress: ProgressRecord, forecasts: Sequence[Forecast]) -> str:
    """Return a text about a candidate's trials: the measured ratio, and the efficiency that gravac now assumes.

    Args:
        progress: results of the trials.
        forecasts: forecasts of the candidates, for their descriptions.
    """
    comparison = (
        f"a step of {progress.candidate} made {progress.ratio:.2f} ± {progress.error:.2f} of the progress of a step of "
        f"{progress.reference} ({progress.trials} {'trial' if progress.trials == 1 else 'trials'})"
    )
    efficiency_text = (
        f"gravac now assumes an efficiency of {progress.efficiency:.2f} [{progress.low:.2f}, {progress.high:.2f}]"
    )
    return f"{describe_reason(comparison, forecasts)}; {efficiency_text}"
