# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model for a few compressed steps to check that ranks connect and stay equal; measures the link."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.group import GroupTransport, backend_of
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.lab import local_ranks
from gravac.lab.mesh import Mesh
from gravac.settings import Settings, SettingsError
from gravac.sources.ddp_private import Reducer

WIDTH, STEPS, CF = 256, 4, 10.0
"""Width of the small model's layers, number of its training steps, and its compression factor (top-k)."""

PATIENCE_SECONDS = 60.0
"""Seconds after which ``check_here`` kills its two ranks and fails."""

PATIENCE_SECONDS_ON_MESH = 240.0
"""Seconds after which ``check_here`` kills the ranks of a mesh: up to four ranks, which also import FSDP2."""


class Check(Settings):
    """Result of training a small model on several ranks, to check that gravac works on them.

    Attributes:
        ranks: number of ranks.
        hosts: number of machines that the ranks run on.
        backend: torch.distributed's backend that exchanges the gradients, such as ``"gloo"``.
        device: type of the device that holds the gradients.
        link: latency (s) and bandwidth (bit/s) between ranks, and bytes per second of a copy; ``None`` for a single
            rank. On a mesh: between the ranks that hold the same shard, measured while the ranks of all shards send.
        wire_ratio: wire bytes of a dense step / wire bytes of a compressed step; ``None`` if nothing was sent.
        same: whether all ranks hold the same weights after the steps.
        loopback: whether the check itself started the ranks on this machine, without a network between them.
        lacks: text that names what this torch lacks for native and outer steps, and the remedy; ``None`` if it lacks
            nothing.
        mesh: mesh of the checked model in shards, as text; ``None``: DDP, without shards.
        shard_link: latency and bandwidth within a replica of a mesh; ``None`` without a mesh, and if a replica has
            a single shard.
        replica_hosts: largest number of machines that the ranks of one replica of a mesh run on; 1 without a mesh.
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
    mesh: str | None = None
    shard_link: LinkProbe | None = None
    replica_hosts: int = 1


class _RankFindings(NamedTuple):
    """Findings of a rank that trained the small model.

    Attributes:
        wire_ratio: wire bytes of a dense step / wire bytes of a compressed step; ``None`` if nothing was sent.
        same: whether the ranks that average with this rank hold the same weights.
        link: speed of the link between the ranks that average with each other; ``None`` for a single rank.
        lacks: text that names what this torch lacks, see ``Check``.
        shard_link: speed of the link within a replica; ``None`` without a mesh, and if a replica has a single
            shard.
    """

    wire_ratio: float | None
    same: bool
    link: LinkProbe | None
    lacks: str | None = None
    shard_link: LinkProbe | None = None


def check_launched(mesh: Mesh | None = None) -> Check | None:
    """Check the ranks that a launcher such as torchrun started; return the result on rank 0, ``None`` on other ranks.

    Args:
        mesh: mesh of a model in shards; ``None``: DDP, without shards.

    Raises:
        RuntimeError: ranks cannot connect, or the exchange failed.
        SettingsError: the launcher did not start as many ranks as the mesh has, or this torch lacks what a model in
            shards needs.
    """
    with local_ranks.launched_group() as rank:
        if mesh is not None and mesh.ranks != dist.get_world_size():
            raise SettingsError(
                f"mesh: {mesh} has {mesh.ranks} ranks, but {dist.get_world_size()} were started; start {mesh.ranks} "
                "ranks, or give another mesh"
            )
        result = check(mesh=mesh)
        return result if rank == 0 else None


def check_here(mesh: Mesh | None = None) -> Check:
    """Start ranks on this machine, check them over loopback, and return the result.

    Two ranks are started. For a mesh, two replicas of at most two shards are started.

    Args:
        mesh: mesh of a model in shards; ``None``: DDP, without shards.

    Raises:
        RuntimeError: a rank failed, or the ranks took too long.
    """
    small_mesh = None if mesh is None else Mesh(2, min(2, mesh.shards))
    rank_count, mesh_arguments = (2, []) if small_mesh is None else (small_mesh.ranks, [str(small_mesh)])
    patience_s = PATIENCE_SECONDS if small_mesh is None else PATIENCE_SECONDS_ON_MESH
    with tempfile.TemporaryDirectory(prefix="gravac-doctor-") as folder:
        local_ranks.spawn("gravac.lab.doctor", Path(folder), rank_count, *mesh_arguments, timeout_s=patience_s)
        return Check.model_validate_json(Path(folder, "check.json").read_text())


def check(loopback: bool = False, mesh: Mesh | None = None) -> Check:
    """Train a small model for a few compressed steps; return whether ranks stay equal, and the speed of the link.

    All ranks of the default process group must call this function.

    Args:
        loopback: value of ``Check.loopback`` in the result.
        mesh: mesh of all ranks, on which a model in shards is trained; ``None``: DDP, without shards.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(device)
    own_findings = _train_in_ddp(model, device) if mesh is None else _train_in_shards(model, device, mesh)
    hostnames_and_sameness: list[Any] = [None] * world_size
    dist.all_gather_object(hostnames_and_sameness, (socket.gethostname(), own_findings.same))
    hostnames = [hostname for hostname, _ in hostnames_and_sameness]
    return Check(
        ranks=world_size,
        hosts=len(set(hostnames)),
        backend=backend_of(None, device),
        device=device.type,
        link=own_findings.link,
        wire_ratio=own_findings.wire_ratio,
        same=all(same for _, same in hostnames_and_sameness),
        loopback=loopback,
        lacks=own_findings.lacks,
        mesh=None if mesh is None else str(mesh),
        shard_link=own_findings.shard_link,
        replica_hosts=1 if mesh is None else replica_hosts(hostnames, mesh),
    )


def _train_in_ddp(model: torch.nn.Sequential, device: torch.device) -> _RankFindings:
    """Train a model in DDP for a few compressed steps; return this rank's findings."""
    group = dist.group.WORLD
    assert group is not None
    link = probe_link(GroupTransport(group, device=device), device)
    ddp = DistributedDataParallel(model)
    lacks = missing_torch_name(ddp)
    wire_ratio = _train(ddp, device)
    return _RankFindings(wire_ratio, _has_same_weights(list(model.parameters()), group), link, lacks)


def _train_in_shards(model: torch.nn.Sequential, device: torch.device, mesh: Mesh) -> _RankFindings:
    """Train a model in shards on a mesh for a few compressed steps; return this rank's findings."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device_mesh = init_device_mesh(device.type, (mesh.replicas, mesh.shards), mesh_dim_names=("replicate", "shard"))
    all_ranks_group = dist.group.WORLD
    assert all_ranks_group is not None
    between_replicas_group, within_replica_group = device_mesh.get_group("replicate"), device_mesh.get_group("shard")
    link, shard_link = (
        probe_link(GroupTransport(group, device=device), device, GroupTransport(all_ranks_group, device=device))
        for group in (between_replicas_group, within_replica_group)
    )
    for module in (*model, model):
        fully_shard(module, mesh=device_mesh)
    wire_ratio = _train(model, device)
    sharded_parameters: list[Any] = list(model.parameters())
    same = _has_same_weights([parameter.to_local() for parameter in sharded_parameters], between_replicas_group)
    return _RankFindings(wire_ratio, same, link, shard_link=shard_link)


def _train(module: torch.nn.Module, device: torch.device) -> float | None:
    """Train a module for a few compressed steps; return the last step's wire ratio, ``None`` if nothing was sent."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with AdaptiveCompressor(topk, controller=Static(cf=CF), native=False) as compressor:
        compressor.attach(module, optimizer)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(torch.randn(8, WIDTH, generator=generator).to(device)).square().mean().backward()
            optimizer.step()
        return compressor.wire_ratio


def _has_same_weights(weights: Sequence[torch.Tensor], group: dist.ProcessGroup) -> bool:
    """True if all ranks of a group hold the same weights as this rank; all of them must call this function.

    Args:
        weights: this rank's weights, in any shapes that are the same on all ranks of the group.
        group: ranks whose weights are compared.
    """
    flat_weights = torch.cat([weight.detach().flatten() for weight in weights])
    weights_of_ranks = [torch.empty_like(flat_weights) for _ in range(dist.get_world_size(group))]
    dist.all_gather(weights_of_ranks, flat_weights, group=group)
    return all(torch.equal(rank_weights, flat_weights) for rank_weights in weights_of_ranks)


def replica_hosts(hostnames: Sequence[str], mesh: Mesh) -> int:
    """Return the largest number of machines that the ranks of one replica run on.

    Args:
        hostnames: name of each rank's machine, by rank.
        mesh: mesh of all ranks.

    Example:
        >>> replica_hosts(["a", "a", "b", "b"], Mesh(2, 2)), replica_hosts(["a", "b", "a", "b"], Mesh(2, 2))
        (1, 2)
    """
    hosts_by_replica: dict[int, set[str]] = {}
    for rank, hostname in enumerate(hostnames):
        hosts_by_replica.setdefault(mesh.replica_of(rank), set()).add(hostname)
    return max(map(len, hosts_by_replica.values()))


def missing_torch_name(ddp: DistributedDataParallel) -> str | None:
    """Return a text that says which private name of torch is missing in this version, and the remedy.

    Native and outer steps need these names. ``None`` if no name is missing.
    """
    try:
        Reducer(ddp).check_names()
    except SettingsError as error:
        return str(error)
    return None
