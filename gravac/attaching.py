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
from gravac.policy import Policy
from gravac.settings import SettingsError, short_repr
from gravac.sources.ddp_private import Reducer, shards_of_tensor_parallelism

ENVIRONMENT_SWITCH = "GRAVAC"
"""Name of the environment variable that turns gravac off (``off``), or lets ranks compare weights after each step
(``check``)."""


OPTIMIZER_WRAPPERS = ("AcceleratedOptimizer", "_FabricOptimizer", "LightningOptimizer")
"""Classes of Accelerate and Lightning whose attribute ``optimizer`` is torch's optimizer, which holds all state."""


def is_single_process(group: dist.ProcessGroup | None) -> bool:
    """True if no other rank averages with this rank.

    Args:
        group: ranks that average; ``None``: the default group.
    """
    return not dist.is_initialized() or dist.get_world_size(group) == 1


def exchanging_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose gradients ranks average: the DistributedDataParallel in a module, or a model in shards.

    The DistributedDataParallel may lie inside other modules, such as those of ``torch.compile`` and Lightning Fabric.

    Args:
        module: module that the user gave to ``attach``.

    Raises:
        TypeError: nothing in the module averages gradients over ranks, or FSDP1 does.
        ValueError: several DistributedDataParallel modules are in the module, or one that lacks a trained parameter.
    """
    ddp_by_path = {path: child for path, child in module.named_modules() if isinstance(child, DistributedDataParallel)}
    if not ddp_by_path:
        if not is_sharded(module):
            raise _no_exchange(module)
        return module
    path, *other_paths = ddp_by_path
    inner_path = next(
        (other_path for other_path in other_paths if other_path.startswith(f"{path}." if path else "")), ""
    )
    if inner_path:
        raise ValueError(
            f"module: {_code(path)} is a DistributedDataParallel, and so is {_code(inner_path)} inside, so gradients "
            "would be averaged twice; wrap the model in one DistributedDataParallel"
        )
    if other_paths:
        raise ValueError(
            f"module: {_code(path)} and {_code(other_paths[0])} are both a DistributedDataParallel; make an "
            "AdaptiveCompressor for each, and call attach with that DistributedDataParallel"
        )
    ddp = ddp_by_path[path]
    ddp_parameters = {id(parameter) for parameter in ddp.parameters()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in ddp_parameters:
            raise ValueError(
                f"module: parameter {name} is outside of {_code(path)}, the DistributedDataParallel inside, so ranks "
                f"would not average its gradient; give attach {_code(path)}, or wrap all trained parameters"
            )
    return ddp


def _no_exchange(module: torch.nn.Module) -> TypeError:
    """Return the error for a module that is neither in a DistributedDataParallel nor in shards by FSDP2."""
    for path, child in module.named_modules():
        if any(ancestor.__name__ == "FullyShardedDataParallel" for ancestor in type(child).__mro__):
            return TypeError(
                f"module: {_code(path)} is in shards (FullyShardedDataParallel), whose gradients FSDP exchanges; use "
                "DistributedDataParallel, or fully_shard (FSDP2) on a mesh with replicas"
            )
    return TypeError(
        f"module: attach needs a DistributedDataParallel, or a model in shards, got {type(module).__name__}; wrap the "
        "module in DistributedDataParallel, and give attach that: ddp = DistributedDataParallel(module)"
    )


def _code(path: str) -> str:
    """Return a submodule as Python code.

    Example:
        >>> _code("model.0.head")
        'module.model[0].head'
    """
    names = path.split(".") if path else []
    return "module" + "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in names)


def reason_to_idle(module: torch.nn.Module, group: dist.ProcessGroup | None, policy: Policy) -> str:
    """Return the reason why gravac stays inactive in this process; empty if it runs. Called on every rank.

    Args:
        module: a DistributedDataParallel, or a model in shards; if there is a single process, any module.
        group: ranks that average; ``None``: those of the DistributedDataParallel, or the default group.
        policy: settings of the run.

    Raises:
        SettingsError: the environment variable ``GRAVAC`` is neither ``on`` nor ``off`` nor ``check``, or differs
            between ranks; or it is ``off``, and torch does not average the gradients of this model over the ranks.
    """
    requested_group = group
    switch_setting = _switch_setting()
    if switch_setting not in ("on", "off", "check"):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is {switch_setting!r}; set the variable to on, off or "
            "check, or unset it"
        )
    if isinstance(module, DistributedDataParallel):
        group = group or module.process_group
    is_single = is_single_process(group)
    if not is_single:
        check_alike({ENVIRONMENT_SWITCH: switch_setting}, device_of(module), group)
    # users give a group for a model in shards only if its mesh has no replicate dimension for torch to average over
    if switch_setting == "off" and not (
        is_single or requested_group is None or isinstance(module, DistributedDataParallel)
    ):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is 'off', but without gravac nothing averages the "
            f"gradients of this {type(module).__name__} over process_group, so each replica would train a model of its "
            f"own; use a mesh with a replicate dimension, or unset {ENVIRONMENT_SWITCH}"
        )
    if switch_setting == "off":
        return f"{ENVIRONMENT_SWITCH}=off in the environment"
    if is_single and policy.native:
        return "there is one process, which exchanges nothing"
    return ""


def checks_every_step() -> bool:
    """True if the environment requests that ranks compare their weights after each step (``GRAVAC=check``)."""
    return _switch_setting() == "check"


def _switch_setting() -> str:
    """Return what the environment variable ``GRAVAC`` is set to, in lower case; ``"on"`` if it is not set."""
    return os.environ.get(ENVIRONMENT_SWITCH, "on").lower()


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
    return tuple(map(torch_optimizer, possibly_wrapped))


def torch_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return an optimizer without a framework's wrapper; an optimizer that steps another one, as Lookahead, as it is.

    Raises:
        SettingsError: the object is no optimizer, or its class never called the constructor of torch's class.
    """
    is_framework_wrapper = any(ancestor.__name__ in OPTIMIZER_WRAPPERS for ancestor in type(optimizer).__mro__)
    if hasattr(optimizer, "optimizer") and (is_framework_wrapper or not isinstance(optimizer, torch.optim.Optimizer)):
        return torch_optimizer(optimizer.optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingsError(
            f"optimizer: {short_repr(optimizer)} is not a torch.optim.Optimizer; give an optimizer, or a sequence of "
            "optimizers"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise SettingsError(
            f"optimizer: {type(optimizer).__name__} has no step hooks, by which gravac sees its steps, since its "
            "__init__ does not call that of torch.optim.Optimizer; call super().__init__(params, defaults) there"
        )
    return optimizer


def refuse_foreign(optimizers: Sequence[torch.optim.Optimizer], module: torch.nn.Module) -> None:
    """Raise if an optimizer trains no parameter of the module.

    Raises:
        ValueError: an optimizer and the module have no parameter in common.
    """
    module_ids = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if parameters and module_ids.isdisjoint(map(id, parameters)):
            raise ValueError(
                f"optimizer: {type(optimizer).__name__} trains {len(parameters)} tensors, none of which is a parameter "
                f"of the attached {type(module).__name__}; give the optimizer of this model, made after the model was "
                "wrapped or converted"
            )


def is_sharded(module: torch.nn.Module) -> bool:
    """True if FSDP2 shards or replicates parameters of the model: as ``DTensor``, or gathered by an evaluation."""
    objects = (*module.parameters(), *module.modules())
    return any(
        base_class.__name__ in ("DTensor", "FSDPModule") for each in objects for base_class in type(each).__mro__
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


def reason_against_pipelines(policy: Policy) -> str:
    """Return why these settings do not allow pipeline parallelism, with the remedy; empty if they allow it.

    Args:
        policy: compressor, controller and other settings of the run.
    """
    if policy.every != (1, 1):
        return (
            f"every: {policy.every} allows outer steps, but the module is a stage of a pipeline, whose schedule "
            "exchanges in each step; use every=1"
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
