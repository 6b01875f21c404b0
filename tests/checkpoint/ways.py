# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ways to save a compressor of several ranks and to load it again, each as two functions."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, checkpoint, topk
from gravac.checkpoint import OnResize
from tests.distributed.training import network, parallel, sgd, train

WAYS = ("directory", "gathered", "dcp")
MODES: tuple[OnResize, ...] = ("mean", "keep", "drop")


def save(way: str, folder: Path, compressor: AdaptiveCompressor) -> None:
    """Called on every rank."""
    at = folder / way
    if way == "directory":
        checkpoint.save(at, compressor)
    elif way == "dcp":
        dcp.save({"gravac": checkpoint.Stateful(compressor)}, checkpoint_id=at)
    else:
        gathered = checkpoint.gather(compressor)
        assert (gathered is None) == (dist.get_rank() != 0)
        if gathered is not None:
            torch.save(gathered, at)
        dist.barrier()


def load(
    way: str, folder: Path, compressor: AdaptiveCompressor, on_resize: OnResize = "mean", saved_world: int | None = None
) -> None:
    """Called on every rank."""
    at = folder / way
    if way == "directory":
        checkpoint.load(at, compressor, on_resize)
    elif way == "dcp":
        dcp.load({"gravac": checkpoint.Stateful(compressor, saved_world, on_resize)}, checkpoint_id=at)
    else:
        checkpoint.load_gathered(torch.load(at, weights_only=True), compressor, on_resize)


Run = tuple[DistributedDataParallel, torch.optim.Optimizer, AdaptiveCompressor]


def fresh(base: Any = topk, cf: float = 20) -> Run:
    """A small model; decisions that depend on measured times could not repeat."""
    ddp = parallel(network(2))
    return ddp, sgd(ddp), AdaptiveCompressor(base, cf_range=(cf, cf), controller=Static(cf=cf))


def begun(rank: int, steps: int = 2) -> AdaptiveCompressor:
    """One that has trained some steps, with residuals that differ between ranks."""
    ddp, optimizer, compressor = fresh()
    compressor.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(steps))
    return compressor


def residuals(compressor: AdaptiveCompressor) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in compressor.state_dict()["residual"].items()}
