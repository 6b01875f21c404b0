# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A loop over plain DDP with a compressor: what every framework must equal, bit for bit."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.telemetry import StepRecord, read_jsonl
from tests.distributed.training import network, sgd
from tests.policies import adaptive
from tests.ranks import PRELOADED, Rank, processes

FRAMEWORKS = [
    "lightning.pytorch",
    "pytorch_lightning",
    "tests.integrations.lightning.program",
    "tests.integrations.accelerate.program",
    "tests.integrations.transformers.program",
]
"""Modules that take seconds to import, once for all ranks."""

SETTINGS: dict[str, Any] = {"base": topk, "controller": Static(cf=10)}
"""Decisions that depend on no measured time, so that runs can be compared; most of a gradient stays in residuals."""

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Trained:
    """What a run leaves behind on a rank: the loss of every batch, the weights, residuals, and steps exchanged."""

    losses: list[float]
    weights: torch.Tensor
    residual: torch.Tensor
    exchanged: int


def trained(losses: list[float], module: torch.nn.Module, compressor: AdaptiveCompressor) -> Trained:
    state = compressor.state_dict()
    return Trained(losses, flat(module.parameters()), flat(state["residual"].values()), state["step"])


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().clone() for tensor in [torch.empty(0), *tensors]])


def model() -> torch.nn.Module:
    return network(layers=2)


def by_hand(
    batches: Sequence[Batch],
    accumulate: int = 1,
    scaler: torch.amp.GradScaler | None = None,
    settings: dict[str, Any] = SETTINGS,
    detach: bool = False,
) -> Trained:
    """Train on batches, and step after every ``accumulate`` of them; with a scaler in float16.

    ``detach``: whether to leave the module to DDP in the end, as the Trainer's callback does.
    """
    half, scaler = scaler is not None, scaler or torch.amp.GradScaler("cpu", enabled=False)
    ddp = DistributedDataParallel(model())
    optimizer = sgd(ddp)
    losses = []
    with adaptive(**settings) as compressor:
        compressor.attach(ddp, optimizer, scaler)
        for position, (x, y) in enumerate(batches, 1):
            steps = position % accumulate == 0
            with nullcontext() if steps else ddp.no_sync():
                with torch.autocast("cpu", torch.float16, enabled=half):
                    loss = cross_entropy(ddp(x), y)
                scaler.scale(loss / accumulate).backward()
            losses.append(float(loss.detach()))
            if steps:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        compressor.synchronize()
        if detach:
            compressor.detach()
        return trained(losses, ddp.module, compressor)


def ranks(function: Rank, *args: Any, world: int = 2) -> list[Any]:
    """Run ``function(rank, world, *args)`` in processes that have imported the frameworks that are installed."""
    return processes(function, world, *args, preloaded=[*PRELOADED, *FRAMEWORKS])


def as_torchrun_says(rank: int, world: int) -> None:
    """Set what frameworks read of a process that torchrun started; the process group is there already."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in told.items()})


def mean_of_ranks(losses: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over ranks of each batch's loss."""
    return [sum(of) / len(losses) for of in zip(*losses, strict=True)]


def losses_in(folder: Path) -> dict[int, float]:
    """Return the losses that a run's log tells, by the step."""
    records = read_jsonl(folder / "gravac.jsonl")
    return {record.step: record.loss for record in records if isinstance(record, StepRecord)}


def assert_same(one: Trained, other: Trained) -> None:
    assert one.losses == other.losses
    assert one.exchanged == other.exchanged
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.residual, other.residual)


def assert_resumed(straight: Sequence[Trained], resumed: Sequence[Trained]) -> None:
    """A resumed run ends as one that was not interrupted, rank by rank, where ranks' residuals are not the same."""
    assert not torch.equal(straight[0].residual, straight[1].residual), "a test of nothing: ranks had one residual"
    for one, other in zip(straight, resumed, strict=True):
        assert one.losses[-len(other.losses) :] == other.losses
        assert 0 < len(other.losses) < len(one.losses)
        assert one.exchanged == other.exchanged
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.residual, other.residual)
