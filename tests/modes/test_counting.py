# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is, in programs that make that hard to tell: ranks never lose count of each other."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, SettingsError
from gravac.sources import ddp_private
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, Entry, same, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

PLAN = script((0, HOOK), (5, APART), (16, NATIVE), (25, APART), (36, HOOK))
STEPS = 58


def loss_of(ddp: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(ddp(x), y)


def by_scaler(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    """The loss is infinite on one rank in some steps while ranks train apart, where only that rank skips."""
    trains.zero_grad()
    loss = loss_of(ddp, rank, step)
    if rank == 1 and step in (12, 19, 40):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(trains)
    scaler.update()


def with_closure(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    def closure() -> torch.Tensor:
        trains.zero_grad()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        return loss

    trains.step(closure)


def by_hand(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    ddp.zero_grad()
    loss_of(ddp, rank, step).backward()
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter.add_(parameter.grad, alpha=-0.01)


def failing_once(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    """Something fails between forward and backward on one rank, and is caught, in each mode."""
    trains.zero_grad()
    if rank == 1 and step in (3, 14, 27, 38, 52):
        loss_of(ddp, rank, 1000 + step)  # its backward never comes
    loss_of(ddp, rank, step).backward()
    trains.step()


def stepping_fails_once(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    """The optimizer's step fails within on one rank, and is caught, in each mode: its closure raises."""

    def closure() -> torch.Tensor:
        trains.zero_grad()
        loss = loss_of(ddp, rank, step)
        if rank == 1 and step in (14, 38) and not failed:
            failed.append(step)
            raise FloatingPointError
        loss.backward()
        return loss

    failed: list[int] = []
    try:
        trains.step(closure)
    except FloatingPointError:
        trains.step(closure)


def in_turns(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    """Two optimizers of halves of the model, of which the second steps every other time."""
    first, second = trains
    first.zero_grad()
    second.zero_grad()
    loss_of(ddp, rank, step).backward()
    first.step()
    if step % 2:
        second.step()


def dicts(ddp: Any, trains: Any, scaler: Any, rank: int, step: int) -> None:
    trains.zero_grad()
    x, y = batch(rank, step)
    torch.nn.functional.cross_entropy(ddp(x)["logits"], y).backward()
    trains.step()


class TellsDict(torch.nn.Module):
    """Returns its output in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.net(x)}


PROGRAMS: dict[str, Any] = {
    "scaler": by_scaler,
    "fused and a scaler": by_scaler,
    "closure": with_closure,
    "by hand": by_hand,
    "failing once": failing_once,
    "stepping fails once": stepping_fails_once,
    "in turns": in_turns,
    "dicts": dicts,
}


def counted(rank: int, world: int, name: str) -> dict[str, Any]:
    model = TellsDict() if name == "dicts" else network(2)
    ddp: Any = parallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if "scaler" in name else None
    trains: Any = OPTIMIZERS["adamw"](ddp.parameters())
    if name == "fused and a scaler":
        trains = torch.optim.AdamW(ddp.parameters(), lr=1e-3, fused=True)
    optimizers: Any = trains
    if name == "by hand":
        optimizers = ()
    if name == "in turns":
        halves = list(ddp.parameters())
        optimizers = trains = [OPTIMIZERS["adamw"](halves[:3]), OPTIMIZERS["sgd"](halves[3:])]
    compressor = compressor_of(PLAN)
    compressor.attach(ddp, optimizers, scaler)
    pauses = random.Random(rank)
    modes, equal = [], []
    for step in range(STEPS):
        time.sleep(0.003 * pauses.random())
        PROGRAMS[name](ddp, trains, scaler, rank, step)
        modes.append(compressor.mode)
        if compressor.mode != "outer":
            equal.append(same(ddp))
    changes = [(change.before, change.after) for change in compressor.changes]
    scale = None if scaler is None else scaler.get_scale()
    compressor.close()
    return {"modes": modes, "equal": all(equal), "changes": changes, "scale": scale}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_never_lose_count_of_each_other(name: str) -> None:
    first, second = processes(counted, 2, name)
    assert first["changes"] == second["changes"]
    assert first["changes"] == [("hook", "outer"), ("outer", "native"), ("native", "outer"), ("outer", "hook")]
    assert first["modes"] == second["modes"] or name.endswith("once")
    assert first["equal"] and second["equal"] and first["scale"] == second["scale"]


def refused(rank: int, world: int) -> list[str]:
    def cases() -> Iterator[tuple[torch.nn.Module, Any]]:
        net = network(2)
        yield net, torch.optim.LBFGS(net.parameters())
        yield network(2), None

    said = []
    for module, optimizer in cases():
        with pytest.raises(SettingsError) as told:
            compressor_of(PLAN).attach(DistributedDataParallel(module), optimizer)
        said.append(str(told.value))
    return said


def test_what_cannot_train_apart_is_refused_by_name() -> None:
    first, second = processes(refused, 2)
    assert first == second
    for name, text in zip(("LBFGS", "optimizer"), first, strict=True):
        assert name in text


def joined(rank: int, world: int) -> tuple[list[str], bool]:
    """Rank 1 runs out of inputs first: in a join that begins with the run, and in one after native steps."""
    modes, equal = [], True
    for plan, before in ((script((0, HOOK), (4, NATIVE)), 0), (script((0, NATIVE)), 9)):
        ddp = parallel(network(2))
        trains = OPTIMIZERS["sgd"](ddp.parameters())
        compressor = compressor_of(plan, every=1)
        compressor.attach(ddp, trains)
        for step in range(before):
            trains.zero_grad()
            loss_of(ddp, rank, step).backward()
            trains.step()
        with ddp.join():
            for step in range(before, before + (20 if rank else 26)):
                trains.zero_grad()
                loss_of(ddp, rank, step).backward()
                trains.step()
        modes.append(compressor.mode)
        equal = equal and same(ddp)
        compressor.close()
    return modes, equal


def test_a_join_stays_in_the_mode_that_it_began_in() -> None:
    assert processes(joined, 2) == [(["hook", "native"], True)] * 2


def hidden(rank: int, world: int) -> tuple[str, str]:
    """A torch that lacks a name: training apart is refused, averaging in each step keeps the hook."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    ddp_private.NAMES_FOR_MODES = (*ddp_private.NAMES_FOR_MODES, "a_name_that_is_gone")
    with pytest.raises(SettingsError) as told:
        compressor_of(PLAN).attach(ddp, trains)
    compressor = AdaptiveCompressor()  # its controller begins with native steps, if it may
    compressor.attach(ddp, trains)
    for step in range(5):
        loss_of(ddp, rank, step).backward()
        trains.step()
    mode = compressor.mode
    compressor.close()
    return mode, str(told.value)


def test_where_torch_lacks_a_name_ranks_do_not_part_and_the_hook_stays() -> None:
    for mode, text in processes(hidden, 2):
        assert mode == "hook" and f"torch {torch.__version__} has no" in text and "a_name_that_is_gone" in text


def apart_after(rank: int, world: int, before: Entry) -> list[tuple[str, bool, int]]:
    """After each step: its mode, whether its gradient is that of the other rank, and the steps that gravac counts."""
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    seen = []
    with compressor_of(script((0, before), (3, APART))) as compressor:
        compressor.attach(ddp, trains)
        for step in range(12):
            trains.zero_grad()
            loss_of(ddp, rank, step).backward()
            mean = next(parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None)
            dist.all_reduce(mean)
            own = next(parameter.grad for parameter in ddp.parameters() if parameter.grad is not None)
            trains.step()
            in_round = 0 if compressor.outer is None else compressor.outer.in_round
            seen.append((compressor.mode, torch.allclose(mean / 2, own), compressor._engine.state.trained + in_round))
    return seen


@pytest.mark.parametrize("before", [HOOK, NATIVE], ids=["hook", "native"])
def test_the_first_step_apart_exchanges_nothing_and_is_counted(before: Entry) -> None:
    for seen in processes(apart_after, 2, before):
        modes = [mode for mode, _, _ in seen]
        assert {before[1], "outer"} == set(modes) and modes == sorted(modes, key=["hook", "native", "outer"].index)
        assert [same for _, same, _ in seen] == [mode != "outer" for mode in modes]
        first_apart = modes.index("outer")
        assert [count for _, _, count in seen][first_apart:] == [*range(first_apart + 1, 13)]
