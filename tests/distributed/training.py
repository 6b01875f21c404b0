# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A small model of several buckets, trained by real ranks: what the distributed tests and measurements share."""

import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from gravac.collectives import AllReduce
from gravac.compressors import Context, Rounds, TopK

FEATURES, CLASSES = 96, 10


class TwoRounds(TopK):
    """Top-k that first agrees on something, as compressors of several rounds do."""

    one_round: ClassVar[bool] = False

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        total = yield AllReduce(torch.ones(1))
        assert float(total) == ctx.world
        return (yield from super().rounds(x, cf, ctx))


def network(layers: int = 6) -> torch.nn.Module:
    torch.manual_seed(0)
    blocks = [m for _ in range(layers) for m in (torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU())]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(FEATURES, CLASSES))


def parallel(module: torch.nn.Module | None = None, **options: Any) -> DistributedDataParallel:
    """DDP with a bucket for about every layer."""
    return DistributedDataParallel(module or network(), bucket_cap_mb=0.03, **options)


def batch(rank: int, step: int, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Another on every rank and step."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, FEATURES, generator=g)
    return x, x[:, :CLASSES].argmax(1)


def train(
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: range,
    before_backward: Callable[[int], None] = lambda step: None,
) -> float:
    """Plain steps; the last loss."""
    loss = torch.zeros(())
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        before_backward(step)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def sgd(ddp: DistributedDataParallel) -> torch.optim.SGD:
    return torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def weights(ddp: DistributedDataParallel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in ddp.parameters()])


def jitter(compressor: AdaptiveCompressor, rank: int, most: float) -> None:
    """Sleep 0 to ``most`` seconds before every hook, another on every rank."""
    delays = random.Random(rank)
    cut = compressor._attachment.source.hook

    def delayed(bucket: Any) -> Any:
        time.sleep(delays.random() * most)
        return cut(bucket)

    compressor._attachment.source.hook = delayed  # type: ignore[method-assign]


def telling(said: list[str]) -> Callable[[Callable[[], Any]], None]:
    """Something that tries an action and notes what it raises: its type and its words, or ``nothing``."""

    def says(action: Callable[[], Any]) -> None:
        try:
            action()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    return says
