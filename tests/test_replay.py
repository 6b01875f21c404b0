# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A recorded run is replayed to the decision; another policy is, up to the step in which it would run another."""

import argparse
import json
import math
import re
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.commands import replay as command
from gravac.compressors import topk
from gravac.controllers import Accordion, Decision, Goodput, GraVAC, Measurement, Static, Warmup
from gravac.controllers.base import adapt_to_latency
from gravac.engine.records import with_cost
from gravac.policy import Policy
from gravac.replay import Trace, read_trace, replay
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.records import DecisionRecord, EndRecord, RunRecord, StepRecord
from tests.controllers.script import DENSE_CANDIDATE, Curve, Script

pytestmark = pytest.mark.timeout(60)

DENSE_BYTES = 1_000_000
FLOAT32 = Forecast(DENSE_CANDIDATE, 1.0)


def wire_ratio(cf: float) -> float:
    """Of top-k over two ranks, with small dense tensors."""
    return round(1 / (0.01 + 2 / cf), 2)


def falling(cf: float, step: int) -> float:
    """Gain linear in log CF, swinging over hundreds of steps so that GraVAC changes its mind."""
    return (0.95 - 0.12 * math.log(cf)) * (0.75 + 0.25 * math.cos(step / 90))


def timed(cf: float, step: int) -> float:
    """Linear in wire bytes, with a little noise."""
    wire = DENSE_BYTES if cf <= 1 else DENSE_BYTES / wire_ratio(cf)
    return 0.05 + wire * 1e-7 + 0.0005 * math.sin(7.0 * step * step)


def topk_policy(**settings: Any) -> Policy:
    """GraVAC over top-k from 10x on, but for what is given."""
    return Policy(**{"base": topk, "cf_range": (10, 1000), "controller": GraVAC(), **settings})


def record_run(
    path: Path,
    policy: Policy,
    steps: int = 600,
    gain: Curve = falling,
    seconds: Curve = timed,
    latency: int = 2,
    **settings: Any,
) -> None:
    """Run a controller over scripted measurements and record it as a real one is, energy 4 in every step."""
    script = Script(gain, seconds, optimism=1.1, samples=64.0, shadow_seconds=0.01)
    proposed = policy.controller.propose(policy.cf_range, policy.base.candidates(policy.cf_range))
    base = policy.base

    def forecast(cf: float) -> Forecast:
        efficiency = round(base.profile(cf).efficiency, 4)
        by_gain = base.profile(cf).efficiency_by_gain
        times = (0.004, exchange(wire_ratio(cf)))
        family = base.profile(cf).family
        return Forecast(Candidate("hook", base.name, cf), wire_ratio(cf), efficiency, family, by_gain, *times)

    def exchange(ratio: float) -> float:
        return float(f"{1e-7 * DENSE_BYTES / ratio:.3g}")

    dense = [
        Forecast(
            Candidate("hook", DENSE, form.cf),
            wire_ratio=form.cf,
            family=form.profile(form.cf).family,
            coding_s=0.0,
            exchange_s=exchange(form.cf),
        )
        for form in policy.dense_formats
    ]
    forecasts = (*dense, *(forecast(cf) for cf in proposed))
    ratios = {forecast.candidate: forecast.wire_ratio for forecast in forecasts}
    sink = JSONLSink(path)
    sink(RunRecord({**policy.as_dict(), "samples_per_step": 64.0, "steps_per_epoch": "auto", **settings}, 2, forecasts))
    controller = adapt_to_latency(policy.controller, latency)
    state, decision = controller.start(forecasts)
    coming = deque([decision] * latency)
    for step in range(steps):
        measured = script.measure(step, coming.popleft())
        sink(step_of(measured, ratios[measured.candidate]))
        before = decision
        state, decision = controller.observe(state, measured)
        changed = decision.candidate != before.candidate
        if decision.summary is not None or changed:
            recorded = with_cost(decision, forecasts, controller) if changed else decision
            sink(decision_of(step + latency, recorded, changed))
        coming.append(decision)
    sink(EndRecord(steps))
    sink.close()


def step_of(measured: Measurement, wire_ratio: float) -> StepRecord:
    """What a sink is told of a step; ``seconds`` is another rank's than the mean."""
    one = measured.candidate
    share = 1 - measured.error / measured.energy
    gain = share if math.isfinite(share) else None
    t_system = measured.samples / measured.seconds
    wire = int(DENSE_BYTES / wire_ratio)
    return StepRecord(
        step=measured.step,
        compressor=one.compressor,
        cf=one.cf,
        achieved_cf=one.cf,
        gain=gain,
        wire_ratio=wire_ratio,
        payload_bytes=wire,
        wire_bytes=wire,
        dense_wire_bytes=DENSE_BYTES,
        seconds=1.2 * measured.seconds,
        compute_seconds=0.04,
        compress_seconds=0.01,
        exchange_seconds=0.01,
        input_wait_seconds=0.0,
        t_system=t_system,
        t_compression=None if gain is None else t_system * max(gain, 0.0),
        shadow=tuple((cf, 1 - error / measured.energy) for cf, error in measured.shadow),
        energy=measured.energy,
    )


def decision_of(step: int, decision: Decision, changed: bool) -> DecisionRecord:
    """What a sink is told of a decision."""
    said = decision.summary
    return DecisionRecord(
        step=step,
        compressor=decision.candidate.compressor,
        cf=decision.candidate.cf,
        changed=changed,
        gain=said.gain if said else 0.0,
        gain_low=said.gain_low if said else 0.0,
        gain_high=said.gain_high if said else 0.0,
        t_system=said.t_system if said else None,
        t_compression=said.t_compression if said else None,
        phase=said.phase if said else "",
        reason=decision.reason,
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "gravac.jsonl"
    record_run(path, topk_policy(controller=GraVAC(dwell=2)))
    return path


@pytest.mark.parametrize(
    "controller",
    [
        GraVAC(dwell=2),
        GraVAC(window=5, warmup=3, shadow_every=2, dwell=1),
        GraVAC(epsilon_mode="absolute", epsilon=0.45, window=8, dwell=2),
        GraVAC(step="geometric", window=7, epsilon=0.2, shadow_every=3),
        GraVAC(paper_literal=True, window=10, epsilon=0.4),
        Static(cf=40),
        Warmup(every=60),
        Goodput(window=6),
    ],
    ids=str,
)
def test_the_recorded_policy_gives_exactly_the_recorded_decisions(controller: Any, tmp_path: Path) -> None:
    policy = topk_policy(controller=controller, cf_range=(4, 1000))
    record_run(tmp_path / "gravac.jsonl", policy)
    recorded = read_trace(tmp_path / "gravac.jsonl")
    played = replay(recorded, policy)
    assert len(played.recorded) > 5
    assert played.recorded == recorded.decisions
    assert [(r.step, r.compressor, r.cf, r.changed, r.reason) for r in played.replayed] == [
        (r.step, r.compressor, r.cf, r.changed, r.reason) for r in recorded.decisions
    ]
    assert played.same
    assert (played.parting, played.steps) == (None, 600)
    assert played.forecasts == recorded.run.forecasts
    for then, now in zip(played.recorded, played.replayed, strict=True):
        if then.phase:
            assert now.gain == pytest.approx(then.gain)
            assert now.t_system == pytest.approx(then.t_system)


def test_the_run_changes_its_mind_often_enough_to_tell(trace: Path) -> None:
    assert sum(decision.changed for decision in read_trace(trace).decisions) >= 4


@pytest.mark.parametrize("controller", [GraVAC(dwell=2), Warmup(every=60)], ids=str)
def test_the_latency_is_the_one_of_training(controller: Any, tmp_path: Path) -> None:
    policy = topk_policy(controller=controller, cf_range=(4, 1000))
    record_run(tmp_path / "t.jsonl", policy, latency=3)
    recorded = read_trace(tmp_path / "t.jsonl")
    assert recorded.latency == 3
    assert replay(recorded, policy).same
    assert not replay(replace(recorded, latency=2), policy).same


def test_another_policy_is_replayed_up_to_the_first_step_in_which_it_would_run_another(trace: Path) -> None:
    recorded = read_trace(trace)
    played = replay(recorded, topk_policy(controller=GraVAC(dwell=3)))
    parting = played.parting
    assert parting is not None
    assert 0 < parting.step == played.steps < 600
    assert (parting.ran.cf, parting.ran) == (
        recorded.steps[parting.step].cf,
        recorded.decided_candidates()[parting.step],
    )
    assert parting.would != parting.ran
    assert not played.same
    before = [decision for decision in recorded.decisions if decision.step < parting.step]
    assert [(record.step, record.cf) for record in played.replayed[: len(before)]] == [
        (record.step, record.cf) for record in before
    ]
    changes = {record.step for record in (*played.recorded, *played.replayed) if record.changed}
    assert parting.step in changes
    assert max(record.step for record in (*played.recorded, *played.replayed)) < parting.step + recorded.latency


def test_a_policy_that_begins_with_another_candidate_parts_at_once(trace: Path) -> None:
    played = replay(read_trace(trace), topk_policy(controller=Static(cf=40)))
    assert played.parting is not None
    assert (played.parting.step, played.steps, played.replayed) == (0, 0, ())
    assert (str(played.parting.ran), str(played.parting.would)) == ("topk 10x", "topk 40x")


def test_other_shadow_cfs_than_were_evaluated_end_a_replay(trace: Path) -> None:
    recorded = read_trace(trace)
    first = next(record for record in recorded.steps if record.shadow)
    played = replay(recorded, topk_policy(controller=GraVAC(dwell=2, shadow_every=2)))
    parting = played.parting
    assert parting is not None
    assert parting.step < first.step
    assert parting.ran == parting.would
    assert (parting.evaluated, bool(parting.would_evaluate)) == ((), True)


def test_what_the_trace_holds_after_the_parting_leads_to_nothing(trace: Path) -> None:
    recorded, policy = read_trace(trace), topk_policy(controller=GraVAC(dwell=3))
    played = replay(recorded, policy)
    cut_short = replace(recorded, steps=recorded.steps[: played.steps + 1])
    again = replay(cut_short, policy)
    assert (again.parting, again.replayed) == (played.parting, played.replayed)


def test_a_step_that_was_not_finite_stays_so(tmp_path: Path) -> None:
    def gain(cf: float, step: int) -> float:
        return math.nan if step == 30 else falling(cf, step)

    policy = topk_policy(controller=GraVAC(window=5))
    record_run(tmp_path / "t.jsonl", policy, 200, gain)
    assert replay(read_trace(tmp_path / "t.jsonl"), policy).same


def test_a_policy_chooses_from_the_runs_candidates_that_it_allows(trace: Path) -> None:
    recorded = read_trace(trace)
    assert [str(forecast.candidate) for forecast in recorded.run.forecasts[:3]] == ["dense 1x", "dense 2x", "topk 10x"]
    played = replay(recorded, topk_policy(controller=GraVAC(dwell=2), sixteen_bit=False, cf_range=(40, 160)))
    assert [str(forecast.candidate) for forecast in played.forecasts] == ["dense 1x", "topk 40x", "topk 160x"]
    assert played.forecasts[1] == next(forecast for forecast in recorded.run.forecasts if forecast.candidate.cf == 40)
    assert any("could also choose topk 80x, which the run did not have" in note for note in played.notes)
    assert not replay(recorded, topk_policy(controller=GraVAC(dwell=2))).notes


def test_fixed_choices_that_the_run_did_not_have_are_refused(trace: Path) -> None:
    with pytest.raises(SettingsError, match="controller: static would run topk 30x, but the recorded run had no such"):
        replay(read_trace(trace), topk_policy(controller=Static(cf=30)))
    dense = replay(read_trace(trace), topk_policy(controller=Static(cf=1))).parting
    assert dense is not None
    assert str(dense.would) == "dense 1x"


def test_candidates_that_do_not_begin_with_dense_are_refused(trace: Path) -> None:
    recorded = read_trace(trace)
    for forecasts in ((), recorded.run.forecasts[2:]):
        with pytest.raises(SettingsError, match="trace: the run's first candidate is not dense"):
            replay(replace(recorded, run=replace(recorded.run, forecasts=forecasts)), topk_policy())


def test_a_resumed_run_is_noted(trace: Path) -> None:
    recorded = read_trace(trace)
    played = replay(replace(recorded, steps=recorded.steps[7:]), topk_policy(controller=GraVAC(dwell=2)))
    assert (
        "the run was resumed at step 7; the replayed controller starts there without earlier measurements"
        in played.notes
    )


def test_a_trace_of_another_base_is_refused(trace: Path) -> None:
    with pytest.raises(SettingsError, match=r"base: the policy has randomk, but the trace was recorded with topk"):
        replay(read_trace(trace), topk_policy(base="randomk"))  # type: ignore[arg-type]


def test_a_policy_that_decides_by_single_tensors_is_refused(trace: Path) -> None:
    with pytest.raises(SettingsError, match="controller: accordion decides by norms of single tensors"):
        replay(read_trace(trace), Policy(base=topk, controller=Accordion()))


def test_what_differs_is_noted(trace: Path) -> None:
    notes = "\n".join(replay(read_trace(trace), topk_policy(error_feedback=0.5, release=math.inf)).notes)
    assert "error_feedback: recorded with auto, but the policy has 0.5" in notes
    assert "release" in notes


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record_run(path, topk_policy(), 0)
    with pytest.raises(SettingsError, match="has no step records"):
        read_trace(path)
    with pytest.raises(SettingsError, match="no step is recorded"):
        replay(Trace(RunRecord({}, 2), (), ()), topk_policy())


@pytest.mark.parametrize(("text", "said"), [("{}\n{}\n", "line 1"), ("", "no step records")])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=said):
        read_trace(tmp_path / "t.jsonl")


def test_a_missing_step_is_refused(trace: Path) -> None:
    whole = read_trace(trace)
    with pytest.raises(SettingsError, match="that has every step once"):
        replay(Trace(whole.run, (*whole.steps[:5], *whole.steps[6:]), ()), topk_policy())


def test_of_several_runs_the_last_or_the_one_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record_run(path, topk_policy(controller=Static(cf=10)), 30)
    record_run(path, topk_policy(controller=Static(cf=20)), 40)
    assert len(read_trace(path).steps) == 40
    assert len(read_trace(path, 0).steps) == 30
    with pytest.raises(SettingsError, match="run: 2"):
        read_trace(path, 2)


def run(*arguments: str) -> int:
    """The command, as ``gravac`` would call it."""
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["replay", *arguments])
    return int(options.run(options))


def test_the_command_puts_decisions_side_by_side(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(trace), "--policy", "gravac", "--json", str(tmp_path / "out.json")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["step", "recorded", "replayed"]
    assert re.search(r"exact up to step \d+; in that step the policy would run topk 10x, .*, but the recorded run", out)
    assert "decisions: not the same as recorded" in out
    assert "rows without a change are left out" in out
    assert run(str(trace), "--policy", "gravac", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) > len(out.splitlines())
    plain = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (plain["first_step"], plain["steps_recorded"], plain["same"]) == (0, 600, False)
    assert plain["steps"] == plain["parting"]["step"]
    assert {"recorded", "replayed", "forecasts", "notes"} <= set(plain)


def test_the_command_draws(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(str(trace), "--policy", "gravac", "--plot", str(tmp_path / "cf.png")) == 0
    assert (tmp_path / "cf.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_use_is_said_with_status_2(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "none.jsonl"), "--policy", "gravac") == 2
    assert run(str(trace), "--policy", "none") == 2
    assert run(str(trace), "--policy", "wan") == 2
    said = capsys.readouterr().err
    assert "cannot read" in said and "'none' is unknown" in said and "base: the policy has ladder" in said


def test_the_end_of_a_replay_in_words(trace: Path) -> None:
    recorded = read_trace(trace)
    said = {
        GraVAC(dwell=2): "exact: in all 600 steps the policy would run the same candidate as the recorded run",
        GraVAC(): "exact up to step 180; in that step the policy would run topk 10x, 4.8x fewer bytes and "
        "evaluate no other CF without sending, but the recorded run evaluated CF 20, 40, 160, 1000",
        Static(
            cf=1
        ): "exact up to step 0; in that step the policy would run dense 1x, but the recorded run ran topk 10x, "
        "4.8x fewer bytes",
    }
    for controller, words in said.items():
        assert command.describe_end(replay(recorded, topk_policy(controller=controller))) == words


def test_a_replay_is_plain_json(trace: Path) -> None:
    for controller in (GraVAC(dwell=2), GraVAC(dwell=3)):
        json.dumps(replay(read_trace(trace), topk_policy(controller=controller)).as_dict(), allow_nan=False)


def test_a_window_weighs_its_steps_by_their_energies(tmp_path: Path) -> None:
    path, policy = tmp_path / "t.jsonl", topk_policy(controller=Static(cf=10, window=10))
    record_run(path, policy, 40)
    recorded = read_trace(path)
    energies = [1.0 + step.step % 3 for step in recorded.steps]
    steps = tuple(replace(step, energy=energy) for step, energy in zip(recorded.steps, energies, strict=True))
    played = replay(replace(recorded, steps=steps), policy)
    lost = sum(energy * (1 - (step.gain or 0)) for step, energy in zip(steps[30:], energies[30:], strict=True))
    assert played.replayed[-1].gain == pytest.approx(1 - lost / sum(energies[30:]))
