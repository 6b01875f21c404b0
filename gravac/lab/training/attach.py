# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attaches any method of exchanging gradients to a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.controllers import CONTROLLERS
from gravac.lab.training.exchange import Exchange, attach_to_ddp
from gravac.lab.training.methods import Method, bucket_mb
from gravac.lab.training.shuffled import Play, Shuffled
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
    played: Sequence[Play] = (),
) -> Exchange:
    """Attach a method to a model, and wrap the model by DDP unless the method is torchft's.

    Args:
        method: method of exchanging gradients.
        model: model to train, not wrapped; all ranks begin with the same weights.
        optimizer: optimizer of the model.
        samples_per_step: number of samples of a step, over all ranks.
        log_dir: folder into which adaptive methods write their logs; ``None``: no logs.
        seed: seed of compressors that draw random numbers, and of the order of matched random choices.
        pace: bits per second to which gravac's exchange limits itself; ``None`` on real links.
        played: choices of an adaptive run, for a matched random method.

    Raises:
        ValueError: the method cannot be paced, needs a package that is not installed, or has no choices to play.
    """
    if method.torchft is not None:
        if pace is not None:
            raise ValueError(f"{method.text} is torchft's own and cannot be paced; leave it out, or use real links")
        return TorchftExchange(method, model, optimizer)
    run_settings: dict[str, Any] = {"samples_per_step": samples_per_step, "seed": seed, "pace": pace}
    run_settings["log_dir"] = log_dir if method.adaptive else None
    if method.matched_to is not None:
        if not played:
            raise ValueError(f"{method.text}: there are no choices of {method.matched_to} to play; run that first")
        is_name = isinstance(method.controller, str)
        inner = CONTROLLERS[method.controller]() if is_name else method.controller
        run_settings["controller"] = Shuffled(inner, tuple(played), seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(method, parameters))
    return attach_to_ddp(method, ddp, optimizer, **run_settings)
