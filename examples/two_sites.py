# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains on two sites with a slow link between them; gravac also decides how often the sites exchange.

Between two exchanges each site trains alone. On two real sites (HOST is the name of one site's machine):

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 examples/two_sites.py

As root on Linux, two sites on one machine with 20 Mbit/s between them (``--rate 5mbit`` makes it slower):

    python examples/two_sites.py
"""

import argparse
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor

MODES = {
    "native": "gradients in each step, by DDP",
    "hook": "gradients in each step, by gravac",
    "outer": "each site alone",
}


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors, each along one of eight fixed random directions plus noise, and the index of its direction."""
    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(8, (256,), generator=generator)
    return directions[labels] + 8 * torch.randn(256, 256, generator=generator), labels


def train(steps: int) -> None:
    """Run the training loop of one site."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 8))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    compressor = AdaptiveCompressor(every=(1, 50), log_dir="runs/two_sites")
    compressor.attach(ddp, optimizer)

    began = time.perf_counter()
    for step in range(steps):
        x, y = batch(rank, step)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 20 == 0:
            progress = f"step {step + 1:4d}  {time.perf_counter() - began:6.1f} s  loss {loss.item():.3f}"
            every = f", exchange every {compressor.every} steps" if compressor.mode == "outer" else ""
            print(f"{progress}  {MODES[compressor.mode]}{every}")
    compressor.synchronize()  # exchange what the sites learned since the last exchange
    if rank == 0:
        x, y = batch(99, steps)
        with torch.no_grad():  # a forward without gradients uses the last exchanged weights, equal on both sites
            accuracy = (model(x).argmax(1) == y).float().mean().item()
        wire_ratio = compressor.wire_ratio or 1.0
        print(f"accuracy {100 * accuracy:.1f} %; the last steps sent 1/{wire_ratio:.0f} of the bytes of dense steps")
    for change in compressor.changes:
        if rank == 0:
            print(f"from step {change.step} {MODES[change.after]} ({change.seconds:.2f} s to change)")
    compressor.close()
    dist.destroy_process_group()


def two_sites(rate: str, arguments: list[str]) -> int:
    """Run this script on two sites, linked at an emulated ``rate`` (such as 20mbit); return the highest exit status."""
    from gravac.lab.links.network import INTERFACE, EmulatedNetwork

    with EmulatedNetwork(2, rate) as network:
        with socket.socket() as free:
            free.bind(("", 0))
            port = str(free.getsockname()[1])
        rendezvous = {"MASTER_ADDR": network.address(0), "MASTER_PORT": port, "WORLD_SIZE": "2"}
        sites = []
        for rank in range(2):
            environment = {**os.environ, **rendezvous, "RANK": str(rank), "GLOO_SOCKET_IFNAME": INTERFACE}
            command = [*network.prefix(rank), sys.executable, __file__, *arguments]
            sites.append(subprocess.Popen(command, env=environment))
        try:
            return max(abs(site.wait()) for site in sites)
        finally:
            for site in sites:
                site.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", default="20mbit", help="rate of the link between two emulated sites")
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.steps)
    else:
        sys.exit(two_sites(options.rate, ["--steps", str(options.steps)]))


if __name__ == "__main__":
    main()
