# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Names of a model's parameters, and which parameters and buffers DistributedDataParallel exchanges."""

import torch
from torch.nn.parallel import DistributedDataParallel

WRAPPER_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
"""Components that torch.compile and activation checkpointing insert into parameters' names."""


def canonical_name(name: str) -> str:
    """Return a parameter's name without the components that torch.compile and activation checkpointing insert.

    Example:
        >>> canonical_name("_orig_mod.block._checkpoint_wrapped_module.weight")
        'block.weight'
    """
    return ".".join(component for component in name.split(".") if component not in WRAPPER_NAMES)


def averaged_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name in the model.

    Args:
        module: the model, or the DDP module around it.
    """
    named_parameters = _inside(module).named_parameters()
    return {name: parameter for name, parameter in named_parameters if not _is_ignored(module, name)}


def ignored_buffers(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that DDP ignores (see DDP's ``_set_params_and_buffers_to_ignore_for_model``).

    Args:
        module: the model, or the DDP module around it.
    """
    return tuple(name for name, _ in _inside(module).named_buffers() if _is_ignored(module, name))


def shards_of_tensor_parallelism(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that are shards of tensor parallelism (``parallelize_module``), by name in the model.

    DDP turns each ``DTensor`` into a plain parameter of the shard's shape, and marks that parameter.

    Args:
        module: the model, or the DDP module around it, before its first forward, which replaces the shards by DTensors
            that are not parameters.
    """
    return {name: parameter for name, parameter in averaged_parameters(module).items() if is_shard(parameter)}


def is_shard(parameter: torch.Tensor) -> bool:
    """True if DDP marked a parameter (any shape) as a shard of tensor parallelism."""
    return hasattr(parameter, "_st_info")


def _inside(module: torch.nn.Module) -> torch.nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _is_ignored(module: torch.nn.Module, name: str) -> bool:
    """True if DDP ignores the model's parameter or buffer of that name."""
    if isinstance(module, DistributedDataParallel):
        ignored_names = getattr(module, "parameters_to_ignore", ())
    else:
        ignored_names = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    # DDP looks for "module.name", and the model's own module name is empty: "name" without a dot has no effect
    return (name if "." in name else f".{name}") in ignored_names
