# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Processes that trained apart are equal again, bit for bit, and stay so in native steps."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.modes.equalizing import checksum, equalize_ranks
from gravac.sources.ddp_private import Reducer
from tests.modes.optimizers import MAKES, Net, bits, scaler_of, tensors_of, train
from tests.ranks import processes

OPTIMIZERS = ["AdamW", "AdamW, fused", "Adam, amsgrad", "SGD, momentum"]

SITUATIONS = ["plain", "NaN", "never stepped", "scaler"]


def returned(rank: int, world: int, make: str, case: str) -> dict[str, Any]:
    """A run over gloo: apart, together again, native steps."""
    module = Net()
    ddp = DistributedDataParallel(module, find_unused_parameters=True)
    reducer, silent = Reducer(ddp), [True]
    ddp.register_forward_pre_hook(lambda *_: reducer.silence_exchange() if silent else None)
    ddp.register_forward_hook(lambda *_: reducer.restore_flags(), always_call=True)
    optimizer = MAKES[make](module.parameters())
    scaler = scaler_of(2.0 ** (10 - rank), 7 + rank) if case == "scaler" else None
    if not (case == "never stepped" and rank == 1):
        train(ddp, optimizer, rank, range(4))
    if case == "NaN" and rank == world - 1:
        for (_, key), state in tensors_of(optimizer).items():
            if key != "step":
                state[(-1,) * state.dim()] = float("nan")
    for parameter in module.parameters():
        dist.broadcast(parameter.detach(), 0)
    with AdaptiveCompressor(topk, controller=Static(cf=1)) as compressor:
        engine = compressor.attach_parameters({"w": torch.zeros(4)})
        engine.open()
        job = equalize_ranks([*module.parameters()], [optimizer], scaler, engine.device)
        differing = engine.run_between_steps("the optimizers' states", job).result()
    silent.clear()
    reducer.renew()
    at_once = {place: bits(state) for place, state in tensors_of(optimizer).items()}
    train(ddp, optimizer, rank, range(20, 35))
    return {
        "differing": differing,
        "at once": at_once,
        "later": checksum([*module.parameters()], [optimizer]),
        "finite": all(bool(p.isfinite().all()) for p in module.parameters()),
        "scale": None if scaler is None else scaler.state_dict(),
        "averaged": reducer.has_averaged(),
    }


CASES = {
    2: [(make, case) for make in OPTIMIZERS for case in SITUATIONS],
    3: [("AdamW", case) for case in SITUATIONS] + [(make, "plain") for make in OPTIMIZERS[1:]],
}
"""Optimizers and situations by the number of ranks."""


def returned_in_all_cases(rank: int, world: int) -> list[dict[str, Any]]:
    return [returned(rank, world, make, case) for make, case in CASES[world]]


@pytest.mark.parametrize("world", CASES)
def test_ranks_are_equal_at_once_and_after_native_steps(world: int) -> None:
    for (make, case), first, *others in zip(CASES[world], *processes(returned_in_all_cases, world), strict=True):
        assert first["differing"] == [], (make, case)
        assert first["finite"], (make, case)
        assert first["averaged"], (make, case)
        assert first["at once"], (make, case)
        for other in others:
            assert other == first, (make, case)
        if case == "scaler":
            assert (first["scale"]["scale"], first["scale"]["_growth_tracker"]) == (2.0 ** (11 - world), 7)


def differs(rank: int, world: int) -> tuple[list[int], int]:
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters())
    train(module, optimizer, rank=0, steps=range(3))
    if rank == 1:
        module.scale.data += 1
    with AdaptiveCompressor(topk, controller=Static(cf=1)) as compressor:
        engine = compressor.attach_parameters({"w": torch.zeros(4)})
        engine.open()
        job = equalize_ranks([*module.parameters()], [optimizer], None, engine.device)
        differing = engine.run_between_steps("weights", job).result()
    return differing, checksum([*module.parameters()], [optimizer])


def test_a_rank_that_differs_is_told_and_given_what_rank_0_has() -> None:
    first, *others = processes(differs, 3)
    assert first[0] == [1]
    assert others == [first, first]
