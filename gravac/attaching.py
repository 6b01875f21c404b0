# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a model and its optimizers, which ``AdaptiveCompressor.attach`` makes before it changes the model."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.comparing import check_alike
from gravac.modes.outer.starting import device_of
from gravac.policy import OuterSettings, Policy
from gravac.settings import SettingsError, short_repr
from gravac.sources.ddp_private import Reducer, shards_of_tensor_parallelism

ENVIRONMENT_SWITCH = "GRAVAC"
"""Name of the environment variable that turns gravac off: ``GRAVAC=off``."""


def reason_to_idle(module: object, group: dist.ProcessGroup | None, policy: Policy) -> str:
    """Return the reason why gravac stays inactive in this process; empty if it runs. Called on every rank.

    Args:
        module: the model, or its DistributedDataParallel.
        group: ranks that average; ``None``: those of the DistributedDataParallel, or the default group.
        policy: settings of the run.

    Raises:
        SettingsError: the environment variable ``GRAVAC`` is neither ``on`` nor ``off``, or differs between ranks; or
            it is ``off``, and torch does not average the gradients of this model over the ranks.
    """
    requested_group = group
    switch_setting = os.environ.get(ENVIRONMENT_SWITCH, "on").lower()
    if switch_setting not in ("on", "off"):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is {switch_setting!r}; set the variable to on or off, or "
            "unset it"
        )
    group = group or (module.process_group if isinstance(module, DistributedDataParallel) else None)
    is_single = not dist.is_initialized() or dist.get_world_size(group) == 1
    if not is_single and isinstance(module, torch.nn.Module):
        check_alike({ENVIRONMENT_SWITCH: switch_setting}, device_of(module), group)
    if switch_setting == "off" and not is_single and not _is_averaged_by_torch(module, requested_group):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is 'off', but without gravac nothing averages the "
            f"gradients of this {type(module).__name__}, so each rank would train a model of its own; wrap the model "
            f"in DistributedDataParallel, or unset {ENVIRONMENT_SWITCH}"
        )
    if switch_setting == "off":
        return f"{ENVIRONMENT_SWITCH}=off in the environment"
    if is_single and policy.native:
        return "there is one process, which exchanges nothing"
    return ""


def _is_averaged_by_torch(module: object, requested_group: dist.ProcessGroup | None) -> bool:
    """True if torch averages a model's gradients over ranks when gravac is turned off.

    Args:
        module: the model, or its DistributedDataParallel.
        requested_group: argument ``process_group`` of the user; ``None``: not given. For a model in shards, users give
            a group only if the mesh has no replicate dimension: torch then does not average over that group.
    """
    if isinstance(module, DistributedDataParallel):
        return True
    return requested_group is None and isinstance(module, torch.nn.Module) and is_sharded(module)


def optimizers_of(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None, every: tuple[int, int]
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers as a tuple of torch's own, without the wrappers of frameworks such as Accelerate.

    Args:
        optimizer: an optimizer, a sequence of optimizers, or ``None``.
        every: lowest and highest number of steps from one exchange to the next.

    Raises:
        SettingsError: ``optimizer`` is ``None`` although ``every`` allows outer steps, or an object is no optimizer.
    """
    if optimizer is None and every != (1, 1):
        raise SettingsError(
            f"optimizer: attach got no optimizer, but with every={every} ranks must average the optimizer's state; "
            "call attach(module, optimizer), or attach(module, ()) if your code changes weights without an optimizer"
        )
    if optimizer is None:
        return ()
    possibly_wrapped = optimizer if isinstance(optimizer, Sequence) else (optimizer,)
    optimizers = tuple(getattr(wrapper, "optimizer", wrapper) for wrapper in possibly_wrapped)
    for torch_optimizer in optimizers:
        if not isinstance(torch_optimizer, torch.optim.Optimizer):
            raise SettingsError(
                f"optimizer: {short_repr(torch_optimizer)} is not a torch.optim.Optimizer; give an optimizer, or a "
                "sequence of optimizers"
            )
    return optimizers


def is_sharded(module: torch.nn.Module) -> bool:
    """True if a parameter of the model is a ``DTensor``, which FSDP2 shards or replicates."""
    return any(
        base_class.__name__ == "DTensor" for parameter in module.parameters() for base_class in type(parameter).__mro__
    )


def refuse_unequal_ranks(settings: OuterSettings) -> None:
    """Raise if the settings of outer steps treat ranks differently; called only for a model in shards.

    The ranks that hold the shards of one replica make each step together. They must make the same number of steps, and
    have the same weight in the mean over the ranks.

    Raises:
        SettingsError: ``by_speed`` or ``samples`` is set.
    """
    if settings.by_speed:
        raise SettingsError(
            "outer.by_speed: True, but the ranks that hold the shards of one replica must make the same number of "
            "steps; leave by_speed out"
        )
    if settings.samples is not None:
        raise SettingsError(
            f"outer.samples: {settings.samples}, but all replicas of a model in shards have the same weight in the "
            "mean; leave samples out"
        )


def refuse_separate_decisions(ddp: DistributedDataParallel, agree_group: dist.ProcessGroup | None) -> None:
    """Raise if ranks that share a replica by tensor parallelism could choose different candidates.

    These ranks hold equal copies of the parameters that tensor parallelism does not cut. With different candidates, the
    copies would drift apart.

    Args:
        ddp: the module, before its first forward.
        agree_group: group of the ranks that make the same decisions; ``None``: only the ranks that average.

    Raises:
        SettingsError: tensor parallelism cuts a parameter of the module, and ``agree_group`` is ``None``.
    """
    sharded_parameters = shards_of_tensor_parallelism(ddp)
    if sharded_parameters and agree_group is None:
        raise SettingsError(
            f"agree_group: not given, but {next(iter(sharded_parameters))} is a shard of tensor parallelism, so the "
            "ranks with its other shards must make the same decisions; call attach(..., agree_group=group) with the "
            "group of all ranks that hold a part of the model, such as torch.distributed.group.WORLD"
        )


def reason_against_pipelines(policy: Policy, has_probe: bool) -> str:
    """Return why these settings do not allow pipeline parallelism, with the remedy; empty if they allow it.

    Args:
        policy: compressor, controller and other settings of the run.
        has_probe: whether the user gave a probe, a function that returns the loss on fixed batches.
    """
    if policy.every != (1, 1):
        return (
            f"every: {policy.every} allows outer steps, but the module is a stage of a pipeline, whose schedule "
            "exchanges in each step; use every=1"
        )
    if has_probe:
        return (
            "probe: computing the loss needs all stages of the pipeline, but each stage decides alone when to "
            "compute the loss; leave probe out"
        )
    return ""


def moments_per_parameter(optimizer: torch.optim.Optimizer) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps for each parameter: 2 for Adam, 0 for SGD."""
    group = optimizer.param_groups[0]
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    return 1 if group.get("momentum") else 0


def cfs_of_native_steps(ddp: DistributedDataParallel, scaler: torch.amp.GradScaler | None) -> tuple[float, ...]:
    """Return the compression factors that native steps may use: 1 (float32), and perhaps 2 (float16).

    In a native step, DDP averages without gravac's hook. CF 2 is possible if the gradients are in float32 and there is
    no ``scaler``. The tuple is empty if gravac cannot count native steps: if this torch lacks a private name of DDP, or
    if the model has a single parameter.
    """
    try:
        if not Reducer(ddp).detects_all_backwards:
            return ()
    except SettingsError:
        return ()
    dtypes = {parameter.dtype for parameter in ddp.parameters() if parameter.requires_grad}
    return (1.0, 2.0) if dtypes == {torch.float32} and scaler is None else (1.0,)
