# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: one call after ``prepare``; then its ``save_state`` and ``load_state`` do the rest."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.checkpoint import OnResize, load, save
from gravac.checkpoint.ranks import Ranks
from gravac.integrations.frameworks import (
    FOLDER,
    Every,
    data_parallel,
    metrics,
    recipe,
    tell_of_no_state,
    tell_of_one_process,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

    from gravac.adaptive import AdaptiveCompressor

__all__ = ["attach", "metrics"]


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: Every = None,
    on_resize: OnResize = "mean",
    **settings: Any,
) -> AdaptiveCompressor:
    """Compress what a prepared model exchanges. Called on every rank, after ``prepare`` and before ``load_state``.

    If ranks train apart, ``save_state`` and ``get_state_dict`` give the weights that all ranks share; each rank's own
    weights and optimizer state are among gravac's states. ``compressor.synchronize()`` after the last step exchanges
    what ranks learned since the last exchange.

    Args:
        accelerator: what prepared the model; its ``save_state`` writes every rank's state into the folder ``gravac`` of
            the checkpoint, and its ``load_state`` reads them.
        model: the model that ``prepare`` returned.
        optimizer: the optimizer that ``prepare`` returned.
        every: number of steps from one exchange to the next: 1 averages gradients in each step; with 10 ranks train
            apart for ten steps; ``(1, 100)`` has the controller decide. ``None``: 1, or what ``policy`` says.
        on_resize: what becomes of residuals at another number of ranks: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``.

    Returns:
        The compressor, to be closed when training is over. In one process it is attached to nothing, with a warning.

    Raises:
        SettingsError: a setting is wrong.
        TypeError: Accelerate trains with FSDP, DeepSpeed or Megatron-LM, or the model was not prepared.
    """
    compressor = recipe(settings, on_resize, every)()
    if accelerator.num_processes == 1:
        tell_of_one_process("Accelerate")
        return compressor
    ddp = connect(accelerator, model, optimizer, compressor)
    report_losses(accelerator, compressor)

    def save_state(models: Sequence[torch.nn.Module], weights: object, checkpoint: str) -> None:
        if (folder := state_folder(checkpoint, models, ddp)) is not None:
            save(folder, compressor)

    to_load: list[Path] = []

    def load_state(models: Sequence[torch.nn.Module], checkpoint: str) -> None:
        folder = state_folder(checkpoint, models, ddp)
        to_load[:] = [] if folder is None else [folder]

    def optimizer_loaded(_: torch.optim.Optimizer) -> None:
        # Accelerate has loaded weights, then the optimizer, as rank 0 saved them: each rank's own come last
        if to_load:
            load_if_there(to_load.pop(), compressor, on_resize)

    torch_optimizer(optimizer).register_load_state_dict_post_hook(optimizer_loaded)
    accelerator.register_save_state_pre_hook(save_state)
    accelerator.register_load_state_pre_hook(load_state)
    return compressor


def connect(
    accelerator: Accelerator, model: object, optimizer: torch.optim.Optimizer, compressor: AdaptiveCompressor
) -> DistributedDataParallel:
    """Attach a compressor to what an accelerator prepared, and return the DDP module.

    It gets the accelerator's scaler, and torch's own optimizer, since Accelerate's has no hooks.

    Raises:
        TypeError: what is trained is not a DistributedDataParallel module.
    """
    ddp = data_parallel(model, f"distributed_type: {accelerator.distributed_type.value}")
    compressor.attach(ddp, torch_optimizer(optimizer), accelerator.scaler)
    return ddp


def report_losses(accelerator: Accelerator, compressor: AdaptiveCompressor) -> None:
    """Have the accelerator's ``backward`` report each loss to the compressor."""
    backward = accelerator.backward

    @functools.wraps(backward)
    def backward_and_report(loss: torch.Tensor, **named: Any) -> None:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            compressor.loss(loss)
        backward(loss, **named)

    accelerator.backward = backward_and_report


def torch_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return torch's optimizer of what ``prepare`` returned."""
    inner = getattr(optimizer, "optimizer", optimizer)
    assert isinstance(inner, torch.optim.Optimizer)
    return inner


def load_if_there(folder: Path, compressor: AdaptiveCompressor, on_resize: OnResize) -> None:
    """Load all ranks' states from a checkpoint's folder; where no rank sees one, warn, and begin anew."""
    if any(Ranks(compressor.process_group).tell(folder.is_dir())):
        load(folder, compressor, on_resize)
    else:
        tell_of_no_state(str(folder.parent))


def state_folder(checkpoint: str, models: Sequence[torch.nn.Module], ddp: DistributedDataParallel) -> Path | None:
    """Return the folder of a model's states in a checkpoint: numbered from the second on, as Accelerate's models are.

    ``None`` if the accelerator has let go of the model.
    """
    # Accelerate remembers what it was given, and not what it made of that
    place = next((at for at, one in enumerate(models) if one is ddp.module or one is ddp), None)
    return None if place is None else Path(checkpoint, f"{FOLDER}_{place}" if place else FOLDER)
