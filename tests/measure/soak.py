# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A long run with random delays: candidates and modes change at random, the run is saved and resumed all the time.

4 processes on gloo, a model of 7 buckets, sleeps of 0-4 ms before each step. At random steps the next candidate is
top-k at one of three CFs, dense, native or outer steps. Every 250 steps the run is saved, and goes on with a new
compressor that loads the state. Ranks compare the weights that they share every 50 steps.

    python -m tests.measure.soak [--json FILE] [--steps N] [--seed N]
"""

import argparse
import io
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, topk
from tests.measure.results import write
from tests.modes.scripted import APART, DENSE, HOOK, NATIVE, Entry, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

WORLD = 4

KINDS: tuple[Entry, ...] = (
    HOOK,
    (0, "hook", "topk", 40.0, 1),
    (0, "hook", "topk", 160.0, 1),
    DENSE,
    (0, "hook", "dense", 2.0, 1),
    NATIVE,
    APART,
)

SAVED_EVERY, COMPARED_EVERY = 250, 50


def random_script(steps: int, seed: int) -> tuple[Entry, ...]:
    """Return a script that runs another candidate every 5 to 40 steps."""
    draw, entries, step = random.Random(seed), list[tuple[int, Entry]](), 0
    while step < steps:
        entries.append((step, draw.choice(KINDS)))
        step += draw.randint(5, 40)
    return script(*entries)


def used() -> dict[str, float]:
    """Return what this process uses: memory in MiB, threads, and file descriptors."""
    status = Path("/proc/self/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "mib": round(resident_kib / 1024, 1),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def run(rank: int, world: int, steps: int, seed: int) -> dict[str, Any]:
    """Train; return what the run came to, and what the process used after each eighth of the steps."""
    torch.manual_seed(0)
    draw = random.Random(f"{seed} {rank}")
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(96, 96), torch.nn.Tanh())))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.04)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    controller = Scripted(script=random_script(steps, seed))

    def compressor_from(state: bytes | None) -> AdaptiveCompressor:
        made = adaptive(topk, (10, 10), controller=controller, every=(1, 5), dense_below=64)
        if state is not None:
            made.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        made.attach(ddp, optimizer)
        return made

    def equal() -> bool:
        with compressor.shared_weights():
            mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
        all_ranks = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(all_ranks, mine)
        return all(torch.equal(all_ranks[0], other) for other in all_ranks)

    compressor, differ, uses, modes = compressor_from(None), 0, list[dict[str, float]](), 0
    for step in range(steps):
        time.sleep(draw.uniform(0, 0.004))
        optimizer.zero_grad()
        x = torch.randn(8, 96, generator=torch.Generator().manual_seed(step * world + rank))
        (ddp(x) - x).square().mean().backward()
        optimizer.step()
        if step % COMPARED_EVERY == COMPARED_EVERY - 1:
            differ += not equal()
        if step % SAVED_EVERY == SAVED_EVERY - 1:
            file = io.BytesIO()
            torch.save(compressor.state_dict(), file)
            modes += len(compressor.changes)
            compressor.detach()
            compressor.close()
            compressor = compressor_from(file.getvalue())
        if step % (steps // 8) == steps // 8 - 1:
            uses.append(used())
    compressor.synchronize()
    differ += not equal()
    compressor.detach()
    compressor.close()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"differ": differ, "changes_of_mode": modes, "uses": uses, "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    ranks = processes(run, WORLD, arguments.steps, arguments.seed, timeout=3000)
    row = {
        "ranks": WORLD,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "replicas_bitwise_equal": all(torch.equal(ranks[0]["weights"], other["weights"]) for other in ranks),
        "comparisons_that_differed": sum(rank["differ"] for rank in ranks),
        "changes_of_mode": ranks[0]["changes_of_mode"],
        "uses_of_rank_0": ranks[0]["uses"],
        "minutes": round((time.perf_counter() - began) / 60, 2),
    }
    print(row)
    write([row], arguments.json)


if __name__ == "__main__":
    main()
