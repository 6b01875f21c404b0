# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Real processes that train a module without DDP: the same weights as with DDP, whatever is late or fails on a rank."""

import os
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.sources import module as source_of_module
from gravac.sources.module import ModuleSource
from gravac.sources.weights import broadcast_weights
from tests.distributed.training import batch, network
from tests.ranks import processes

Settings = dict[str, Any]
DENSE: Settings = {"base": topk, "controller": Static(cf=1)}
TOP_K: Settings = {"base": topk, "controller": Static(cf=10)}


def attached(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, chosen: Settings, group: dist.ProcessGroup | None = None
) -> tuple[AdaptiveCompressor, ModuleSource]:
    """Share rank 0's weights, and average the module's gradients over gloo; in small groups."""
    source_of_module.FIRST_GROUP_BYTES, source_of_module.GROUP_BYTES = 10_000, 50_000
    compressor = AdaptiveCompressor(**chosen)
    engine = compressor.door(dict(module.named_parameters()), group=group)
    source = ModuleSource(engine)
    source.bind(module)
    broadcast_weights(module, group)
    source.watch(module, optimizer)
    return compressor, source


def normalized() -> torch.nn.Module:
    return torch.nn.Sequential(network(3), torch.nn.BatchNorm1d(10), torch.nn.Linear(10, 10))


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten().double() for value in module.state_dict().values()])


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def steps(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    micro: int,
    accumulate: Callable[[], Any],
    pauses: float = 0.0,
) -> None:
    """Eight steps of a few micro-batches each."""
    late = random.Random(rank)
    for step in range(8):
        optimizer.zero_grad()
        for number in range(micro):
            x, y = batch(rank, micro * step + number)
            time.sleep(pauses * late.random())
            with accumulate() if number + 1 < micro else nullcontext():
                value: Any = cross_entropy(module(x), y)
                time.sleep(pauses * late.random())
                value.backward()
        time.sleep(pauses * late.random())
        optimizer.step()


def without_ddp(
    rank: int, world: int, make: Any, chosen: Settings, micro: int
) -> tuple[torch.Tensor, int, torch.Tensor]:
    module = make()
    with torch.no_grad():
        next(module.parameters()).add_(rank)
    optimizer = sgd(module)
    compressor, source = attached(module, optimizer, chosen)
    late = random.Random(rank)
    for parameter in module.parameters():
        parameter.register_hook(lambda _: time.sleep(0.002 * late.random()))
    steps(module, optimizer, rank, micro, source.accumulate, pauses=0.005)
    made = int(compressor.state_dict()["step"])
    with torch.no_grad():
        answers = module.eval()(torch.ones(3, 96))
    compressor.close()
    return flat(module), made, answers


def with_ddp(rank: int, world: int, make: Any, chosen: Settings | None, micro: int) -> torch.Tensor:
    ddp = DistributedDataParallel(make(), bucket_cap_mb=0.03)
    optimizer = sgd(ddp)
    with AdaptiveCompressor(**chosen or DENSE) as compressor:
        if chosen is not None:
            compressor.attach(ddp, optimizer)
        steps(ddp, optimizer, rank, micro, ddp.no_sync)
    return flat(ddp.module)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_dense_it_trains_as_ddp_does(world: int, micro: int) -> None:
    ran = processes(without_ddp, world, network, DENSE, micro)
    assert all(made == 8 for _, made, _ in ran)
    assert all(torch.equal(ran[0][0], weights) for weights, _, _ in ran)
    native = processes(with_ddp, world, network, None, micro)[0]
    if world == 2:  # sums do not depend on the layout
        assert torch.equal(ran[0][0], native)
    else:
        assert torch.allclose(ran[0][0], native, atol=1e-6)


def test_top_k_trains_as_over_ddp() -> None:
    (weights, _, _), (others, _, _) = processes(without_ddp, 2, network, TOP_K, 1)
    assert torch.equal(weights, others)
    assert torch.equal(weights, processes(with_ddp, 2, network, TOP_K, 1)[0])


@pytest.mark.parametrize("micro", [1, 2])
def test_with_batch_normalization_ranks_are_equal_and_evaluate_the_same(micro: int) -> None:
    ran = processes(without_ddp, 3, normalized, DENSE, micro)
    assert all(torch.equal(ran[0][0], weights) for weights, _, _ in ran)
    assert all(torch.equal(ran[0][2], answers) for _, _, answers in ran)


class Breaks(torch.autograd.Function):
    """Has a backward that raises, if asked for."""

    broken = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if Breaks.broken:
            raise ArithmeticError("broken")
        return gradient


class Breaking(torch.nn.Module):
    """Raises in the middle of backward, after groups have left, or before any parameter is reached."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early
        self.first, self.last = network(2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(10, 10))

    def forward(self, x: torch.Tensor) -> Any:
        breaks: Any = Breaks.apply
        return breaks(self.last(self.first(x))) if self.early else self.last(breaks(self.first(x)))


def caught(rank: int, world: int, where: str) -> tuple[torch.Tensor, list[str], int]:
    module = Breaking(early=where == "early in backward")
    optimizer = sgd(module)
    compressor, _ = attached(module, optimizer, TOP_K)
    said = []
    for step in range(8):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        failing = rank == 1 and step in (0, 4, 5)
        Breaks.broken = failing and "in backward" in where
        try:
            value: Any = cross_entropy(module(x), y)
            if failing and where == "before backward":
                value = cross_entropy(module(x), y)  # a forward without a backward
            value.backward()
        except (ArithmeticError, RuntimeError) as failure:
            said.append(f"{type(failure).__name__}: {failure}")
            continue
        optimizer.step()
    made = int(compressor.state_dict()["step"])
    compressor.close()
    return flat(module), said, made


@pytest.mark.parametrize("where", ["late in backward", "early in backward"])
def test_a_backward_that_breaks_on_one_rank_fails_on_all_and_training_goes_on(where: str) -> None:
    ran = processes(caught, 3, where)
    assert all(torch.equal(ran[0][0], weights) for weights, _, _ in ran)
    assert [made for _, _, made in ran] == [8, 8, 8]
    assert ran[1][1] == ["ArithmeticError: broken"] * 3
    for said in (ran[0][1], ran[2][1]):
        assert len(said) == 3
        assert all("backward failed on 1 of 3 ranks" in words for words in said)


def test_a_forward_more_on_one_rank_changes_nothing() -> None:
    ran = processes(caught, 2, "before backward")
    assert torch.equal(ran[0][0], ran[1][0])
    assert [said for _, said, _ in ran] == [[], []]


def left_alone(rank: int, world: int, path: Path) -> None:
    group = dist.new_group(timeout=timedelta(seconds=4))
    module = network()
    optimizer = sgd(module)
    _, source = attached(module, optimizer, DENSE, group)
    said = ""
    for step in range(6):
        if rank == 1 and step == 3:
            os._exit(0)
        optimizer.zero_grad()
        x, y = batch(rank, step)
        value: Any = cross_entropy(module(x), y)
        try:
            value.backward()
        except Exception as failure:
            said = f"{type(failure).__name__}: {failure}"
            assert source._running_backward is None
            with pytest.raises(type(failure)):  # and so in each backward that follows
                cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            break
        optimizer.step()
    source.detach()
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    path.write_text(said)
    os._exit(0)  # the default group waits for the rank that is gone


def test_a_rank_that_is_gone_fails_backward(tmp_path: Path) -> None:
    path = tmp_path / "said"
    with pytest.raises(AssertionError, match=r"ranks \[0, 1\] returned nothing; exit codes \[0, 0\]"):
        processes(left_alone, 2, path)
    assert path.read_text().startswith("ExchangeError: gravac:")


def sharded(rank: int, world: int) -> str:
    module = network(2)
    compressor = AdaptiveCompressor(**DENSE)
    source = ModuleSource(compressor.door(dict(module.named_parameters())))
    fully_shard(module)
    with pytest.raises(TypeError) as refused:
        source.bind(module)
    compressor.close()
    return str(refused.value)


def test_a_sharded_module_is_refused_by_name() -> None:
    assert all("parameter 0.weight is in shards (DTensor" in words for words in processes(sharded, 2))
