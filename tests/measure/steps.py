# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training steps of N ranks in one process, averaged by a compressor as it runs over a network."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from gravac.average import Averager, Piece, Plan
from gravac.collectives import AllReduce, Ledger
from gravac.compressors import Compressor, dense
from gravac.exchange import memory
from gravac.feedback import Feedback

BELOW = 1024
"""Tensors with fewer elements are not compressed."""


class Came(NamedTuple):
    """Of all steps together, ratio of sums."""

    gain: float
    wire_ratio: float


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int, int], torch.Tensor],
    base: Compressor,
    cf: float | None,
    feedback: float | None,
    ranks: int,
    steps: int,
) -> Came:
    """Train.

    Args:
        model: trained.
        optimizer: of it; its learning rate rises over the first 20 steps.
        loss: of a step on a rank.
        base: compressor.
        cf: its CF; None for dense.
        feedback: error feedback; None for the compressor's own.
        ranks: stepped in memory.
        steps: of training.
    """
    averagers = [Averager(base, dense, feedback, BELOW, Feedback()) for _ in range(ranks)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, ranks
    ledgers = [Ledger(ranks) for _ in range(ranks)]
    parameters = dict(model.named_parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    error = whole = 0.0
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        gradients = []
        for rank in range(ranks):
            optimizer.zero_grad(set_to_none=True)
            loss(step, rank).backward()
            gradients.append({name: p.grad.clone() for name, p in parameters.items() if p.grad is not None})
        for averager in averagers:
            averager.begin()
        plan = Plan(step, cf)
        pieces = [[Piece(name, g.view(-1), tuple(g.shape)) for name, g in mine.items()] for mine in gradients]
        memory.run([averager.average(mine, plan) for averager, mine in zip(averagers, pieces, strict=True)], ledgers)
        for averager in averagers:
            averager.commit()
            error, whole = error + float(averager.tally.error), whole + float(averager.tally.energy)
        for name, p in parameters.items():
            p.grad = gradients[0][name]
        optimizer.step()
    full = steps * AllReduce.wire_bytes(4 * sum(p.numel() for p in parameters.values()), ranks)
    return Came(1 - error / whole if whole else 1.0, full / max(ledger.wire_bytes for ledger in ledgers))
