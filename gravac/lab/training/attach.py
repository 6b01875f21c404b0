# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attaches a method of exchanging gradients (of gravac, torch or torchft) to a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.controllers import CONTROLLERS
from gravac.lab.training.exchange import Exchange, attach_to_ddp
from gravac.lab.training.methods import Method, bucket_mb
from gravac.lab.training.shuffled import RunChoice, ShuffledController
from gravac.lab.training.torchft_baselines import TorchftExchange


def attach(
    method: Method,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    samples_per_step: int,
    log_dir: Path | None,
    seed: int = 0,
    pace: float | None = None,
    choices: Sequence[RunChoice] = (),
) -> Exchange:
    """Attach a method to a model, wrapped in DDP unless the method is torchft's; return the attached method.

    Args:
        method: method of exchanging gradients.
        model: model to train, not wrapped in DDP; all ranks begin with the same weights.
        optimizer: optimizer of the model.
        samples_per_step: number of samples that all ranks together train in a step.
        log_dir: folder into which adaptive methods write their logs; ``None``: no logs.
        seed: seed of compressors that draw random numbers, and of the random order of ``choices``.
        pace: bits per second to which gravac limits its exchange, to emulate a slow link; ``None``: not limited.
        choices: choices of an adaptive run, for a method that repeats them in random order (``matched:``).

    Raises:
        ValueError: the method cannot be paced, needs a package that is not installed, or has no choices to repeat.
    """
    if method.torchft is not None:
        if pace is not None:
            raise ValueError(f"method: {method.text!r} of torchft cannot be paced; leave it out, or use real links")
        return TorchftExchange(method, model, optimizer)
    run_settings: dict[str, Any] = {"samples_per_step": samples_per_step, "seed": seed, "pace": pace}
    run_settings["log_dir"] = log_dir if method.adaptive else None
    if method.matched_to is not None:
        if not choices:
            raise ValueError(
                f"method: {method.text!r}: there are no choices of {method.matched_to} to repeat; run "
                f"{method.matched_to} first"
            )
        is_name = isinstance(method.controller, str)
        inner_controller = CONTROLLERS[method.controller]() if is_name else method.controller
        run_settings["controller"] = ShuffledController(inner_controller, tuple(choices), seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(method, parameters))
    return attach_to_ddp(method, ddp, optimizer, **run_settings)
