# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Evaluation, saving and loading while ranks train apart: all see what ranks share, and training goes on unharmed."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes


def tensors_are_shared(state: dict[str, Any]) -> bool:
    """Tell whether all ranks have the same tensors. Called on every rank."""
    mine = torch.cat([value.detach().flatten().float() for _, value in sorted(state.items())])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return all(torch.equal(all_ranks[0], other) for other in all_ranks)


def with_norm() -> torch.nn.Module:
    first, *others = network(2)
    return torch.nn.Sequential(first, torch.nn.BatchNorm1d(96), *others)


def step(module: torch.nn.Module, trains: torch.optim.Optimizer, rank: int, number: int) -> None:
    trains.zero_grad()
    x, y = batch(rank, number)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    trains.step()


def looked_at(rank: int, world: int, how: str) -> tuple[list[bool], torch.Tensor]:
    """Train apart; look at the model between some steps, in some way."""
    # dynamo wants a first bucket that is no larger than the others
    ddp = DistributedDataParallel(with_norm()) if how == "compiled state_dict" else parallel(with_norm())
    called: torch.nn.Module = ddp
    if how == "compiled state_dict" and rank == 1:  # one rank shows it: a compiler's imports take a second
        called = torch.compile(ddp, backend="eager")
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(called, trains)
    shared = []
    for number in range(14):
        step(called, trains, rank, number)
        if number % 3 != 2:
            continue
        if how == "evaluate":
            x, _ = batch(7, 7)
            module = ddp if number % 2 else ddp.module  # Trainer evaluates the model itself
            with torch.no_grad():
                shared.append(tensors_are_shared({"output": module(x)}))
        elif how == "evaluate on one rank" and rank == 0:
            ddp.eval()
            with torch.inference_mode():
                ddp.module(batch(7, 7)[0])
            ddp.train()
        elif how == "state_dict":
            shared.append(tensors_are_shared(ddp.state_dict() if number % 2 else ddp.module.state_dict()))
        elif how == "compiled state_dict":
            shared.append(tensors_are_shared(called.state_dict()))
        elif how == "distributed checkpoint":
            from torch.distributed.checkpoint.state_dict import get_model_state_dict  # slow to import

            shared.append(tensors_are_shared(get_model_state_dict(ddp)))
        elif how == "shared_weights":
            with compressor.shared_weights():
                shared.append(tensors_are_shared(dict(copy.deepcopy(ddp.module).named_parameters())))
    own = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    compressor.close()
    return shared, own


WAYS = (
    "evaluate",
    "evaluate on one rank",
    "state_dict",
    "compiled state_dict",
    "distributed checkpoint",
    "shared_weights",
)


def looked_at_in_every_way(rank: int, world: int) -> dict[str, tuple[list[bool], torch.Tensor]]:
    return {how: looked_at(rank, world, how) for how in ("not at all", *WAYS)}


def test_what_ranks_share_is_seen_and_training_goes_on_as_if_nobody_had_looked() -> None:
    first, second = processes(looked_at_in_every_way, 2)
    for ways in (first, second):
        _, undisturbed = ways["not at all"]
        for how in WAYS:
            shared, weights = ways[how]
            assert torch.equal(undisturbed, weights), how
            assert how == "evaluate on one rank" or (shared and all(shared)), how
    assert not torch.equal(first["not at all"][1], second["not at all"][1])  # there is something to hide


def loaded(rank: int, world: int, evaluated: bool) -> tuple[bool, bool, bool]:
    """Load other weights in the middle of a round."""
    ddp = parallel(with_norm())
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, trains)
    for number in range(8):
        step(ddp, trains, rank, number)
    torch.manual_seed(5)
    best = {
        name: torch.randn_like(value) if value.is_floating_point() else value
        for name, value in ddp.module.state_dict().items()
    }
    if evaluated:
        with torch.no_grad():
            ddp(batch(7, 7)[0])
    ddp.module.load_state_dict(best)
    with torch.no_grad():
        ddp(batch(7, 7)[0])
    kept = all(
        torch.equal(value, best[name]) for name, value in ddp.module.state_dict().items() if "running" not in name
    )
    for number in range(8, 13):
        step(ddp, trains, rank, number)
    far = max(float((p.detach() - best[name]).abs().max()) for name, p in ddp.module.named_parameters())
    shared = tensors_are_shared(ddp.state_dict())
    compressor.close()
    return kept, far < 0.1, shared


def closed_while_apart(rank: int, world: int, way: str) -> bool:
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, trains)
    for number in range(8):
        step(ddp, trains, rank, number)
    if way == "synchronize":
        compressor.synchronize()
    compressor.close()
    return tensors_are_shared(dict(ddp.named_parameters()))


def after_a_look_of_one(rank: int, world: int) -> list[bool]:
    """Have rank 0 evaluate alone while an exchange is under way; compare what is saved, and what is left at the end."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART)), every=(5, 5), outer={"delay": 3})
    compressor.attach(ddp, trains)
    equal = []
    for number in range(10):
        step(ddp, trains, rank, number)
        if number in (4, 9):  # it left after this step, and is due three steps later
            if rank == 0:
                with torch.no_grad():
                    ddp.module(batch(7, 7)[0])
            if number == 4:
                equal.append(tensors_are_shared(ddp.state_dict()))
    compressor.close()
    return [*equal, tensors_are_shared(dict(ddp.named_parameters()))]


def loaded_and_closed(rank: int, world: int) -> dict[str, Any]:
    return {
        "loaded": loaded(rank, world, False),
        "evaluated and loaded": loaded(rank, world, True),
        "synchronized": closed_while_apart(rank, world, "synchronize"),
        "closed": closed_while_apart(rank, world, "close"),
        "after a look of one": after_a_look_of_one(rank, world),
    }


@pytest.fixture(scope="module")
def by_case() -> list[dict[str, Any]]:
    """What each rank found, by case."""
    return processes(loaded_and_closed, 2)


@pytest.mark.parametrize("case", ["loaded", "evaluated and loaded"])
def test_loading_begins_a_round_at_what_was_loaded(by_case: list[dict[str, Any]], case: str) -> None:
    assert [found[case] for found in by_case] == [(True, True, True)] * 2


@pytest.mark.parametrize("case", ["synchronized", "closed"])
def test_in_the_end_the_module_holds_what_ranks_share(by_case: list[dict[str, Any]], case: str) -> None:
    assert [found[case] for found in by_case] == [True, True]


def test_what_one_rank_alone_waited_for_is_in_what_all_save_and_end_with(by_case: list[dict[str, Any]]) -> None:
    assert [found["after a look of one"] for found in by_case] == [[True, True]] * 2
