# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Rank 0, whose process runs the store, is gone or stops: every other rank ends soon, by its own exit status.

The ranks are processes that find each other through a ``TCPStore`` of rank 0, as with ``torchrun``.
"""

import datetime
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange import fifo
from gravac.exchange.failures import ExchangeError
from tests.distributed.training import batch, network, parallel, sgd
from tests.ranks import PRELOADED

FAILS_AT = 6
"""Training step before which a rank goes away; the others are told so by files, and then train on."""

OWN_STATUS = 7
"""Exit status of a rank that caught the error."""

EXIT_SECONDS = 40.0
"""Longest time for which a test waits for ranks that should end within seconds; below the timeout of the group."""

MODES: dict[str, dict[str, Any]] = {"hook": {"native": False}, "outer": {"every": 4, "outer": {"delay": 0}}}


def started(
    function: Any, world: int, folder: Path, *arguments: Any, timeout_s: float = 120, spawned: Collection[int] = ()
) -> list[BaseProcess]:
    """Start a process for each rank, which calls ``function(rank, folder, *arguments)``.

    Processes that are forked exit at once; only the ranks that are ``spawned`` end their interpreter.
    """
    forks: Any = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*PRELOADED])
    spawns: Any = multiprocessing.get_context("spawn")
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        port = free_port.getsockname()[1]
    ranks = [
        (spawns if rank in spawned else forks).Process(
            target=rank_main, args=(function, rank, world, port, timeout_s, folder, *arguments)
        )
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    return ranks


def rank_main(
    function: Any, rank: int, world: int, port: int, timeout_s: float, folder: Path, *arguments: Any
) -> NoReturn:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timeout, world, rank)
    sys.exit(function(rank, folder, *arguments))


def exit_codes(ranks: list[BaseProcess], stopped: Sequence[BaseProcess] = ()) -> list[int | None]:
    """Wait for the ranks to end, then kill all that are left; return exit codes, ``None`` for a rank that was left.

    Ranks that are ``stopped`` do not end by themselves, and are killed when the others have ended.
    """
    deadline_s = time.monotonic() + EXIT_SECONDS
    for process in ranks:
        process.join(max(0.0, deadline_s - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    for process in (*ranks, *stopped):
        process.kill()
        process.join()
    return codes


def until(path: Path) -> None:
    deadline_s = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < deadline_s, path
        time.sleep(0.01)


def train(rank: int, folder: Path, mode: str, ends: str = "") -> int:
    """Train until the exchange fails; the last rank ends by itself at ``FAILS_AT`` in the way that ``ends`` says."""
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    compressor = AdaptiveCompressor(topk, controller=Static(cf=10), **MODES[mode])
    compressor.attach(ddp, optimizer)
    step = 0
    try:
        while True:
            if step == FAILS_AT:
                (folder / f"reached{rank}").touch()
                if ends and rank == dist.get_world_size() - 1:
                    if ends == "raises":
                        raise ValueError("the loop broke")
                    return 0
            ddp(batch(rank, step)[0]).square().mean().backward()
            optimizer.step()
            step += 1
    except ExchangeError as failure:
        (folder / f"said{rank}").write_text(f"{step} {failure}")
        return OWN_STATUS


def assert_names_its_step(said: str) -> None:
    """Assert that the message names the training step at which the loop was."""
    found = re.match(r"(\d+) gravac: step (\d+)(?: \(since step \d+\))?, exchange of ", said)
    assert found, said
    assert found[1] == found[2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_rank_ends_long_before_the_timeout_after_rank_0_was_killed(
    mode: str, number: signal.Signals, tmp_path: Path
) -> None:
    ranks = started(train, 2, tmp_path, mode)
    until(tmp_path / "reached1")
    assert ranks[0].pid is not None
    os.kill(ranks[0].pid, number)
    assert exit_codes(ranks) == [-number, OWN_STATUS]
    said = (tmp_path / "said1").read_text()
    assert "rank 1 of 2 got no answer on its connection to rank 0" in said
    assert_names_its_step(said)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_ends_after_the_timeout_while_rank_0_is_stopped(mode: str, tmp_path: Path) -> None:
    ranks = started(train, 2, tmp_path, mode, timeout_s=4)
    until(tmp_path / "reached1")
    assert ranks[0].pid is not None
    os.kill(ranks[0].pid, signal.SIGSTOP)
    assert exit_codes(ranks[1:], stopped=ranks[:1]) == [OWN_STATUS]
    said = (tmp_path / "said1").read_text()
    assert "rank 1 of 2 got no answer on its connection to rank 0" in said
    assert "timeout of 4 s" in said


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ends", ["raises", "leaves"])
def test_all_ranks_end_if_rank_0_leaves_before_the_others_know_which_rank_failed(
    mode: str, ends: str, tmp_path: Path
) -> None:
    codes = exit_codes(started(train, 3, tmp_path, mode, ends))
    assert codes == [OWN_STATUS, OWN_STATUS, 1 if ends == "raises" else 0]
    for rank in range(2):
        said = (tmp_path / f"said{rank}").read_text()
        assert_names_its_step(said)
        assert f"rank {rank} of 3 got no answer" in said
        assert not re.search(r"rank [01] of 3 failed", said)  # rank 2 did


class KillsAtExit:
    """Kills rank 0 while the interpreter exits, when a thread that gets the GIL would abort the process."""

    def __init__(self, folder: Path) -> None:
        self.pid = int((folder / "pid0").read_text())
        self.kill, self.sleep, self.number = os.kill, time.sleep, signal.SIGKILL

    def __del__(self) -> None:
        self.kill(self.pid, self.number)
        self.sleep(1)


def leaves_while_rank_0_stalls(rank: int, folder: Path) -> int:
    if rank == 0:
        (folder / "pid0").write_text(str(os.getpid()))
    fifo.JOIN_SECONDS = 0.5
    gradient = torch.ones(64, 64)
    engine = AdaptiveCompressor(topk, controller=Static(cf=10)).attach_parameters({"w": gradient})
    if rank == 0:
        time.sleep(200)
    engine.begin()
    engine.ready([("w", gradient)])
    engine.end()
    sys.kills_at_exit = KillsAtExit(folder)  # type: ignore[attr-defined]
    return OWN_STATUS


def test_a_rank_that_leaves_during_an_exchange_ends_by_its_own_status(tmp_path: Path) -> None:
    ranks = started(leaves_while_rank_0_stalls, 2, tmp_path, spawned=[1])
    ranks[1].join(150)
    assert exit_codes(ranks) == [-signal.SIGKILL, OWN_STATUS]
