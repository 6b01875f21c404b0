# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains a model in shards on four ranks: two replicas of two shards; gravac averages between the replicas.

    pip install .
    torchrun --nproc-per-node 4 examples/hsdp.py

To see the chosen compression factors: tensorboard --logdir runs
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gravac import AdaptiveCompressor


def batch(generator: torch.Generator, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors, each along one of eight fixed random directions plus noise, and the index of its direction."""
    labels = torch.randint(8, (64,), generator=generator)
    return directions[labels] + 4 * torch.randn(64, 256, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    compressor = AdaptiveCompressor(log_dir="runs/hsdp")
    compressor.attach(model, optimizer)

    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(1, steps + 1):
        inputs, labels = batch(generator, directions)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, mode {compressor.mode}, CF {compressor.cf:g}")

    compressor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
