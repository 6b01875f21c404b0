# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A recorded run is replayed to the decision; what did not run is estimated, and said to be."""

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gravac.candidate import DENSE, Candidate, Dropped, Forecast
from gravac.commands import replay as command
from gravac.compressors import topk
from gravac.controllers import Accordion, Decision, Goodput, GraVAC, Measurement, Static, Warmup
from gravac.policy import Policy
from gravac.replay import Replay, Trace, admit_recorded, read_trace, replay
from gravac.replay.recording import Recording
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.records import DecisionRecord, EndRecord, RunRecord, StepRecord
from gravac.telemetry.words import dropped_words
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
    path: Path, policy: Policy, steps: int = 600, gain: Curve = falling, seconds: Curve = timed, **settings: Any
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
    ratios = {one.candidate: one.wire_ratio for one in forecasts}
    sink = JSONLSink(path)
    sink(RunRecord({**policy.plain(), "samples_per_step": 64.0, "steps_per_epoch": "auto", **settings}, 2, forecasts))
    state, coming = policy.controller.start(forecasts)
    holds = coming
    for step in range(steps):
        measured = script.measure(step, holds)
        sink(step_of(measured, ratios[measured.candidate]))
        state, decision = policy.controller.observe(state, measured)
        changed = decision.candidate != coming.candidate
        if decision.summary is not None or changed:
            sink(decision_of(step + 2, decision, changed))
        holds, coming = coming, decision
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
    assert [(r.step, r.compressor, r.cf, r.changed, r.reason) for r in played.replayed] == [
        (r.step, r.compressor, r.cf, r.changed, r.reason) for r in recorded.decisions
    ]
    assert played.same
    assert played.would == played.ran
    assert played.share_estimated == 0
    for then, now in zip(played.recorded, played.replayed, strict=True):
        if then.phase:
            assert now.gain == pytest.approx(then.gain)
            assert now.t_system == pytest.approx(then.t_system)


def test_the_run_changes_its_mind_often_enough_to_tell(trace: Path) -> None:
    assert sum(decision.changed for decision in read_trace(trace).decisions) >= 4


def test_another_policy_decides_otherwise_and_says_what_is_estimated(trace: Path) -> None:
    recorded = read_trace(trace)
    played = replay(recorded, topk_policy(controller=Static(cf=40)))
    assert set(played.would) == {40}
    ran = {step.step for step in recorded.steps if step.cf == 40 and not step.shadow}
    assert {step for step, guess in zip(played.steps, played.estimated, strict=True) if not guess} == ran
    assert 0 < played.share_estimated < 1
    assert not played.same


def test_a_step_that_was_not_finite_stays_so(tmp_path: Path) -> None:
    def gain(cf: float, step: int) -> float:
        return math.nan if step == 30 else falling(cf, step)

    policy = topk_policy(controller=GraVAC(window=5))
    record_run(tmp_path / "t.jsonl", policy, 200, gain)
    assert replay(read_trace(tmp_path / "t.jsonl"), policy).same
    replay(read_trace(tmp_path / "t.jsonl"), topk_policy(controller=Static(cf=40)))


def test_the_learning_rate_is_the_runs_whatever_would_have_run(trace: Path) -> None:
    whole = read_trace(trace)
    told = Recording(whole, "topk").measure(replace(whole.steps[5], learning_rate=0.02), Decision(DENSE_CANDIDATE))[0]
    assert (told.candidate, told.learning_rate) == (DENSE_CANDIDATE, 0.02)


def estimate(path: Path, cf: float) -> DecisionRecord:
    """The last window of a static replay."""
    return replay(read_trace(path), topk_policy(controller=Static(cf=cf))).replayed[-1]


def test_estimates_are_interpolated_between_what_ran_and_are_the_nearest_beyond(tmp_path: Path) -> None:
    def steady(cf: float, step: int) -> float:
        return 0.95 - 0.12 * math.log(cf)

    def exact(cf: float, step: int) -> float:
        return timed(cf, 0)

    path = tmp_path / "t.jsonl"
    record_run(
        path, topk_policy(controller=Warmup(cf=160, first=10, every=100), cf_range=(10, 1000)), 400, steady, exact
    )
    assert {step.cf for step in read_trace(path).steps} == {10, 40, 160}
    between = estimate(path, 80)
    assert between.gain == pytest.approx(steady(80, 0))
    low, high = (64 / exact(cf, 0) for cf in (160.0, 40.0))
    assert between.t_system is not None and high < between.t_system < low
    beyond = estimate(path, 1000)
    assert beyond.gain == pytest.approx(steady(160, 0))
    assert beyond.t_system == pytest.approx(64 / exact(160, 0))


def test_dense_has_gain_1_without_having_run(trace: Path) -> None:
    assert estimate(trace, 1).gain == 1


def topk_at(cf: float, wire_ratio: float) -> Forecast:
    """The forecast of top-k at a CF."""
    return Forecast(Candidate("hook", "topk", cf), wire_ratio)


def more_than(other: Forecast, one: Forecast) -> Dropped:
    """A candidate dropped for its bytes."""
    return Dropped(one, "not_fewer_bytes", other, other.wire_ratio / one.wire_ratio)


def test_candidates_are_those_recorded_and_others_are_interpolated() -> None:
    low, high = topk_at(10.0, 2.5), topk_at(1000.0, 250.0)
    run = RunRecord({}, 4, (FLOAT32, low, high), (more_than(FLOAT32, topk_at(2.0, 0.5)),))
    forecasts, dropped = admit_recorded(
        run, topk_policy(cf_range=(2, 1000), controller=GraVAC(step="geometric"), sixteen_bit=False)
    )
    ratios = {one.candidate.cf: one.wire_ratio for one in forecasts}
    assert (ratios[1], ratios[1000]) == (1, 250)
    assert ratios[32] == pytest.approx(8)
    assert [str(one.forecast.candidate) for one in dropped] == ["topk 2x", "topk 4x"]


def test_what_was_expected_of_candidates_is_read_back(tmp_path: Path) -> None:
    record_run(tmp_path / "trace.jsonl", topk_policy(controller=Goodput()), steps=20)
    run = read_trace(tmp_path / "trace.jsonl").run
    forecasts, _ = admit_recorded(run, topk_policy(controller=Goodput()))
    assert [forecast.coding_s for forecast in forecasts] == [0.0, 0.0, *[0.004] * (len(forecasts) - 2)]
    assert forecasts[0].exchange_s == pytest.approx(1e-7 * DENSE_BYTES, rel=1e-2)


def test_16_bit_that_a_run_did_not_have_is_admitted_unless_the_run_says_why_not() -> None:
    ran = (FLOAT32, topk_at(10.0, 2.5))
    none = more_than(FLOAT32, Forecast(Candidate("hook", DENSE, 2.0), 1.0))
    policy = topk_policy(cf_range=(10, 20))
    assert [str(one.candidate) for one in admit_recorded(RunRecord({}, 4, ran), policy)[0]][:2] == [
        "dense 1x",
        "dense 2x",
    ]
    forecasts, dropped = admit_recorded(RunRecord({}, 4, ran, (none,)), policy)
    assert [one.candidate.cf for one in forecasts] == [1, 10, 20]
    assert len(dropped) == 1
    half = Forecast(Candidate("hook", DENSE, 2.0), 2.0)
    run = RunRecord({}, 4, (*ran, half), (more_than(half, topk_at(4.0, 1.0)),))
    known = admit_recorded(run, policy(cf_range=(4, 4)))
    assert [dropped_words(one) for one in known.dropped] == [
        "topk 4x: would send 2.00 times the bytes of dense bfloat16"
    ]


def test_a_trace_of_another_base_is_refused(trace: Path) -> None:
    with pytest.raises(SettingsError, match=r"base: the policy's is randomk, the trace was recorded with topk"):
        replay(read_trace(trace), topk_policy(base="randomk"))  # type: ignore[arg-type]


def test_a_policy_that_decides_by_single_tensors_is_refused(trace: Path) -> None:
    with pytest.raises(SettingsError, match="controller: accordion decides by norms of single tensors"):
        replay(read_trace(trace), Policy(base=topk, controller=Accordion()))


def test_what_differs_is_noted(trace: Path) -> None:
    notes = "\n".join(replay(read_trace(trace), topk_policy(error_feedback=0.5, release=math.inf)).notes)
    assert "error_feedback: recorded with auto, the policy has 0.5" in notes
    assert "release" in notes


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record_run(path, topk_policy(), 0)
    with pytest.raises(SettingsError, match="has no step records"):
        read_trace(path)
    with pytest.raises(SettingsError, match="has no step records"):
        replay(Trace(RunRecord({}, 2), (), ()), topk_policy())


@pytest.mark.parametrize(("text", "said"), [("{}\n{}\n", "line 1"), ("", "no step records")])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=said):
        read_trace(tmp_path / "t.jsonl")


def test_a_missing_step_is_refused(trace: Path) -> None:
    whole = read_trace(trace)
    with pytest.raises(SettingsError, match="steps are missing"):
        replay(Trace(whole.run, (*whole.steps[:5], *whole.steps[6:]), ()), topk_policy())


def test_a_run_that_never_compressed_has_no_gain_to_estimate(tmp_path: Path) -> None:
    record_run(tmp_path / "t.jsonl", topk_policy(controller=Static(cf=1)), 50)
    with pytest.raises(SettingsError, match="no step ran topk"):
        replay(read_trace(tmp_path / "t.jsonl"), topk_policy())


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
    assert "steps that rest on estimates: " in out
    assert "rows where none does are left out" in out
    assert run(str(trace), "--policy", "gravac", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) > len(out.splitlines())
    plain = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert len(plain["steps"]) == 600
    assert set(plain["steps"][0]) == {"step", "ran", "would", "ran_every", "would_every", "estimated"}
    assert {"recorded", "replayed", "share_estimated", "same", "candidates"} <= set(plain)


def test_the_command_draws(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(str(trace), "--policy", "gravac", "--plot", str(tmp_path / "cf.png")) == 0
    assert (tmp_path / "cf.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_use_is_said_with_status_2(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "none.jsonl"), "--policy", "gravac") == 2
    assert run(str(trace), "--policy", "none") == 2
    assert run(str(trace), "--policy", "wan") == 2
    said = capsys.readouterr().err
    assert "cannot read" in said and "there is none called 'none'" in said and "base: the policy's is ladder" in said


def test_a_replay_is_plain_json(trace: Path) -> None:
    played: Replay = replay(read_trace(trace), topk_policy())
    json.dumps(played.plain(), allow_nan=False)


@dataclass(frozen=True, slots=True)
class WithEnergy(StepRecord):
    """A step record that holds ``Σ‖g_ef‖²`` too."""

    energy: float | None = None


def test_energies_are_used_where_records_hold_them(tmp_path: Path) -> None:
    path, policy = tmp_path / "t.jsonl", topk_policy(controller=Static(cf=10, window=10))
    record_run(path, policy, 40)
    whole = read_trace(path)
    energies = [1.0 + step.step % 3 for step in whole.steps]
    steps = tuple(
        WithEnergy(**{**{name: getattr(step, name) for name in StepRecord.__dataclass_fields__}, "energy": energy})
        for step, energy in zip(whole.steps, energies, strict=True)
    )
    played = replay(Trace(whole.run, steps, whole.decisions), policy)
    lost = sum(energy * (1 - (step.gain or 0)) for step, energy in zip(whole.steps[30:], energies[30:], strict=True))
    assert played.replayed[-1].gain == pytest.approx(1 - lost / sum(energies[30:]))
    assert not any("energies" in note for note in played.notes)
    assert any("energies" in note for note in replay(whole, policy).notes)
