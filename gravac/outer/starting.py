# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What outer steps begin with: parameters to train, weights that all ranks share, settings that must be alike."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.integrations.ddp import canonical
from gravac.outer.settings import OuterSettings
from gravac.settings import SettingsError


def trained(module: torch.nn.Module, fragments: int) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train, by name.

    Raises:
        TypeError: the module is wrapped in DistributedDataParallel.
        ValueError: there are none, or fewer than fragments.
    """
    if isinstance(module, DistributedDataParallel):
        raise TypeError(
            "module: it is wrapped in DistributedDataParallel, which averages gradients in every step; give the module "
            "itself, ddp.module, and train that, or use AdaptiveCompressor with the wrapped one"
        )
    parameters = {canonical(name): p for name, p in module.named_parameters() if p.requires_grad}
    if len(parameters) < fragments:
        raise ValueError(
            f"module: it has {len(parameters)} parameters to train, which do not make {fragments} fragments"
        )
    return parameters


def share(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give all ranks the weights and buffers of their first.

    Raises:
        RuntimeError: there is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), first, group=group)


def check_alike(module: torch.nn.Module, settings: OuterSettings, group: dist.ProcessGroup | None) -> None:
    """Check what some ranks may have forgotten, with which all would wait for each other for ever.

    Raises:
        SettingsError: some ranks, but not all, make steps by speed, or told how many samples they have.
    """
    told = {"by_speed": settings.by_speed, "samples": settings.samples is not None}
    counts = torch.tensor([*told.values()], dtype=torch.int32, device=next(module.parameters()).device)
    dist.all_reduce(counts, group=group)
    world = dist.get_world_size(group)
    for name, count in zip(told, counts.tolist(), strict=True):
        if count not in (0, world):
            raise SettingsError(f"{name}: set on {count} of {world} ranks; set it on all of them, or on none")
