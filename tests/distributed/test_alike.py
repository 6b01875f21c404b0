# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that were given different settings, versions or parameters hear so by name, before they exchange anything."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, SettingsError, Static, quantize, topk, version
from tests.distributed.training import network, parallel, sgd, train, weights
from tests.outer.by_hand import OuterByHand
from tests.ranks import processes

SAME: dict[str, Any] = {"base": quantize(2, rotate=True), "controller": Static(cf=16), "cf_range": (2, 100)}


class Mine(Static):
    """A controller of a user, called as one of gravac's."""


def heard(action: Callable[[], Any]) -> str:
    """Return what an action is refused with."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def attached(**settings: Any) -> str:
    compressor = AdaptiveCompressor(**{**SAME, **settings})
    return heard(lambda: compressor.attach(parallel()))


def hooked(rank: int, bind: bool) -> list[str]:
    """Train by the hook alone, two steps; then train another model as if nothing had been."""
    compressor = AdaptiveCompressor(**SAME, seed=rank)
    ddp = parallel()
    if bind:
        compressor.bind(ddp)
    ddp.register_comm_hook(None, compressor.hook)
    return [heard(lambda: train(ddp, sgd(ddp), rank, range(1))) for _ in range(2)]


def opened(tensor: torch.Tensor, name: str = "w", **groups: Any) -> str:
    compressor = AdaptiveCompressor(**SAME)
    return heard(lambda: compressor.attach_parameters({"first": torch.ones(4), name: tensor}, **groups))


def outer(make: Callable[[], torch.nn.Module] = network, **settings: Any) -> str:
    module = make()
    inner = torch.optim.SGD(module.parameters(), lr=0.05)
    plain: dict[str, Any] = {**SAME, "every": 4}
    return heard(lambda: OuterByHand(module, inner, **{**plain, **settings}).close())


def frozen() -> torch.nn.Module:
    module = network()
    next(module.parameters()).requires_grad_(False)
    return module


def different(rank: int, world: int) -> dict[str, str]:
    odd = rank == 1
    of_rank = functools.partial(torch.optim.SGD, lr=1.0 - 0.5 * odd)
    said = {
        "seed": attached(seed=rank),
        "cf_range": attached(cf_range=(2, 100 + rank)),
        "controller": attached(controller=Static(cf=16) if odd else "goodput"),
        "controller.window": attached(controller=Static(cf=16, window=20 + rank)),
        "controller of a user": attached(controller=(Mine if odd else Static)(cf=16)),
        "base": attached(base="ladder" if odd else "topk", controller="goodput"),
        "samples_per_step": attached(samples_per_step=64 if odd else None),
        "shape": opened(torch.ones(64, 64 + rank)),
        "dtype": opened(torch.ones(64, 64, dtype=torch.float64 if odd else torch.float32)),
        "name": opened(torch.ones(64, 64), name=f"w{rank}"),
        "every": outer(every=4 + rank),
        "every, of which one rank has none to choose": outer(every=(1, 10) if odd else 4, controller="goodput"),
        "outer seed": outer(seed=rank),
        "outer shape": outer(functools.partial(network, 6 + rank)),
        "outer dtype": outer(lambda: network().double() if odd else network()),
        "frozen": outer(frozen if odd else network),
        "delay": outer(delay=2 if odd else 0),
        "mixing": outer(mixing=None if odd else 0.5),
        "local_buffers": outer(with_statistics, local_buffers=["1"] if odd else []),
        "outer": outer(outer=lambda anchors: of_rank(anchors)),
        "outer's class": outer(outer=functools.partial(torch.optim.Adam if odd else torch.optim.SGD, lr=1.0)),
    }
    for name, module in (("gravac", version), ("torch", torch)):
        with mock.patch.object(module, "__version__", "9.9.9" if odd else module.__version__):
            said[f"version of {name}"] = attached()
    return said


def with_statistics() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(96, 32), torch.nn.BatchNorm1d(32))


GIVE = "; give every rank the same"

SAID = {
    "seed": "seed: rank 0 has 0, rank 1 has 1" + GIVE,
    "cf_range": "cf_range: rank 0 has (2.0, 100.0), rank 1 has (2.0, 101.0)" + GIVE,
    "controller": "controller: rank 0 has goodput, rank 1 has static" + GIVE,
    "controller.window": "controller.window: rank 0 has 20, rank 1 has 21" + GIVE,
    "controller of a user": "controller: rank 0 has static, rank 1 has static (Mine)" + GIVE,
    "base": "base: rank 0 has topk, rank 1 has ladder" + GIVE,
    "samples_per_step": "samples_per_step: rank 0 has None, rank 1 has 64.0" + GIVE,
    "shape": "parameter 1: rank 0 has w [64, 64] float32, rank 1 has w [64, 65] float32" + GIVE,
    "dtype": "parameter 1: rank 0 has w [64, 64] float32, rank 1 has w [64, 64] float64" + GIVE,
    "name": "parameter 1: rank 0 has w0 [64, 64] float32, rank 1 has w1 [64, 64] float32" + GIVE,
    "every": "every: rank 0 has (4, 4), rank 1 has (5, 5)" + GIVE,
    "every, of which one rank has none to choose": "every: rank 0 has (4, 4), rank 1 has (1, 10)" + GIVE,
    "outer seed": "seed: rank 0 has 0, rank 1 has 1" + GIVE,
    "outer shape": "parameter 12: rank 0 has 12.weight [10, 96] float32, trained, rank 1 has 12.weight [96, 96] ",
    "outer dtype": "parameter 0: rank 0 has 0.weight [96, 96] float32, trained, rank 1 has 0.weight [96, 96] float64",
    "frozen": "parameter 0: rank 0 has 0.weight [96, 96] float32, trained, rank 1 has 0.weight [96, 96] float32, fr",
    "delay": "outer.delay: rank 0 has 0, rank 1 has 2" + GIVE,
    "mixing": "outer.mixing: rank 0 has 0.5, rank 1 has None" + GIVE,
    "local_buffers": "outer.local_buffers: rank 0 has (), rank 1 has ('1')" + GIVE,
    "outer": "outer: rank 0 has SGD {",
    "outer's class": "outer: rank 0 has SGD {",
    "version of gravac": f"gravac's version: rank 0 has {version.__version__}, rank 1 has 9.9.9" + GIVE,
    "version of torch": f"torch's version: rank 0 has {torch.__version__.split('+')[0]}, rank 1 has 9.9.9" + GIVE,
}


def test_whatever_differs_between_two_ranks_is_named_on_both() -> None:
    one, other = processes(different, 2)
    assert one == other
    assert set(one) == set(SAID)
    for case, text in SAID.items():
        assert one[case].startswith(f"SettingsError: {text}"), (case, one[case])
    assert "lr: 1.0" in one["outer"] and "lr: 0.5" in one["outer"]


def by_the_hook(rank: int, world: int) -> tuple[list[str], torch.Tensor, str]:
    said = [*hooked(rank, bind=True), *hooked(rank, bind=False)]
    three = attached(seed=int(rank == 1))
    ddp = parallel()
    with AdaptiveCompressor(**SAME) as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(3))
        return said, weights(ddp), three


def test_the_hook_alone_hears_it_from_backward_and_the_ranks_can_train_afterwards() -> None:
    (first, trained, three), *others = processes(by_the_hook, 3)
    seeds = "rank 0 has 0, rank 1 has 1, rank 2 has 2"
    for said, same, of_three in [(first, trained, three), *others]:
        assert len(said) == 4
        assert all(f"SettingsError: seed: {seeds}{GIVE}" in one for one in said), said
        assert of_three == f"SettingsError: seed: ranks 0, 2 have 0, rank 1 has 1{GIVE}"
        assert torch.equal(same, trained)


def alike(rank: int, world: int, folder: Path) -> tuple[torch.Tensor, list[object]]:
    """Log folder and sinks are each rank's own; count what is gathered before the first step."""
    gathers: list[object] = []
    gather = dist.all_gather_object

    def counted(objects: Any, own: object, **named: Any) -> Any:
        gathers.append(own)
        return gather(objects, own, **named)

    own: dict[str, Any] = {"log_dir": folder / str(rank), "sinks": [print] * rank}
    ddp = parallel()
    with mock.patch.object(dist, "all_gather_object", counted), AdaptiveCompressor(**SAME, **own) as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(3))
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    assert opened(torch.ones(8, 8), group=pairs[0], agree_group=pairs[1]) == "nothing"
    assert outer(sinks=[print] * rank) == "nothing"
    return weights(ddp), gathers


def test_what_is_each_ranks_own_is_not_compared_and_what_is_the_same_takes_two_gathers(tmp_path: Path) -> None:
    (one, gathers), (other, _) = processes(alike, 2, tmp_path)
    assert torch.equal(one, other)
    assert [len(str(digest)) for digest in gathers] == [64, 64]  # whether gravac is off, then all settings


def test_one_rank_and_ranks_in_memory_compare_nothing() -> None:
    from gravac.exchange.lockstep import Lockstep

    ranks = Lockstep(2).executors
    for rank, executor in enumerate(ranks):
        AdaptiveCompressor(topk, seed=rank).attach_parameters({"w": torch.ones(8, 8)}, executor=executor)
    with pytest.raises(RuntimeError, match="no process group"):
        AdaptiveCompressor(topk).attach_parameters({"w": torch.ones(8, 8)})
    assert issubclass(SettingsError, ValueError)
