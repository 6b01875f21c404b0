# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A few tests written as torch writes its own, that the harness finds, runs and judges; torch's need a clone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torch_fsdp import counts, reasons

pytestmark = pytest.mark.long

TESTS = """
import copy
import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest, FSDPTestMultiThread, MLP, check_sharded_parity, get_devtype

device_type = torch.device(get_devtype())

class TestTraining(FSDPTest):
    @property
    def world_size(self):
        return min(8, torch.get_device_module(device_type).device_count())

    @skip_if_lt_x_gpu(2)
    def test_hsdp(self):
        self._compare(init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard")))

    def test_shards_alone(self):
        self._compare(init_device_mesh("cpu", (4,)))

    def _compare(self, mesh):
        torch.manual_seed(0)
        model = MLP(8)
        reference = copy.deepcopy(model)
        fully_shard(model, mesh=mesh)
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(self.rank))
        for _ in range(3):
            for trained in (model, reference):
                trained.zero_grad()
                trained(inputs).square().sum().backward()
            for parameter in reference.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            check_sharded_parity(self, reference, model)

    @skip_if_lt_x_gpu(2)
    def test_that_fails(self):
        self.assertEqual(self.world_size, 3)

class TestOfThreads(FSDPTestMultiThread):
    @property
    def world_size(self):
        return 2

    def test_replicate(self):
        model = MLP(8)
        replicate(model)
        model(torch.randn(2, 8) + self.rank).sum().backward()
        gradient = model.in_proj.weight.grad.to_local()
        summed = gradient.clone()
        dist.all_reduce(summed)
        self.assertEqual(summed, 2 * gradient)
"""

PROGRAM = """
import sys
from unittest import mock
from gravac import AdaptiveCompressor
from gravac.engine.engine import Engine
from tests.torch_fsdp.command import main

def run(record, *names):
    print(f"{record}: {main([sys.argv[1], '--json', record, *(['--only', *names] if names else [])])}", flush=True)

run("whole.json")
with mock.patch.object(Engine, "exchange", lambda *_: mock.Mock()):
    run("no exchange.json", "test_small::TestTraining::test_hsdp")
with mock.patch.object(AdaptiveCompressor, "attach", side_effect=ValueError("refused")):
    run("refused.json", "test_small::TestTraining::test_hsdp")
"""
"""The command with gravac whole, then broken twice; in a process of its own, as it patches torch."""

Record = tuple[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The command's exit status and rows of each of the program's runs."""
    folder = tmp_path_factory.mktemp("sources")
    tests = folder / "test" / "distributed" / "_composable"
    (tests / "fsdp").mkdir(parents=True)
    (tests / "fsdp" / "test_small.py").write_text(TESTS)
    (tests / "test_replicate_of_another_torch.py").write_text("from torch.distributed.fsdp import no_such_name")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    statuses = dict(re.findall(r"^(.+)\.json: (\d+)$", ended.stdout, re.MULTILINE))
    return {
        name: (int(status), json.loads((folder / f"{name}.json").read_text())["rows"])
        for name, status in statuses.items()
    }


def test_tests_with_replicas_pass_natively_and_with_gravac(records: dict[str, Record]) -> None:
    by_method = {row["test"].split("::")[-1]: row for row in records["whole"][1] if "test" in row}
    for method, steps in (("test_hsdp", 3), ("test_replicate", 1)):
        row = by_method[method]
        assert (row["native"], row["gravac"], row["attached"], row["steps"]) == ("passed", "passed", 1, steps)
    alone = by_method["test_shards_alone"]
    assert (alone["native"], alone["gravac"], alone["reason"]) == ("passed", "not run", reasons.NO_REPLICAS)
    assert by_method["test_that_fails"]["native"] == "failed"


def test_a_whole_run_in_which_too_few_tests_pass_fails(records: dict[str, Record]) -> None:
    assert records["whole"][0] == 1


def test_a_file_that_this_torch_cannot_import_is_named(records: dict[str, Record]) -> None:
    (row,) = [row for row in records["whole"][1] if "test" not in row]
    assert row["file"].endswith("test_replicate_of_another_torch.py")
    assert "no_such_name" in row["reason"]


@pytest.mark.parametrize("broken", ["no exchange", "refused"])
def test_a_broken_gravac_does_not_pass(records: dict[str, Record], broken: str) -> None:
    status, rows = records[broken]
    assert status == 1
    assert [(row["native"], row["gravac"]) for row in rows if "test" in row] == [("passed", "failed")]


def test_the_counts_say_what_passes_natively(records: dict[str, Record]) -> None:
    text = counts.counts(records["whole"][1])
    assert "4 tests in 1 file: 3 pass natively on gloo and the CPU, 0 are skipped by torch, 1 fails." in text
