# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Recorded outer steps are replayed to the decision, round for round."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gravac import Goodput, GraVAC, SettingsError, Static, quantize, topk
from gravac.candidate import Candidate, Forecast
from gravac.commands import replay as command
from gravac.modes.outer.candidates import outer_efficiency
from gravac.policy import Policy
from gravac.replay import Trace, read_trace, replay
from tests.outer.ranks import Ranks

SEARCH = Goodput(window=5, trial=5)


def policy(**settings: Any) -> Policy:
    return Policy(**{"base": topk, "cf_range": (2, 64), "controller": SEARCH, "dense_below": 0, **settings})


def record(folder: Path, steps: int = 120, ranks: int = 2, **settings: Any) -> Trace:
    given = {"base": topk, "cf_range": (2, 64), "controller": SEARCH, "every": (1, 20), "log_dir": folder, **settings}
    trained = Ranks(ranks, clock=0.01, **given).train(steps)
    for outer in trained.outer:
        outer._rounds.send_rest(0.05, end_round=True)  # a last round, shorter than was decided
    trained.lockstep.run()
    trained.outer[0].close()
    return read_trace(folder / "gravac.jsonl")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(tmp_path_factory.mktemp("outer"), every=(1, 5))


@pytest.mark.parametrize(
    ("ran", "when"),
    [
        (policy(), {"every": (1, 20)}),
        (policy(), {"every": 1}),
        (policy(), {"every": (1, 20), "host_looks": False}),
        (policy(base="ladder"), {"every": (1, 3), "delay": 1}),
        (policy(base=quantize), {"every": (2, 5), "fragments": 3, "delay": 2}),
        (policy(controller=GraVAC(window=5)), {"every": 3}),
        (policy(controller=Static(cf=8)), {"every": 4}),
    ],
    ids=lambda one: one.base.name + " " + one.controller.name if isinstance(one, Policy) else str(one["every"]),
)
def test_the_recorded_policy_gives_exactly_the_recorded_decisions(
    ran: Policy, when: dict[str, Any], tmp_path: Path
) -> None:
    recorded = record(tmp_path, base=ran.base, controller=ran.controller, **when)
    played = replay(recorded, ran)
    assert [(r.step, r.compressor, r.cf, r.every, r.changed, r.reason) for r in played.replayed] == [
        (r.step, r.compressor, r.cf, r.every, r.changed, r.reason) for r in recorded.decisions
    ]
    assert played.same
    assert played.forecasts == recorded.run.forecasts
    assert (played.parting, played.steps) == (None, sum(step.steps for step in recorded.steps))


def test_a_run_tells_when_it_exchanges(trace: Trace, tmp_path: Path) -> None:
    settings = trace.run.settings
    assert settings["every"] == "(1, 5)"
    assert (settings["outer.fragments"], settings["outer.delay"], settings["outer.mixing"]) == (1, 0, 0.5)
    assert {forecast.candidate.every for forecast in trace.run.forecasts} == {1, 2, 5}
    assert {forecast.candidate.every for forecast in record(tmp_path, 8, every=1).run.forecasts} == {1}


def test_what_runs_goes_by_the_number_of_ranks(tmp_path: Path) -> None:
    recorded = record(tmp_path, 12, 4, every=(1, 10))
    dense = {
        forecast.candidate.every: forecast.efficiency for forecast in recorded.run.forecasts if forecast.candidate.dense
    }
    assert dense == {
        every: outer_efficiency(Forecast(Candidate("hook", "dense", 1.0), 1.0), every, world=4).efficiency
        for every in (1, 2, 5, 10)
    }


def test_other_settings_part_where_another_round_would_be_made(trace: Trace) -> None:
    played = replay(trace, policy(controller=Goodput(window=5, trial=8)))
    parting = played.parting
    assert parting is not None
    assert 0 < parting.step == played.steps < sum(step.steps for step in trace.steps)
    assert (
        parting.ran
        == dict(zip((step.step for step in trace.steps), trace.decided_candidates(), strict=True))[parting.step]
    )
    assert parting.ran != parting.would
    assert not played.same


def test_a_controller_that_does_not_choose_how_often_is_refused_where_the_run_chose(trace: Trace) -> None:
    with pytest.raises(SettingsError, match="controller 'static' chooses the compression factor only"):
        replay(trace, policy(controller=Static(cf=8)))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["replay", *arguments])
    return int(options.run(options))


def test_the_command_tells_of_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, every=(2, 5))
    mine = tmp_path / "mine.toml"
    written = 'base = "topk"\ncf_range = [2, 64]\ndense_below = 0\n[controller]\nname = "{}"\n{}\n'
    mine.write_text(written.format("goodput", "window = 5\ntrial = 8"), encoding="utf-8")
    where = [str(tmp_path / "gravac.jsonl"), "--policy", str(mine)]
    drawn = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert run(*where, *drawn) == 0
    said = capsys.readouterr().out
    assert re.search(r"dense (b?float\d+), \d+x fewer bytes, every \d steps", said)
    assert re.search(
        r"exact up to step \d+; in that step the policy would run .*, but the recorded run ran .*, every \d steps", said
    )
    assert json.loads((tmp_path / "out.json").read_text())["parting"]["would"]["every"] in (2, 5)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    mine.write_text(written.format("static", "cf = 8"), encoding="utf-8")
    assert run(*where) == 2
    assert "give one number" in capsys.readouterr().err
