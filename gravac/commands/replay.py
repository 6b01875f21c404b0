# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac replay``: whether a policy decides on a recorded run's measurements what the run decided."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gravac.candidate import Candidate, Forecast
from gravac.commands.common import Commands, require, runs
from gravac.commands.policies import table
from gravac.policy import load_policy

if TYPE_CHECKING:
    from gravac.replay import Replay
    from gravac.telemetry.records import DecisionRecord


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
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
    runs(parser, _run, ValueError)


def _run(options: argparse.Namespace) -> None:
    if options.plot is not None:
        require("lab", "matplotlib")
    from gravac.replay import read_trace, replay

    played = replay(read_trace(options.trace, options.which), load_policy(options.policy))
    print(words(played, options.unchanged_too))
    if options.json is not None:
        from gravac.lab.json_file import write_json

        write_json(options.json, played.plain())
    if options.plot is not None:
        draw(played, options.plot, options.policy)


def words(played: Replay, unchanged_too: bool = False) -> str:
    """Return recorded and replayed decisions side by side, by step; then how far the replay goes.

    Args:
        played: replay of a recorded run.
        unchanged_too: whether to list decisions that change neither's candidate, too.
    """
    from gravac.telemetry.words import reason_words

    trace, forecasts = played.trace, played.trace.forecasts
    begins = trace.choices()[0], played.first
    rows: list[tuple[str, ...]] = [
        ("step", "recorded", "replayed", "recorded: reason | replayed: reason"),
        (str(trace.steps[0].step), *(_described(candidate, forecasts) for candidate in begins), "where it begins"),
    ]
    left_out = 0
    recorded, replayed = (_by_step(records) for records in (played.recorded, played.replayed))
    for step in sorted({*recorded, *replayed}):
        for then, now in itertools.zip_longest(recorded.get(step, []), replayed.get(step, [])):
            if not unchanged_too and not any(record is not None and record.changed for record in (then, now)):
                left_out += 1
                continue
            reasons = [reason_words(record.reason, forecasts) if record else "-" for record in (then, now)]
            reason = reasons[0] if reasons[0] == reasons[1] else " | ".join(reasons)
            rows.append((str(step), _choice(then, forecasts), _choice(now, forecasts), reason))
    lines = [
        table(rows),
        "",
        "* the candidate changes" + (f"; {left_out} rows where none does are left out (--all)" if left_out else ""),
        exact_words(played),
        f"decisions: {'the same as recorded' if played.same else 'not the same as recorded'}",
        *(f"note: {note}" for note in played.notes),
    ]
    return "\n".join(lines)


def exact_words(played: Replay) -> str:
    """Return how far a replay goes, and what happens where it ends.

    Args:
        played: replay of a recorded run.
    """
    parting = played.parting
    if parting is None:
        return f"exact: in all {played.steps} steps the policy would run what ran"
    where = f"exact up to step {parting.step}; there the policy would"
    ran, would = (_described(candidate, played.trace.forecasts) for candidate in (parting.ran, parting.would))
    if ran != would:
        return f"{where} run {would}, the run ran {ran}"
    return f"{where} evaluate {_cfs(parting.would_evaluate)} beside {ran}, the run evaluated {_cfs(parting.evaluated)}"


def draw(played: Replay, path: Path, policy: str) -> None:
    """Draw the CFs that ran over steps, and where the policy parts from them, as a PNG. Needs matplotlib.

    If ranks made outer steps, the numbers of steps from one exchange to the next stand below.

    Args:
        played: replay of a recorded run.
        path: file to write.
        policy: name of the policy.
    """
    from matplotlib.figure import Figure  # without pyplot: a PNG is drawn by Agg, whatever the display

    rounds, parting, records = _counts_rounds(played), played.parting, played.trace.steps
    figure = Figure(figsize=(8, 6 if rounds else 4), layout="constrained")
    panels = figure.subplots(2 if rounds else 1, squeeze=False, sharex=True)[:, 0]
    ran = [[record.cf for record in records], [float(record.every) for record in records]]
    would = [None, None] if parting is None else [parting.would.cf, float(parting.would.every)]
    names = ["compression factor (1 is dense)", "steps from one exchange to the next"]
    for axes, line, other, name, unit in zip(panels, ran, would, names, ("x", ""), strict=False):
        axes.step([record.step for record in records], line, where="post", color="#0072b2", label="recorded")
        ticks = {*line}
        if parting is not None and other is not None:
            axes.axvline(parting.step, color="#d55e00", linestyle="--", linewidth=1)
            axes.plot([parting.step], [other], "o", color="#d55e00", label=f"{policy} parts at {parting.step}")
            ticks.add(other)
        axes.set_yscale("log")
        axes.set_yticks(sorted(ticks), [f"{tick:.3g}{unit}" for tick in sorted(ticks)], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("step")
    panels[0].legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)


def _counts_rounds(played: Replay) -> bool:
    """True if the run had rounds of outer steps."""
    return max(record.every for record in played.trace.steps) > 1


def _cfs(cfs: Sequence[float]) -> str:
    return ", ".join(f"{cf:g}x" for cf in cfs) or "nothing"


def _by_step(records: tuple[DecisionRecord, ...]) -> dict[int, list[DecisionRecord]]:
    return {step: list(same) for step, same in itertools.groupby(records, key=lambda record: record.step)}


def _choice(record: DecisionRecord | None, forecasts: Sequence[Forecast]) -> str:
    from gravac.telemetry.words import described, forecast_of

    if record is None:
        return "-"
    return described(forecast_of(record, forecasts)) + ("*" if record.changed else "")


def _described(candidate: Candidate, forecasts: Sequence[Forecast]) -> str:
    from gravac.telemetry.words import described

    return described(
        next((forecast for forecast in forecasts if forecast.candidate == candidate), Forecast(candidate, math.nan))
    )
