# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that fails, or closes, tells the others why: they end with its error, long before the group's timeout.

The process group's timeout is half an hour here, so a rank that is not told hangs, which ``tests.ranks`` shows.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gravac.adaptive
from gravac import AdaptiveCompressor, Static, topk
from gravac.compressors import Context, Rounds, TopK
from gravac.exchange import fifo
from gravac.exchange.group import private_group
from tests.distributed.training import batch, network, parallel, sgd, train
from tests.outer.by_hand import OuterByHand
from tests.policies import adaptive
from tests.ranks import processes

FAILS_AT = 3
"""Step at which the compressor of the last rank raises."""


class Breaks(TopK):
    """Top-k that raises at a step, on one rank: as where memory ran out, or a tensor is none that it knows."""

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        if ctx.rank == ctx.world - 1 and ctx.step == FAILS_AT:
            raise ValueError("the codec broke: Größe")
        return (yield from super().rounds(x, cf, ctx))


def said_by(training: Callable[[], None]) -> tuple[str, str]:
    try:
        training()
    except Exception as failure:
        return type(failure).__name__, str(failure)
    return "", "nothing"


def in_backward(rank: int) -> tuple[str, str]:
    ddp = parallel()
    with adaptive(Breaks(), controller=Static(cf=10), dense_below=0) as compressor:
        compressor.attach(ddp)

        def training() -> None:
            for step in range(FAILS_AT + 2):
                ddp(batch(rank, step)[0]).square().mean().backward()

        said = said_by(training)
        assert compressor.cf == 10  # what is known stays readable
        assert compressor.state_dict()["step"] <= FAILS_AT
        return said


def in_outer_steps(rank: int) -> tuple[str, str]:
    module = network()
    inner = torch.optim.SGD(module.parameters(), lr=0.01)
    given: dict[str, Any] = {"every": 2, "delay": 0, "dense_below": 0}
    with OuterByHand(module, inner, base=Breaks(), controller=Static(cf=10), **given) as outer:

        def training() -> None:
            for step in range(2 * FAILS_AT + 4):
                module(batch(rank, step)[0]).square().mean().backward()
                inner.step()
                outer.step()

        return said_by(training)


def in_opening(rank: int, folder: Path) -> tuple[str, str]:
    (folder / "file").touch()
    with AdaptiveCompressor(topk, controller=Static(cf=10), log_dir=folder / "file" / "runs") as compressor:
        ddp = parallel()

        def training() -> None:
            compressor.attach(ddp)
            ddp(batch(rank, 0)[0]).square().mean().backward()

        return said_by(training)


def failing(rank: int, world: int, folder: Path) -> list[tuple[str, str]]:
    return [in_backward(rank), in_outer_steps(rank), in_opening(rank, folder)]


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_fails_ends_the_others_with_its_number_and_its_error(world: int, tmp_path: Path) -> None:
    ranks = processes(failing, world, tmp_path)
    *others, broken = ranks
    for backward, outer, _ in others:
        for name, said in (backward, outer):
            assert name == "ExchangeError"  # backward() and step() raise the class that the docs name
            assert f"rank {world - 1} of {world} failed: ValueError: the codec broke: Größe" in said
        assert "gravac: step 3," in backward[1]
        assert "gravac: step 7 (since step 6)," in outer[1]  # the training steps of round 3
    assert broken[:2] == [("ValueError", "the codec broke: Größe")] * 2
    (first, *rest) = (rank[2] for rank in ranks)
    assert first[0] == "SettingsError"
    assert "log_dir: cannot write to" in first[1]
    for _, said in rest:  # which cannot write there either, and never looked
        assert f"rank 0 of {world} failed: SettingsError: log_dir: cannot write to" in said


def interrupted(rank: int, world: int, folder: Path) -> str:
    """Close after Ctrl-C while the last rank stalls; which goes on afterwards, and learns of it."""
    gravac.adaptive.CLOSING_SECONDS = 0.5
    fifo.JOIN_SECONDS = 0.5
    gradient = torch.ones(64, 64)
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    engine = compressor.attach_parameters({"w": gradient})
    said = ""

    def step() -> None:
        engine.begin()
        handle = engine.ready([("w", gradient)])
        engine.end()
        handle.wait()

    if rank == 0:
        try:
            with compressor:
                step()
                engine.begin()
                handle = engine.ready([("w", gradient)])
                engine.end()
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass
        assert compressor.cf == 1
        assert compressor.history is not None
        assert compressor.state_dict()["step"] <= 2
        said = said_by(handle.wait)[1]
        (folder / "closed").touch()
    else:
        step()
        while not (folder / "closed").exists():
            time.sleep(0.05)
        said = said_by(lambda: [step() for _ in range(3)] and None)[1]
        compressor.close()
    return said


def test_ctrl_c_ends_within_the_bound_of_close_while_another_rank_stalls(tmp_path: Path) -> None:
    closed, other = processes(interrupted, 2, tmp_path)
    assert "close() waited 0.5 s for the exchange in flight" in closed
    assert "rank 0 of 2 failed" in other
    assert "close() waited 0.5 s" in other


def held() -> tuple[int, int]:
    """File descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def opened_and_closed(rank: int, world: int, times: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(times):
        gradient = torch.ones(64, 64)
        with AdaptiveCompressor(topk, controller=Static(cf=1)) as compressor:
            engine = compressor.attach_parameters({"w": gradient})
            engine.begin()
            handle = engine.ready([("w", gradient)])
            engine.end()
            handle.wait()
        dist.barrier()  # the other side's connections are closed, too
        found.append(held())
    later = private_group(None)  # its name is none that a group had before: else it would hang
    total = torch.ones(2)
    dist.all_reduce(total, group=later)
    assert total.tolist() == [world] * 2
    return found


def gravacs_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gravac-")]


SETTINGS_OF_MODES: dict[str, dict[str, Any]] = {
    "hook": {"base": topk, "controller": Static(cf=10), "native": False},
    "outer": {"base": topk, "controller": Static(cf=10), "every": 3},
    "default": {},
}


def dropped(rank: int, world: int, mode: str) -> list[tuple[int, int]]:
    """File descriptors and threads after each of several compressors that nobody closed."""
    gc.freeze()  # what was imported is no garbage, and takes long to look through
    found = []
    for _ in range(4):
        ddp = parallel()
        optimizer = sgd(ddp)
        compressor = adaptive(**SETTINGS_OF_MODES[mode])
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(7))
        assert gravacs_threads()
        dist.barrier()
        del compressor, ddp, optimizer
        deadline_s = time.monotonic() + 60
        while gc.collect() or gravacs_threads():  # a thread that ends a step may hold the compressor a moment longer
            assert time.monotonic() < deadline_s, gravacs_threads()
            time.sleep(0.01)
        dist.barrier()  # the other side's connections are closed, too
        found.append(held())
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("mode", SETTINGS_OF_MODES)
def test_a_compressor_that_is_dropped_without_close_holds_no_file_descriptor_and_no_thread(mode: str) -> None:
    for found in processes(dropped, 2, mode):
        assert len({*found[1:]}) == 1, found


def closed_while_rank_0_stalls(rank: int, world: int, folder: Path) -> list[str]:
    """Names of the threads that are left after ``close``."""
    gravac.adaptive.CLOSING_SECONDS = fifo.JOIN_SECONDS = 0.5
    gradient = torch.ones(64, 64)
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    engine = compressor.attach_parameters({"w": gradient})
    if rank == 1:
        engine.begin()
        engine.ready([("w", gradient)])
        engine.end()
        compressor.close()
        (folder / "closed").touch()
    while not (folder / "closed").exists():
        time.sleep(0.05)
    return gravacs_threads() if rank == 1 else []


def test_close_leaves_no_thread_that_waits_for_a_rank_that_stalls(tmp_path: Path) -> None:
    assert processes(closed_while_rank_0_stalls, 2, tmp_path) == [[], []]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_closed_compressor_holds_no_file_descriptor_and_no_thread() -> None:
    for found in processes(opened_and_closed, 2, 5):
        assert len({*found[1:]}) == 1, found


DROPPED = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from gravac import AdaptiveCompressor, Static, topk

def train():
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    compressor = AdaptiveCompressor(topk, controller=Static(cf=10))
    compressor.attach(ddp)
    for _ in range(4):
        ddp(torch.randn(8, 64)).square().mean().backward()

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
train()
import gc
gc.collect()  # as it may come at any time: hooks and modules refer to each other
dist.destroy_process_group()
"""
"""A program whose function returns without closing the compressor, shortly before the program ends."""


def test_a_program_that_drops_its_compressor_just_before_its_end_ends_well(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DROPPED, tmp_path / "store", str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
