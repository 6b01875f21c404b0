# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks of one site that train a task of the lab as a model in shards; see ``tests.measure.hsdp_links``.

    python -m tests.measure.programs.with_hsdp TASK SCALE METHOD SEED STEPS EVALUATIONS

Each site holds a replica in two shards. The command runs on each site, with the site's number in ``RANK``, and starts
a process for the second shard. Evaluations stop the clock. What is printed is in the form of nanoGPT's ``train.py``.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor
from gravac.lab.mesh import Mesh
from gravac.lab.tasks import make
from gravac.lab.training.sharded import device_mesh
from gravac.lab.training.sharded import shard as cut_into_shards
from tests.measure.nanogpt import REPORT
from tests.measure.nanogpt_links import BEGINS
from tests.measure.programs.methods import BFLOAT16, SETTINGS, RunReport

SHARDS = 2

SHARD = "SHARD"
"""Environment variable with the number of a process's shard; not set in the process that the command starts."""


def main() -> None:
    if SHARD not in os.environ:
        second = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**os.environ, SHARD: "1"})
        train(shard=0)
        if second.wait():
            raise SystemExit(f"the rank of the second shard ended with exit status {second.returncode}")
    else:
        train(shard=1)


def train(shard: int) -> None:
    """Train one rank."""
    name, scale, method, seed, *numbers = sys.argv[1:]
    steps, evaluations = map(int, numbers)
    site, sites = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank, world = SHARDS * site + shard, SHARDS * sites
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=world)
    task: Any = make(name, scale=float(scale), seed=int(seed))
    model = task.model()
    reduced = torch.bfloat16 if method == BFLOAT16 else None
    cut_into_shards(task, model, device_mesh(Mesh(sites, SHARDS)), reduced)
    optimizer = task.optimizer(model)
    report, compressor = RunReport(), None
    if method in SETTINGS:
        compressor = AdaptiveCompressor(**SETTINGS[method], sinks=[report])
        compressor.attach(model, optimizer)
    if rank == 0:
        print(BEGINS, flush=True)
    interval, seconds = steps // evaluations, 0.0
    for step in range(steps + 1):
        if step % interval == 0:
            score = task.validate(model, rank, world)
            sums = torch.tensor([score.total, score.count], dtype=torch.float64)
            dist.all_reduce(sums)
            loss = float(sums[0] / sums[1])
            if rank == 0:
                print(f"step {step}: train loss 0.0, val loss {loss:.5f}, seconds {seconds:.3f}", flush=True)
            dist.barrier()
        if step == steps:
            break
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate_at(step)
        optimizer.zero_grad()
        task.loss(model, task.batch(step, rank)).backward()
        optimizer.step()
        seconds += time.perf_counter() - began
    if compressor is not None:
        plain = report.as_plain(compressor)
        if rank == 0:
            print(REPORT + json.dumps(plain))
        compressor.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
