# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The frameworks' examples run as their first lines say, with two processes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gravac.telemetry import StepRecord, read_jsonl

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.framework
@pytest.mark.parametrize(
    ("framework", "launch"), [("lightning", []), ("accelerate", TORCHRUN), ("transformers", TORCHRUN)]
)
def test_an_example_runs(framework: str, launch: list[str], tmp_path: Path) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    name = "trainer" if framework == "transformers" else framework
    command = [sys.executable, *launch, str(ROOT / "examples" / f"{name}_ddp.py"), "--steps", "20"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert ran.returncode == 0, ran.stderr
    records = read_jsonl(tmp_path / "runs" / name / "gravac.jsonl")
    made = sum(record.steps for record in records if isinstance(record, StepRecord))
    assert 0 < made < 20  # of the last step, or the last native ones, the ranks do not get to agree
