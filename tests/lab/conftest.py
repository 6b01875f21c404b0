# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A process group of a single rank, for what needs one and no network; and processes that start at once."""

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.lab import forked


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    yield
    dist.destroy_process_group()


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's workers are forked from a process that has imported torch. Others are started as ever."""
    forked.prepare()
    monkeypatch.setattr(subprocess, "Popen", forked.start)
