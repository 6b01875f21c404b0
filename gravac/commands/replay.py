# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac replay``: what another policy would have decided on a recorded run."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gravac.commands.common import Commands, require, runs
from gravac.commands.policies import table
from gravac.policy import load_policy
from gravac.settings import SettingsError

if TYPE_CHECKING:
    from gravac.candidate import Forecast
    from gravac.replay import Replay
    from gravac.telemetry.records import DecisionRecord


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "replay",
        help="what another policy would have decided in a recorded run",
        description="Feeds the measurements of a recorded run to another policy's controller. Gains and step times of "
        "what did not run are estimated from what did; the share of steps that rests on estimates is printed.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="gravac.jsonl of a run's log_dir")
    parser.add_argument("--policy", required=True, metavar="P", help="a shipped policy, or a TOML file")
    parser.add_argument(
        "--every",
        type=int,
        nargs="+",
        metavar="N",
        help="of outer steps: from one exchange to the next, one number, or the lowest and the highest (as recorded)",
    )
    parser.add_argument(
        "--run", type=int, default=-1, dest="which", metavar="N", help="which run of the file, from 0 (default: last)"
    )
    parser.add_argument("--all", action="store_true", dest="whole", help="show decisions that change nothing too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write decisions and steps to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw both CFs over steps (extra: lab)")
    runs(parser, _run, ValueError)


def _run(options: argparse.Namespace) -> None:
    if options.plot is not None:
        require("lab", "matplotlib")
    from gravac.replay import read_trace, replay

    every = options.every and (options.every[0], options.every[-1])
    if every and (len(options.every) > 2 or not 1 <= every[0] <= every[1]):
        raise SettingsError(
            f"every: {options.every} is no range; give a number of steps, or the lowest and the highest"
        )
    trace = read_trace(options.trace, options.which)
    played = replay(trace, load_policy(options.policy), every)
    print(words(played, options.whole, trace.run.forecasts))
    if options.json is not None:
        from gravac.lab.json_file import write_json

        write_json(options.json, played.plain())
    if options.plot is not None:
        draw(played, options.plot, options.policy)


def words(played: Replay, whole: bool = False, recorded_forecasts: Sequence[Forecast] = ()) -> str:
    """Return recorded and replayed decisions side by side, by step; then what the replay rests on.

    Args:
        played: replay of a recorded run.
        whole: whether to list decisions that change neither's candidate, too.
        recorded_forecasts: forecasts of what the recorded run could choose from, by which its decisions are described.
    """
    from gravac.telemetry.words import dropped_words, reason_words

    recorded, replayed = (_by_step(records) for records in (played.recorded, played.replayed))
    forecasts = (*recorded_forecasts, *played.forecasts)
    rows: list[tuple[str, ...]] = [
        ("step", "recorded", "replayed", "recorded: reason | replayed: reason"),
        (
            str(played.steps[0]),
            _ran(played.ran[0], played.ran_every[0], forecasts),
            _ran(played.would[0], played.would_every[0], forecasts),
            "where it begins",
        ),
    ]
    left_out = 0
    for step in sorted({*recorded, *replayed}):
        for then, now in itertools.zip_longest(recorded.get(step, []), replayed.get(step, [])):
            if not whole and not any(one is not None and one.changed for one in (then, now)):
                left_out += 1
                continue
            reasons = [reason_words(one.reason, forecasts) if one else "-" for one in (then, now)]
            reason = reasons[0] if reasons[0] == reasons[1] else " | ".join(reasons)
            rows.append((str(step), _choice(then, forecasts), _choice(now, forecasts), reason))
    ran, would = zip(played.ran, played.ran_every, strict=True), zip(played.would, played.would_every, strict=True)
    apart = sum(a != b for a, b in zip(ran, would, strict=True))
    counted, other = ("rounds", "CF or length") if max(played.ran_every + played.would_every) > 1 else ("steps", "CF")
    lines = [
        table(rows),
        "",
        "* the candidate changes" + (f"; {left_out} rows where none does are left out (--all)" if left_out else ""),
        f"{counted}: {len(played.steps)}; another {other} than recorded in {apart} of them",
        f"decisions: {'the same as recorded' if played.same else 'not the same as recorded'}",
        f"{counted} that rest on estimates: {played.share_estimated:.1%}",
        *(f"not among the candidates: {dropped_words(one)}" for one in played.dropped),
        *(f"note: {note}" for note in played.notes),
    ]
    return "\n".join(lines)


def draw(played: Replay, path: Path, policy: str) -> None:
    """Draw both CFs over steps, as a PNG; steps that rest on estimates are shaded. Needs matplotlib.

    Where ranks made outer steps, the numbers of steps from one exchange to the next stand below, by rounds.
    """
    from matplotlib.figure import Figure  # without pyplot: a PNG is drawn by Agg, whatever the display

    rounds = max(played.ran_every + played.would_every) > 1
    figure = Figure(figsize=(8, 6 if rounds else 4), layout="constrained")
    panels = figure.subplots(2 if rounds else 1, squeeze=False, sharex=True)[:, 0]
    pairs = [(played.ran, played.would), (played.ran_every, played.would_every)]
    names = ["compression factor (1 is dense)", "steps from one exchange to the next"]
    bars = [(step, 1) for step, estimated in zip(played.steps, played.estimated, strict=True) if estimated]
    for axes, (ran, would), name, unit in zip(panels, pairs, names, ("x", ""), strict=False):
        axes.step(played.steps, ran, where="post", color="#0072b2", label="recorded")
        axes.step(played.steps, would, where="post", color="#d55e00", linestyle="--", label=f"replayed: {policy}")
        if bars:
            label = f"estimated ({played.share_estimated:.0%} of {'rounds' if rounds else 'steps'})"
            height = axes.get_xaxis_transform()
            axes.broken_barh(
                bars, (0, 1), transform=height, color="#999999", alpha=0.25, linewidth=0, antialiased=False, label=label
            )
        values = sorted({*ran, *would})
        axes.set_yscale("log")
        axes.set_yticks(values, [f"{value:.3g}{unit}" for value in values], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("round" if rounds else "step")
    panels[0].legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)


def _by_step(records: tuple[DecisionRecord, ...]) -> dict[int, list[DecisionRecord]]:
    return {step: list(same) for step, same in itertools.groupby(records, key=lambda record: record.step)}


def _choice(record: DecisionRecord | None, forecasts: Sequence[Forecast]) -> str:
    from gravac.telemetry.words import described, forecast_of

    if record is None:
        return "-"
    return described(forecast_of(record, forecasts)) + ("*" if record.changed else "")


def _ran(cf: float, every: int, forecasts: Sequence[Forecast]) -> str:
    """What ran at a CF, of which the compressor is not recorded: the first candidate that has both numbers."""
    from gravac.telemetry.words import described

    alike = [one for one in forecasts if one.candidate.cf == cf]
    exact = [one for one in alike if one.candidate.every == every]
    if exact and exact[0].candidate.delay == 0:
        return described(exact[0])
    method = alike[0].method if alike else ""
    return (method or f"{cf:.4g}x") + f", every {every} steps" * (every > 1)
