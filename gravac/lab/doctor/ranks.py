# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model for a few compressed steps to check that ranks connect and stay equal; measures the link."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.group import GroupTransport, backend_of
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.lab import local_ranks
from gravac.settings import Settings, SettingsError
from gravac.sources.ddp_private import Reducer

WIDTH, STEPS, CF = 256, 4, 10.0
"""Width of the small model's layers, number of its training steps, and its compression factor (top-k)."""

PATIENCE_SECONDS = 60.0
"""Seconds after which ``check_here`` gives up waiting for its two ranks."""


class Check(Settings):
    """Result of training a small model on several ranks, to check that gravac works on them.

    Attributes:
        ranks: number of ranks.
        hosts: number of machines that the ranks run on.
        backend: backend that carries the gradients' bytes.
        device: type of the device that holds the gradients.
        link: latency (s) and bandwidth (bit/s) between ranks, and bytes per second of a copy; ``None`` for one rank.
        wire_ratio: wire bytes of a dense step / wire bytes of a compressed step.
        same: whether all ranks hold the same weights after the steps.
        loopback: whether the check started the ranks on this machine, so that no network links them.
        lacks: text that names what this torch lacks for native and outer steps, and the remedy; ``None`` if it lacks
            nothing.
    """

    ranks: int
    hosts: int
    backend: str
    device: str
    link: LinkProbe | None
    wire_ratio: float | None
    same: bool
    loopback: bool = False
    lacks: str | None = None


def check_launched() -> Check | None:
    """Check the ranks that a launcher such as torchrun started; return the result on rank 0, ``None`` on other ranks.

    Raises:
        RuntimeError: ranks cannot connect, or the exchange failed.
    """
    with local_ranks.launched_group() as rank:
        result = check()
        return result if rank == 0 else None


def check_here() -> Check:
    """Start two ranks on this machine, check them over loopback, and return the result.

    Raises:
        RuntimeError: a rank failed, or the ranks took longer than ``PATIENCE_SECONDS``.
    """
    with tempfile.TemporaryDirectory(prefix="gravac-doctor-") as folder:
        local_ranks.spawn("gravac.lab.doctor", Path(folder), 2, timeout_s=PATIENCE_SECONDS)
        return Check.model_validate_json(Path(folder, "check.json").read_text())


def check(loopback: bool = False) -> Check:
    """Train a small model for a few compressed steps, and return whether ranks stay equal, with facts about the link.

    All ranks of the default process group must call this function.

    Args:
        loopback: value of ``Check.loopback`` in the result.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    world = dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    link = probe_link(GroupTransport(group, device=device), device)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    lacks = missing_torch_name(ddp)
    with AdaptiveCompressor(topk, controller=Static(cf=CF), native=False) as compressor:
        compressor.attach(ddp, optimizer)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(STEPS):
            optimizer.zero_grad()
            ddp(torch.randn(8, WIDTH, generator=generator).to(device)).square().mean().backward()
            optimizer.step()
        wire_ratio = compressor.wire_ratio
    flat_weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    weights_of_ranks = [torch.empty_like(flat_weights) for _ in range(world)]
    dist.all_gather(weights_of_ranks, flat_weights)
    hostnames: list[str] = [""] * world
    dist.all_gather_object(hostnames, socket.gethostname())
    return Check(
        ranks=world,
        hosts=len(set(hostnames)),
        backend=backend_of(None, device),
        device=device.type,
        link=link,
        wire_ratio=wire_ratio,
        same=all(torch.equal(rank_weights, flat_weights) for rank_weights in weights_of_ranks),
        loopback=loopback,
        lacks=lacks,
    )


def missing_torch_name(ddp: DistributedDataParallel) -> str | None:
    """Return a text that says which private name of torch is missing in this version, and the remedy.

    Native and outer steps need these names. ``None`` if no name is missing.
    """
    try:
        Reducer(ddp)
    except SettingsError as error:
        return str(error)
    return None
