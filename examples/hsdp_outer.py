# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains a model in shards on two sites of two ranks: each site trains a replica, and exchanges every ten steps.

    pip install .
    torchrun --nproc-per-node 4 examples/hsdp_outer.py

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
    parser.add_argument("--every", type=int, default=10, help="number of steps from one exchange to the next")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    compressor = AdaptiveCompressor(every=options.every, log_dir="runs/hsdp_outer")
    compressor.attach(model, optimizer)

    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + rank)
    inputs_seen_by_none, labels_seen_by_none = batch(torch.Generator().manual_seed(0), directions)
    for step in range(1, options.steps + 1):
        inputs, labels = batch(generator, directions)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            with torch.no_grad():  # a forward without gradients uses the last exchanged weights, equal on both sites
                outputs = model(inputs_seen_by_none)
            evaluated = torch.nn.functional.cross_entropy(outputs, labels_seen_by_none).item()
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}, loss of the last exchanged weights {evaluated:.3f}")

    compressor.synchronize()  # exchange what the sites learned since the last exchange
    if rank == 0:
        wire_ratio = compressor.wire_ratio or 1.0
        print(f"between the sites: 1/{wire_ratio:.0f} of the bytes of dense exchanges in every step")
    compressor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
