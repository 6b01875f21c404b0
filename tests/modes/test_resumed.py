# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped in any mode, in the middle of a round too, goes on bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import SettingsError, checkpoint
from tests.distributed.training import network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, script
from tests.modes.test_held import step, with_norm
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

PLAN = script((0, HOOK), (5, APART), (18, NATIVE), (30, APART))
STOPS = {"hook": 3, "within a round": 9, "at the end of a round": 12, "native": 31, "apart again": 37}
MORE = 12
LAST = max(STOPS.values()) + MORE
ORDERS = {
    "attached, then others": (False, True),
    "attached, then gravac": (False, False),
    "others, then attached": (True, True),
    "gravac, then attached": (True, False),
}
"""Whether a checkpoint is loaded before ``attach``, and whether gravac's part of it is loaded last."""


def fresh() -> tuple[Any, Any, Any]:
    ddp = parallel(with_norm())
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    return ddp, trains, compressor_of(PLAN)


def weights_of_steps(
    ddp: Any, trains: Any, rank: int, steps: range, before_step: Callable[[int], None] = lambda step: None
) -> dict[int, torch.Tensor]:
    """Make steps; return the weights after each."""
    weights = {}
    for number in steps:
        before_step(number)
        step(ddp, trains, rank, number)
        weights[number] = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    return weights


def resumed(
    rank: int, at: int, mode: str, folder: Path, before_attach: bool, others_first: bool
) -> dict[int, torch.Tensor]:
    """Load what was saved before step ``at`` of a run in ``mode``, and train on; return the weights after each step."""
    ddp, trains, compressor = fresh()
    saved = torch.load(folder / f"model{at}.pt", weights_only=True)
    if not before_attach:
        compressor.attach(ddp, trains)
    if others_first:
        ddp.module.load_state_dict(saved["model"])
        trains.load_state_dict(saved["optimizer"])
        checkpoint.load(folder / f"gravac{at}", compressor)
    else:
        checkpoint.load(folder / f"gravac{at}", compressor)
        ddp.module.load_state_dict(saved["model"])
        if mode != "outer":  # whose state comes beside each rank's own weights
            trains.load_state_dict(saved["optimizer"])
    if before_attach:
        compressor.attach(ddp, trains)
    weights = weights_of_steps(ddp, trains, rank, range(at, at + MORE))
    compressor.close()
    return weights


def stopped_and_resumed(rank: int, world: int, folder: Path) -> dict[tuple[str, str], bool]:
    """Train and save at each stop; tell for each stop, and each order of loading, whether training goes on the same."""
    ddp, trains, compressor = fresh()
    compressor.attach(ddp, trains)
    modes: dict[int, str] = {}

    def save(number: int) -> None:
        if number not in STOPS.values():
            return
        modes[number] = compressor.mode
        if rank == 0:  # what all ranks share, in a file of its own, as frameworks write it
            state = {"model": ddp.module.state_dict(), "optimizer": trains.state_dict()}
            torch.save(state, folder / f"model{number}.pt")
        checkpoint.save(folder / f"gravac{number}", compressor)

    expected = weights_of_steps(ddp, trains, rank, range(LAST), save)
    compressor.close()
    cases = [(stop, "attached, then others") for stop in STOPS] + [("within a round", order) for order in ORDERS]
    found = {}
    for stop, order in dict.fromkeys(cases):
        at = STOPS[stop]
        weights = resumed(rank, at, modes[at], folder, *ORDERS[order])
        found[stop, order] = all(torch.equal(weights[number], expected[number]) for number in range(at, at + MORE))
    assert [modes[at] for at in STOPS.values()] == ["hook", "outer", "outer", "native", "outer"]
    return found


@pytest.fixture(scope="module")
def by_case(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], bool]]:
    """Whether each rank's training went on bit for bit, by the stop and the order of loading."""
    return processes(stopped_and_resumed, 2, tmp_path_factory.mktemp("resumed"))


@pytest.mark.parametrize("stop", STOPS)
def test_it_goes_on_bit_for_bit(by_case: list[dict[tuple[str, str], bool]], stop: str) -> None:
    assert [found[stop, "attached, then others"] for found in by_case] == [True, True]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_loading_and_attaching_does_not_matter(
    by_case: list[dict[tuple[str, str], bool]], order: str
) -> None:
    assert [found["within a round", order] for found in by_case] == [True, True]


def refused(rank: int, world: int) -> str:
    ddp = parallel(network(2))
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, trains)
    for number in range(3):
        step(ddp, trains, rank, number)
    state = compressor.state_dict()
    compressor.close()
    other = compressor_of(script((0, HOOK)), every=1)
    with pytest.raises(SettingsError) as told:
        other.load_state_dict(state)
    return str(told.value)


def test_a_state_of_ranks_apart_is_refused_where_they_never_part() -> None:
    first, second = processes(refused, 2)
    assert first == second and "every" in first
