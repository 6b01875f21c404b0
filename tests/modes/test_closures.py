# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that call forward and backward within their step: modes change there, and nothing is lost."""

import torch
from torch.nn.functional import cross_entropy

from tests.distributed.training import batch, parallel
from tests.modes.test_switch import OPTIMIZERS, TOUR, compressor_of
from tests.ranks import processes


def toured(rank: int, world: int, closures: bool) -> tuple[list[str], torch.Tensor]:
    ddp = parallel()
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(TOUR)
    compressor.attach(ddp, trains)
    modes: list[str] = []
    for number in range(70):
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


def test_steps_with_closures_are_those_without_bit_for_bit() -> None:
    for (modes, own), (modes_without, own_without) in zip(
        processes(toured, 2, True), processes(toured, 2, False), strict=True
    ):
        assert modes == modes_without and {*modes} == {"hook", "outer", "native"}
        assert torch.equal(own, own_without)
