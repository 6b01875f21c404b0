# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac replay``: shows what a policy would decide from the measurements of a recorded run."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gravac.candidate import Candidate, Forecast
from gravac.commands.common import Commands, require, set_work
from gravac.commands.policies import aligned_table
from gravac.policy import load_policy

if TYPE_CHECKING:
    from gravac.replay import Replay
    from gravac.telemetry.records import DecisionRecord


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac replay`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "replay",
        help="show whether a policy would decide as a recorded run did, and the first step in which both differ",
        description="Feeds the measurements of a recorded run to a policy's controller, up to the first step in which "
        "run and policy differ in the candidate. The run's own policy makes the same decisions again.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="file gravac.jsonl in a run's log_dir")
    parser.add_argument(
        "--policy", required=True, metavar="P", help="name of a policy that comes with gravac, or a TOML file"
    )
    parser.add_argument(
        "--run",
        type=int,
        default=-1,
        dest="which",
        metavar="N",
        help="number of the run among the file's runs that have steps, from 0 (default: -1, the last)",
    )
    parser.add_argument(
        "--all", action="store_true", dest="unchanged_too", help="also show decisions that change nothing"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the decisions, and the first step that differs, to this file"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw the compression factors that ran, and the first step in which the policy differs",
    )
    set_work(parser, _run, ValueError)


def _run(options: argparse.Namespace) -> None:
    if options.plot is not None:
        require("lab", "matplotlib")
    from gravac.replay import read_trace, replay

    replayed_run = replay(read_trace(options.trace, options.which), load_policy(options.policy))
    print(describe(replayed_run, options.unchanged_too))
    if options.json is not None:
        from gravac.lab.json_file import write_json

        write_json(options.json, replayed_run.as_dict())
    if options.plot is not None:
        draw(replayed_run, options.plot, options.policy)


def describe(replayed_run: Replay, unchanged_too: bool = False) -> str:
    """Return a table of the run's and the policy's decisions by step, and the step in which both differ, as text.

    Args:
        replayed_run: replay of a recorded run.
        unchanged_too: whether the table also lists decisions that change nothing.
    """
    from gravac.telemetry.descriptions import describe_reason

    trace, forecasts = replayed_run.trace, replayed_run.trace.forecasts
    first_candidates = trace.decided_candidates()[0], replayed_run.first
    rows: list[tuple[str, ...]] = [
        ("step", "recorded", "replayed", "recorded: reason | replayed: reason"),
        (
            str(trace.steps[0].step),
            *(_describe_candidate(candidate, forecasts) for candidate in first_candidates),
            "candidate of the first step",
        ),
    ]
    skipped_rows = 0
    recorded_by_step, replayed_by_step = (
        _decisions_by_step(decisions) for decisions in (replayed_run.recorded, replayed_run.replayed)
    )
    for step in sorted({*recorded_by_step, *replayed_by_step}):
        for record_pair in itertools.zip_longest(recorded_by_step.get(step, []), replayed_by_step.get(step, [])):
            if not unchanged_too and not any(record is not None and record.changed for record in record_pair):
                skipped_rows += 1
                continue
            reasons = [describe_reason(record.reason, forecasts) if record else "-" for record in record_pair]
            reason = reasons[0] if reasons[0] == reasons[1] else " | ".join(reasons)
            rows.append((str(step), *(_describe_choice(record, forecasts) for record in record_pair), reason))
    lines = [
        aligned_table(rows),
        "",
        "* the candidate changes"
        + (f"; {skipped_rows} rows without a change are left out (--all shows them)" if skipped_rows else ""),
        describe_end(replayed_run),
        f"decisions: {'the same as recorded' if replayed_run.same else 'not the same as recorded'}",
        *(f"note: {note}" for note in replayed_run.notes),
    ]
    return "\n".join(lines)


def describe_end(replayed_run: Replay) -> str:
    """Return a text that says in which step run and policy first differ, and how; or that they never differ.

    Args:
        replayed_run: replay of a recorded run.
    """
    parting = replayed_run.parting
    if parting is None:
        return f"exact: in all {replayed_run.steps} steps the policy would run the same candidate as the recorded run"
    beginning_text = f"exact up to step {parting.step}; in that step the policy would"
    run_candidate, policy_candidate = (
        _describe_candidate(candidate, replayed_run.trace.forecasts) for candidate in (parting.ran, parting.would)
    )
    if run_candidate != policy_candidate:
        return f"{beginning_text} run {policy_candidate}, but the recorded run ran {run_candidate}"
    run_cfs, policy_cfs = _describe_cfs(parting.evaluated), _describe_cfs(parting.would_evaluate)
    return (
        f"{beginning_text} run {run_candidate} and evaluate {policy_cfs} without sending, but the recorded run "
        f"evaluated {run_cfs}"
    )


class _RunCurve(NamedTuple):
    """Curve over the steps of a run: of the CF, or of the number of steps from one exchange to the next.

    Attributes:
        run_numbers: number that the run used in each recorded step.
        policy_number: number that the policy would use in the first step in which run and policy differ; ``None``: they
            never differ.
        label: label of the vertical axis.
        unit: text after the number of each tick, such as ``"x"``; may be empty.
    """

    run_numbers: list[float]
    policy_number: float | None
    label: str
    unit: str


def draw(replayed_run: Replay, path: Path, policy: str) -> None:
    """Plot the run's CF over its steps, and the step in which the policy first differs, to a PNG. Needs matplotlib.

    If ranks made outer steps, a second panel shows the number of steps from one exchange to the next.

    Args:
        replayed_run: replay of a recorded run.
        path: PNG file to write.
        policy: name of the policy, for the legend.
    """
    from matplotlib.figure import Figure  # without pyplot, which may need a display; Agg draws a PNG

    has_rounds, parting, step_records = _has_rounds(replayed_run), replayed_run.parting, replayed_run.trace.steps
    figure = Figure(figsize=(8, 6 if has_rounds else 4), layout="constrained")
    panel_axes = figure.subplots(2 if has_rounds else 1, squeeze=False, sharex=True)[:, 0]
    policy_cf, policy_every = (None, None) if parting is None else (parting.would.cf, float(parting.would.every))
    cfs, every_numbers = [record.cf for record in step_records], [float(record.every) for record in step_records]
    curves = (
        _RunCurve(cfs, policy_cf, "compression factor (1 is dense)", "x"),
        _RunCurve(every_numbers, policy_every, "steps from one exchange to the next", ""),
    )
    for axes, curve in zip(panel_axes, curves, strict=False):
        axes.step(
            [record.step for record in step_records], curve.run_numbers, where="post", color="#0072b2", label="recorded"
        )
        ticks = {*curve.run_numbers}
        if parting is not None and curve.policy_number is not None:
            axes.axvline(parting.step, color="#d55e00", linestyle="--", linewidth=1)
            axes.plot(
                [parting.step],
                [curve.policy_number],
                "o",
                color="#d55e00",
                label=f"{policy} differs at step {parting.step}",
            )
            ticks.add(curve.policy_number)
        axes.set_yscale("log")
        axes.set_yticks(sorted(ticks), [f"{tick:.3g}{curve.unit}" for tick in sorted(ticks)], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylabel(curve.label)
    panel_axes[-1].set_xlabel("step")
    panel_axes[0].legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)


def _has_rounds(replayed_run: Replay) -> bool:
    """True if the run made outer steps, in which ranks exchange only once in several steps."""
    return max(step_record.every for step_record in replayed_run.trace.steps) > 1


def _describe_cfs(cfs: Sequence[float]) -> str:
    """Return a text that lists CFs; "no other CF" for an empty sequence."""
    return f"CF {', '.join(f'{cf:g}' for cf in cfs)}" if cfs else "no other CF"


def _decisions_by_step(decisions: tuple[DecisionRecord, ...]) -> dict[int, list[DecisionRecord]]:
    """Return the decisions, grouped by the first step to which they apply.

    Args:
        decisions: decisions, ordered by step.
    """
    return {
        step: list(step_decisions)
        for step, step_decisions in itertools.groupby(decisions, key=lambda record: record.step)
    }


def _describe_choice(decision: DecisionRecord | None, forecasts: Sequence[Forecast]) -> str:
    """Return a decision's candidate as text, with ``*`` if the decision changes the candidate; ``"-"`` for ``None``."""
    from gravac.telemetry.descriptions import describe_candidate, forecast_of

    if decision is None:
        return "-"
    return describe_candidate(forecast_of(decision, forecasts)) + ("*" if decision.changed else "")


def _describe_candidate(candidate: Candidate, forecasts: Sequence[Forecast]) -> str:
    """Return a candidate as text, such as ``low rank 16, 15x fewer bytes``; shorter if ``forecasts`` lacks it."""
    from gravac.telemetry.descriptions import describe_candidate

    return describe_candidate(
        next((forecast for forecast in forecasts if forecast.candidate == candidate), Forecast(candidate, math.nan))
    )
