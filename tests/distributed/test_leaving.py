# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A model with gravac attached is still a model: it is copied, pickled and detached, and then trains natively."""

import copy
import io
import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from tests.distributed.training import batch, network, sgd, telling, train, weights
from tests.distributed.training import parallel as parallel_of
from tests.ranks import processes

OPTIONS: list[dict[str, Any]] = [
    {},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
]


def parallel(**options: Any) -> DistributedDataParallel:
    return parallel_of(network(2), **options)


def compressing() -> AdaptiveCompressor:
    return AdaptiveCompressor(topk, controller=Static(cf=10))


def natively(ddp: DistributedDataParallel, rank: int) -> torch.Tensor:
    """Weights after a few steps more, from an optimizer without a past."""
    train(ddp, sgd(ddp), rank, range(10, 12))
    return weights(ddp)


def fresh(like: DistributedDataParallel, **options: Any) -> DistributedDataParallel:
    """What never had a hook, with the same weights."""
    made = parallel(**options)
    made.module.load_state_dict(like.module.state_dict())
    return made


def saved_and_loaded(ddp: DistributedDataParallel) -> Any:
    file = io.BytesIO()
    torch.save(ddp, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda ddp: pickle.loads(pickle.dumps(ddp)),  # noqa: S301
    "torch.save": saved_and_loaded,
}


Pair = tuple[str, dict[str, Any]]
"""A way to copy, and options of DDP."""

PAIRS: list[Pair] = [
    ("deepcopy", {}),
    ("deepcopy", {"static_graph": True}),
    ("pickle", {"gradient_as_bucket_view": True}),
    ("pickle", {"static_graph": True}),
    ("torch.save", {"find_unused_parameters": True}),
]


def copied(rank: int, way: str, options: dict[str, Any]) -> list[bool]:
    ddp = parallel(**options)
    with compressing() as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(3))
        other = WAYS[way](ddp)
        native = fresh(ddp, **options)
        train(native, torch.optim.SGD(native.parameters(), lr=0), rank, range(3))
        steps = compressor.state_dict()["step"]
        before = weights(ddp)
        as_native = torch.equal(natively(other, rank), natively(WAYS[way](native), rank))
        untouched = torch.equal(before, weights(ddp)) and compressor.state_dict()["step"] == steps
        with compressing() as second:
            second.attach(other)  # a copy of a static graph averages nothing in torch 2.13, until it is attached to
            train(other, sgd(other), rank, range(3))
            compressed = (second.cf, second.state_dict()["step"]) == (10, 3)
        train(ddp, sgd(ddp), rank, range(2))
        goes_on = compressor.state_dict()["step"] == steps + 2
    return [as_native, untouched, compressed, goes_on]


def copied_in_turn(rank: int, world: int, pairs: Sequence[Pair]) -> list[list[bool]]:
    return [copied(rank, way, options) for way, options in pairs]


@pytest.mark.parametrize(
    "pairs", [PAIRS, pytest.param([*itertools.product(WAYS, OPTIONS)], marks=pytest.mark.long)], ids=["some", "all"]
)
def test_a_copy_trains_as_native_ddp_and_can_be_attached_to(pairs: Sequence[Pair]) -> None:
    for of_rank in processes(copied_in_turn, 2, pairs):
        for pair, seen in zip(pairs, of_rank, strict=True):
            assert seen == [True, True, True, True], pair


def without_gravac(rank: int, world: int) -> set[str]:
    """The modules of gravac that a pickled model asks for when it is loaded."""
    ddp = parallel()
    asked: set[str] = set()

    class Watching(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            asked.add(module)
            return super().find_class(module, name)

    with compressing() as compressor:
        compressor.attach(ddp)
        Watching(io.BytesIO(pickle.dumps(ddp))).load()
    return {module for module in asked if module.startswith("gravac")}


def test_a_pickled_model_loads_where_gravac_is_not_installed() -> None:
    assert processes(without_gravac, 2) == [set(), set()]


def detached(rank: int, options: dict[str, Any]) -> list[bool]:
    ddp = parallel(**options)
    compressor = compressing()
    compressor.attach(ddp, sgd(ddp))
    train(ddp, sgd(ddp), rank, range(3))
    native = fresh(ddp, **options)
    compressor.detach()
    as_native = torch.equal(natively(ddp, rank), natively(native, rank))
    state = compressor.state_dict()
    saved = state["step"] == 3 and set(state["residual"]) != set()
    residual = {name: tensor.clone() for name, tensor in state["residual"].items()}
    compressor.attach(ddp)
    kept = all(torch.equal(tensor, residual[name]) for name, tensor in compressor.state_dict()["residual"].items())
    train(ddp, sgd(ddp), rank, range(2))
    again = compressor.state_dict()["step"] == 5
    compressor.detach()
    compressor.close()
    with compressing() as another:
        another.attach(ddp)
        train(ddp, sgd(ddp), rank, range(2))
        other = another.state_dict()["step"] == 2
    return [as_native, saved, kept, again, other]


def detached_with_all_options(rank: int, world: int) -> list[list[bool]]:
    return [detached(rank, options) for options in OPTIONS]


def test_detached_ddp_trains_bit_for_bit_as_a_fresh_one() -> None:
    for of_rank in processes(detached_with_all_options, 2):
        for options, seen in zip(OPTIONS, of_rank, strict=True):
            assert seen == [True] * 5, options


def resumed_after_detach(rank: int, world: int) -> bool:
    """Whether detaching and attaching again at once changes nothing."""
    results = []
    for leaves in (False, True):
        ddp = parallel()
        optimizer = sgd(ddp)
        with compressing() as compressor:
            compressor.attach(ddp, optimizer)
            train(ddp, optimizer, rank, range(3))
            if leaves:
                compressor.detach()
                compressor.attach(ddp, optimizer)
            train(ddp, optimizer, rank, range(3, 6))
        results.append(weights(ddp))
    return torch.equal(*results)


def test_attaching_again_goes_on_bit_for_bit() -> None:
    """Of two ranks: the sum of three depends on which groups a job joins, and that on the link's measured speed."""
    assert processes(resumed_after_detach, 2) == [True, True]


def pending(rank: int, world: int) -> tuple[bool, torch.Tensor]:
    """Detach between a forward and its backward: what that backward gives is averaged all the same."""
    ddp = parallel()
    with compressing() as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(3))
        native = fresh(ddp)
        ddp.zero_grad()
        loss = ddp(batch(rank, 7)[0]).square().mean()
        compressor.detach()
        loss.backward()
    native(batch(rank, 7)[0]).square().mean().backward()
    gradients = [torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None]) for one in (ddp, native)]
    return torch.equal(*gradients), gradients[0]


def test_a_backward_that_was_pending_at_detach_is_averaged() -> None:
    (same, one), (too, other) = processes(pending, 2)
    assert same
    assert too
    assert torch.equal(one, other)


def refused(rank: int, world: int) -> list[str]:
    said: list[str] = []
    says = telling(said)
    ddp = parallel(find_unused_parameters=True)
    compressor = compressing()
    says(compressor.detach)
    compressor.attach(ddp)
    says(lambda: pickle.dumps(compressor))
    loss = ddp(batch(rank, 0)[0]).sum()
    says(compressor.detach)
    loss.backward()
    weight = next(ddp.parameters())
    weight.register_hook(lambda _: says(compressor.detach))
    ddp(batch(rank, 0)[0]).sum().backward()
    compressor.detach()
    says(compressor.detach)
    hooked = parallel()
    by_hand = compressing()
    by_hand.bind(hooked)
    hooked.register_comm_hook(None, by_hand.hook)
    says(by_hand.detach)
    train(hooked, sgd(hooked), rank, range(2))
    by_hand.close()
    compressor.close()
    return said


def test_detach_refuses_what_it_cannot_do_and_says_what_to_do() -> None:
    for said in processes(refused, 2):
        never, copying, waiting, within, twice, by_hand = said
        assert "not attached by attach()" in never
        assert copying.startswith("TypeError: AdaptiveCompressor")
        assert "state_dict" in copying
        assert "between a backward and the next forward" in waiting
        assert "a backward is running" in within
        assert "not attached" in twice
        assert "registered by hand" in by_hand
