# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A model in shards on four ranks, trained by hand: what frameworks must equal, bit for bit."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from gravac import AdaptiveCompressor, Static, topk
from gravac.policy import OuterSettings, Policy
from tests.hsdp.training import WIDTH, shards_of
from tests.integrations.by_hand import Batch, Trained, assert_same, flat
from tests.policies import adaptive

WORLD = 4

STEPS, SAVED_AT = 14, 7
"""Optimizer steps of a run, and the one after which it is saved: in the middle of a round of outer steps."""

DENSE: dict[str, Any] = {"controller": Static(cf=1), "native": False}
"""Settings with which gravac sends all gradients dense."""

COMPRESSED: dict[str, Any] = {"policy": Policy(base=topk, controller=Static(cf=10), dense_below=64)}
"""Settings with which most of a gradient stays in residuals."""

OUTER: dict[str, Any] = {"policy": COMPRESSED["policy"](every=5, outer=OuterSettings(delay=0))}
"""The same in rounds of five outer steps."""


def batch(rank: int, position: int) -> Batch:
    """Return a rank's batch, and what the model should make of it."""
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * rank + position))
    return x, x.roll(1, 1)


def loss_of(predicted: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (predicted - expected).square().mean()


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0)


def train(
    module: FSDPModule,
    batches: list[Batch],
    settings: dict[str, Any] | None,
    accumulate: int = 1,
    flag: str = "set_requires_gradient_sync",
) -> Trained:
    """Train a model in shards by hand.

    Args:
        module: the model.
        batches: this rank's batches; the last step may have fewer of these.
        settings: those of the compressor; ``None``: torch exchanges.
        accumulate: number of batches of a step.
        flag: method by which all but the last of these are told to exchange nothing.
    """
    assert isinstance(module, torch.nn.Module)
    optimizer, compressor = optimizer_of(module), None
    if settings is not None:
        compressor = adaptive(**settings)
        compressor.attach(module, optimizer)
    losses = []
    for position, (x, y) in enumerate(batches, 1):
        steps = position % accumulate == 0 or position == len(batches)
        getattr(module, flag)(steps)
        loss = loss_of(module(x), y)
        (loss / accumulate).backward()
        losses.append(float(loss.detach()))
        if steps:
            optimizer.step()
            optimizer.zero_grad()
    return trained(losses, module, compressor)


def trained(losses: list[float], module: torch.nn.Module, compressor: AdaptiveCompressor | None) -> Trained:
    """Return what a run left behind on this rank, and close its compressor."""
    if compressor is None:
        return Trained(losses, flat(shards_of(module).values()), torch.empty(0), 0)
    compressor.synchronize()
    state = compressor.state_dict()
    compressor.close()
    return Trained(losses, flat(shards_of(module).values()), flat(state["residual"].values()), state["step"])


def assert_as_plain_hsdp(runs: list[dict[str, tuple[Trained, Trained]]]) -> None:
    """Runs of a framework, on all ranks, have the losses, weights and residuals of runs by hand, and gravac averaged.

    Args:
        runs: of each rank, the framework's run and the one by hand: with dense gradients, and compressed.
    """
    for run in runs:
        dense, native = run["dense"]
        assert dense.losses == native.losses and dense.weights.equal(native.weights)
        assert dense.exchanged == STEPS
        assert_same(*run["compressed"])
    assert_only_gravac_averaged([run["compressed"][0] for run in runs])


def assert_only_gravac_averaged(runs: list[Trained]) -> None:
    """The ranks that hold the same shard compressed different gradients, so torch had not averaged these before."""
    for first, second in (runs[0::2], runs[1::2]):
        assert first.residual.shape == second.residual.shape and first.residual.any()
        assert not torch.equal(first.residual, second.residual)
        assert torch.equal(first.weights, second.weights)
