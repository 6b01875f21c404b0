# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A group of one rank without a network, workers that start at once, and signals that stop a command here."""

import os
import signal
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


@pytest.fixture
def signals() -> Iterator[None]:
    """A command that runs in this process may be stopped by a signal, after which it ignores signals.

    SIGINT raises KeyboardInterrupt, also if the tests were started in the background, where shells ignore it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
