# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The compressor bench: its numbers, what it refuses, and that an interrupt keeps what is measured."""

import json
import math
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from gravac.cli import main
from gravac.lab.bench.bench import Bench, Contender, contenders
from gravac.lab.bench.display import run_bench
from gravac.lab.bench.measure import BenchRow, Gradients, measure
from gravac.lab.bench.models import STEP_MODELS
from gravac.lab.bench.ranks import TORCH_RANKS
from gravac.lab.shapes import MODELS


def _run(path: Path, *arguments: str) -> list[dict[str, Any]]:
    assert main(["bench", "compressors", "--repeats", "1", "--json", str(path), *arguments]) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_rows_have_all_keys_and_sane_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    rows = _run(tmp_path / "rows.json", "--elements", "4096", "--only", "topk", "dense", "--cf", "10")
    assert torch.get_num_threads() == threads
    assert [row["compressor"] for row in rows] == ["dense", "topk"]
    for row in rows:
        assert set(row) == {field.name for field in fields(BenchRow)}
        assert row["workers"] == 2 and row["elements"] == 4096
        assert row["encode_over_copy"] > 0 and row["decode_over_copy"] > 0 and row["gb_per_s"] > 0
        assert row["total_over_copy_low"] == row["total_over_copy"] == row["total_over_copy_high"]
    dense, topk = rows
    assert dense["gain"] == 1 and dense["achieved_cf"] == 1 and dense["vnmse"] < 1e-12
    assert dense["wire_ratio"] == pytest.approx(1, rel=0.01)
    assert topk["cf"] == 10 and topk["achieved_cf"] == pytest.approx(10, rel=0.02)
    assert 0 < topk["gain"] <= 1 and 0 < topk["vnmse"] < 1
    kept = math.ceil(4096 / 10)
    sent = -(-(kept * (4 + 2) + 1) // 8) * 8  # float32 values, 16-bit indices, a flag, padding to 8
    assert topk["wire_ratio"] == pytest.approx(2 * 1 / 2 * 4 * 4096 / sent)
    assert 0 < topk["extra_bytes"] < 20 * 4 * 4096
    shown = capsys.readouterr().out
    assert "2/2 topk 10x:" in shown and "64 x 64: 4,096 elements, 2 workers, one thread" in shown


def test_torch_rows_do_what_their_names_say(tmp_path: Path) -> None:
    rows = _run(
        tmp_path / "r.json", "--elements", "16384", "--workers", "3", "--cf", "8", "--only", "topk", *TORCH_RANKS
    )
    by_name = {row["compressor"]: row for row in rows}
    fp16, topk, power = (by_name[name] for name in TORCH_RANKS)
    assert fp16["cf"] == 2 and fp16["wire_ratio"] == pytest.approx(2, rel=1e-4)
    assert fp16["vnmse"] < 1e-6 and fp16["gain"] > 0.999
    for key in ("achieved_cf", "gain", "vnmse"):
        assert topk[key] == pytest.approx(by_name["topk"][key], rel=1e-4)
    assert power["achieved_cf"] == pytest.approx(8) and power["wire_ratio"] == pytest.approx(8, rel=1e-4)
    assert 0 < power["gain"] < 1 and 0 < power["vnmse"] < 1


def test_a_model_is_the_sum_of_its_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "lstm", lambda: [(64, 64), (64,), (32, 16, 4), (8, 8)])
    rows = _run(tmp_path / "rows.json", "--shapes", "lstm", "--only", "topk", "--cf", "16")
    assert rows[0]["elements"] == 64 * 64 + 32 * 16 * 4
    assert rows[0]["achieved_cf"] == pytest.approx(16)


def test_settings_are_written_as_in_python(tmp_path: Path) -> None:
    wanted = ["--only", "randomk(block=64)", "--also", "topk"]
    rows = _run(tmp_path / "rows.json", "--elements", "4096", "--cf", "10", *wanted)
    assert [row["compressor"] for row in rows] == ["topk", "randomk(block=64)"]


def test_gradients_differ_by_rank_are_repeatable_and_heavy_tailed() -> None:
    shape = (200, 20, 5)
    first, other = Gradients(2)(shape)
    assert first.shape == (20_000,) and not torch.equal(first, other)
    assert torch.equal(first, Gradients(2)(shape)[0])
    assert float((first.double() ** 4).mean() / (first.double() ** 2).mean() ** 2) > 6  # 3 when normal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "topk", "topq"], "only: 'topq' is unknown; known: 'artopk', 'dense'"),
        (["--also", "topk(chunk=3)"], "also: 'topk(chunk=3)' is unknown: "),
        (["--only", "topq"], "'torch fp16', 'torch.topk', 'torch PowerSGD'"),
        (
            ["--shapes", "alexnet"],
            "shapes: 'alexnet' is unknown; known: resnet50, resnet101, vgg16, vgg19, lstm, bert-base, bert-large",
        ),
        (["--elements", "0"], "elements: 0 is below 1"),
        (["--cf", "0.5"], "cf: 0.5 is outside 1 to"),
        (["--cf", "nan"], "cf: nan is outside 1 to"),
        (["--workers", "1"], "workers: 1 is outside 2 to 64"),
        (["--repeats", "0"], "repeats: 0 is below 1"),
        (["--json", "/nowhere/rows.json"], "json: /nowhere is not a folder"),
        (["--json", "/"], "json: / is a folder"),
    ],
)
def test_wrong_argument_is_named_with_value_and_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "compressors", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_interrupt_keeps_the_finished_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(bench: Bench, contender: Contender, gradients: Gradients) -> BenchRow:
        if contender.name == "topk":
            raise SystemExit(130)
        return measure(bench, contender, gradients)

    monkeypatch.setattr("gravac.lab.bench.display.measure", interrupted)
    path = tmp_path / "rows.json"
    with pytest.raises(SystemExit, match="130"):
        main(["bench", "compressors", "--elements", "64", "--only", "dense", "topk", "--json", str(path)])
    assert [row["compressor"] for row in json.loads(path.read_text())["rows"]] == ["dense"]
    assert "one thread" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]


def test_a_terminal_gets_a_bar_and_the_same_table() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120)
    rows = run_bench(Bench(elements=64, only=("dense",), repeats=2), console)
    assert [row.compressor for row in rows] == ["dense"]
    assert rows[0].total_over_copy_low <= rows[0].total_over_copy <= rows[0].total_over_copy_high
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "dense 1x" in shown and "vNMSE" in shown


def test_default_contenders_are_every_compressor_and_the_torch_ones() -> None:
    found = {(contender.name, contender.cf) for contender in contenders(Bench())}
    assert {("dense", 1), ("topk", 10), ("topk", 100), ("topk", 1000), ("torch.topk", 10), ("torch fp16", 2)} <= found
    assert Bench().shapes == [(2560, 2560)]


@pytest.mark.parametrize(
    ("model", "parameters"), [("vgg16", 138_357_544), ("vgg19", 143_667_240), ("bert-large", 335_141_888)]
)
def test_models_have_their_published_sizes(model: str, parameters: int) -> None:
    assert sum(math.prod(shape) for shape in MODELS[model]()) == parameters


def test_a_step_is_timed_by_part_beside_fp32_and_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step.json"
    assert (
        main(
            [
                "bench",
                "step",
                "--model",
                "tests.lab.small_model:SMALL",
                "--methods",
                "quantize(2)",
                "--turns",
                "1",
                "--steps",
                "4",
                "--warmup",
                "1",
                "--json",
                str(path),
            ]
        )
        == 0
    )
    rows = {row["method"]: row for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == ["fp32", "fp16", "quantize(2)"]
    for row in rows.values():
        assert row["over_fp32_low"] <= row["over_fp32"] <= row["over_fp32_high"]
        assert row["compute_s"] > 0 and 0 <= row["waiting_s"] < row["seconds"]
        assert row["peak_bytes"] > 3 * 250_000 * 4  # weights, gradients and momentum
    assert rows["fp32"]["over_fp32"] == 1 and rows["fp16"]["coding_s"] is None
    assert rows["quantize(2)"]["coding_s"] > 0 and rows["quantize(2)"]["exchange_s"] > 0


def test_the_usual_models_have_their_usual_sizes() -> None:
    sizes = {"gpt2": 124_439_808, "lstm": 66_034_000, "resnet101": 44_549_160, "vgg16": 138_357_544}
    for name, model in STEP_MODELS.items():
        with torch.device("meta"):
            module = model.make()
        assert sum(parameter.numel() for parameter in module.parameters()) == sizes[name]
        inputs, targets = model.inputs(torch.Generator())
        with torch.device("meta"):
            assert module(inputs.to("meta")).shape[:-1] == targets.shape


def test_what_no_step_can_be_timed_with_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["--model", "bert"], "model: 'bert' is unknown; known: gpt2, lstm, resnet101, vgg16, or MODULE:NAME"),
        (["--model", "torch:nothing"], "model: 'torch:nothing' cannot be imported"),
        (["--model", "torch:nn"], "model: 'torch:nn' is a module"),
        (["--link", "fast"], "link: 'fast'"),
        (["--methods", "nothing"], "method: 'nothing'"),
        (["--workers", "1"], "workers: 1 is outside 2 to 8; use 2"),
        (["--turns", "0"], "turns: 0 is below 1; use 2"),
    ):
        assert main(["bench", "step", *arguments]) == 2
        assert told in capsys.readouterr().err
