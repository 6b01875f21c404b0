# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A few of torch's DDP tests with gravac, and that the harness sees what it must not let pass."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torch_ddp.runs import judge
from tests.torch_ddp.suite import Seen

WHOLE = (
    "test_ddp_create_graph",
    "test_accumulate_gradients_no_sync",
    "test_ddp_join_model_equivalence",
    "test_ddp_grad_div_uneven_inputs",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_ddp_hook_parity_allreduce",
)

PROGRAM = """
import sys
from unittest import mock
import torch
from gravac import AdaptiveCompressor
from tests.torch_ddp.command import main

def local(self, state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future

def run(found, *names):
    print(f"{found}: {main(['--only', *names, '--json', found])}", flush=True)

run("whole.json", *sys.argv[1:])
with mock.patch.object(AdaptiveCompressor, "hook", local):
    run("wrong mean.json", "test_accumulate_gradients_no_sync")
with mock.patch.object(AdaptiveCompressor, "attach", lambda *_: None):
    run("never attached.json", "test_accumulate_gradients_no_sync")
"""
"""The command with gravac whole, then broken twice: importing torch's tests takes longer than these do. In a process of
its own, as it patches torch; the ranks of each run are forked from it as it then is."""

Found = dict[str, tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Of each of the program's runs, the command's exit status and rows."""
    folder = tmp_path_factory.mktemp("found")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *WHOLE],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    status = dict(re.findall(r"^(.+)\.json: (\d+)$", ended.stdout, re.MULTILINE))
    return {
        name: (int(code), json.loads((folder / f"{name}.json").read_text())["rows"]) for name, code in status.items()
    }


@pytest.mark.long
def test_some_of_torchs_ddp_tests_pass_with_gravac(found: Found) -> None:
    status, rows = found["whole"]
    by_name = {row["test"]: row for row in rows}
    registers = by_name.pop("test_ddp_hook_parity_allreduce")
    assert registers["native"] == "passed" and registers["gravac"] == "not run" and registers["own_hooks"] > 0
    assert status == 0 and len(by_name) == 5
    for row in by_name.values():
        assert row["gravac"] == "passed"
        assert row["attached"] == row["ddp"] > 0
        assert row["steps"] > 0


@pytest.mark.long
@pytest.mark.parametrize("broken", ["wrong mean", "never attached"])
def test_a_broken_gravac_does_not_pass(found: Found, broken: str) -> None:
    status, rows = found[broken]
    assert status == 1
    assert [(row["native"], row["gravac"]) for row in rows] == [("passed", "failed")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Seen("passed", made=2, attached=2), Seen("passed", made=2, attached=1)),
        (Seen("passed"), Seen("passed")),
        (Seen("passed", made=1, attached=1), Seen("died", made=1, attached=1)),
        (Seen("passed", made=1, attached=1), Seen("skipped", made=1, attached=1)),
        (Seen("passed", made=1, attached=1, attach_failures=["no"]), Seen("passed", made=1, attached=1)),
    ],
    ids=["one not attached", "none made", "a rank died", "a rank skipped", "attach refused"],
)
def test_what_does_not_count_as_passed(one: Seen, other: Seen) -> None:
    assert not judge("test", True, [one, other]).passed
    assert not judge("test", True, [other, one]).passed


def test_what_counts_as_passed() -> None:
    assert judge("test", True, [Seen("passed", made=1, attached=1)] * 2).passed
    assert judge("test", False, [Seen("passed", made=1)] * 2).passed
