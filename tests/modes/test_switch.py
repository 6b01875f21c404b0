# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs that change their mode, over gloo: all ranks at the same step, the same bits whenever they are one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, topk
from gravac.telemetry import ModeRecord, read_jsonl
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HALF, HOOK, NATIVE, Scripted, same, same_moments, script
from tests.policies import adaptive
from tests.ranks import processes

TOUR = script((0, HOOK), (5, APART), (16, HOOK), (29, NATIVE), (39, APART), (50, NATIVE), (60, HALF))
"""All ways over."""

STEPS = 78

OPTIONS: list[dict[str, bool]] = [
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
]

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def compressor_of(entries: Any, every: int | tuple[int, int] = (1, 5), **settings: Any) -> AdaptiveCompressor:
    return adaptive(topk, (10, 10), controller=Scripted(script=entries), every=every, dense_below=0, **settings)


def seen_on_tour(
    rank: int, world: int, optimizer: str, options: dict[str, Any], log_dir: Path | None = None, accumulate: int = 1
) -> dict[str, Any]:
    ddp = parallel(network(2), **options)
    trains = OPTIMIZERS[optimizer](ddp.parameters())
    compressor = compressor_of(TOUR, log_dir=log_dir)
    compressor.attach(ddp, trains)
    modes, equal = [], []
    for step in range(STEPS):
        trains.zero_grad()
        for part in range(accumulate):
            ddp.require_backward_grad_sync = part == accumulate - 1
            x, y = batch(rank, accumulate * step + part)
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
        modes.append(compressor.mode)
        trains.step()
        if step + 1 == STEPS or compressor.mode != "outer":
            equal.append((step, same(ddp) and same_moments(trains)))
    compressor.close()
    return {"modes": modes, "equal": equal, "changes": compressor.changes}


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        pytest.param(
            optimizer,
            options,
            id=f"{optimizer}-{options}",
            marks=() if (number + position) % 2 else pytest.mark.long,  # each by some run, not each pair
        )
        for number, optimizer in enumerate(OPTIMIZERS)
        for position, options in enumerate(OPTIONS)
    ],
)
def test_ranks_change_at_the_same_step_and_are_the_same_whenever_they_are_one(
    optimizer: str, options: dict[str, Any]
) -> None:
    first, second = processes(seen_on_tour, 2, optimizer, options)
    assert first["modes"] == second["modes"]
    for seen in (first, second):
        assert [(change.before, change.after) for change in seen["changes"]] == [
            ("hook", "outer"),
            ("outer", "hook"),
            ("hook", "native"),
            ("native", "outer"),
            ("outer", "native"),
            ("native", "native"),
        ]
    # the step that sees a change of mode follows the last one apart
    assert all(equal for _, equal in first["equal"]), first["equal"]


@pytest.fixture(scope="module")
def accumulating(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What three ranks saw on a tour that accumulates gradients by the flag, and the folder of its log."""
    folder = tmp_path_factory.mktemp("log")
    return processes(seen_on_tour, 3, "adamw", {}, folder, 2), folder


def test_accumulation_by_the_flag_is_one_step(accumulating: tuple[list[dict[str, Any]], Path]) -> None:
    (first, second, third), _ = accumulating
    assert first["modes"] == second["modes"] == third["modes"]
    assert all(equal for _, equal in first["equal"])


def test_a_log_tells_each_change_of_mode_and_its_price(accumulating: tuple[list[dict[str, Any]], Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # the ranks need none of it

    (first, _, _), folder = accumulating
    changes = first["changes"]
    records = read_jsonl(folder / "gravac.jsonl")
    assert [record for record in records if isinstance(record, ModeRecord)] == changes
    together = [change for change in changes if change.before == "outer"]
    assert all(change.wire_bytes > 0 for change in together)  # the last round, dense, and two moments
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("gravac/seconds/change_of_mode")] == [one.step for one in changes]
    assert len(events.Tensors("gravac/mode/text_summary")) == len(changes)
    cf = {event.value for event in events.Scalars("gravac/cf")}
    assert {1.0, 2.0} <= cf  # native steps are in the chart of the CF


def trained_as_native(rank: int, world: int) -> bool:
    """Native steps with gravac attached have the bits of DDP without it."""

    def run(attached: bool) -> torch.Tensor:
        ddp = parallel(network(2))
        trains = OPTIMIZERS["sgd"](ddp.parameters())
        compressor = compressor_of(script((0, NATIVE))) if attached else None
        if compressor is not None:
            compressor.attach(ddp, trains)
        for step in range(20):
            trains.zero_grad()
            x, y = batch(rank, step)
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
            trains.step()
        if compressor is not None:
            assert compressor.mode == "native"
            compressor.close()
        return torch.cat([p.detach().flatten() for p in ddp.parameters()])

    return torch.equal(run(True), run(False))


def test_native_steps_are_ddps_own() -> None:
    assert processes(trained_as_native, 2) == [True, True]


def detached_while_apart(rank: int, world: int) -> bool:
    ddp = parallel(network(2))
    trains = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, trains)
    for step in range(8):
        _step(ddp, trains, rank, step)
    assert compressor.mode == "outer"
    compressor.detach()
    equal = same(ddp)
    for step in range(8, 14):
        _step(ddp, trains, rank, step)
    return equal and same(ddp)


def _step(ddp: DistributedDataParallel, trains: torch.optim.Optimizer, rank: int, step: int) -> None:
    trains.zero_grad()
    x, y = batch(rank, step)
    torch.nn.functional.cross_entropy(ddp(x), y).backward()
    trains.step()


def test_detach_makes_ranks_one_again() -> None:
    assert processes(detached_while_apart, 2) == [True, True]
