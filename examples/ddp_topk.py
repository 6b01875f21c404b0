# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains with DistributedDataParallel on two ranks; gravac takes three lines.

    torchrun --nproc-per-node 2 examples/ddp_topk.py

To see the chosen compression factors: tensorboard --logdir runs
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, topk


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors, each along one of eight fixed random directions plus noise, and the index of its direction."""
    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(8, (64,), generator=generator)
    return directions[labels] + 4 * torch.randn(64, 256, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)

    compressor = AdaptiveCompressor(topk, cf_range=(10, 1000), log_dir="runs/ddp")
    compressor.attach(ddp, optimizer)

    for step in range(steps):
        inputs, labels = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 50 == 49 or step == steps - 1):
            print(f"step {step + 1}: loss {loss.item():.3f}, CF {compressor.cf:g}, gain {compressor.gain or 1:.2f}")

    history = compressor.history
    compressor.close()
    if dist.get_rank() == 0:
        for record in history:
            if record.changed:
                print(record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
