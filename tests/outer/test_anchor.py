# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The anchor and the outer optimizer's state: number formats, strides, memory, and runs that go on with them."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

from gravac import Static, dense
from tests.device.counting import DEVICE, counting
from tests.device.steps import Counted
from tests.device.storages import Storages
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import FOUR_BITS, MOMENTUM, Ranks, network, saved


def strided() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Unflatten(1, (3, 4, 4)), torch.nn.Conv2d(3, 8, 4), torch.nn.Flatten()
    return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("of_weights", "of_anchor"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_an_anchor_is_in_the_format_of_its_weights_but_never_in_sixteen_bit(
    of_weights: torch.dtype, of_anchor: torch.dtype
) -> None:
    (one,) = Ranks(1, make=lambda: network().to(of_weights)).outer
    assert {weight.dtype for weight in one._anchor.weights.values()} == {of_anchor}


def goes_on_bit_for_bit(**settings: Any) -> None:
    """Check that a run of two ranks that is saved within a round and loaded again goes on as if nothing had been."""
    whole = Ranks(2, every=3, **settings).train(7)
    states = [saved(outer.state_dict()) for outer in whole.outer]
    whole.train(5)
    again = Ranks(2, every=3, **settings)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = 7
    again.train(5)
    assert all(map(torch.equal, whole.weights, again.weights))
    assert all(map(torch.equal, whole.anchors, again.anchors))


@pytest.mark.parametrize("outer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_a_run_with_another_outer_optimizer_goes_on_bit_for_bit(outer: Any) -> None:
    goes_on_bit_for_bit(outer=outer, **FOUR_BITS)


def test_a_run_of_weights_that_are_not_in_row_major_order_goes_on_bit_for_bit() -> None:
    goes_on_bit_for_bit(outer=MOMENTUM, make=strided, **FOUR_BITS)


MATRICES, SIZE = 8, 1 << 12
"""Number of a model's matrices, and elements of each."""


def test_anchor_and_outer_momentum_are_all_that_outer_steps_keep_on_the_device() -> None:
    """Follow the third round of a bfloat16 model on a made-up GPU."""
    there = Storages("npy")
    with ExitStack() as within:
        seen = within.enter_context(counting())
        within.enter_context(there)
        matrices = [torch.empty(256, SIZE // 256, dtype=torch.bfloat16, device=DEVICE) for _ in range(MATRICES)]
        module = torch.nn.ParameterList(matrices)
        outer = OuterByHand(
            module,
            torch.optim.SGD(module.parameters()),
            base=dense,
            cf_range=(1, 2),
            controller=Static(cf=1),
            every=4,
            delay=0,
            outer=partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True),
            executor=Counted(seen, 2),
        )
        for number in range(3):
            if number == 2:
                there.begin()
            for _ in range(4):
                outer.step()
        there.end()
    assert there.kept == pytest.approx((2 + 4 + 4) * MATRICES * SIZE, rel=0.05)
