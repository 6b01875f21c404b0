# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Evaluation while an exchange is under way, and a module whose compressor is closed."""

import copy
import functools
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, Static, topk
from gravac.modes.outer.sgd import OuterSGD
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, same, script
from tests.modes.test_held import step, tensors_are_shared
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

SETTINGS: dict[str, Any] = {
    "controller": Static(cf=10),
    "every": 5,
    "outer": {"delay": 3, "optimizer": functools.partial(OuterSGD, rate=0.7, momentum=0.9)},
}
"""Rounds whose exchange travels behind three steps; what the outer optimizer keeps is trained on afterwards."""


def evaluated_under_way(rank: int, world: int) -> tuple[list[bool], list[bool]]:
    """Evaluate and save when an exchange has just left; whether both saw the same, and the ranks did."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = AdaptiveCompressor(topk, **SETTINGS)
    compressor.attach(ddp, trains)
    x, _ = batch(7, 7)
    saved, shared = [], []
    for number in range(23):
        step(ddp, trains, rank, number)
        if number % 5 != 4:
            continue
        with torch.inference_mode():
            evaluated = ddp(x)
        compressor.state_dict()  # a checkpoint is written
        state = {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()}
        saved.append(torch.equal(torch.func.functional_call(copy.deepcopy(ddp.module), state, x), evaluated))
        shared.append(tensors_are_shared(state))
    compressor.close()
    return saved, shared


def paused(rank: int, world: int) -> list[float]:
    """Seconds left out of the steps' times: before an evaluation, after it and the next step, at the round's end."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = AdaptiveCompressor(topk, **{**SETTINGS, "outer": {"delay": 0}})
    compressor.attach(ddp, trains)
    step(ddp, trains, rank, 0)
    assert compressor._attachment.switch is not None and compressor._attachment.switch.outer is not None
    rounds = compressor._attachment.switch.outer._rounds
    left_out = [rounds._paused_s]
    with torch.no_grad():
        ddp(batch(7, 7)[0])
    for number in range(1, 5):
        step(ddp, trains, rank, number)
        left_out.append(rounds._paused_s)
    compressor.close()
    return left_out


def trained_on_after(rank: int, world: int) -> bool:
    """A module is trained, saved and evaluated as any other once its compressor is closed, also after loading."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, trains)
    for number in range(8):
        step(ddp, trains, rank, number)
    compressor.close()
    module = ddp.module
    module.load_state_dict({name: torch.ones_like(tensor) for name, tensor in module.state_dict().items()})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
        module(batch(7, 7)[0])
    compressor.detach()
    return all(bool((tensor == 2).all()) for tensor in module.state_dict().values())


def trained_on_without_detaching(rank: int, world: int, native: bool) -> str:
    """Train after ``close``; return the error, or whether the ranks are still equal."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, NATIVE if native else HOOK)))
    compressor.attach(ddp, trains)
    for number in range(3):
        step(ddp, trains, rank, number)
    compressor.close()
    try:
        for number in range(3, 6):
            step(ddp, trains, rank, number)
    except RuntimeError as failure:
        return str(failure)
    return f"trained on, equal: {same(ddp.module)}"


def evaluated_alone(rank: int, world: int, evaluates: bool) -> list[torch.Tensor]:
    """Train a model with BatchNorm in outer steps; rank 0 alone may evaluate it by ``ddp(x)`` within rounds."""
    net = network(2)
    ddp = parallel(torch.nn.Sequential(torch.nn.BatchNorm1d(net[0].in_features), net))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = AdaptiveCompressor(topk, **{**SETTINGS, "outer": {"delay": 0}})
    compressor.attach(ddp, trains)
    for number in range(23):
        step(ddp, trains, rank, number)
        if evaluates and rank == 0 and number % 5 in (1, 4):
            ddp.eval()
            with torch.no_grad():
                ddp(batch(7, 7)[0])
            ddp.train()
    compressor.close()
    return [tensor.detach().clone() for tensor in ddp.module.state_dict().values()]


def evaluated_and_closed(rank: int, world: int) -> dict[str, Any]:
    return {
        "under way": evaluated_under_way(rank, world),
        "paused": paused(rank, world),
        "closed": trained_on_after(rank, world),
        "closed, hook": trained_on_without_detaching(rank, world, False),
        "closed, native": trained_on_without_detaching(rank, world, True),
        "alone": evaluated_alone(rank, world, True),
        "nobody": evaluated_alone(rank, world, False),
    }


@pytest.fixture(scope="module")
def by_case() -> list[dict[str, Any]]:
    """What each rank found, by case."""
    return processes(evaluated_and_closed, 2)


def test_what_is_saved_after_an_evaluation_is_what_was_evaluated(by_case: list[dict[str, Any]]) -> None:
    assert [found["under way"] for found in by_case] == [([True] * 4, [True] * 4)] * 2


def test_the_time_of_an_evaluation_is_no_steps(by_case: list[dict[str, Any]]) -> None:
    for found in by_case:
        before, after, *others, at_the_end = found["paused"]
        assert before == at_the_end == 0
        assert after > 0 and set(others) == {after}


def test_a_closed_compressor_leaves_the_module_alone(by_case: list[dict[str, Any]]) -> None:
    assert [found["closed"] for found in by_case] == [True, True]


def test_after_close_a_backward_raises_by_the_hook_and_averages_in_native_steps(by_case: list[dict[str, Any]]) -> None:
    for found in by_case:
        said = found["closed, hook"]
        assert "the compressor is closed; call compressor.detach() to continue training without" in said
        assert found["closed, native"] == "trained on, equal: True"


def test_rank_0_alone_may_evaluate_a_model_with_buffers_in_outer_steps(by_case: list[dict[str, Any]]) -> None:
    """DDP would send rank 0's buffers in that forward, which the other ranks would take for another message."""
    for found in by_case:
        assert all(torch.equal(*pair) for pair in zip(found["alone"], found["nobody"], strict=True))
