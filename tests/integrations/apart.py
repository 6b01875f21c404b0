# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs in which ranks train apart: what frameworks save of them, and how they go on."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from gravac import Static, topk
from gravac.policy import Policy
from tests.distributed.training import batch
from tests.integrations.by_hand import Trained, assert_same, model
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
        return {"base": topk, "controller": Static(cf=10), "every": every, "outer": {"delay": 0}}
    scripted = Scripted(script=script((0, HOOK), (4, APART), (11, HOOK), (16, NATIVE)), watch=4)
    return {"policy": Policy(base=topk, cf_range=(10, 10), controller=scripted, every=every, dense_below=0)}


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
    plain.load_state_dict({name: _named(weights, name) for name in plain.state_dict()})
    return validation_loss(plain)


@torch.no_grad()
def validation_loss(module: torch.nn.Module) -> float:
    """Loss on a batch that no rank trains on."""
    x, y = batch(100, 0)
    return float(cross_entropy(module(x), y))


def is_apart(state: Mapping[str, Any]) -> bool:
    """Tell whether a rank's weights, in its state of gravac's, are its own, and not what all ranks share."""
    anchor = state["outer"]["anchor"]
    return not all(torch.equal(anchor["own"][name], weight) for name, weight in anchor["weights"].items())


def holds_shared(weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> bool:
    """Tell whether weights, whose names end as the model's do, are what all ranks share by a rank's state."""
    shared = state["outer"]["anchor"]["weights"]
    return all(torch.equal(weight, _named(weights, name)) for name, weight in shared.items())


def _named(weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    (tensor,) = [tensor for full, tensor in weights.items() if f".{full}".endswith(f".{name}") or name.endswith(full)]
    return tensor
