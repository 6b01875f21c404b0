# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A small model in shards, and loops that train it on four ranks, natively or with a compressor attached."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gravac import AdaptiveCompressor, Static

WIDTH = 33
"""Features of the model: an odd number, so that shards are uneven."""

STEPS = 20


class Block(torch.nn.Module):
    """Two layers, a norm and a scale of one element, which only one rank of a shard group holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, 35), torch.nn.Linear(35, WIDTH, bias=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` plus what the layers make of it."""
        return x + self.scale * self.second(torch.tanh(self.first(self.norm(x))))


def model() -> torch.nn.Sequential:
    """Return the model, the same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block())


def mesh_of(replicas: int) -> DeviceMesh:
    """Return a mesh of all ranks: replicas, each in shards."""
    shape = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def sharded(mesh: DeviceMesh, **settings: Any) -> torch.nn.Sequential:
    """Return the model in shards, a unit per block."""
    whole = model()
    for block in whole:
        fully_shard(block, mesh=mesh, **settings)
    fully_shard(whole, mesh=mesh, **settings)
    return whole


@dataclass
class Run:
    """What a run came to on one rank.

    Attributes:
        weights: this rank's shards after the last step, by name.
        losses: loss of each step.
        cfs: compression factor of each step.
        wire_ratio: of the last agreed step.
        candidates: candidates that ranks chose from.
        steps: number of steps that the engine counted.
    """

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    cfs: list[float] = field(default_factory=list)
    wire_ratio: float | None = None
    candidates: list[str] = field(default_factory=list)
    steps: int = 0


def shards_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of this rank's shards, by name."""
    return {name: parameter.to_local().detach().clone() for name, parameter in module.named_parameters()}  # type: ignore[attr-defined]


def dense(**settings: Any) -> AdaptiveCompressor:
    """Return a compressor that sends all gradients dense, by its hooks."""
    return AdaptiveCompressor(controller=Static(cf=1), native=False, **settings)


def train(
    module: torch.nn.Module,
    compressor: AdaptiveCompressor | None,
    *,
    steps: int = STEPS,
    micro: int = 1,
    flag: str = "set_requires_gradient_sync",
    clip: float | None = None,
    optimizer_of: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Run:
    """Train, on this rank's own batches, and return what the run came to.

    Args:
        module: model in shards.
        compressor: attached first; ``None``: torch exchanges.
        steps: number of steps.
        micro: number of backwards of a step.
        flag: method by which all but the last of them are told to exchange nothing; empty: each of them exchanges.
        clip: largest norm of the gradients.
        optimizer_of: makes the optimizer.
    """
    optimizer = optimizer_of(module.parameters(), lr=1e-2)
    if compressor is not None:
        compressor.attach(module, optimizer)
    chance, run = torch.Generator().manual_seed(dist.get_rank()), Run()
    for _ in range(steps):
        for backward in range(micro):
            if isinstance(module, FSDPModule) and micro > 1 and flag:
                getattr(module, flag)(backward == micro - 1)
            x = torch.randn(8, WIDTH, generator=chance)
            loss = (module(x) - x.roll(1, 1)).square().mean()
            loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(loss.item())
        if compressor is not None:
            run.cfs.append(compressor.cf)
    run.weights = shards_of(module)
    if compressor is not None:
        run.wire_ratio = compressor.wire_ratio
        run.steps = compressor._engine.state.trained
        run.candidates = [str(candidate) for candidate in compressor._engine.deciding.candidates]
        compressor.close()
    return run


MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
