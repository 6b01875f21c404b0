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
from gravac.sources.optimizers import torch_optimizer

__all__ = ["attach", "metrics"]

SHARDS_REMEDY = (
    "set fsdp_version to 2 (Trainer: version in fsdp_config), and parallelism_config to "
    "ParallelismConfig(dp_replicate_size=2, dp_shard_size=N), where N is half the number of processes, at least 2"
)
"""Remedy for error messages: the settings of Accelerate, or of the Trainer, for several replicas in shards."""


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

    During outer steps, ``save_state`` and ``get_state_dict`` give the weights that all ranks share; each rank's own
    weights and optimizer state are among gravac's states. Call ``compressor.synchronize()`` after the last step:
    ranks then exchange what they trained since the last exchange.

    Args:
        accelerator: accelerator that prepared the model; its ``save_state`` writes every rank's state into the folder
            ``gravac`` of the checkpoint, and its ``load_state`` reads them.
        model: the model that ``prepare`` returned: wrapped in DistributedDataParallel, or in shards by FSDP2 with
            replicas, ``ParallelismConfig(dp_replicate_size=2, ...)``.
        optimizer: the optimizer that ``prepare`` returned.
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what ``load_state`` does with residuals if the number of ranks has changed: ``"mean"``, ``"keep"`` or
            ``"drop"``; see ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.

    Returns:
        The new compressor; close it after training. In a single process gravac warns, and attaches nothing.

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

    folders_to_load: list[Path] = []

    def load_state(models: Sequence[torch.nn.Module], checkpoint: str) -> None:
        if not accelerator.is_fsdp2:
            folder = state_folder(checkpoint, models, module)
            folders_to_load[:] = [] if folder is None else [folder]
        # with FSDP2, Accelerate has loaded weights and optimizer already, and passes no models
        elif (folder := state_folder(checkpoint, accelerator._models, module)) is not None:
            load_if_present(folder, compressor, on_resize)

    def load_after_optimizer(_: torch.optim.Optimizer) -> None:
        # Accelerate has just loaded weights and optimizer of rank 0; now gravac loads each rank's own
        if folders_to_load:
            load_if_present(folders_to_load.pop(), compressor, on_resize)

    torch_optimizer(optimizer).register_load_state_dict_post_hook(load_after_optimizer)
    accelerator.register_save_state_pre_hook(save_state)
    accelerator.register_load_state_pre_hook(load_state)
    return compressor


def connect(
    accelerator: Accelerator, model: object, optimizer: torch.optim.Optimizer, compressor: AdaptiveCompressor
) -> torch.nn.Module:
    """Attach a compressor to a prepared model; return the DistributedDataParallel, or the model in shards.

    The compressor gets the accelerator's scaler, and torch's own optimizer, since Accelerate's wrapper has no hooks.

    Raises:
        SettingsError: the model is in shards without replicas.
        TypeError: the model is neither a DistributedDataParallel module nor in shards by FSDP2.
    """
    module = averaged_module(model, training_setting(accelerator), SHARDS_REMEDY)
    compressor.attach(module, torch_optimizer(optimizer), accelerator.scaler)
    return module


def training_setting(accelerator: Accelerator) -> str:
    """Return name and value of the Accelerate setting that chose the kind of training, such as DDP, for messages."""
    fsdp_plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if fsdp_plugin is None:
        return f"distributed_type: {accelerator.distributed_type.value}"
    if fsdp_plugin.fsdp_version == 1:
        return "fsdp_version: 1"
    if accelerator.parallelism_config is None:
        return "parallelism_config: None"
    return f"parallelism_config.dp_replicate_size: {accelerator.parallelism_config.dp_replicate_size}"


def report_losses(accelerator: Accelerator, compressor: AdaptiveCompressor) -> None:
    """Replace the accelerator's ``backward`` by a function that also reports each loss to the compressor."""
    backward = accelerator.backward

    @functools.wraps(backward)
    def backward_and_report(loss: torch.Tensor, **named: Any) -> None:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            compressor.loss(loss)
        backward(loss, **named)

    accelerator.backward = backward_and_report


def state_folder(checkpoint: str, models: Sequence[torch.nn.Module], module: torch.nn.Module) -> Path | None:
    """Return the folder of gravac's states in a checkpoint; ``None`` if the accelerator no longer has the model.

    The folder is ``gravac`` for the accelerator's first model, ``gravac_1`` for the second, and so on.

    Args:
        checkpoint: folder of the checkpoint.
        models: all models of the accelerator, in order.
        module: the model that gravac is attached to.
    """
    # Accelerate may list the model as it was before ``prepare``
    attached_forms = (module, getattr(module, "module", module))
    model_index = next(
        (model_index for model_index, model in enumerate(models) if any(model is alias for alias in attached_forms)),
        None,
    )
    return None if model_index is None else Path(checkpoint, f"{FOLDER}_{model_index}" if model_index else FOLDER)
