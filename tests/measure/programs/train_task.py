# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a program's training by DistributedDataParallel, as a plain training loop; see ``tests.measure.lines``.

    python -m tests.measure.programs.train_task PROGRAM METHOD SEED RATE STEPS MORE EVALUATIONS

The learning rate warms up, falls to a tenth by a cosine in ``STEPS`` steps, and stays there for the steps until
``MORE``. Rank 0 evaluates, which stops the clock. What is printed is in the form of nanoGPT's ``train.py``; a metric
that rises has a minus.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.measure.efficiency import factor
from tests.measure.programs import PROGRAMS
from tests.measure.programs.methods import BEGINS, attach, end
from tests.measure.turns import wait_for_turn


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
    attached = attach(method, ddp, optimizer)
    print(BEGINS, flush=True)
    began, interval, clip = time.time(), total // evaluations, PROGRAMS[name].clip
    sign = -1 if task.metric.higher_is_better else 1
    for step in range(total + 1):
        paused = time.time()
        if step % interval == 0 and rank == 0:
            value = sign * task.metric.compute(task.validate(model))
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
    end(attached)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
