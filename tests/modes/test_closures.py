# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that call forward and backward within their step: modes change there, and nothing is lost."""

import torch
from torch.nn.functional import cross_entropy

from tests.distributed.training import batch, network, parallel
from tests.modes.test_switch import OPTIMIZERS, STEPS, TOUR, compressor_of
from tests.ranks import processes


def toured(rank: int, world: int, closures: bool) -> tuple[list[str], torch.Tensor]:
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(TOUR)
    compressor.attach(ddp, trains)
    modes: list[str] = []
    for number in range(STEPS):
        x, y = batch(rank, number)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            trains.zero_grad()
            loss = cross_entropy(ddp(x), y)
            modes.append(compressor.mode)
            loss.backward()
            return loss

        if closures:
            trains.step(closure)
        else:
            closure()
            trains.step()
    own = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    compressor.close()
    return modes, own


def with_closures_and_without(rank: int, world: int) -> list[tuple[list[str], torch.Tensor]]:
    return [toured(rank, world, closures) for closures in (True, False)]


def test_steps_with_closures_are_those_without_bit_for_bit() -> None:
    for (modes, own), (modes_without, own_without) in processes(with_closures_and_without, 2):
        assert modes == modes_without and {*modes} == {"hook", "outer", "native"}
        assert torch.equal(own, own_without)
