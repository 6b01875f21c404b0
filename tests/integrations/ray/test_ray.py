# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ray Train itself with two workers: a worker that is killed goes on with its own residuals."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.packaging.test_docs_run import DOCS, ROOT, blocks

pytestmark = [pytest.mark.framework, pytest.mark.timeout(300)]

ray = pytest.importorskip("ray")
program = pytest.importorskip("tests.integrations.ray.program")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start Ray on this machine, with two workers at most, and end it."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


def test_a_killed_worker_goes_on_bit_for_bit_with_every_ranks_own_residuals(tmp_path: Path) -> None:
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    result, straight = program.fit(tmp_path / "straight")
    _, resumed = program.fit(tmp_path / "killed", killed_after=6)
    assert [ended["first"] for ended in (*straight, *resumed)] == [0, 0, 4, 4]
    for one, other in zip(straight, resumed, strict=True):
        assert one["residuals"]
        for tensors in ("weights", "residuals"):
            assert one[tensors].keys() == other[tensors].keys()
            assert all(torch.equal(tensor, other[tensors][name]) for name, tensor in one[tensors].items())
    own, others = (ended["residuals"] for ended in straight)
    assert any(not torch.equal(residual, others[name]) for name, residual in own.items())
    assert result.metrics["step"] == program.STEPS
    assert result.metrics["gravac_step/cf"] == 20
    with result.checkpoint.as_directory() as folder:
        names = sorted(path.name for path in Path(folder).rglob("*") if path.is_file())
    assert len([name for name in names if name.startswith("rank")]) == 2, names


def test_one_worker_trains_without_gravac(tmp_path: Path) -> None:
    _, (ended,) = program.fit(tmp_path, workers=1)
    assert not ended["residuals"]


def test_the_block_of_the_docs_runs(tmp_path: Path) -> None:
    (block,) = (one for one in blocks(DOCS / "how-to" / "frameworks.md") if "not run" in one.said)
    (tmp_path / "train.py").write_text(block.code, encoding="utf-8")
    ran = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
