# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ray Train: call ``attach`` in the train function, and ``report`` in place of ``ray.train.report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
import torch

from gravac.checkpoint import OnResize, save
from gravac.integrations.frameworks import (
    FOLDER,
    Every,
    load_if_present,
    metrics,
    recipe,
    warn_of_one_process,
)

if TYPE_CHECKING:
    from gravac.adaptive import AdaptiveCompressor

__all__ = ["attach", "metrics", "report"]


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    every: Every = None,
    on_resize: OnResize = "mean",
    **settings: Any,
) -> AdaptiveCompressor:
    """Attach a new compressor to a worker's model. Called on every worker, after the model's weights were loaded.

    If Ray gives the worker a checkpoint, for example after a worker was killed, ``attach`` restores gravac's states of
    all ranks, which ``report`` saved in the checkpoint.

    Args:
        model: the model that ``ray.train.torch.prepare_model`` returned, or a model in shards by ``fully_shard``.
        optimizer: the model's optimizer, or a sequence of all its optimizers, with their states restored.
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what happens to loaded residuals if the number of workers has changed: ``"mean"``, ``"keep"`` or
            ``"drop"``; see ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.

    Returns:
        The new compressor; close it after training. With a single worker gravac warns, and attaches nothing.

    Raises:
        SettingsError: a setting is wrong, or the checkpoint's states do not fit the model.
        TypeError: the model is in shards by FSDP1.
    """
    compressor = recipe(settings, on_resize, every)()
    if ray.train.get_context().get_world_size() == 1:
        warn_of_one_process("Ray Train")
        return compressor
    compressor.attach(model, optimizer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            load_if_present(Path(directory, FOLDER), compressor, on_resize)
    return compressor


def report(
    numbers: Mapping[str, Any], compressor: AdaptiveCompressor, directory: str | Path | None = None, **arguments: Any
) -> None:
    """Report metrics and gravac's numbers of the newest step to Ray, and save a checkpoint if a directory is given.

    Called on every worker, between two steps, in place of ``ray.train.report``.

    Args:
        numbers: the worker's own metrics, by name.
        compressor: the compressor that ``attach`` returned.
        directory: folder of this worker with files for the checkpoint, such as model and optimizer on rank 0, or an
            empty folder. gravac adds a folder ``gravac`` with this worker's state, and Ray copies the files of all
            workers into one checkpoint. ``None``: metrics without a checkpoint.
        arguments: further arguments of ``ray.train.report``.
    """
    if directory is not None and ray.train.get_context().get_world_size() > 1:
        save(Path(directory, FOLDER), compressor)
    checkpoint = None if directory is None else ray.train.Checkpoint.from_directory(str(directory))
    ray.train.report({**numbers, **metrics(compressor)}, checkpoint=checkpoint, **arguments)
