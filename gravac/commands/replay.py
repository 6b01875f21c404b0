# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac replay``: what would a policy have decided by a recorded run's measurements?"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gravac.candidate import Candidate, Forecast
from gravac.commands.common import Commands, require, set_work
from gravac.commands.policies import table
from gravac.policy import load_policy

if TYPE_CHECKING:
    from gravac.replay import Replay
    from gravac.telemetry.records import DecisionRecord


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "replay",
        help="whether a policy decides what a recorded run decided, and where not first",
        description="Feeds the measurements of a recorded run to a policy's controller, up to the first step in which "
        "it would run something else than the run did. The run's own policy decides all of the run again.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="gravac.jsonl of a run's log_dir")
    parser.add_argument("--policy", required=True, metavar="P", help="a shipped policy, or a TOML file")
    parser.add_argument(
        "--run", type=int, default=-1, dest="which", metavar="N", help="which run of the file, from 0 (default: last)"
    )
    parser.add_argument(
        "--all", action="store_true", dest="unchanged_too", help="show decisions that change nothing too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write decisions, and where they part, to this file")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw what ran, and where the policy parts from it (extra: lab)"
    )
    set_work(parser, _run, ValueError)


def _run(options: argparse.Namespace) -> None:
    if options.plot is not None:
        require("lab", "matplotlib")
    from gravac.replay import read_trace, replay

    played = replay(read_trace(options.trace, options.which), load_policy(options.policy))
    print(describe(played, options.unchanged_too))
    if options.json is not None:
        from gravac.lab.json_file import write_json

        write_json(options.json, played.as_dict())
    if options.plot is not None:
        draw(played, options.plot, options.policy)


def describe(played: Replay, unchanged_too: bool = False) -> str:
    """Return a table of recorded and replayed decisions by step, and the step in which the replay ends.

    Args:
        played: replay of a recorded run.
        unchanged_too: whether the table also lists decisions that change nothing.
    """
    from gravac.telemetry.descriptions import describe_reason

    trace, forecasts = played.trace, played.trace.forecasts
    begins = trace.choices()[0], played.first
    rows: list[tuple[str, ...]] = [
        ("step", "recorded", "replayed", "recorded: reason | replayed: reason"),
        (
            str(trace.steps[0].step),
            *(_describe_candidate(candidate, forecasts) for candidate in begins),
            "where it begins",
        ),
    ]
    skipped = 0
    recorded, replayed = (_by_step(records) for records in (played.recorded, played.replayed))
    for step in sorted({*recorded, *replayed}):
        for pair in itertools.zip_longest(recorded.get(step, []), replayed.get(step, [])):
            if not unchanged_too and not any(record is not None and record.changed for record in pair):
                skipped += 1
                continue
            reasons = [describe_reason(record.reason, forecasts) if record else "-" for record in pair]
            reason = reasons[0] if reasons[0] == reasons[1] else " | ".join(reasons)
            rows.append((str(step), *(_describe_choice(record, forecasts) for record in pair), reason))
    lines = [
        table(rows),
        "",
        "* the candidate changes" + (f"; {skipped} rows where none does are left out (--all)" if skipped else ""),
        describe_end(played),
        f"decisions: {'the same as recorded' if played.same else 'not the same as recorded'}",
        *(f"note: {note}" for note in played.notes),
    ]
    return "\n".join(lines)


def describe_end(played: Replay) -> str:
    """Describe the end of a replay: the step, and the difference between run and policy in that step.

    Args:
        played: replay of a recorded run.
    """
    parting = played.parting
    if parting is None:
        return f"exact: in all {played.steps} steps the policy would run what ran"
    beginning = f"exact up to step {parting.step}; there the policy would"
    executed, would = (
        _describe_candidate(candidate, played.trace.forecasts) for candidate in (parting.ran, parting.would)
    )
    if executed != would:
        return f"{beginning} run {would}, the run ran {executed}"
    evaluated, would_evaluate = _describe_cfs(parting.evaluated), _describe_cfs(parting.would_evaluate)
    return f"{beginning} evaluate {would_evaluate} beside {executed}, the run evaluated {evaluated}"


class _Curve(NamedTuple):
    """Curve of a number over the steps of a run.

    Attributes:
        executed: the run's number in each recorded step.
        would: the policy's number in the step in which run and policy differ; ``None`` if they never do.
        label: label of the axis.
        unit: unit of the axis' ticks.
    """

    executed: list[float]
    would: float | None
    label: str
    unit: str


def draw(played: Replay, path: Path, policy: str) -> None:
    """Draw the CFs that ran over steps, and the step in which the policy differs, as a PNG. Needs matplotlib.

    If ranks made outer steps, a second panel shows the number of steps from one exchange to the next.

    Args:
        played: replay of a recorded run.
        path: file to write.
        policy: name of the policy.
    """
    from matplotlib.figure import Figure  # without pyplot, which may need a display; Agg draws a PNG

    rounds, parting, records = _has_rounds(played), played.parting, played.trace.steps
    figure = Figure(figsize=(8, 6 if rounds else 4), layout="constrained")
    panels = figure.subplots(2 if rounds else 1, squeeze=False, sharex=True)[:, 0]
    would_cf, would_every = (None, None) if parting is None else (parting.would.cf, float(parting.would.every))
    cfs, numbers_of_steps = [record.cf for record in records], [float(record.every) for record in records]
    curves = (
        _Curve(cfs, would_cf, "compression factor (1 is dense)", "x"),
        _Curve(numbers_of_steps, would_every, "steps from one exchange to the next", ""),
    )
    for axes, curve in zip(panels, curves, strict=False):
        axes.step([record.step for record in records], curve.executed, where="post", color="#0072b2", label="recorded")
        ticks = {*curve.executed}
        if parting is not None and curve.would is not None:
            axes.axvline(parting.step, color="#d55e00", linestyle="--", linewidth=1)
            axes.plot([parting.step], [curve.would], "o", color="#d55e00", label=f"{policy} parts at {parting.step}")
            ticks.add(curve.would)
        axes.set_yscale("log")
        axes.set_yticks(sorted(ticks), [f"{tick:.3g}{curve.unit}" for tick in sorted(ticks)], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylabel(curve.label)
    panels[-1].set_xlabel("step")
    panels[0].legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)


def _has_rounds(played: Replay) -> bool:
    """True if the run had rounds of outer steps."""
    return max(record.every for record in played.trace.steps) > 1


def _describe_cfs(cfs: Sequence[float]) -> str:
    return ", ".join(f"{cf:g}x" for cf in cfs) or "nothing"


def _by_step(records: tuple[DecisionRecord, ...]) -> dict[int, list[DecisionRecord]]:
    return {step: list(group) for step, group in itertools.groupby(records, key=lambda record: record.step)}


def _describe_choice(record: DecisionRecord | None, forecasts: Sequence[Forecast]) -> str:
    from gravac.telemetry.descriptions import describe_candidate, forecast_of

    if record is None:
        return "-"
    return describe_candidate(forecast_of(record, forecasts)) + ("*" if record.changed else "")


def _describe_candidate(candidate: Candidate, forecasts: Sequence[Forecast]) -> str:
    from gravac.telemetry.descriptions import describe_candidate

    return describe_candidate(
        next((forecast for forecast in forecasts if forecast.candidate == candidate), Forecast(candidate, math.nan))
    )
