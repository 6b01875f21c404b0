# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What of gravac's Python runs while backward does."""

import sys
import threading
from typing import Any

import torch

from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import HOOK, NATIVE, script
from tests.modes.test_held import step
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import is_gravacs, processes


def python_in_backward(rank: int, world: int, mode: str) -> int:
    """Count Python functions of gravac that run while backward does, when the mode has settled."""
    ddp = parallel(network(2))
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


def python_in_backwards(rank: int, world: int) -> dict[str, int]:
    return {mode: python_in_backward(rank, world, mode) for mode in ("native", "hook")}


def test_no_python_runs_in_backward_of_native_steps() -> None:
    for seen in processes(python_in_backwards, 2):
        assert seen["native"] == 0
        assert seen["hook"]
