# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attach any method to a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.controllers import CONTROLLERS
from gravac.lab.training.exchange import Exchange, in_ddp
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
    """Attach a method to a model, which DDP is put around unless the method is torchft's.

    Args:
        method: the method.
        model: the model itself; all ranks begin with the same weights.
        optimizer: optimizer of the same model.
        samples_per_step: number of samples of a step, over all ranks.
        log_dir: folder into which adaptive methods write their logs; ``None`` writes none.
        seed: seed of compressors that draw random numbers, and of matched random's order.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.
        played: choices of the adaptive run that a matched random one plays.

    Raises:
        ValueError: the method cannot be paced, needs what is not installed, or has nothing to play.
    """
    if method.torchft is not None:
        if pace is not None:
            raise ValueError(f"{method.text} is torchft's own and cannot be paced; leave it out, or use real links")
        return TorchftExchange(method, model, optimizer)
    run: dict[str, Any] = {"samples_per_step": samples_per_step, "seed": seed, "pace": pace}
    run["log_dir"] = log_dir if method.adaptive else None
    if method.of is not None:
        if not played:
            raise ValueError(f"{method.text}: there are no choices of {method.of} to play; run that first")
        named = isinstance(method.controller, str)
        of = CONTROLLERS[method.controller]() if named else method.controller
        run["controller"] = Shuffled(of, tuple(played), seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(method, parameters))
    return in_ddp(method, ddp, optimizer, **run)
