# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: call ``attach`` after ``prepare``; ``save_state`` then includes gravac's states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gravac.checkpoint import OnResize, save
from gravac.integrations.frameworks import (
    FOLDER,
    Every,
    averaged_module,
    load_if_present,
    metrics,
    recipe,
    warn_of_one_process,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

    from gravac.adaptive import AdaptiveCompressor

__all__ = ["attach", "metrics"]

SHARDS_REMEDY = (
    "set fsdp_version to 2 (Trainer: version in fsdp_config), and parallelism_config to "
    "ParallelismConfig(dp_replicate_size=2, dp_shard_size=N), where N is half the number of processes, at least 2"
)
"""How a user of Accelerate or of the Trainer trains with replicas in shards."""


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: Every = None,
    on_resize: OnResize = "mean",
    **settings: Any,
) -> AdaptiveCompressor:
    """Attach a new compressor to a prepared model. Called on every rank, after ``prepare`` and before ``load_state``.

    During outer steps, ``save_state`` and ``get_state_dict`` return the weights that all ranks share; each rank's own
    weights and optimizer state are among gravac's states. Call ``compressor.synchronize()`` after the last step, to
    average what the ranks learned since the newest exchange.

    Args:
        accelerator: accelerator that prepared the model; its ``save_state`` writes every rank's state into the folder
            ``gravac`` of the checkpoint, and its ``load_state`` reads them.
        model: the model that ``prepare`` returned: wrapped in DistributedDataParallel, or in shards by FSDP2 with
            replicas, ``ParallelismConfig(dp_replicate_size=2, ...)``.
        optimizer: the optimizer that ``prepare`` returned.
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what becomes of residuals if another number of ranks loads: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``.

    Returns:
        The compressor; close it after training. In a single process it is attached to nothing, and a warning says so.

    Raises:
        SettingsError: a setting is wrong, or Accelerate trains with FSDP2 without replicas.
        TypeError: Accelerate trains with FSDP1, DeepSpeed or Megatron-LM, or the model was not prepared.
    """
    compressor = recipe(settings, on_resize, every)()
    if accelerator.num_processes == 1:
        warn_of_one_process("Accelerate")
        return compressor
    module = connect(accelerator, model, optimizer, compressor)
    report_losses(accelerator, compressor)

    def save_state(models: Sequence[torch.nn.Module], weights: object, checkpoint: str) -> None:
        if (folder := state_folder(checkpoint, models, module)) is not None:
            save(folder, compressor)

    to_load: list[Path] = []

    def load_state(models: Sequence[torch.nn.Module], checkpoint: str) -> None:
        if not accelerator.is_fsdp2:
            folder = state_folder(checkpoint, models, module)
            to_load[:] = [] if folder is None else [folder]
        # with FSDP2, Accelerate has loaded weights and optimizer already, and names no models
        elif (folder := state_folder(checkpoint, accelerator._models, module)) is not None:
            load_if_present(folder, compressor, on_resize)

    def load_after_optimizer(_: torch.optim.Optimizer) -> None:
        # Accelerate first loads the weights and optimizer that rank 0 saved; each rank's own must come last
        if to_load:
            load_if_present(to_load.pop(), compressor, on_resize)

    torch_optimizer(optimizer).register_load_state_dict_post_hook(load_after_optimizer)
    accelerator.register_save_state_pre_hook(save_state)
    accelerator.register_load_state_pre_hook(load_state)
    return compressor


def connect(
    accelerator: Accelerator, model: object, optimizer: torch.optim.Optimizer, compressor: AdaptiveCompressor
) -> torch.nn.Module:
    """Attach a compressor to a prepared model; return the module that it is attached to.

    The compressor gets the accelerator's scaler, and torch's own optimizer, since Accelerate's wrapper has no hooks.

    Raises:
        SettingsError: the model is in shards without replicas.
        TypeError: the model is neither a DistributedDataParallel module nor in shards by FSDP2.
    """
    module = averaged_module(model, training_setting(accelerator), SHARDS_REMEDY)
    compressor.attach(module, torch_optimizer(optimizer), accelerator.scaler)
    return module


def training_setting(accelerator: Accelerator) -> str:
    """Return name and value of the setting by which an accelerator trains as it does, for messages."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return f"distributed_type: {accelerator.distributed_type.value}"
    if plugin.fsdp_version == 1:
        return "fsdp_version: 1"
    if accelerator.parallelism_config is None:
        return "parallelism_config: None"
    return f"parallelism_config.dp_replicate_size: {accelerator.parallelism_config.dp_replicate_size}"


def report_losses(accelerator: Accelerator, compressor: AdaptiveCompressor) -> None:
    """Wrap the accelerator's ``backward``, so that it reports each loss to the compressor."""
    backward = accelerator.backward

    @functools.wraps(backward)
    def backward_and_report(loss: torch.Tensor, **named: Any) -> None:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            compressor.loss(loss)
        backward(loss, **named)

    accelerator.backward = backward_and_report


def torch_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return torch's own optimizer, which the optimizer returned by ``prepare`` wraps."""
    inner = getattr(optimizer, "optimizer", optimizer)
    assert isinstance(inner, torch.optim.Optimizer)
    return inner


def state_folder(checkpoint: str, models: Sequence[torch.nn.Module], module: torch.nn.Module) -> Path | None:
    """Return the folder of gravac's states in a checkpoint; ``None`` if the accelerator no longer has the model.

    From the second model on, the folder's name ends with the model's number, as names of Accelerate's own files do.

    Args:
        checkpoint: folder of the checkpoint.
        models: the accelerator's models.
        module: the model that gravac is attached to.
    """
    # Accelerate may list the model as it was before ``prepare``
    aliases = (module, getattr(module, "module", module))
    number = next((number for number, model in enumerate(models) if any(model is alias for alias in aliases)), None)
    return None if number is None else Path(checkpoint, f"{FOLDER}_{number}" if number else FOLDER)
