# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of one side of ``tests.measure.before_after``: trains with the gravac of its commit, when told to.

    cd WORKTREE && PYTHONPATH=WORKTREE python -m tests.measure.one_side RANK WORLD FOLDER

Each commit is driven by this file as it is there. What two commits share is the contract of lines: the driver first
writes a line of JSON (``package``: path of its gravac, ``workloads``: names of what it can train), then reads a word a
line from standard input and answers each with a line of JSON. ``open WORKLOAD`` sets up and warms up (the answer is
``{}``), ``run STEPS`` trains (``seconds``: median of a step), ``close`` ends the workload (``wire_ratio``: of its last
step). Between two words the driver waits and takes no time from the other side.

A workload that is changed here gets another name, or the two sides do not train the same. The file uses gravac's public
names alone, and nothing else of ``tests``.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import AdaptiveCompressor, Compressor, Static, dense, quantize, topk
from gravac.lab.tasks import make

WARM_UP = 6
"""Steps that are not counted: DDP rebuilds its buckets, and the controller's first decisions take effect."""

CHARLM_SCALE = 0.4

METHODS: dict[str, tuple[Compressor, float]] = {
    "charlm, dense": (dense, 1.0),
    "charlm, quantize(2)": (quantize(2), 16.0),
    "charlm, topk@10": (topk, 10.0),
}
"""What ``charlm`` trains with: a compressor and its compression factor."""

WIDE = ((384, 768), (768, 256))
"""Width and rows of a batch of the models of eight linear layers, which settle on dense."""


@dataclass(frozen=True)
class Workload:
    """Something to train.

    Attributes:
        optimizer: optimizer of the model's parameters.
        loss: function that takes the number of a step, and returns the training loss of that step, a scalar tensor.
        compressor: attached to the model.
    """

    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    compressor: AdaptiveCompressor


def eight_layers(width: int) -> torch.nn.Module:
    """Return eight linear layers of ``width`` to ``width``, with ReLUs; the same weights on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())])


def charlm(rank: int, base: Compressor, cf: float) -> Workload:
    """Set up the lab's character transformer, in about eight buckets, as the lab does."""
    task = make("charlm", scale=CHARLM_SCALE)
    model = task.model()
    megabytes = sum(parameter.numel() for parameter in model.parameters()) * 4 / 2**20
    ddp = DistributedDataParallel(model, bucket_cap_mb=megabytes / 8)
    optimizer = task.optimizer(model)
    compressor = AdaptiveCompressor(base, (min(cf, 2.0), max(cf, 2.0)), controller=Static(cf=cf))
    compressor.attach(ddp, optimizer)
    return Workload(optimizer, lambda step: task.loss(ddp, task.batch(step, rank)), compressor)


def wide(width: int, rows: int) -> Workload:
    """Set up eight linear layers settled on dense."""
    ddp = DistributedDataParallel(eight_layers(width), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    compressor = AdaptiveCompressor(topk, (1, 1000), controller=Static(cf=1))
    compressor.attach(ddp, optimizer)
    x = torch.randn(rows, width)
    return Workload(optimizer, lambda _: ddp(x).square().mean(), compressor)


def workloads(rank: int) -> dict[str, Callable[[], Workload]]:
    """Return all that is timed, by name, in order."""
    layers = {f"{8 * width * (width + 1) / 1e6:.1f} M parameters, dense": (width, rows) for width, rows in WIDE}
    return {
        **{name: partial(charlm, rank, base, cf) for name, (base, cf) in METHODS.items()},
        **{name: partial(wide, width, rows) for name, (width, rows) in layers.items()},
    }


def steps(workload: Workload, first: int, count: int) -> list[float]:
    """Train, and return the seconds of each step."""
    seconds = []
    for step in range(first, first + count):
        start = time.perf_counter()
        workload.optimizer.zero_grad()
        torch.autograd.backward(workload.loss(step))
        workload.optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def obey(rank: int, say: TextIO) -> None:
    """Do what standard input says, until it ends."""
    known = workloads(rank)
    workload: Workload | None = None
    done = 0
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        answer: dict[str, float | None] = {}
        if word == "open":
            workload, done = known[argument](), WARM_UP
            steps(workload, 0, WARM_UP)
        elif word == "run":
            assert workload is not None
            answer["seconds"] = statistics.median(steps(workload, done, int(argument)))
            done += int(argument)
        elif word == "close":
            assert workload is not None
            answer["wire_ratio"] = workload.compressor.wire_ratio
            workload.compressor.close()
            workload = None
        dist.barrier()
        print(json.dumps(answer), file=say, flush=True)


def main(arguments: list[str]) -> int:
    """Run one rank; see the module."""
    rank, world, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    say, sys.stdout = sys.stdout, sys.stderr  # nothing else may speak where answers go
    print(json.dumps({"package": gravac.__file__, "workloads": [*workloads(rank)]}), file=say, flush=True)
    obey(rank, say)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
