# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What becomes of gradients that were not sent when the mode changes: sent or used under SGD, dropped under Adam."""

from typing import Any

import pytest
import torch

from gravac import topk
from gravac.telemetry.records import Record, StepRecord
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, Scripted, script
from tests.modes.test_switch import OPTIMIZERS
from tests.policies import adaptive
from tests.ranks import processes


def left(rank: int, world: int, optimizer: str, target: str) -> dict[str, Any]:
    records: list[Record] = []
    ddp = parallel(network(2))
    trains = OPTIMIZERS[optimizer](ddp.parameters())
    plan = script((0, HOOK), (6, NATIVE if target == "native" else APART))
    compressor = adaptive(
        topk, (10, 10), controller=Scripted(script=plan), every=(1, 5), dense_below=0, sinks=[records.append]
    )
    compressor.attach(ddp, trains)
    names = {id(p): name for name, p in ddp.module.named_parameters()}
    residuals: dict[str, torch.Tensor] = {}
    added: dict[str, float] = {}

    def note(_: Any, *__: Any) -> None:
        """After gravac's own hook: what the optimizer is about to apply, less this rank's own gradient."""
        if compressor.mode == "outer" and not added:
            for parameter in ddp.parameters():
                name = names[id(parameter)]
                gradient = parameter.grad
                assert gradient is not None
                if name in residuals:
                    added[name] = float((gradient.flatten() - own[name] - residuals[name]).abs().max())

    trains.register_step_pre_hook(note)
    own: dict[str, torch.Tensor] = {}
    for number in range(18):
        before = compressor.mode
        trains.zero_grad()
        x, y = batch(rank, number)
        if before == "hook":
            compressor._engine.drain()
            residuals.clear()
            residuals.update(compressor._engine.residuals())
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        own = {names[id(p)]: p.grad.flatten().clone() for p in ddp.parameters() if p.grad is not None}
        trains.step()
    compressor.state_dict()
    ran = [record for record in records if isinstance(record, StepRecord) and record.mode == "hook"]
    left_over = bool(compressor._engine.state.residual) and compressor.mode == "native"
    mode = compressor.mode
    compressor.close()
    return {"mode": mode, "last": ran[-1].compressor if ran else "", "left": left_over, "added": added}


def left_in_all_cases(rank: int, world: int) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (optimizer, target): left(rank, world, optimizer, target)
        for optimizer in OPTIMIZERS
        for target in ("native", "outer")
    }


@pytest.fixture(scope="module")
def by_case() -> list[dict[tuple[str, str], dict[str, Any]]]:
    """What became of each rank's residuals, by the optimizer and the mode after the hook."""
    return processes(left_in_all_cases, 2)


def test_under_sgd_a_last_dense_step_sends_it_before_native_steps(by_case: list[Any]) -> None:
    first, second = (found["sgd", "native"] for found in by_case)
    assert (first["mode"], second["mode"]) == ("native", "native")
    assert first["last"] == "dense" and not first["left"] and not second["left"]


def test_under_adam_it_is_dropped_before_native_steps(by_case: list[Any]) -> None:
    first, _ = (found["adamw", "native"] for found in by_case)
    assert first["mode"] == "native" and first["last"] == "topk" and not first["left"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ranks_that_part_use_it_in_their_own_first_step_under_sgd_alone(by_case: list[Any], optimizer: str) -> None:
    for found in by_case:
        case = found[optimizer, "outer"]
        assert case["mode"] == "outer" and case["added"]
        used = max(case["added"].values()) < 1e-6
        assert used == (optimizer == "sgd")
