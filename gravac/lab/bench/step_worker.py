# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times the steps of one rank of ``gravac bench step``, and writes the numbers to ``rank-RANK.json`` in a folder.

``python -m gravac.lab.bench.step_worker FOLDER WORKERS MODEL METHOD WARMUP STEPS RANK``
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from gravac.lab.bench.models import StepModel, find_step_model
from gravac.lab.json_file import write_json
from gravac.lab.local_ranks import joined_group
from gravac.lab.training.exchange import attach_to_ddp
from gravac.lab.training.methods import Method
from gravac.lab.training.step_clock import StepTimes, TrainingClock

COMPUTE_STEPS = 3
"""Number of steps without an exchange; the fastest is the time of computation."""


def time_steps(folder: Path, model_name: str, method_text: str, warmup: int, steps: int, rank: int) -> None:
    """Train ``warmup`` and then ``steps`` steps, of which the latter are timed; write the result to the folder."""
    model, method = find_step_model(model_name), Method.parse(method_text)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model.make())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)
    exchange = attach_to_ddp(method, ddp, optimizer, samples_per_step=1, log_dir=None, seed=0, paced=False)
    generator, clock = torch.Generator().manual_seed(rank), TrainingClock()

    def step() -> StepTimes:
        clock.mark_step_begin()
        inputs, targets = model.inputs(generator)
        clock.mark_inputs_ready()
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(inputs).flatten(0, -2), targets.flatten())
        clock.watch_backward(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        clock.mark_backward_return()
        optimizer.step()
        return clock.end_step(exchange.exposed_seconds)

    for _ in range(warmup):
        step()
    timed_steps = []
    for _ in range(steps):
        dist.barrier()
        timed_steps.append(step())
    exchange.wait_for_exchanges()
    exchange.decisions()  # waits until the records of steps have come
    coding_s, exchange_s = exchange.phase_seconds()
    running, peak_bytes = exchange.running, peak_resident_bytes()
    exchange.close()
    result = {
        "step_s": [times.seconds for times in timed_steps],
        "compute_s": _seconds_of_computation(model, rank),
        "waiting_s": statistics.median(times.exposed_s for times in timed_steps),
        "coding_s": coding_s,
        "exchange_s": exchange_s,
        "peak_bytes": peak_bytes,
        "running": running,
    }
    write_json(folder / f"rank-{rank}.json", result)


def _seconds_of_computation(model: StepModel, rank: int) -> float:
    """Return the seconds of a step of this rank's model without an exchange, while the other ranks compute, too."""
    module = model.make()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    generator, seconds = torch.Generator().manual_seed(rank), []
    for _ in range(COMPUTE_STEPS):
        dist.barrier()
        begin = time.perf_counter()
        inputs, targets = model.inputs(generator)
        optimizer.zero_grad()
        F.cross_entropy(module(inputs).flatten(0, -2), targets.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def peak_resident_bytes() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    folder_text, workers_text, model_text, method_text, warmup_text, steps_text, rank_text = sys.argv[1:]
    with joined_group(Path(folder_text), int(rank_text), int(workers_text)):
        time_steps(Path(folder_text), model_text, method_text, int(warmup_text), int(steps_text), int(rank_text))
