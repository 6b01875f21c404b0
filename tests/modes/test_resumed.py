# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped in any mode, in the middle of a round too, goes on bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import SettingsError, checkpoint
from tests.distributed.training import parallel
from tests.modes.scripted import APART, HOOK, NATIVE, script
from tests.modes.test_held import step, with_norm
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

PLAN = script((0, HOOK), (6, APART), (24, NATIVE), (40, APART))
STOPS = {"hook": 4, "within a round": 13, "at the end of a round": 16, "native": 33, "apart again": 49}
MORE = 15


def resumed(rank: int, world: int, at: int, folder: str, before_attach: bool, others_first: bool) -> bool:
    def fresh() -> tuple[Any, Any, Any]:
        ddp = parallel(with_norm())
        trains = OPTIMIZERS["adamw"](ddp.parameters())
        return ddp, trains, compressor_of(PLAN)

    ddp, trains, compressor = fresh()
    compressor.attach(ddp, trains)
    for number in range(at):
        step(ddp, trains, rank, number)
    mode = compressor.mode
    if rank == 0:  # what all ranks share, in a file of its own, as frameworks write it
        torch.save({"model": ddp.module.state_dict(), "optimizer": trains.state_dict()}, Path(folder, "model.pt"))
    checkpoint.save(Path(folder, "gravac"), compressor)
    for number in range(at, at + MORE):
        step(ddp, trains, rank, number)
    expected = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    compressor.close()

    ddp, trains, compressor = fresh()
    saved = torch.load(Path(folder, "model.pt"), weights_only=True)
    if not before_attach:
        compressor.attach(ddp, trains)
    if others_first:
        ddp.module.load_state_dict(saved["model"])
        trains.load_state_dict(saved["optimizer"])
        checkpoint.load(Path(folder, "gravac"), compressor)
    else:
        checkpoint.load(Path(folder, "gravac"), compressor)
        ddp.module.load_state_dict(saved["model"])
        if mode != "outer":  # whose state comes beside each rank's own weights
            trains.load_state_dict(saved["optimizer"])
    if before_attach:
        compressor.attach(ddp, trains)
    for number in range(at, at + MORE):
        step(ddp, trains, rank, number)
    now = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    compressor.close()
    return torch.equal(expected, now)


@pytest.mark.parametrize("at", STOPS.values(), ids=STOPS)
def test_it_goes_on_bit_for_bit(tmp_path: Path, at: int) -> None:
    assert processes(resumed, 2, at, str(tmp_path), False, True) == [True, True]


@pytest.mark.parametrize(("before_attach", "others_first"), [(True, True), (True, False), (False, False)])
def test_the_order_of_loading_and_attaching_does_not_matter(
    tmp_path: Path, before_attach: bool, others_first: bool
) -> None:
    at = STOPS["within a round"]
    assert processes(resumed, 2, at, str(tmp_path), before_attach, others_first) == [True, True]


def refused(rank: int, world: int) -> str:
    ddp = parallel()
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
