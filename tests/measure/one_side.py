# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of one side of ``tests.measure.before_after``: trains with whatever gravac is on PYTHONPATH, when told to.

    PYTHONPATH=WORKTREE python one_side.py RANK WORLD FOLDER

It reads a word a line from standard input, and answers each with a line of JSON: ``open WORKLOAD`` sets up and warms up
(the answer is ``{}``), ``run STEPS`` trains that long (``seconds``: the median of a step), ``close`` (``wire_ratio`` of
the last step). Between two words it waits and takes no time from the other side.

It runs against several versions of the package, so it uses nothing of the repository but the public API, and nothing of
``tests``.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 6
"""Steps that are not counted: DDP rebuilds its buckets, and what a controller decides comes into force."""

CHARLM_SCALE = 0.4

METHODS = {
    "charlm, dense": ("dense", {}, 1.0),
    "charlm, quantize(2)": ("quantize", {"bits": 2}, 16.0),
    "charlm, topk@10": ("topk", {}, 10.0),
}
"""What ``charlm`` trains with: a compressor's name, its settings, its compression factor."""

WIDE = ((384, 768), (768, 256))
"""Width and rows of a batch of the models of eight linear layers, which settle on dense."""

Workload = tuple[DistributedDataParallel, torch.optim.Optimizer, Callable[[int], torch.Tensor], Any]
"""A wrapped model, its optimizer, the loss of a step, and the compressor, attached."""


def eight_layers(width: int) -> torch.nn.Module:
    """Return eight linear layers of ``width`` to ``width``, with ReLUs; the same weights on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())])


def charlm(rank: int, name: str, settings: dict[str, Any], cf: float) -> Workload:
    """Set up the lab's character transformer, in about eight buckets, as the lab does."""
    from gravac import COMPRESSORS, AdaptiveCompressor, Static
    from gravac.lab.tasks import make

    task = make("charlm", scale=CHARLM_SCALE)
    model = task.model()
    megabytes = sum(parameter.numel() for parameter in model.parameters()) * 4 / 2**20
    ddp = DistributedDataParallel(model, bucket_cap_mb=megabytes / 8)
    optimizer = task.optimizer(model)
    cf_range = (min(cf, 2.0), max(cf, 2.0))
    compressor = AdaptiveCompressor(COMPRESSORS[name](**settings), cf_range, controller=Static(cf=cf))
    compressor.attach(ddp, optimizer)
    return ddp, optimizer, lambda step: task.loss(ddp, task.batch(step, rank)), compressor


def wide(width: int, rows: int) -> Workload:
    """Set up eight linear layers settled on dense."""
    from gravac import AdaptiveCompressor, Static

    ddp = DistributedDataParallel(eight_layers(width), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    compressor = AdaptiveCompressor("topk", (1, 1000), controller=Static(cf=1))
    compressor.attach(ddp, optimizer)
    x = torch.randn(rows, width)
    return ddp, optimizer, lambda _: ddp(x).square().mean(), compressor


def workloads(rank: int) -> dict[str, Callable[[], Workload]]:
    """Return everything that is timed, by name, in order."""
    made: dict[str, Callable[[], Workload]] = {}
    for what, (name, settings, cf) in METHODS.items():
        made[what] = lambda name=name, settings=settings, cf=cf: charlm(rank, name, settings, cf)
    for width, rows in WIDE:
        made[f"{8 * width * (width + 1) / 1e6:.1f} M parameters, dense"] = lambda width=width, rows=rows: wide(
            width, rows
        )
    return made


def steps(workload: Workload, first: int, count: int) -> list[float]:
    """Train, and return the seconds of each step."""
    _, optimizer, loss, _ = workload
    taken = []
    for step in range(first, first + count):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        taken.append(time.perf_counter() - start)
    return taken


def obey(rank: int, say: TextIO) -> None:
    """Do what standard input says, until it ends."""
    made = workloads(rank)
    workload, done = None, 0
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        answer: dict[str, float | None] = {}
        if word == "open":
            workload, done = made[argument](), WARM_UP
            steps(workload, 0, WARM_UP)
        elif word == "run":
            assert workload is not None
            answer["seconds"] = statistics.median(steps(workload, done, int(argument)))
            done += int(argument)
        elif word == "close":
            assert workload is not None
            answer["wire_ratio"] = workload[-1].wire_ratio
            workload[-1].close()
            workload = None
        dist.barrier()
        print(json.dumps(answer), file=say, flush=True)


def main(arguments: list[str]) -> int:
    """Run one rank; see the module."""
    import gravac

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
