# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a program's training by DistributedDataParallel, as a plain training loop; see ``programs_links``.

    python -m tests.measure.programs.train_task PROGRAM METHOD SEED RATE STEPS MORE EVALUATIONS

The learning rate warms up, falls to a tenth by a cosine in ``STEPS`` steps, and stays there for the steps until
``MORE``. Rank 0 evaluates, which stops the clock. What is printed is in the form of nanoGPT's ``train.py``.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from tests.measure.nanogpt import REPORT
from tests.measure.nanogpt_links import BEGINS
from tests.measure.programs import PROGRAMS
from tests.measure.programs.methods import FLOAT16, PROBING, SETTINGS, RunReport
from tests.measure.progress import factor
from tests.measure.turns import wait_for_turn

PROBED = 4
"""Number of batches of each rank that the probe has."""

FIRST_OF_PROBE = 10**6
"""Step whose batch is the probe's first: training makes none so late."""


def main() -> None:
    name, method, *numbers = sys.argv[1:]
    seed, rate = int(numbers[0]), float(numbers[1])
    steps, total, evaluations = map(int, numbers[2:])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=world)
    task = PROGRAMS[name].make(seed, rate, None)
    model = task.model()
    optimizer = task.optimizer(model)
    ddp = DistributedDataParallel(model)
    fixed = [task.batch(FIRST_OF_PROBE + number, rank) for number in range(PROBED)]

    def probe() -> float:
        return sum(float(task.loss(model, batch)) for batch in fixed) / len(fixed)

    report, compressor = RunReport(), None
    if method == FLOAT16:
        ddp.register_comm_hook(None, fp16_compress_hook)
    elif method in SETTINGS:
        measured = {"probe": probe, "total_steps": total} if method in PROBING else {}
        compressor = AdaptiveCompressor(**SETTINGS[method], **measured, sinks=[report])
        compressor.attach(ddp, optimizer)
    print(BEGINS, flush=True)
    began, interval, clip = time.time(), total // evaluations, PROGRAMS[name].clip
    for step in range(total + 1):
        paused = time.time()
        if step % interval == 0 and rank == 0:
            value = task.metric.compute(task.validate(model))
            print(f"step {step}: train loss 0.0, val loss {value:.5f}, seconds {paused - began:.3f}", flush=True)
            wait_for_turn()
        began += time.time() - paused
        if step == total:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * factor("cosine", min(step, steps - 1), steps)
        optimizer.zero_grad()
        task.loss(ddp, task.batch(step, rank)).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    if compressor is not None:
        plain = report.as_plain(compressor)
        if rank == 0:
            print(REPORT + json.dumps(plain))
        compressor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
