# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A loop with Lightning Fabric, whose ``setup`` puts DDP inside a module of its own: it trains as plain DDP does."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from tests.distributed.training import batch, sgd, weights
from tests.integrations.by_hand import as_torchrun_says, model, ranks
from tests.modes.scripted import APART, HOOK, NATIVE, script
from tests.modes.test_switch import compressor_of

pytestmark = pytest.mark.framework

PLAN = script((0, NATIVE), (6, APART), (17, HOOK), (24, APART), (35, NATIVE))


def loop(
    rank: int, called: Any, optimizer: Any, compressor: AdaptiveCompressor, accumulating: Any, backward: Any
) -> list[str]:
    modes = []
    for step in range(80):
        with accumulating() if step % 2 == 0 else nullcontext():
            x, y = batch(rank, step)
            backward(cross_entropy(called(x), y))
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
            modes.append(str(compressor.mode))
    compressor.detach()
    compressor.close()
    return modes


def with_fabric(rank: int, world: int, is_compiled: bool) -> tuple[torch.Tensor, list[str]]:
    from lightning.fabric import Fabric

    as_torchrun_says(rank, world)
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp")
    fabric.launch()
    plain = model()
    optimizer = sgd(plain)
    module = torch.compile(plain, backend="eager") if is_compiled else plain
    called, wrapped = fabric.setup(module, optimizer)
    compressor = compressor_of(PLAN)
    compressor.attach(called, wrapped)
    modes = loop(rank, called, wrapped, compressor, lambda: fabric.no_backward_sync(called), fabric.backward)
    return torch.cat([parameter.detach().flatten() for parameter in plain.parameters()]), modes


def by_hand(rank: int, world: int) -> tuple[torch.Tensor, list[str]]:
    ddp = DistributedDataParallel(model())
    optimizer = sgd(ddp)
    compressor = compressor_of(PLAN)
    compressor.attach(ddp, optimizer)
    modes = loop(rank, ddp, optimizer, compressor, ddp.no_sync, torch.Tensor.backward)
    return weights(ddp), modes


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_loop_with_fabric_trains_bit_for_bit_as_plain_ddp_in_every_mode(is_compiled: bool) -> None:
    pytest.importorskip("lightning.fabric")
    for (own, modes), (expected, expected_modes) in zip(ranks(with_fabric, is_compiled), ranks(by_hand), strict=True):
        assert modes == expected_modes and {"native", "hook", "outer"} == set(modes)
        assert torch.equal(own, expected)
