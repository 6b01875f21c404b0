# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on the time of a forward, which tells a slow machine from a slow link."""

import math
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, OuterSettings, topk
from gravac.telemetry.records import Record, StepRecord
from tests.distributed.training import CLASSES, FEATURES, batch, network, parallel, train
from tests.modes.scripted import APART, HOOK, NATIVE, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

SLEPT_S = 0.1
"""What the slow rank's forward takes at least, in seconds."""


class Slow(torch.nn.Module):
    """A model whose forward takes a rank so many seconds, with a buffer that DDP broadcasts before each forward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.seconds, self.inner = seconds, torch.nn.Linear(FEATURES, CLASSES)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        result: torch.Tensor = self.inner(x) * self.scale
        return result


def forwards(records: list[Record], steps: range) -> list[tuple[str, float]]:
    """The mode, and the seconds of forward, of each recorded step that began in ``steps``."""
    return [(r.mode, r.forward_seconds) for r in records if isinstance(r, StepRecord) and r.step in steps]


def trained(rank: int, world: int, delay: int) -> list[tuple[str, float]]:
    """Train in the hook, natively, and in outer steps with a delay in steps; rank 1 has the slow forward."""
    records: list[Record] = []
    ddp = DistributedDataParallel(Slow(SLEPT_S if rank == 1 else 0.0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    controller = Scripted(script=script((0, HOOK), (6, NATIVE), (13, APART)))
    compressor = adaptive(
        topk,
        (10, 10),
        controller=controller,
        every=(1, 5),
        outer=OuterSettings(delay=delay),
        dense_below=0,
        sinks=[records.append],
    )
    compressor.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(38))
    compressor.close()
    return forwards(records, range(2, 38))


def trained_by_delay(rank: int, world: int) -> dict[int, list[tuple[str, float]]]:
    return {delay: trained(rank, world, delay) for delay in (0, 2, 5)}


@pytest.fixture(scope="module")
def times_by_delay() -> dict[int, list[tuple[str, float]]]:
    """Rank 0's times, by the delay of outer steps."""
    return processes(trained_by_delay, 2)[0]


@pytest.mark.parametrize("delay", [0, 2])
def test_the_mean_of_the_ranks_forwards_is_told_in_all_modes(
    times_by_delay: dict[int, list[tuple[str, float]]], delay: int
) -> None:
    times = times_by_delay[delay]
    assert min(seconds for _, seconds in times) >= SLEPT_S / 2
    assert {mode for mode, _ in times} == {"hook", "native", "outer"}


def test_a_forward_beside_an_exchange_of_outer_steps_is_not_timed(
    times_by_delay: dict[int, list[tuple[str, float]]],
) -> None:
    times = times_by_delay[5]  # an exchange is in flight for a whole round
    first_s, *later = [seconds for mode, seconds in times if mode == "outer"]
    assert first_s >= SLEPT_S / 2 and later and all(map(math.isnan, later))


def compiled(rank: int, world: int) -> list[tuple[str, float]]:
    """Train a compiled DDP module, whose forward breaks the graph before it runs the model."""
    records: list[Record] = []
    ddp = DistributedDataParallel(network(2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    compressor = AdaptiveCompressor(
        topk, (10, 10), controller=Scripted(script=script((0, NATIVE))), every=(1, 5), sinks=[records.append]
    )
    compressor.attach(ddp, optimizer)
    # one rank shows it: a compiler's imports take a second
    called: Any = torch.compile(ddp, backend="eager") if rank == 0 else ddp
    for step in range(22):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(called(x), y).backward()
        optimizer.step()
    compressor.close()
    return forwards(records, range(2, 22))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_does_not_keep_the_first_forwards_clock() -> None:
    times, _ = processes(compiled, 2)
    seconds = [one for _, one in times]
    assert min(seconds) > 0 and len(set(seconds)) == len(seconds) > 2


def waits_for_buffers(rank: int, world: int) -> list[tuple[str, float]]:
    """Rank 0, which broadcasts its buffers, is late to each forward."""
    records: list[Record] = []
    ddp = parallel(Slow(0.0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    compressor = AdaptiveCompressor(
        topk, (10, 10), controller=Scripted(script=script((0, NATIVE))), every=(1, 5), sinks=[records.append]
    )
    compressor.attach(ddp, optimizer)
    if rank == 0:
        ddp.register_forward_pre_hook(lambda *_: time.sleep(4 * SLEPT_S))
    for step in range(16):
        train(ddp, optimizer, rank, range(step, step + 1))
        dist.barrier()
    compressor.close()
    return forwards(records, range(2, 16))


def test_the_time_of_a_forward_contains_no_wait_for_the_broadcast_of_buffers() -> None:
    times, _ = processes(waits_for_buffers, 2)
    assert times and min(seconds for _, seconds in times) < SLEPT_S
