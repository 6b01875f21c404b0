# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A small model, its data, and N ranks in memory that train it with outer steps."""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from gravac import Static, dense, quantize
from gravac.exchange.lockstep import Lockstep
from tests.outer.by_hand import OuterByHand

SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.7, momentum=0.6, nesterov=True)
FOUR_BITS: dict[str, Any] = {"base": quantize(bits=4), "controller": Static(cf=8), "cf_range": (2, 100)}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 32), torch.nn.Tanh(), torch.nn.Linear(32, 40), torch.nn.Linear(40, 8)
    return torch.nn.Sequential(*layers)


def with_statistics() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 48, generator=generator), torch.randn(16, 8, generator=generator)


def backward(module: torch.nn.Module, step: int, rank: int, share: float = 1.0) -> None:
    x, y = batch(step, rank)
    (share * (module(x) - y).square().mean()).backward()


def inner_step(module: torch.nn.Module, inner: torch.optim.Optimizer, step: int, rank: int) -> None:
    inner.zero_grad()
    backward(module, step, rank)
    inner.step()


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in module.state_dict().values()]).clone()


def averaged(ranks: int, steps: int) -> torch.Tensor:
    """Weights after steps with the mean of all ranks' gradients: what DistributedDataParallel comes to."""
    module = network()
    optimizer = SGD(module.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            backward(module, step, rank, 1 / ranks)
        optimizer.step()
    return flat(module)


class Ranks:
    """N ranks in one process; what is not given is dense, in each step."""

    def __init__(
        self,
        ranks: int,
        inner: Any = SGD,
        make: Any = network,
        clock: float = 0.0,
        host_looks: bool = True,
        **settings: Any,
    ) -> None:
        self.lockstep = Lockstep(ranks, host_looks=host_looks, seconds=clock)
        self.modules = [make() for _ in range(ranks)]
        self.inner = [inner(module.parameters()) for module in self.modules]
        plain: dict[str, Any] = {
            "base": dense,
            "cf_range": (1, 2),
            "controller": Static(cf=1),
            "every": 1,
            "delay": 0,
            "dense_below": 0,
        }
        plain["outer"] = partial(torch.optim.SGD, lr=1.0)  # the anchor goes to the mean of the ranks' weights
        self.outer = [
            OuterByHand(module, optimizer, executor=executor, **{**plain, **settings})
            for module, optimizer, executor in zip(self.modules, self.inner, self.lockstep.executors, strict=True)
        ]
        self.made = 0

    def train(self, steps: int) -> "Ranks":
        for _ in range(steps):
            for rank, (module, inner) in enumerate(zip(self.modules, self.inner, strict=True)):
                inner_step(module, inner, self.made, rank)
                self.before_leaving(rank)
                self.outer[rank].leave()
            self.lockstep.run()
            for outer in self.outer:
                outer.arrive()
            self.made += 1
        return self

    def before_leaving(self, rank: int) -> None:
        """Do what a test has to do to a rank between its inner step and the outer one: nothing."""

    def synchronize(self) -> None:
        """End the round on all ranks, which in memory takes two calls each."""
        for outer in self.outer:
            outer._rounds.end_early(0.05)
        self.lockstep.run()
        for outer in self.outer:
            outer.synchronize()

    @property
    def weights(self) -> list[torch.Tensor]:
        return [flat(module) for module in self.modules]

    @property
    def anchors(self) -> list[torch.Tensor]:
        found = []
        for module, outer in zip(self.modules, self.outer, strict=True):
            with outer.shared_weights():
                found.append(flat(module))
        return found


def equal(tensors: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(tensors[0], one) for one in tensors)


def finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a file gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read
