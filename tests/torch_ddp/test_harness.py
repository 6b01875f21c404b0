# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A few of torch's DDP tests with gravac, and that the harness sees what it must not let pass."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torch_ddp.rank import Seen
from tests.torch_ddp.runs import judge

WRONG_MEAN = """
import torch
from gravac import AdaptiveCompressor
def local(self, state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
AdaptiveCompressor.hook = local
"""
NEVER_ATTACHED = """
from gravac import AdaptiveCompressor
AdaptiveCompressor.attach = lambda *_: None
"""


def harness(folder: Path, *names: str, before: str = "") -> tuple[int, list[dict[str, Any]]]:
    """The command's exit status and rows, on some tests; in a process of its own, as it patches torch."""
    program = f"{before}\nimport sys\nfrom tests.torch_ddp.command import main\nsys.exit(main(sys.argv[1:]))"
    found = folder / "found.json"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--only", *names, "--json", str(found)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=Path(__file__).parents[2],
    )
    assert found.exists(), ended.stderr
    return ended.returncode, json.loads(found.read_text())["rows"]


def test_some_of_torchs_ddp_tests_pass_with_gravac(tmp_path: Path) -> None:
    status, rows = harness(
        tmp_path,
        "test_ddp_create_graph",
        "test_accumulate_gradients_no_sync",
        "test_ddp_join_model_equivalence",
        "test_ddp_grad_div_uneven_inputs",
        "test_DistributedDataParallelCPU_grad_is_view",
        "test_ddp_hook_parity_allreduce",
    )
    by_name = {row["test"]: row for row in rows}
    registers = by_name.pop("test_ddp_hook_parity_allreduce")
    assert registers["native"] == "passed" and registers["gravac"] == "not run" and registers["own_hooks"] > 0
    assert status == 0 and len(by_name) == 5
    for row in by_name.values():
        assert row["gravac"] == "passed"
        assert row["attached"] == row["ddp"] > 0
        assert row["steps"] > 0


@pytest.mark.parametrize("broken", [WRONG_MEAN, NEVER_ATTACHED], ids=["wrong mean", "never attached"])
def test_a_broken_gravac_does_not_pass(tmp_path: Path, broken: str) -> None:
    status, rows = harness(tmp_path, "test_accumulate_gradients_no_sync", before=broken)
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
