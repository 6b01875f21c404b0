# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac advise`` and ``gravac calibrate``: what they say, write and refuse."""

import argparse
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, dense, topk
from gravac.beliefs import shipped_beliefs, use_beliefs
from gravac.beliefs.tables import Doubt
from gravac.candidate import Candidate, Forecast
from gravac.collectives import AllReduce
from gravac.commands import advise as advise_command
from gravac.commands import calibrate as calibrate_command
from gravac.compressors import COMPRESSORS, Dense, Quantize, TopK
from gravac.costmodel import Machine, Network, collective_seconds
from gravac.engine.admission import efficiency_belief
from gravac.lab import calibrate
from gravac.lab.advise import Advice, advise, shapes_of
from gravac.lab.advise.choices import candidates
from gravac.lab.advise.option import Option
from gravac.lab.advise.outer_steps import fixed_code
from gravac.lab.calibrate import Calibration, fit_line, read_calibration
from gravac.lab.shapes import MODELS as SHAPES
from gravac.modes.outer.candidates import outer_efficiency

MODES = ("native", "hook", "outer")

SLOW = Network(50e-6, 1e8)
FAST = Network(5e-6, 1e11)
GPU = Machine(350e9)


def run(*arguments: str) -> int:
    """The commands as ``gravac.cli`` runs them."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for command in (advise_command, calibrate_command):
        command.add(commands)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def test_the_command_shows_a_table_and_writes_json_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    where = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    which = ["--compressors", "topk", "quantize", "--cf", "8", "100", "--price-per-hour", "3"]
    assert run("advise", "--model", "resnet50", "--batch-seconds", "0.15", "--link", "100mbit", *which, *where) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[0].startswith("in each step: try 4 bits (7.7x fewer bytes): ")
    assert lines[1].startswith("outer steps: ") and " steps: " in lines[1] and "progress (lower bound)" in lines[1]
    assert lines[2].startswith("expect outer steps: ") and "progress (lower bound)" in lines[2]
    assert lines[3] == "in code: AdaptiveCompressor(every=(1, 100)).attach(ddp, optimizer)"
    assert "controller=Static(" in lines[4] and "a native step in 16 bit takes" in lines[5]
    assert "not measured" in lines[6]
    assert "efficiency" in said and "break-even" in said
    content = json.loads((tmp_path / "a.json").read_text())
    assert [(c["compressor"], c["cf"]) for c in content["choices"] if c["mode"] != "outer"] == [
        ("dense", 1.0), ("dense", 2.0), ("topk", 8.0), ("topk", 100.0), ("quantize", 8.0)
    ]  # fmt: skip
    assert content["workers"] == 8
    assert lines[:6] == [
        f"in each step: {content['each_step']}",
        f"outer steps: {content['outer']}",
        content["verdict"],
        f"in code: {content['code']}",
        f"in code, fixed choice: {content['fixed']}",
        f"why: {content['reason']}",
    ]
    assert content["mode"] == "outer"
    for choice in content["choices"]:
        assert choice["cost"] == pytest.approx(choice["step_s"] * 1000 / 3600 * 8 * 3)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_ten_best_by_time_to_accuracy_are_shown_and_all_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    usual = ["advise", "--model", "resnet50", "--batch-seconds", "0.15", "--link", "100mbit"]

    def rows(*more: str) -> list[str]:
        assert run(*usual, *more) == 0
        after = capsys.readouterr().out.split("break-even")[1].splitlines()[2:]
        return [" ".join(line.split()) for line in after if line.strip() and line.split()[1] in MODES]

    best, whole = rows(), rows("--all")
    assert len(best) == 10 and len(whole) > 40
    assert best == [line for line in whole if line in best], "all are in the same order"
    modes = Counter(line.split()[1] for line in best)
    assert modes["native"] == 2, "what is compared with is always there"
    assert modes["hook"] > 0, "and so is the best that compresses in each step"
    progress = [float(line.split()[4]) for line in whole]
    assert progress == sorted(progress, reverse=True)


def test_the_best_are_those_that_make_most_progress_per_second() -> None:
    advice = advise("resnet50", 0.15, 8, SLOW, GPU)
    best = advice.best(5)
    assert len(best) == 5 and sum(choice.reference for choice in best) == 2
    for mode in ("outer", "hook"):
        left_out = [c.progress for c in advice.choices if c not in best and c.mode == mode and c.recommendable]
        taken = [c.progress for c in best if c.mode == mode]
        assert min(taken) >= max(left_out)
    assert len(advice.best(0)) == 3


HOPELESS = Network(1e-4, 1e7)
"""A link so slow that steps with few bytes look best, whatever progress they make."""


def lines_and_headings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the command says before its table, and the row of headings."""
    assert run("advise", "--model", "vgg16", "--batch-seconds", "0.3", "--link", "10mbit", *arguments) == 0
    output = capsys.readouterr().out
    before, after = output.split("a message", 1)
    return before, next(line for line in after.splitlines() if "compressor" in line)


def test_no_choice_is_recommended_whose_efficiency_nobody_measured_or_may_be_below_a_half() -> None:
    advice = advise("vgg16", 0.3, 8, HOPELESS)
    fastest = max(advice.choices, key=lambda choice: choice.progress)
    assert not fastest.recommendable, "what this test is about"
    for choice in advice.best(50):
        assert choice.measured and round(choice.least_efficiency, 2) >= 0.5
        assert str(fastest) not in (advice.each_step, advice.outer, advice.verdict)
    recommended = [choice for choice in advice.choices if choice.recommendable]
    for text in (advice.each_step, advice.outer, advice.verdict):
        assert any(str(choice) in text for choice in recommended)
    explicit = advise("vgg16", 0.3, 8, HOPELESS, compressors=["natural", "topkc"], cfs=[4, 1000])
    assert explicit.each_step.startswith("keep DDP's own exchange: no choice has a measured efficiency")
    assert {choice.compressor for choice in explicit.best(50)} == {"dense", "natural", "topkc"}


def test_compressors_that_are_there_to_be_compared_with_are_predicted_only_if_they_are_named() -> None:
    machine = Machine(14e9)
    default = {compressor.name for compressor, _ in candidates(None, None, machine)}
    reference = {name for name, compressor in COMPRESSORS.items() if ".baselines." in type(compressor).__module__}
    assert {"quantize", "topk", "powersgd"} <= default and not default & {*reference, "ladder", "dgc"}
    assert candidates(["qsgd"], None, machine)


def test_times_and_ratios_have_two_significant_digits_and_units_that_people_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said, _ = lines_and_headings([], capsys)
    assert "e+" not in said
    numbers = re.findall(r"(\d+(?:\.\d+)?) (?:times|s\b|ms\b)", said)
    numbers += [number for pair in re.findall(r"\((\d\S*) to (\d\S*)\) times", said) for number in pair]
    assert len(numbers) > 5
    for number in numbers:
        assert len(number.replace(".", "").strip("0")) <= 2, number
    milliseconds = re.findall(r"(\d+(?:\.\d+)?) ms\b", said)
    assert all(float(number) < 1000 for number in milliseconds)
    assert re.search(r"try .*: \d\S* \(\d\S* to \d\S*\) times the progress", said), "with its range"


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_no_heading_is_cut_if_the_output_is_piped(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, headings = lines_and_headings(["--price-per-hour", "3"], capsys)
    assert " ".join(headings.split()) == (
        "compressor mode CF H progress step coding waiting speed efficiency wire ratio break-even cost / 1000 steps"
    )


def test_a_calibration_gives_network_speed_and_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = Calibration(alpha=1e-4, bandwidth=2e8, copy_bytes_per_s=9e9, workers=3)
    (tmp_path / "c.json").write_text(measured.model_dump_json())
    assert read_calibration(tmp_path / "c.json") == measured
    arguments = ["--model", "lstm", "--batch-seconds", "1", "--calibration", str(tmp_path / "c.json")]
    assert run("advise", *arguments, "--compressors", "topk", "--json", str(tmp_path / "a.json")) == 0
    content = json.loads((tmp_path / "a.json").read_text())
    got = [content[key] for key in ("alpha", "bandwidth", "copy_bytes_per_s", "workers")]
    assert got == [1e-4, 2e8, 9e9, 3]
    assert run("advise", *arguments, "--latency-us", "5") == 2
    assert "latency_us: 5" in capsys.readouterr().err


@pytest.mark.parametrize("model", SHAPES)
def test_every_model_has_advice(model: str) -> None:
    advice = advise(model, 0.3, 4, SLOW, GPU, ["topkc", "signsgd"])
    assert [choice.speed_up for choice in advice.choices[:2]][1] == 1.0
    assert all(math.isfinite(choice.step_s) and choice.step_s >= 0.3 for choice in advice.choices)


def test_on_a_fast_network_native_steps_are_expected() -> None:
    advice = advise("resnet50", 0.5, 8, FAST, GPU)
    assert advice.each_step.startswith("keep DDP's own exchange: no compressed step is predicted")
    assert max(choice.speed_up for choice in advice.choices) <= 1.05
    assert advice.mode == "native" and advice.verdict.startswith("expect native steps, by DDP itself in 16 bit")
    assert advice.code == "AdaptiveCompressor().attach(ddp, optimizer)"
    assert advice.fixed == "ddp.register_comm_hook(None, bf16_compress_hook)"


def test_outer_steps_that_pay_only_if_beliefs_are_right_are_told_and_not_chosen() -> None:
    doubtful = shipped_beliefs()(doubts={**shipped_beliefs().doubts, "outer": Doubt(least=0.4)})
    with use_beliefs(doubtful):
        advice = advise("resnet50", 0.15, 8, Network(50e-6, 4e9), Machine(6e9))
    hoped = max(choice.progress for choice in advice.choices if choice.mode == "outer")
    sure = max(choice.safe_progress for choice in advice.choices if choice.mode == "outer")
    assert hoped > 1.05 > sure, "what this test is about"
    assert advice.mode == "native" and "outer steps would bring 1." in advice.verdict
    assert "times if a step makes only 0." in advice.verdict
    assert advice.verdict.endswith(" of a dense step's progress (lower bound): too little to be chosen")


@given(
    batch_s=st.floats(1e-3, 1.0),
    workers=st.integers(2, 16),
    latency=st.floats(0, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
    copies=st.floats(1e9, 1e12),
)
def test_outer_steps_are_expected_only_where_ddp_waits_and_if_they_pay_by_what_is_sure(
    batch_s: float, workers: int, latency: float, bandwidth: float, copies: float
) -> None:
    shapes, names = [(300, 200), (200,), (100, 200)], ["topk", "quantize"]
    advice = advise(shapes, batch_s, workers, Network(latency, bandwidth), Machine(copies), names)
    in_each = {(one.compressor, one.cf): one for one in advice.choices if one.mode != "outer"}
    outer = [one for one in advice.choices if one.mode == "outer"]
    for one in outer:
        same = in_each[one.compressor, one.cf]
        assert one.wire_ratio == pytest.approx(one.every * same.wire_ratio)
        assert one.every > 1 and one.efficiency <= 1
        assert one.deviation > same.deviation and one.safe_progress < one.progress
    usual = max((one for one in in_each.values() if one.reference), key=lambda one: one.progress).safe_progress
    best = max(one.safe_progress for one in in_each.values() if one.recommendable)
    best = best if best > 1.05 * usual else usual
    apart = max(one.safe_progress for one in outer if one.recommendable)
    assert (advice.mode == "outer") <= (apart > 1.05 * best)
    assert ("every=(1, 100)" in advice.code) == (advice.mode == "outer") == advice.verdict.startswith("expect outer")
    if in_each["dense", 2.0].step_s <= 1.05 * batch_s:
        assert advice.mode != "outer"


def test_outer_steps_are_those_that_gravac_would_admit() -> None:
    advice = advise("resnet50", 0.15, 8, SLOW, GPU, ["topk"], [10.0, 30.0])
    outer = {(one.compressor, one.cf, one.every): one for one in advice.choices if one.mode == "outer"}
    assert {every for _, _, every in outer} == {2, 5, 10, 20, 50, 100}
    for (name, cf, every), one in outer.items():
        belief = efficiency_belief(
            (topk if name == "topk" else Dense(dtype="float32" if cf == 1 else "bfloat16")).profile(cf)
        )
        each = Forecast(Candidate("hook", name, cf), 1.0, belief.efficiency, deviation=belief.deviation)
        assert one.efficiency in {outer_efficiency(each, every, delay, 8).efficiency for delay in range(every + 1)}
        assert one.step_s == pytest.approx(0.15 + one.compress_s + one.exposed_s)
    assert not any(cf > 32 for _, cf, _ in outer)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "cf", "every"),
    [("topk", 10.0, 20), ("quantize", 8.0, 5), ("dense", 2.0, 10), ("dense", 1.0, 2), ("topk", 10.0, 1)],
)
def test_the_code_that_is_advised_makes_what_it_says(name: str, cf: float, every: int) -> None:
    model = torch.nn.Linear(64, 64)
    ddp, optimizer = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
    option = Option(name, cf, 1.0, 0.0, 0.0, 1.0, cf, None, 1.0, None, every=every)
    made: list[AdaptiveCompressor] = []

    class Noting(AdaptiveCompressor):
        def attach(self, *given: Any, **named: Any) -> None:
            made.append(self)
            super().attach(*given, **named)

    names = {"AdaptiveCompressor": Noting, "Static": Static, "dense": dense, "ddp": ddp, "optimizer": optimizer}
    text = (
        fixed_code(option, "bfloat16")
        .replace(").attach", ", native=False).attach")
        .replace(", native=False, native", ", native")
    )
    eval(text, names)  # noqa: S307
    for _ in range(max(3, 2 * every)):
        optimizer.zero_grad()
        ddp(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    (compressor,) = made
    assert (compressor.mode, compressor.every) == ("outer" if every > 1 else "hook", every)
    assert compressor.cf == pytest.approx(cf, rel=1e-4)
    compressor.close()


def test_dense_in_each_step_is_advised_without_gravac() -> None:
    option = Option("dense", 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, None, 1.0, None)
    assert fixed_code(option, "bfloat16") == "ddp.register_comm_hook(None, bf16_compress_hook)"
    assert fixed_code(replace(option, cf=1.0), "bfloat16") == "DDP, no hook"


def test_steps_worth_less_than_they_save_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantize, "efficiency_points", ((1.0, 0.01),))
    advice = advise("resnet50", 0.15, 8, SLOW, GPU, ["quantize"])
    assert advice.each_step.startswith("keep DDP's own exchange: no choice")
    assert "1 bit (28x fewer bytes) makes steps" in advice.reason


def test_a_live_module_and_its_shapes_give_the_same() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 100))
    module[1].bias.requires_grad_(False)
    shapes = [(200, 300), (200,), (100, 200)]
    assert shapes_of(module) == shapes
    ways: list[Any] = [module, shapes]
    first, second = (advise(model, 0.01, 2, SLOW, compressors=["topk"]) for model in ways)
    assert isinstance(first, Advice) and first == second


def test_one_worker_exchanges_nothing() -> None:
    advice = advise("resnet50", 0.15, 1, SLOW, GPU, ["topk", "quantize"])
    assert advice.each_step.startswith("keep DDP's own exchange") and advice.mode == "native"
    assert advice.outer.startswith("nothing: one worker")
    assert all(choice.wire_ratio == 1.0 for choice in advice.choices)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet51"], "model: 'resnet51' is unknown"),
        (["--batch-seconds", "0"], "batch_seconds: 0.0"),
        (["--workers", "0"], "workers: 0"),
        (["--compressors", "zip"], "compressors: 'zip' is unknown; known: "),
        (["--compressors", "dense"], "compressors: 'dense' is unknown; known: "),
        (["--cf", "0.5"], "cf: 0.5"),
        (["--compressors", "signsgd", "--cf", "10"], "cf: none of the compressors"),
        (["--overlap", "2"], "overlap: 2.0"),
        (["--copy-gbyte", "0"], "copy_gbyte: 0.0"),
        (["--copy-gbyte", "inf"], "copy_gbyte: inf"),
        (["--latency-us", "-1"], "latency_us: -1.0"),
        (["--latency-us", "nan"], "latency_us: nan"),
        (["--price-per-hour", "-1"], "price_per_hour: -1.0"),
    ],
)
def test_wrong_use_names_field_and_value(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["--model", "resnet50", "--batch-seconds", "0.1", "--link", "1gbit"]
    assert run("advise", *usual, *arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "no JSON object"), ("{", "calibration"), ('{"alpha": -1, "bandwidth": 1e8}', "alpha"), ("{}", "bandwidth")],
)
def test_a_wrong_calibration_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ValueError, match=words) as refused:
        read_calibration(tmp_path / "c.json")
    assert "c.json" in str(refused.value) and "gravac calibrate" in str(refused.value)


def test_a_missing_calibration_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none.json")
    assert run("advise", "--model", "lstm", "--batch-seconds", "1", "--calibration", missing) == 1
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize("network", [Network(2e-4, 1e8), Network(0.0, 1e9)])
def test_the_line_through_all_reduces_gives_latency_and_bandwidth(network: Network) -> None:
    seconds = tuple(collective_seconds(AllReduce, size, 4, network) for size in calibrate.ALL_REDUCE_BYTES)
    alpha, bandwidth = fit_line(calibrate.ALL_REDUCE_BYTES, seconds, 4)
    assert alpha == pytest.approx(network.alpha, abs=1e-9)
    assert bandwidth == pytest.approx(network.bandwidth, rel=1e-3)


@pytest.mark.usefixtures("forks")
def test_calibrate_measures_local_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run("calibrate", "--json", str(tmp_path / "c.json")) == 0
    assert "this machine only" in capsys.readouterr().out
    measured = read_calibration(tmp_path / "c.json")
    assert measured.workers == 2 and measured.where == "loopback"
    assert all(0 < value < math.inf for value in (measured.bandwidth, measured.copy_bytes_per_s))
    assert 0 <= measured.alpha < math.inf
    assert measured.stamp is not None and measured.stamp.torch == torch.__version__


def test_calibrate_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run("calibrate", "--workers", "1") == 2
    assert "workers: 1" in capsys.readouterr().err
    assert run("calibrate", "--link", "fast") == 2
    assert "fast" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("calibrate", "--link", "100mbit") == 2
    assert "torchrun" in capsys.readouterr().err


def test_a_compressor_without_coding_costs_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopK, "coding_costs", ())
    with pytest.raises(ValueError, match="the costs of 'topk' were never measured; add coding_costs to its class"):
        advise("resnet50", 0.15, 8, SLOW, GPU, ["topk"])
