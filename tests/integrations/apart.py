# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs in which ranks train apart: what frameworks save of them, and how they go on."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from gravac import Static, topk
from tests.distributed.training import batch
from tests.integrations.by_hand import Trained, assert_same, flat, model
from tests.modes.scripted import APART, HOOK, NATIVE, Scripted, script

Every = int | tuple[int, int]

STEPS, SAVED_AT = 24, 9
"""Optimizer steps of a run, and the one after which it is saved: in the middle of a round, and of an epoch."""

ONE_CELL = [pytest.param(5, 4)]
"""How often, and batches of a step, of what is tested whenever anything is."""

OTHER_CELLS = [(1, 1), (1, 4), (5, 1), ((1, 20), 1), ((1, 20), 4)]
"""The same of all other cells."""

Runs = tuple[Trained, Trained, Trained]
"""A run by a framework, one that went on from what that saved in the middle, and the same steps by hand."""


def settings(every: Every) -> dict[str, Any]:
    """Settings whose decisions depend on no measured time; where there is a choice, all modes follow each other."""
    if isinstance(every, int):
        return {"base": topk, "controller": Static(cf=10), "every": every}
    scripted = Scripted(script=script((0, HOOK), (4, APART), (11, HOOK), (16, NATIVE)), watch=4)
    return {"base": topk, "cf_range": (10, 10), "controller": scripted, "every": every, "dense_below": 0}


def assert_went_on(runs: Runs, accumulate: int) -> None:
    """A framework counts steps as a loop by hand does, and goes on in the middle of a round bit for bit."""
    straight, resumed, by_hand = runs
    assert len(straight.losses) == STEPS * accumulate
    assert len(resumed.losses) == (STEPS - SAVED_AT) * accumulate
    assert_same(straight, by_hand)
    assert straight.losses[-len(resumed.losses) :] == resumed.losses
    assert torch.equal(straight.weights, resumed.weights)
    assert torch.equal(straight.residual, resumed.residual)
    assert straight.exchanged == resumed.exchanged


def assert_trained_apart(runs: list[Runs]) -> None:
    """A test of nothing otherwise: ranks were one all the time."""
    first, second = (straight.losses for straight, _, _ in runs)
    assert first != second


def loss_of(weights: Mapping[str, torch.Tensor]) -> float:
    """Loss of weights on a batch that no rank trains on; the names end as the model's do."""
    plain = model()
    ends = {name: next(tensor for full, tensor in weights.items() if full.endswith(name)) for name in plain.state_dict()}
    plain.load_state_dict(ends)
    return validation_loss(plain)


@torch.no_grad()
def validation_loss(module: torch.nn.Module) -> float:
    """Loss on a batch that no rank trains on."""
    x, y = batch(100, 0)
    return float(cross_entropy(module(x), y))


def shared_weights(state: Mapping[str, Any]) -> torch.Tensor:
    """What all ranks share, flat, by a rank's state of gravac's; ranks trained apart then."""
    return flat(tensor for fragment in state["outer"]["fragments"] for tensor in fragment["anchors"].values())


def own_weights(state: Mapping[str, Any]) -> torch.Tensor:
    """A rank's own weights, flat, likewise."""
    return flat(tensor for fragment in state["outer"]["fragments"] for tensor in fragment["own"].values())
