# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Models in shards on the command line: what a mesh is, what is predicted for one, and a race on one."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.cli import main
from gravac.costmodel import Machine, Network
from gravac.lab import doctor, local_ranks
from gravac.lab.advise import Advice, advise
from gravac.lab.doctor import (
    Check,
    advice,
    describe_facts,
    describe_memories,
    describe_traffic,
    memory_of_modes,
    traffic_of_mesh,
)
from gravac.lab.links.network import emulation_obstacle
from gravac.lab.mesh import Mesh, parse_mesh
from gravac.lab.tasks import TASKS, make
from gravac.lab.training.methods import Method
from gravac.lab.training.session import Leg, SessionSpec
from gravac.lab.tta import record
from gravac.lab.tta.matrix import RunMatrix
from tests.lab.postponed_state import metrics_of_a_postponed_state
from tests.lab.test_doctor import check, facts
from tests.ranks import processes

SLOW = Network(50e-6, 1e8)
GPU = Machine(350e9)

REASON = emulation_obstacle()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")


@given(st.integers(2, 64), st.integers(1, 64))
def test_a_mesh_is_its_text(replicas: int, shards: int) -> None:
    mesh = Mesh(replicas, shards)
    assert parse_mesh(str(mesh)) == mesh
    assert [mesh.replica_of(rank) for rank in range(mesh.ranks)] == sorted(
        replica for replica in range(replicas) for _ in range(shards)
    )


@given(st.integers(1, 200), st.integers(1, 16))
def test_a_shard_is_as_large_as_the_largest_that_torch_cuts(rows: int, shards: int) -> None:
    largest = max(len(chunk) for chunk in torch.zeros(rows, 3).chunk(shards))
    assert Mesh(2, shards).shard_shape((rows, 3)) == (largest, 3)


BENCH = ["bench", "tta", "--task", "charlm", "--link", "100mbit"]
ADVISE = ["advise", "--model", "resnet50", "--batch-seconds", "0.1", "--link", "1gbit"]


@pytest.mark.parametrize("command", [BENCH, ADVISE, ["doctor"]], ids=["bench", "advise", "doctor"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mesh", "2y4"], "mesh: '2y4' is not a mesh; give replicas x shards, such as 2x4"),
        (["--mesh", "4"], "mesh: '4' is not a mesh"),
        (["--mesh", "-2x2"], "mesh: '-2x2' is not a mesh"),
        (["--mesh", "1x4"], "mesh: 1x4 has 1 replica, but"),
        (["--mesh", "2x0"], "mesh: 2x0 has 0 shards in a replica; use one or more"),
    ],
)
def test_a_wrong_mesh_is_refused(
    command: list[str], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{arguments[0]}={arguments[1]}"]  # argparse takes a text that begins with - for an option
    assert main([*command, *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [BENCH, ADVISE], ids=["bench", "advise"])
def test_workers_and_a_mesh_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--mesh", "2x2", "--workers", "4"]) == 2
    assert "workers: 4 cannot be used with --mesh, which sets 4 ranks; leave --workers out" in capsys.readouterr().err


# advise


def test_one_shard_is_advised_as_without_a_mesh() -> None:
    without, on_mesh = (advise("resnet50", 0.15, ranks, SLOW, GPU) for ranks in (8, Mesh(8, 1)))
    assert on_mesh.choices == without.choices
    assert on_mesh.dense_wire_bytes == without.dense_wire_bytes
    assert (on_mesh.workers, on_mesh.elements) == (without.workers, without.elements)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_bytes_of_a_rank_fall_by_the_shards_and_those_of_a_replicas_link_stay(shards: int) -> None:
    whole, cut = (advise("bert-large", 0.3, mesh, SLOW, GPU, ["quantize"]) for mesh in (Mesh(4, 1), Mesh(4, shards)))
    padding = 1.01
    assert whole.dense_wire_bytes / shards <= cut.dense_wire_bytes < padding * whole.dense_wire_bytes / shards
    assert whole.exchanged_elements / shards <= cut.exchanged_elements < padding * whole.exchanged_elements / shards
    assert cut.workers == 4 * shards
    for before, after in zip(whole.choices, cut.choices, strict=True):
        assert (before.compressor, before.cf) == (after.compressor, after.cf) or before.mode == "outer"
        if before.mode != "outer":
            assert after.wire_ratio == pytest.approx(before.wire_ratio, rel=0.02)
            assert after.exposed_s == pytest.approx(before.exposed_s, rel=0.02), "the ranks of a replica share its link"
            assert after.compress_s == pytest.approx(before.compress_s / shards, rel=0.05)


def of_mesh(network: Network) -> Advice:
    return advise("bert-large", 3.0, Mesh(2, 4), network, GPU, ["quantize", "topk"])


def test_on_a_mesh_code_attaches_to_the_model_and_torch_is_named_as_what_gravac_competes_with() -> None:
    slow, fast = of_mesh(SLOW), of_mesh(Network(5e-6, 1e11))
    assert slow.code == "AdaptiveCompressor(every=(1, 100)).attach(model, optimizer)"
    assert slow.fixed.endswith(".attach(model, optimizer)")
    assert "a step by torch's own HSDP in 16 bit takes" in slow.reason
    assert fast.mode == "native" and fast.each_step.startswith("do not attach gravac: ")
    assert fast.verdict.startswith("do not attach gravac: expect steps by torch's own HSDP, reduced in ")
    assert fast.fixed.startswith("fully_shard(module, mesh=mesh")
    for text in (slow.verdict, slow.reason, fast.verdict, fast.reason, fast.fixed, fast.each_step):
        assert "DDP" not in text.replace("HSDP", "") and "ddp" not in text


def test_advise_says_what_a_rank_of_the_mesh_sends_and_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    assert main([*ADVISE, "--mesh", "2x4", "--compressors", "topk", "--price-per-hour", "3", *files]) == 0
    said, content = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    assert f"2 ranks hold the same shard, {content['exchanged_elements'] / 1e6:.4g} M parameters" in said
    assert 1 <= 4 * content["exchanged_elements"] / content["elements"] < 1.01
    assert "2 replicas of 4 shards" in said
    assert "sends 25.6 MB to other replicas" in said and "Residuals take up to 25.6 MB a rank" in said
    assert (content["mesh"], content["workers"]) == ("2x4", 8)
    assert content["dense_wire_bytes"] == 4 * content["exchanged_elements"], "two replicas: a shard is sent once"
    assert all(one["cost"] == pytest.approx(one["step_s"] * 1000 / 3600 * 8 * 3) for one in content["choices"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# doctor


def test_memory_of_a_rank_falls_by_the_shards() -> None:
    shapes = [(1000, 10_000), (1000,)]
    whole, cut = (memory_of_modes(shapes, mesh) for mesh in (Mesh(2, 1), Mesh(2, 4)))
    assert [memory.sizes for memory in cut] == pytest.approx([memory.sizes / 4 for memory in whole])
    moments = [memory.extra_bytes for memories in (whole, cut) for memory in memories if "moments" in memory.purpose]
    assert moments == [3 * 4 * 10_000_000, 3 * 16 * 2**20], "a shard is averaged, or a group of 16 MiB"
    assert "native" not in {memory.mode for memory in cut}, "a model in shards has no native steps"
    said = describe_memories(memory_of_modes(None, Mesh(2, 8)), None, None, Mesh(2, 8))
    assert "a rank of the mesh 2x8" in said and "residuals: 0.125 x the model" in said


def test_traffic_of_a_mesh_is_told_for_both_links() -> None:
    between, within = traffic_of_mesh(Mesh(2, 4))
    assert between.sizes == pytest.approx(1 / 4), "half of the shard out, half of the mean out"
    assert within.sizes == pytest.approx(3 * 3 / 4), "two gathers and a reduction, to three others"
    assert traffic_of_mesh(Mesh(4, 1))[1].sizes == 0
    said = describe_traffic((between, within), Mesh(2, 4), "small", [(1000, 1000)])
    assert "between replicas  1 MB: the gradient of its shard" in said and "within a replica  9 MB" in said


@pytest.mark.usefixtures("forks")
def test_doctor_trains_a_small_model_in_shards_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor", "--mesh", "16x8", "--model", "bert-base", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    ranks = report["ranks"]
    assert ranks["mesh"] == "2x2" and ranks["ranks"] == 4, "a small mesh stands for the one that is given"
    assert ranks["same"] and ranks["wire_ratio"] > 3 and ranks["link"][1] > 0 and ranks["shard_link"][1] > 0
    assert {entry["link"] for entry in report["traffic"]} == {"between replicas", "within a replica"}
    residuals = next(entry for entry in report["memory"] if entry["purpose"] == "residuals")
    assert residuals["sizes"] == pytest.approx(1 / 8, rel=0.02)


def of_mesh_2x2(**changes: Any) -> Check:
    return check(ranks=4, mesh="2x2", **changes)


def test_doctors_words_and_advice_know_the_mesh() -> None:
    said = describe_facts(facts(), of_mesh_2x2(shard_link=check().link))
    assert "4, as mesh 2x2, on 2 machines" in said and "link of replicas" in said and "link in a replica" in said
    (advised,) = advice(facts(optional={"rich": "1", "matplotlib": "1"}), of_mesh_2x2())
    assert "gravac advise --mesh 2x2 --link 200mbit" in advised, "two ranks sent at once while the link was measured"
    assert "takes 16 s" in advised
    assert "--mesh RxS" in " ".join(advice(facts(), of_mesh_2x2(loopback=True)))
    assert "run on 2 machines" in " ".join(advice(facts(), of_mesh_2x2(replica_hosts=2)))


def test_a_mesh_of_other_ranks_than_launched_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_ranks, "under_torchrun", lambda: True)
    for name, content in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, content)
    assert main(["doctor", "--mesh", "2x2"]) == 2
    assert "mesh: 2x2 has 4 ranks, but 1 were started; start 4 ranks, or give another mesh" in capsys.readouterr().err


def test_doctor_takes_the_failure_of_a_mesh_for_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(mesh: Mesh | None) -> Check:
        raise RuntimeError(f"no {mesh}")

    monkeypatch.setattr(doctor, "check_here", fails)
    monkeypatch.setattr(local_ranks, "under_torchrun", lambda: False)
    assert main(["doctor", "--mesh", "2x2"]) == 1
    assert "the ranks did not train: no 2x2" in capsys.readouterr().out


# bench tta


def matrix(**changes: Any) -> RunMatrix:
    usual: dict[str, Any] = {"tasks": ("charlm",), "links": ("100mbit",), "methods": ("bf16",)}
    mesh: Mesh = changes.pop("mesh", Mesh(2, 2))
    return RunMatrix(**{**usual, "workers": mesh.ranks, "mesh": mesh, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mesh": Mesh(4, 4)}, "mesh: 4x4 has 16 ranks, but at most 8"),
        ({"workers": 2}, "workers: 2 is not 4, the number of ranks of the mesh 2x2; give 4"),
        ({"paced": True}, "mesh: 2x2 cannot be paced.*use emulated links"),
        ({"tasks": ("charlm", "lstm")}, "task: 'lstm' has no blocks.*use charlm, gpt2, modernbert"),
        ({"tasks": ("mnist",)}, "task: 'mnist' is unknown"),
        (
            {"methods": ("torch-powersgd(4)",)},
            r"method: 'torch-powersgd\(4\)' cannot train a model in shards.*use fp32",
        ),
    ],
)
def test_what_a_mesh_does_not_support_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        matrix(**changes)


@pytest.mark.parametrize(
    "text", ["fp32", "fp16", "bf16", "topk@10", "quantize(4)", "adaptive(every=(1, 100))", "gravac:topk"]
)
def test_other_methods_are_not(text: str) -> None:
    assert Method.parse(text).mesh_error_message is None


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].blocks and name not in ("gpt2", "modernbert")])
def test_blocks_that_a_task_names_hold_most_of_its_model(name: str) -> None:
    model = make(name, scale=1.0).model()
    blocks = [*model.get_submodule(TASKS[name].blocks).children()]
    in_blocks = sum(parameter.numel() for block in blocks for parameter in block.parameters())
    assert len(blocks) > 1 and in_blocks > sum(parameter.numel() for parameter in model.parameters()) / 2


def test_a_session_of_a_mesh_travels_as_json() -> None:
    spec = SessionSpec("charlm", 0.5, 3, "", 4, "f", None, None, None, None, "100mbit", (Leg("bf16", "a"),), "2x2")
    assert SessionSpec.from_json(spec.to_json()) == spec


def test_a_state_in_shards_is_evaluated_later_as_it_was() -> None:
    for at_once, later, present in processes(metrics_of_a_postponed_state, 4):
        assert later == at_once != present


@pytest.mark.long
@needs_namespaces
@pytest.mark.timeout(600)
def test_torch_and_gravac_race_on_a_mesh_and_only_what_replicas_exchange_crosses_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, methods = tmp_path / "runs.json", ["bf16", "quantize(2)", "outer(every=3):quantize(2)"]
    command = ["bench", "tta", "--task", "charlm", "--scale", "0.1", "--mesh", "2x2", "--link", "100mbit"]
    command += ["--budget", "12", "--seeds", "1", "--limit", "1.5", "--methods", *methods, "--json", str(path)]
    assert main(command) == 0, capsys.readouterr().out
    assert "charlm 2x2" in capsys.readouterr().out
    runs = {run.method: run for run in record.read(path)}
    assert list(runs) == ["fp32", *methods]
    task = make("charlm", scale=0.1)
    untrained = task.metric.compute(task.validate(task.model()))
    for run in runs.values():
        assert (run.mesh, run.workers, run.paced) == ("2x2", 4, False)
        assert run.curve[0].metric == pytest.approx(untrained, rel=1e-5), "replicas evaluate all of the data together"
        assert math.isfinite(run.val_metric) and run.val_metric < untrained
        assert run.wire_bytes is not None and run.interface_bytes is not None
    elements = sum(parameter.numel() for parameter in task.model().parameters())
    for method, size in (("fp32", 4), ("bf16", 2)):
        run = runs[method]
        sent, counted = run.wire_bytes or 0, run.interface_bytes or 0
        assert sent / run.steps == pytest.approx(size * elements / 2, rel=0.05), "two replicas: each shard is sent once"
        assert 0.9 * sent < counted < 1.4 * sent, "what torch gathers within a replica would be three times as much"
        assert run.split is None, "torch waits within backward"
    compressed, outer = runs["quantize(2)"], runs["outer(every=3):quantize(2)"]
    assert (compressed.wire_bytes or 0) / compressed.steps < sent / run.steps / 4
    assert compressed.split is not None and outer.every is not None and outer.every > 1

    kept = path.read_text()
    assert main(command) == 0, "all of it is there"
    assert path.read_text() == kept
