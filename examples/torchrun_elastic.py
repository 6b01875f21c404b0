# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains on several machines, and continues on fewer if a machine is lost: weights and residuals are restored.

Run these commands on each machine; HOST is the name of one of them:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # otherwise gloo finds the addresses from before a restart
    torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        examples/torchrun_elastic.py --folder /shared/run

If a rank fails or a machine is lost, torchrun restarts the remaining ranks, which continue from the latest checkpoint.
On one machine: torchrun --nproc-per-node 2 --max-restarts 3 examples/torchrun_elastic.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac.checkpoint
from gravac import AdaptiveCompressor, topk


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors, each along one of eight fixed random directions plus noise, and the index of its direction."""
    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(8, (64,), generator=generator)
    return directions[labels] + 4 * torch.randn(64, 256, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("runs/elastic"), help="folder for checkpoints of all ranks")
    parser.add_argument("--fail-at", type=int, help="step in which the last rank fails on purpose, once")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    compressor = AdaptiveCompressor(topk, cf_range=(10, 1000), log_dir=options.folder / "log")
    compressor.attach(ddp, optimizer)

    # Weights and optimizer are the same on all ranks, and are in a single file. gravac saves what differs between ranks
    # in a folder. The names of file and folder have the step.
    first, latest = 0, options.folder / "latest"
    if latest.exists():
        first = int(latest.read_text())
        saved = torch.load(options.folder / f"model{first}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        gravac.checkpoint.load(options.folder / f"gravac{first}", compressor, on_resize="mean")
    if rank == 0:
        print(f"{world} ranks, from step {first}", flush=True)

    for step in range(first, options.steps):
        if step == options.fail_at and rank == world - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            raise SystemExit(f"rank {rank} fails in step {step}, as asked")
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        if (step + 1) % options.every == 0:
            save(options.folder, step + 1, model, optimizer, compressor)

    cf = compressor.cf
    compressor.close()
    if rank == 0:
        print(f"step {options.steps}: loss {loss.item():.3f}, CF {cf:g}, {world} ranks", flush=True)
    dist.destroy_process_group()


def save(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    compressor: AdaptiveCompressor,
) -> None:
    """Save a checkpoint; then write its step to the file ``latest``, which always names a complete checkpoint."""
    gravac.checkpoint.save(folder / f"gravac{step}", compressor)
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"model{step}.pt")
        partial = folder / "latest.partial"
        partial.write_text(str(step))
        partial.replace(folder / "latest")
    dist.barrier()


if __name__ == "__main__":
    main()
