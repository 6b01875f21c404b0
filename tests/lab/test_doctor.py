# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac doctor``: what it finds, what it advises, and that a failure is told."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.cli import main
from gravac.exchange.link_probe import LinkProbe
from gravac.lab import doctor, local_ranks
from gravac.lab.doctor import Check, Facts, advice, describe_facts, describe_memories, memory_of_modes
from gravac.lab.doctor.ranks import missing_torch_name
from gravac.lab.mesh import Mesh
from tests.lab.forked import ForkedPython


def facts(**changes: object) -> Facts:
    usual: dict[str, object] = {
        "python": "3.12.1",
        "packages": {"torch": "2.13.0", "gravac": "0.1.0"},
        "optional": {"rich": "13.0", "matplotlib": "3.9", "lightning": None},
        "backends": ("gloo",),
        "cuda": None,
        "nccl": None,
        "devices": (),
        "cores": 2,
        "variables": {},
        "links": None,
    }
    return Facts(**{**usual, **changes})


def check(**changes: object) -> Check:
    usual: dict[str, object] = {
        "ranks": 2,
        "hosts": 2,
        "backend": "gloo",
        "device": "cpu",
        "link": LinkProbe(1e-4, 1e8, 1e10),
        "wire_ratio": 9.8,
        "same": True,
    }
    return Check(**{**usual, **changes})


@pytest.mark.parametrize("start", ["forks", pytest.param("fresh", marks=pytest.mark.long)])
def test_two_ranks_are_started_here_and_train_alike(
    start: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if start == "forks":
        request.getfixturevalue("forks")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ranks = found["ranks"]
    assert ranks["same"] and ranks["ranks"] == 2 and ranks["loopback"] and ranks["wire_ratio"] > 5
    assert ranks["link"][1] > 0 and found["failure"] is None and ranks["lacks"] is None
    assert {one["mode"] for one in found["memory"]} == {"native", "hook", "outer"}
    assert found["facts"]["packages"]["torch"].startswith("2.")
    assert "torchrun" in " ".join(found["advice"]), "loopback says nothing of a network"


def speaks_once_of_equal_ranks(said: str) -> None:
    assert said.count("the same weights") == 1, "rank 0 alone speaks"
    assert "between the ranks" in said and "gravac advise --link" in said


@pytest.mark.usefixtures("forks")
def test_ranks_of_a_launcher_are_tried(tmp_path: Path) -> None:
    """A launcher's part is to set these variables."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    with open(tmp_path / "said", "wb") as said:
        environments = [{**os.environ, **group, "RANK": str(rank)} for rank in range(2)]
        ranks = [ForkedPython(["gravac", "doctor"], env, stdout=said, stderr=said) for env in environments]
        assert [rank.wait(120) for rank in ranks] == [0, 0], (tmp_path / "said").read_text()
    speaks_once_of_equal_ranks((tmp_path / "said").read_text())


@pytest.mark.long
def test_under_torchrun_its_ranks_are_tried() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, "-m", "gravac", "doctor"], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    speaks_once_of_equal_ranks(ran.stdout)


def test_a_failure_is_told_with_a_remedy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(mesh: Mesh | None) -> Check:
        raise RuntimeError("connection refused\nand more")

    monkeypatch.setattr(doctor, "check_here", fails)
    monkeypatch.setattr(local_ranks, "under_torchrun", lambda: False)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "connection refused." in said and "GLOO_SOCKET_IFNAME" in said and "and more" not in said


@pytest.mark.parametrize(
    ("found", "ranks", "words"),
    [
        (facts(), check(same=False), "different weights"),
        (facts(), check(loopback=True), "gravac works on this machine"),
        (facts(), check(ranks=1, link=None), "nothing to compress"),
        (facts(), check(), "takes 32 s"),
        (facts(devices=("A100 (8.0)",)), check(), "no NCCL"),
        (facts(links="making network namespaces needs root"), check(), "by sleeping"),
        (facts(optional={}), check(), "gravac[lab]"),
        (facts(), check(lacks="torch 9 has no such_name"), "no such_name"),
    ],
)
def test_advice_names_what_to_do(found: Facts, ranks: Check, words: str) -> None:
    assert words in " ".join(advice(found, ranks))


def test_words_tell_every_fact() -> None:
    said = describe_facts(facts(devices=("A100 (8.0)",), nccl="2.28.3", variables={"OMP_NUM_THREADS": "1"}), check())
    for words in (
        "torch 2.13.0",
        "A100 (8.0)",
        "2.28.3",
        "OMP_NUM_THREADS=1",
        "2 on 2 machines",
        "100 Mbit/s",
        "lightning",
    ):
        assert words in said


def test_words_of_what_is_not_here_are_whole() -> None:
    said = [line.split(maxsplit=1) for line in describe_facts(facts(optional={"rich": None}), None).splitlines()]
    assert all(len(line) == 2 for line in said) and "; not" not in [line[1][:5] for line in said]
    assert ["GPUs", "none that torch can use (built without CUDA)"] in said


@pytest.mark.parametrize("name", ["_ddp_init_helper", "_register_builtin_comm_hook"])
@pytest.mark.usefixtures("alone")
def test_a_private_name_that_torch_lacks_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    assert missing_torch_name(ddp) is None
    monkeypatch.delattr(DistributedDataParallel, name)
    said = missing_torch_name(ddp) or ""
    assert name in said and torch.__version__ in said and "native=False" in said


def test_memory_is_told_in_bytes_of_a_known_model_else_in_multiples() -> None:
    known = describe_memories(memory_of_modes([(100, 1000), (100_000,)]), "small", 200_000)
    assert "of small, 0.2 M parameters" in known and "the anchor: 0.8 MB" in known
    assert "the average of moments: 50.3 MB" in known, "groups of 16 MiB, three times"
    assert "the anchor: 1 x the model" in describe_memories(memory_of_modes(), None, None)
    larger = next(one for one in memory_of_modes([(10_000, 10_000)]) if "moments" in one.purpose)
    assert larger.extra_bytes == 3 * 4 * 10_000**2, "a tensor is averaged whole"


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "resnet51"]) == 2
    assert "resnet51" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("gravac 0.")
