# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ``AdaptiveCompressor.attach`` finds out about a model and its optimizers before it takes over their exchange."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.alike import check_alike
from gravac.modes.outer.starting import device_of
from gravac.policy import Policy
from gravac.settings import SettingsError, shown
from gravac.sources.ddp_private import Reducer

OFF = "GRAVAC"
"""Name of the environment's variable that leaves everything native if it is ``off``."""


def why_idle(module: object, group: dist.ProcessGroup | None, policy: Policy) -> str:
    """Return in words why gravac is to leave training as it is; empty if it is to run. Called on every rank.

    Args:
        module: the model, or its DistributedDataParallel.
        group: ranks that average; ``None``: those of the DistributedDataParallel, or the default group.
        policy: settings of the run.

    Raises:
        SettingsError: the environment's variable is neither ``on`` nor ``off``, or not the same on all ranks.
    """
    setting = os.environ.get(OFF, "on").lower()
    if setting not in ("on", "off"):
        raise SettingsError(f"{OFF}: {setting!r} in the environment; give off, or on, or unset it")
    group = group or (module.process_group if isinstance(module, DistributedDataParallel) else None)
    alone = not dist.is_initialized() or dist.get_world_size(group) == 1
    if not alone and isinstance(module, torch.nn.Module):
        check_alike({OFF: setting}, device_of(module), group)
    if setting == "off":
        return f"{OFF}=off in the environment"
    if alone and policy.native:
        return "there is one process, which exchanges nothing"
    return ""


def optimizers_of(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None, every: tuple[int, int]
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers given, those within a framework's wrapper.

    Raises:
        SettingsError: none was given, and ranks may train apart; or what was given is none.
    """
    if optimizer is None and every != (1, 1):
        raise SettingsError(
            f"optimizer: ranks that train apart (every={every}) must share its state; give attach(module, optimizer), "
            "or optimizer=() if weights are changed by hand"
        )
    if optimizer is None:
        return ()
    wrapped = optimizer if isinstance(optimizer, Sequence) else (optimizer,)
    optimizers = tuple(getattr(wrapper, "optimizer", wrapper) for wrapper in wrapped)
    for unwrapped in optimizers:
        if not isinstance(unwrapped, torch.optim.Optimizer):
            raise SettingsError(f"optimizer: {shown(unwrapped)} is no torch.optim.Optimizer")
    return optimizers


def moments_of(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of model sizes that an optimizer's state has, as far as its settings tell."""
    group = optimizer.param_groups[0]
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    return 1 if group.get("momentum") else 0


def native_formats(ddp: DistributedDataParallel, scaler: torch.amp.GradScaler | None) -> tuple[float, ...]:
    """Return the CFs that DDP's own exchange may run at: float16 only of float32 gradients that no scaler enlarges.

    None if native steps cannot be counted: this torch lacks what that takes, or the model has a single parameter.
    """
    try:
        if not Reducer(ddp).counts_surely:
            return ()
    except SettingsError:
        return ()
    formats = {parameter.dtype for parameter in ddp.parameters() if parameter.requires_grad}
    return (1.0, 2.0) if formats == {torch.float32} and scaler is None else (1.0,)
