# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A module without DDP, attached by the same call: gradients in each step, ranks apart, and from one to the other."""

from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, Static, topk
from tests.distributed.training import batch
from tests.modes.scripted import APART, HOOK, same, same_moments, script
from tests.modes.test_held import step, tensors_are_shared, with_norm
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import is_gravacs, processes

TOUR = script((0, HOOK), (8, APART), (25, HOOK), (40, APART), (57, HOOK))


def toured(rank: int, world: int, optimizer: str, accumulate: bool) -> dict[str, Any]:
    module = with_norm()
    if rank:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()  # all start from rank 0's weights
    trains = OPTIMIZERS[optimizer](module.parameters())
    compressor = compressor_of(TOUR)
    compressor.attach(module, trains)
    started = same(module)
    equal, evaluated = [], []
    for number in range(70):
        trains.zero_grad()
        if accumulate:
            with compressor.accumulate():
                x, y = batch(rank, 1000 + number)
                torch.nn.functional.cross_entropy(module(x), y).backward()
        x, y = batch(rank, number)
        torch.nn.functional.cross_entropy(module(x), y).backward()
        trains.step()
        if compressor.mode == "hook":
            equal.append(same_moments(trains))
        if number % 9 == 8:
            with torch.no_grad():
                evaluated.append(tensors_are_shared({"output": module.eval()(batch(7, 7)[0])}))
            module.train()
    changes = [(change.before, change.after) for change in compressor.changes]
    compressor.detach()
    ended = same(module)
    step(module, trains, rank, 1)
    compressor.close()
    return {"started": started, "equal": equal, "evaluated": evaluated, "changes": changes, "ended": ended}


@pytest.mark.parametrize(("optimizer", "accumulate"), [("adamw", False), ("sgd", True)])
def test_a_module_goes_all_ways_over(optimizer: str, accumulate: bool) -> None:
    for told in processes(toured, 2, optimizer, accumulate):
        assert told["changes"] == [("hook", "outer"), ("outer", "hook"), ("hook", "outer"), ("outer", "hook")]
        assert told["started"] and all(told["equal"]) and all(told["evaluated"]) and told["ended"]


def compressed(rank: int, world: int, wrapped: bool) -> torch.Tensor:
    module: torch.nn.Module = with_norm()
    if wrapped:
        module = torch.nn.parallel.DistributedDataParallel(module)
    trains = OPTIMIZERS["sgd"](module.parameters())
    compressor = AdaptiveCompressor(topk, controller=Static(cf=10), dense_below=0)
    compressor.attach(module, trains)
    for number in range(6):
        step(module, trains, rank, number)
    compressor.close()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_its_gradients_are_averaged_as_ddps_are() -> None:
    bare, wrapped = processes(compressed, 2, False), processes(compressed, 2, True)
    assert torch.equal(bare[0], bare[1]) and torch.equal(bare[0], wrapped[0])


def python_in_backward(rank: int, world: int, mode: str) -> int:
    """Count Python functions of gravac that run while backward does, when the mode has settled."""
    import sys
    import threading

    from tests.distributed.training import parallel
    from tests.modes.scripted import NATIVE

    ddp = parallel()
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, NATIVE if mode == "native" else HOOK)))
    compressor.attach(ddp, trains)
    for number in range(5):
        step(ddp, trains, rank, number)
    seen = 0

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event == "call" and is_gravacs(frame.f_code.co_filename)

    for number in range(5, 25):
        x, y = batch(rank, number)
        trains.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        threading.setprofile(trace)
        sys.setprofile(trace)
        loss.backward()
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        trains.step()
    assert compressor.mode == mode
    compressor.close()
    return seen


def test_no_python_runs_in_backward_of_native_steps() -> None:
    assert processes(python_in_backward, 2, "native") == [0, 0]
    assert all(processes(python_in_backward, 2, "hook"))
