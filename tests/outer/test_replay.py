# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Recorded outer steps are replayed to the decision; other numbers of steps and other controllers are estimated."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gravac import Goodput, GraVAC, SettingsError, Static, quantize, topk
from gravac.candidate import Candidate, Forecast
from gravac.commands import replay as command
from gravac.controllers.base import Decision
from gravac.outer.candidates import widened
from gravac.outer.efficiency import efficiency
from gravac.policy import Policy
from gravac.replay import Trace, admit_recorded, read_trace, replay
from gravac.replay.recording import Recording
from gravac.stepping.admission import Admission
from gravac.telemetry.records import RunRecord
from tests.outer.ranks import Ranks

SEARCH = Goodput(window=5, trial=5)


def policy(**settings: Any) -> Policy:
    return Policy(**{"base": topk, "cf_range": (2, 64), "controller": SEARCH, "dense_below": 0, **settings})


def record(folder: Path, steps: int = 120, ranks: int = 2, **settings: Any) -> Trace:
    given = {"base": topk, "cf_range": (2, 64), "controller": SEARCH, "every": (1, 20), "log_dir": folder, **settings}
    trained = Ranks(ranks, clock=0.01, **given).train(steps)
    for outer in trained.outer:
        outer._rounds.leave_now(0.05, whole=True)  # a last round, shorter than was decided
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
    assert (played.would, played.would_every) == (played.ran, played.ran_every)
    assert played.share_estimated == 0


def test_a_run_tells_when_it_exchanges(trace: Trace, tmp_path: Path) -> None:
    settings = trace.run.settings
    assert settings["outer.every"] == "(1, 5)"
    assert (settings["outer.fragments"], settings["outer.delay"], settings["outer.mixing"]) == (1, 0, 0.5)
    assert trace.every == (1, 2, 5)
    assert record(tmp_path, 8, every=1).every == (1,)


def test_another_number_of_steps_is_estimated(trace: Trace) -> None:
    played = replay(trace, policy(controller=Static(cf=8)), every=(50, 50))
    assert set(played.would_every) == {50}
    assert {one.candidate.every for one in played.forecasts} == {50}
    assert played.share_estimated == 1
    whole = replay(trace, policy(), every=(1, 50))
    assert {one.candidate.every for one in whole.forecasts} == {1, 2, 5, 10, 20, 50}
    recorded = {one.candidate: one for one in trace.run.forecasts}
    for one in whole.forecasts:
        assert recorded.get(one.candidate, one) == one


def test_what_runs_and_what_is_replayed_go_by_the_number_of_ranks(tmp_path: Path) -> None:
    recorded = record(tmp_path, 12, 4, every=(1, 10))
    dense = {one.candidate.every: one.efficiency for one in recorded.run.forecasts if one.candidate.dense}
    float32 = Forecast(Candidate("hook", "dense", 1.0), 1.0)
    assert dense == {every: efficiency(float32, every, world=4) for every in (1, 2, 5, 10)}
    played = replay(recorded, policy(), every=(20, 20))
    assert played.forecasts[0].efficiency == efficiency(float32, 20, world=4)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("delay", [0, 1])
def test_what_was_expected_of_a_step_follows_for_other_numbers_of_steps(delay: int, world: int) -> None:
    known = Admission(
        (
            Forecast(Candidate("hook", "dense", 1.0), 1.0, coding_s=0.0, exchange_s=0.3),
            Forecast(Candidate("hook", "topk", 8.0), 4.0, 0.9, "topk", coding_s=0.01, exchange_s=0.08),
        )
    )
    recorded = widened(known, (1, 2, 5), 0.02, delay, keep_all=True, world=world)
    run = RunRecord({"outer.delay": delay}, world, recorded.forecasts)
    found = admit_recorded(run, policy(controller=Static(cf=8)), (10,)).forecasts
    expected = widened(known, (10,), 0.02, delay, keep_all=True, world=world).forecasts
    for one, other in zip(found, expected, strict=True):
        assert one.candidate == other.candidate
        for name in ("wire_ratio", "efficiency", "coding_s", "exchange_s", "step_s"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-4), name


def test_what_the_run_did_not_choose_from_follows_from_what_it_did(trace: Trace) -> None:
    played = replay(trace, policy(controller=Static(cf=24)), every=(10, 10))
    one = played.forecasts[-1]
    topk = [other for other in trace.run.forecasts if other.candidate.compressor == "topk"]
    near = [other for other in topk if other.candidate.cf in (16.0, 32.0)]
    least, most = (pick(other.wire_ratio / other.candidate.every for other in near) for pick in (min, max))
    assert (one.candidate.cf, one.candidate.every) == (24, 10)
    assert least < one.wire_ratio / 10 < most


def test_a_gain_is_that_of_the_nearest_number_of_steps(trace: Trace) -> None:
    one = next(it.candidate for it in trace.run.forecasts if it.candidate.compressor == "topk")
    step = trace.steps[-1]
    made = [
        replace(step, step=at, compressor="topk", cf=one.cf, every=every, gain=gain, energy=1.0)
        for at, (every, gain) in enumerate([(1, 0.25), (1, 0.25), (10, 0.75)])
    ]
    recording = Recording(Trace(trace.run, tuple(made), ()), "topk")
    for every, gain in ((1, 0.25), (2, 0.25), (5, 0.75), (50, 0.75)):
        measured, _ = recording.measure(made[0], Decision(replace(one, every=every)))
        assert 1 - measured.error / measured.energy == pytest.approx(gain)


def test_what_cannot_be_chosen_is_refused(trace: Trace) -> None:
    with pytest.raises(SettingsError, match="every: static decides between compression factors alone"):
        replay(trace, policy(controller=Static(cf=8)))
    single = replace(trace, run=replace(trace.run, settings={}, forecasts=trace.run.forecasts[:1]))
    with pytest.raises(SettingsError, match="every: the run exchanged in every step"):
        replay(single, policy(), every=(1, 10))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["replay", *arguments])
    return int(options.run(options))


def test_the_command_tells_of_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, every=(2, 5))
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "topk"\ncf_range = [2, 64]\n[controller]\nname = "static"\ncf = 8\n', encoding="utf-8")
    where = [str(tmp_path / "gravac.jsonl"), "--policy", str(mine)]
    drawn = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert run(*where, "--every", "10", *drawn) == 0
    said = capsys.readouterr().out
    assert "topk 8x, 48x fewer bytes, every 10 steps" in said
    assert "dense bfloat16, 10x fewer bytes, every 5 steps" in said, "the recorded run's, too"
    assert "rounds that rest on estimates: 100.0%" in said
    assert {step["would_every"] for step in json.loads((tmp_path / "out.json").read_text())["steps"]} == {10}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    for wrong in (["5", "2"], ["0"], ["1", "2", "3"]):
        assert run(*where, "--every", *wrong) == 2
        assert "every: [" in capsys.readouterr().err
    assert run(*where) == 2
    assert "give one number" in capsys.readouterr().err
