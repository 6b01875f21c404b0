# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes a run and its decisions as texts, in Markdown for TensorBoard's text page; records have only data.

All texts name a candidate by its ``str``.
"""

import math
from collections.abc import Iterable, Mapping

from gravac.candidate import Candidate, Dropped, Forecast, Mode
from gravac.telemetry.records import DecisionRecord, EndRecord, ModeRecord, RunRecord

MODE_TEXTS: Mapping[Mode, str] = {
    "native": "DDP exchanges by itself",
    "hook": "gravac exchanges gradients in each step",
    "outer": "ranks train on their own between exchanges",
}
"""Texts for readers that say who exchanges gradients in a step, by the step's mode."""


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
    text = f"{forecast.candidate} (predicted wire ratio {forecast.wire_ratio:.2f}, "
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
    name, other_name = _distinct_names(dropped.forecast, dropped.other)
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


def describe_decision(decision: DecisionRecord, previous: Candidate | None) -> str:
    """Return a line of Markdown about a decision: candidate, phase, reason, and measurements of the window before.

    Args:
        decision: record of what the controller decided.
        previous: candidate that ran before; ``None`` if not known.
    """
    change = _describe_change(decision.candidate, previous)
    phase_text = f" ({decision.phase})" if decision.phase else ""
    window_text = _describe_window(decision)
    bold_change_text = f"**{change}**" if decision.changed else change
    return f"{bold_change_text}{phase_text}: {decision.reason}" + (f" — {window_text}" if window_text else "")


def tabulate_changes(changes: Iterable[tuple[DecisionRecord, Candidate | None]], decisions: int) -> str:
    """Return a Markdown table of the decisions that changed the candidate that runs, one row for each.

    Args:
        changes: these decisions, each with the candidate that ran before (``None`` if not known).
        decisions: number of all decisions of the run.
    """
    rows = [
        (
            f"step {decision.step}: {_describe_change(decision.candidate, previous)}",
            decision.reason,
            ": ".join(text for text in (decision.phase, _describe_window(decision)) if text),
        )
        for decision, previous in changes
    ]
    title = f"{len(rows)} of {decisions} decisions changed the candidate that runs"
    return title + (
        "\n\n" + _markdown_table(("change", "reason", "measured in the window before"), rows) if rows else ""
    )


def _describe_change(candidate: Candidate, previous: Candidate | None) -> str:
    """Return the name of a decided candidate; if another candidate ran before, ``before → after``.

    Args:
        candidate: candidate of the decision.
        previous: candidate that ran before; ``None`` if not known.
    """
    if previous is None or previous == candidate:
        return str(candidate)
    modes_text = (
        "" if previous.mode == candidate.mode else f" ({MODE_TEXTS[previous.mode]} → {MODE_TEXTS[candidate.mode]})"
    )
    return f"{previous} → {candidate}{modes_text}"


def _distinct_names(forecast: Forecast, other: Forecast) -> tuple[str, str]:
    """Return the names of two candidates' methods, such as ``low rank 16``; more words if these names are equal.

    Example:
        >>> of_ladder = Forecast(Candidate("hook", "ladder", 2.0), 2.0, method="dense bfloat16")
        >>> dense = Forecast(Candidate("hook", "dense", 2.0), 2.0, method="dense bfloat16")
        >>> _distinct_names(of_ladder, dense)
        ("the ladder's dense bfloat16", 'dense bfloat16')
    """
    name, other_name = (named_forecast.method or str(named_forecast.candidate) for named_forecast in (forecast, other))
    if name != other_name:
        return name, other_name
    if forecast.candidate.compressor != other.candidate.compressor:
        return f"the {forecast.candidate.compressor}'s {name}", other_name
    return f"{name} at CF {forecast.candidate.cf:g}", f"{other_name} at CF {other.candidate.cf:g}"


def _describe_window(decision: DecisionRecord) -> str:
    """Return a text with gain and throughputs of the window before a decision, as far as they are known."""
    phrases = []
    if decision.gain is not None and math.isfinite(decision.gain):
        low, high = decision.gain_low, decision.gain_high
        has_band = low is not None and high is not None and math.isfinite(low)
        phrases.append(f"gain {decision.gain:.3f}" + (f" [{low:.3f}, {high:.3f}]" if has_band else ""))
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


def describe_end(end: EndRecord) -> str:
    """Return a summary of a run: its number of steps, how many steps each candidate ran, and the wire ratio.

    Example:
        >>> native, bits = Candidate("native", "dense", 1.0), Candidate("hook", "quantize", 8.0, sends="4 bits")
        >>> describe_end(EndRecord(90, {"wire_ratio": 7.52}, ((native, 10), (bits, 80))))
        'closed after 90 steps: 80 of 4 bits, 10 of native float32; wire ratio 7.52'
    """
    most_steps_first = sorted(end.steps_at, key=lambda candidate_and_steps: -candidate_and_steps[1])
    parts_text = ", ".join(f"{steps} of {candidate}" for candidate, steps in most_steps_first)
    text = f"closed after {end.steps} step{'s' * (end.steps != 1)}" + (f": {parts_text}" if parts_text else "")
    ratio = end.metrics.get("wire_ratio", math.nan)
    return text + (f"; wire ratio {ratio:.3g}" if math.isfinite(ratio) else "")
