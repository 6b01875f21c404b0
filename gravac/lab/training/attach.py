# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attaches a method of exchanging gradients, gravac's or torch's, to a model, which may be in shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.attach import is_sharded
from gravac.controllers import CONTROLLERS
from gravac.lab.training.exchange import Exchange, GravacExchange, attach_to_ddp
from gravac.lab.training.methods import Method, bucket_mb
from gravac.lab.training.sharded import TorchShardedExchange
from gravac.lab.training.shuffled import RunChoice, ShuffledController


def attach(
    method: Method,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    samples_per_step: int,
    log_dir: Path | None,
    seed: int = 0,
    paced: bool = False,
    choices: Sequence[RunChoice] = (),
) -> Exchange:
    """Attach a method of exchanging gradients to a model; called on every rank before the first step.

    The model is wrapped in DDP, except if the model is in shards.

    Args:
        method: method of exchanging gradients.
        model: model to train, not wrapped in DDP, with the same weights on all ranks. The model may be in shards, as
            ``sharded.shard`` makes them.
        optimizer: optimizer of the model.
        samples_per_step: number of samples that all ranks together train on in a step.
        log_dir: folder into which adaptive methods (those with a controller) write their logs; ``None``: no logs.
        seed: seed of compressors that draw random numbers, and of the random order of ``choices``.
        paced: whether pauses in gravac's exchanges imitate the link.
        choices: candidates (ways to run steps) that the controller of another run chose. A ``matched:`` method repeats
            them in random order; other methods do not use them.

    Returns:
        The attached method, which the training loop reads and calls; its ``module`` is the module to train.

    Raises:
        ValueError: the method is torch's own and cannot be ``paced``, or it cannot train a model in shards. Also if the
            method needs ``choices`` and has none.
    """
    if is_sharded(model) and method.mesh_error_message is not None:
        raise ValueError(method.mesh_error_message)
    run_settings: dict[str, Any] = {"samples_per_step": samples_per_step, "seed": seed, "paced": paced}
    run_settings["log_dir"] = log_dir if method.adaptive else None
    if method.matched_to is not None:
        if not choices:
            raise ValueError(
                f"method: {method.text!r} repeats the candidates that the controller of {method.matched_to} chose, but "
                f"no run of {method.matched_to} is recorded; run it first, on the same task and link with the same seed"
            )
        controller_is_name = isinstance(method.controller, str)
        inner_controller = CONTROLLERS[method.controller]() if controller_is_name else method.controller
        run_settings["controller"] = ShuffledController(inner_controller, tuple(choices), seed)
    if is_sharded(model):
        if method.torch_format is not None:
            return TorchShardedExchange(method, model)
        return GravacExchange(method, model, optimizer, **run_settings)
    parameter_count = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(method, parameter_count))
    return attach_to_ddp(method, ddp, optimizer, **run_settings)
