# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Gradients of a module without DDP, of ranks in memory: the mean, whatever backward does, wherever gradients lie."""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.lockstep import Lockstep
from gravac.sources import module as source_of_module
from gravac.sources.flags import pack_flags, unpack_counts
from gravac.sources.module import ModuleSource
from tests.distributed.training import batch, network
from tests.engine.adapter import Averaged

Gradients = list[torch.Tensor | None]
Make = Callable[[], Any]
Backward = Callable[[Any, int], None]


class Ranks:
    """N ranks in one process, each with a module of the same weights."""

    def __init__(self, make: Make = network, ranks: int = 2, **options: Any) -> None:
        self.lockstep = Lockstep(ranks, host_looks=options.pop("host_looks", True))
        broadcast_buffers = options.pop("broadcast_buffers", True)
        chosen = {"base": topk, "controller": Static(cf=1), "dense_below": 0, **options}
        self.compressors = [AdaptiveCompressor(**chosen) for _ in range(ranks)]
        self.modules, self.sources = list[Any](), list[ModuleSource]()
        for compressor, executor in zip(self.compressors, self.lockstep.executors, strict=True):
            module = make()
            engine = compressor.door(dict(module.named_parameters()), executor=executor)
            source = ModuleSource(engine, broadcast_buffers=broadcast_buffers, waits=False)
            source.bind(module)
            source.watch(module, None)
            self.modules.append(module)
            self.sources.append(source)

    def step(self, backward: Backward) -> list[Gradients]:
        """Make each rank's backward, and return all ranks' gradients."""
        for rank, module in enumerate(self.modules):
            backward(module, rank)
        for source in self.sources:
            source.wait()
        return [gradients(module) for module in self.modules]

    @property
    def steps(self) -> int:
        return self.sources[0]._engine.settled.step


def gradients(module: torch.nn.Module) -> Gradients:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def mean(make: Make, backward: Backward, ranks: int) -> Gradients:
    """What the ranks' gradients are in the mean, each computed by itself."""
    found = []
    for rank in range(ranks):
        module = make()
        backward(module, rank)
        found.append(gradients(module))
    means: Gradients = []
    for of_ranks in zip(*found, strict=True):
        there = [gradient for gradient in of_ranks if gradient is not None]
        means.append(torch.stack([*there]).sum(0) / ranks if there else None)
    return means


def alike(first: Gradients, second: Gradients, exact: bool = True) -> bool:
    compare = torch.equal if exact else torch.allclose
    return all(a is b if a is None or b is None else compare(a, b) for a, b in zip(first, second, strict=True))


def ranks_agree(found: Sequence[Gradients]) -> bool:
    return all(alike(found[0], each) for each in found)


def loss(module: torch.nn.Module, rank: int, step: int = 0) -> Any:
    x, y = batch(rank, step)
    return cross_entropy(module(x), y)


def plain(module: torch.nn.Module, rank: int, step: int = 0) -> None:
    module.zero_grad()
    loss(module, rank, step).backward()


# the mean


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradients_are_the_mean_in_groups_of_any_size(
    ranks: int, host_looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 50_000, 1 << 30):
        monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", size)
        monkeypatch.setattr(source_of_module, "GROUP_BYTES", 2 * size)
        group = Ranks(ranks=ranks, host_looks=host_looks)
        for step in range(3):
            found = group.step(lambda module, rank, step=step: plain(module, rank, step))  # type: ignore[misc]
            expected = mean(network, lambda module, rank, step=step: plain(module, rank, step), ranks)  # type: ignore[misc]
            assert all(alike(each, expected, exact=ranks < 3) for each in found)
            assert all(alike(each, found[0]) for each in found)
        assert group.steps == 3


def test_groups_have_all_parameters_once_the_last_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", 5000)
    monkeypatch.setattr(source_of_module, "GROUP_BYTES", 80_000)
    module = network()
    groups = source_of_module._exchange_groups(dict(module.named_parameters()))
    assert [name for names in groups for name in names] == [name for name, _ in module.named_parameters()][::-1]
    sizes = [sum(module.get_parameter(name).numel() * 4 for name in names) for names in groups]
    assert len(groups) > 2
    assert sizes[0] <= 5000
    assert all(size <= 80_000 for size in sizes)


def test_groups_leave_while_backward_runs_from_the_second_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", 1)
    monkeypatch.setattr(source_of_module, "GROUP_BYTES", 1)
    group = Ranks(ranks=1)
    left: list[int] = []
    first = next(group.modules[0].parameters())

    def note(_: torch.Tensor) -> None:
        step = group.sources[0]._step
        left.append(0 if step is None else step.groups_sent)

    first.register_hook(note)
    for step in range(3):
        group.step(lambda module, rank, step=step: plain(module, rank, step))  # type: ignore[misc]
    assert left[0] == 0
    assert min(left[1:]) >= 10


def test_top_k_with_error_feedback_is_that_of_the_shortest_source() -> None:
    chosen: dict[str, Any] = {"base": topk, "controller": Static(cf=10), "dense_below": 0}
    group = Ranks(**chosen)
    lockstep = Lockstep(2)
    modules = [network() for _ in range(2)]
    shortest = [
        Averaged(module, lambda known, e=executor: AdaptiveCompressor(**chosen).door(known, executor=e))  # type: ignore[misc]
        for module, executor in zip(modules, lockstep.executors, strict=True)
    ]
    for step in range(5):
        found = group.step(lambda module, rank, step=step: plain(module, rank, step))  # type: ignore[misc]
        for rank, (module, source) in enumerate(zip(modules, shortest, strict=True)):
            plain(module, rank, step)
            source.hand_over()
        shortest[0].wait()
        assert all(alike(each, gradients(module)) for each, module in zip(found, modules, strict=True))
    dense = mean(network, plain, 2)
    assert not alike(found[0], dense, exact=False)


class Branches(torch.nn.Module):
    """Parts of which each backward takes some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor, taken: Sequence[int]) -> torch.Tensor:
        return torch.stack([torch.tanh(self.parts[number](x)) for number in taken]).sum()


chosen_parts = st.sets(st.integers(0, 3), min_size=1).map(sorted)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_parameter_without_gradient_has_the_mean_and_stays_none_if_no_rank_has_one(
    data: st.DataObject,
) -> None:
    ranks = data.draw(st.integers(1, 3))
    group = Ranks(Branches, ranks)
    for step in range(3):
        taken = data.draw(st.lists(chosen_parts, min_size=ranks, max_size=ranks))

        def backward(module: torch.nn.Module, rank: int, step: int = step, taken: Any = taken) -> None:
            module.zero_grad()
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(7 * step + rank))
            module(x, taken[rank]).backward()

        expected = mean(Branches, backward, ranks)
        for found in group.step(backward):
            assert alike(found, expected, exact=ranks < 3)


@given(data=st.data())
def test_flags_of_all_ranks_are_read_back(data: st.DataObject) -> None:
    world, number = data.draw(st.integers(1, 5000)), data.draw(st.integers(1, 60))
    every = data.draw(st.lists(st.lists(st.booleans(), min_size=number, max_size=number), min_size=1, max_size=4))
    every = [every[rank % len(every)] for rank in range(world)] if world < 20 else [every[0]] * world
    packed = torch.tensor([pack_flags(flags, world) for flags in every], dtype=torch.float64).sum(0).tolist()
    assert unpack_counts(packed, number, world) == [sum(flags[place] for flags in every) for place in range(number)]


# which backward is a step


def test_accumulated_gradients_are_exchanged_once() -> None:
    group = Ranks()

    def accumulated(module: torch.nn.Module, rank: int) -> None:
        for micro in range(3):
            if micro < 2 and module in group.modules:
                with group.sources[rank].accumulate():
                    loss(module, rank, micro).backward()
            else:
                loss(module, rank, micro).backward()

    expected = mean(network, accumulated, 2)
    assert all(alike(found, expected) for found in group.step(accumulated))
    assert group.steps == 1


def test_a_part_that_was_reached_only_while_accumulating_is_exchanged_too() -> None:
    group = Ranks(Branches)
    x = torch.ones(2, 6)

    def backward(module: torch.nn.Module, rank: int) -> None:
        if module in group.modules:
            with group.sources[rank].accumulate():
                module(x * (rank + 1), [0, 1]).backward()
        else:
            module(x * (rank + 1), [0, 1]).backward()
        module(x, [2]).backward()

    expected = mean(Branches, backward, 2)
    assert all(alike(found, expected) for found in group.step(backward))


def test_two_backwards_are_two_steps_of_which_the_sum_of_means_remains() -> None:
    group = Ranks()
    for step in range(2):
        found = group.step(lambda module, rank, step=step: loss(module, rank, step).backward())  # type: ignore[misc]

    def both(module: torch.nn.Module, rank: int) -> None:
        loss(module, rank, 0).backward()
        loss(module, rank, 1).backward()

    assert alike(found[0], found[1])
    assert alike(found[0], mean(network, both, 2), exact=False)
    assert group.steps == 2


def test_a_graph_that_is_retained_gives_two_steps() -> None:
    group = Ranks(lambda: torch.nn.Sequential(network(2), torch.nn.BatchNorm1d(10)))
    losses = [loss(module, rank) for rank, module in enumerate(group.modules)]
    group.step(lambda module, rank: losses[rank].backward(retain_graph=True))
    found = group.step(lambda module, rank: losses[rank].backward())
    once = mean(lambda: torch.nn.Sequential(network(2), torch.nn.BatchNorm1d(10)), plain, 2)
    assert all(alike(each, [None if g is None else 2 * g for g in once], exact=False) for each in found)
    assert group.steps == 2


def test_a_gradient_penalty_by_autograd_grad_is_no_step_of_its_own() -> None:
    def penalized(module: torch.nn.Module, rank: int) -> None:
        x, y = batch(rank, 0)
        x.requires_grad_()
        outputs = module(x)
        (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        value: Any = cross_entropy(outputs, y) + slope.square().mean()
        value.backward()

    group = Ranks()
    assert alike(group.step(penalized)[1], mean(network, penalized, 2))
    assert group.steps == 1


def test_quiet_leaves_gradients_local() -> None:
    group = Ranks()
    for source in group.sources:
        source.is_stopped = True
    found = group.step(plain)
    assert not ranks_agree(found)
    assert group.sources[0].decided_candidate is None
    for source in group.sources:
        source.is_stopped = False
    assert ranks_agree(group.step(plain))
    assert group.steps == 1


def test_evaluation_and_a_backward_that_reaches_no_parameter_exchange_nothing() -> None:
    group = Ranks()
    module = group.modules[0]
    with torch.no_grad():
        loss(module, 0)
    x = torch.ones(2, 96, requires_grad=True)
    torch.autograd.grad(module(x).sum(), x)
    assert group.sources[0].decided_candidate is None
    assert ranks_agree(group.step(plain))


# what is trained


class Tied(torch.nn.Module):
    """Two layers of one weight, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.last(self.frozen(torch.tanh(self.first(x))))}


def squared(module: torch.nn.Module, rank: int) -> None:
    module.zero_grad()
    module(torch.full((3, 8), rank + 1.0))["out"].square().mean().backward()


def test_tied_and_frozen_parameters() -> None:
    group = Ranks(Tied)
    for _ in range(2):
        assert all(alike(found, mean(Tied, squared, 2)) for found in group.step(squared))


def test_a_parameter_that_is_trained_later_is_named() -> None:
    group = Ranks(Tied)
    group.step(squared)
    group.modules[0].frozen.requires_grad_(True)
    with pytest.raises(ValueError, match=r"frozen\.weight requires a gradient"):
        squared(group.modules[0], 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_gradients_of_other_number_formats(dtype: torch.dtype) -> None:
    def backward(module: torch.nn.Module, rank: int) -> None:
        module.zero_grad()
        module(torch.full((4, 96), rank + 0.5, dtype=dtype)).square().mean().backward()

    def make() -> torch.nn.Module:
        return network(2).to(dtype)

    def close(gradient: torch.Tensor | None, other: torch.Tensor | None) -> bool:
        return gradient is not None and other is not None and torch.allclose(gradient, other, rtol=1e-2, atol=1e-4)

    for found in Ranks(make).step(backward):
        expected = mean(make, backward, 2)
        assert all(gradient is not None and gradient.dtype == dtype for gradient in found)
        assert all(map(close, found, expected))


def test_a_sparse_gradient_is_refused_by_name_and_training_goes_on() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.ModuleDict({"table": torch.nn.Embedding(9, 4, sparse=True), "last": torch.nn.Linear(4, 4)})

    group = Ranks(make)

    def backward(module: Any, rank: int) -> None:
        module.zero_grad()
        module["last"](module["table"](torch.tensor([rank]))).sum().backward()

    for rank, module in enumerate(group.modules):
        backward(module, rank)
    for source in group.sources:
        with pytest.raises(TypeError, match=r"module: table\.weight: a sparse gradient"):
            source.wait()
    for module in group.modules:
        module.table.sparse = False
    assert ranks_agree(group.step(backward))
    assert group.steps == 2


@pytest.mark.filterwarnings("ignore:grad and param do not obey")
def test_gradients_that_are_views_of_others_memory_stay_so() -> None:
    group = Ranks(lambda: network(2))
    wholes = []
    for module in group.modules:
        wholes.append(whole := torch.zeros(sum(p.numel() for p in module.parameters())))
        offset = 0
        for parameter in module.parameters():
            part = whole[offset : offset + parameter.numel()]
            # weights lie the other way round in memory than their gradients
            parameter.grad = part.view(parameter.shape[::-1]).T if parameter.dim() == 2 else part.view(parameter.shape)
            offset += parameter.numel()
    found = group.step(lambda module, rank: loss(module, rank).backward())
    assert all(alike(each, mean(lambda: network(2), plain, 2)) for each in found)
    there = [gradient for gradient in found[0] if gradient is not None]
    expected = [gradient.T.flatten() if gradient.dim() == 2 else gradient for gradient in there]
    assert all(torch.equal(whole, torch.cat(expected)) for whole in wholes)


def test_channels_last() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Conv2d(5, 4, 1)
        module: Any = torch.nn.Sequential(*layers)
        return module.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def backward(module: torch.nn.Module, rank: int) -> None:
        module.zero_grad()
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(rank))
        module(x.to(memory_format=torch.channels_last)).square().mean().backward()

    assert all(alike(found, mean(make, backward, 2)) for found in Ranks(make).step(backward))


# checkpointing and compiling


class Checkpointed(torch.nn.Module):
    """Parts that are computed again in backward; one of them twice, if asked for."""

    def __init__(self, reentrant: bool, twice: bool = False, around: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.reentrant, self.twice, self.around = reentrant, twice, around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        for part in [*self.parts, *([self.parts[1]] if self.twice else [])]:
            x = torch.tanh(checkpoint(part, x, use_reentrant=self.reentrant))
        return self.parts[0](x) if self.around else x


def of_ones(module: torch.nn.Module, rank: int) -> None:
    module.zero_grad()
    module(torch.full((3, 8), rank + 0.2)).square().mean().backward()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", 1)
    monkeypatch.setattr(source_of_module, "GROUP_BYTES", 1)

    def make() -> torch.nn.Module:
        return Checkpointed(reentrant, twice)

    group = Ranks(make)
    for _ in range(3):
        assert all(alike(found, mean(make, of_ones, 2), exact=False) for found in group.step(of_ones))
    assert group.steps == 3
    assert group.sources[0]._next_step_sends_at_end is reentrant


def test_a_gradient_that_comes_again_after_it_left_fails_that_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", 1)
    monkeypatch.setattr(source_of_module, "GROUP_BYTES", 1)

    class Turned(torch.nn.Module):
        """A last part that is used before, too, and later under checkpointing."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.again = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x))
            if self.again:
                x = checkpoint(self.last, x, use_reentrant=True)
            return self.last(x)  # type: ignore[no-any-return]

    group = Ranks(Turned)
    group.step(of_ones)
    for rank, module in enumerate(group.modules):
        module.again = True
        of_ones(module, rank)
    for source in group.sources:
        with pytest.raises(RuntimeError, match=r"gradient of last\.(weight|bias) was accumulated again"):
            source.wait()

    def make() -> torch.nn.Module:
        module = Turned()
        module.again = True
        return module

    assert all(alike(found, mean(make, of_ones, 2), exact=False) for found in group.step(of_ones))


@pytest.mark.parametrize("how", ["around", "in place"])
def test_a_compiled_module(how: str) -> None:
    def make() -> torch.nn.Module:
        module = network(2)
        if how == "around":
            return torch.compile(module, backend="aot_eager")  # type: ignore[return-value]
        module.compile(backend="aot_eager")
        return module

    group = Ranks(make)
    for step in range(3):
        found = group.step(lambda module, rank, step=step: plain(module, rank, step))  # type: ignore[misc]
        expected = mean(lambda: network(2), lambda module, rank, step=step: plain(module, rank, step), 2)  # type: ignore[misc]
        assert all(alike(each, expected, exact=False) for each in found)
    assert list(group.sources[0]._parameters) == [name for name, _ in network(2).named_parameters()]
    assert group.steps == 3


# buffers


class Averaging(torch.nn.Module):
    """Batch normalization, running sums that are no torch layer's, and a large constant."""

    running: Any
    coarse: Any
    rebound: Any

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.last = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
        self.register_buffer("running", torch.zeros(8))
        self.register_buffer("coarse", torch.zeros((), dtype=torch.bfloat16), persistent=False)
        self.register_buffer("rebound", torch.zeros(3))
        self.register_buffer("mask", torch.ones(1000, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.running.mul_(0.9).add_(x.detach().mean(0))
            self.coarse += x.detach().mean().bfloat16()
            self.rebound = self.rebound + x.detach().sum()
        return self.last(self.norm(x) + self.running)  # type: ignore[no-any-return]


def of_random(module: torch.nn.Module, rank: int) -> None:
    module.zero_grad()
    module(torch.randn(6, 8) + rank).square().mean().backward()


@pytest.mark.parametrize("host_looks", [True, False])
def test_ranks_have_rank_0s_running_statistics_after_each_step_and_evaluate_the_same(host_looks: bool) -> None:
    group = Ranks(Averaging, ranks=3, host_looks=host_looks)
    for step in range(4):
        group.step(of_random)
        states = [dict(module.named_buffers()) for module in group.modules]
        first = states[0]
        assert all(torch.equal(first[name], state[name]) for state in states for name in first if "norm" in name)
        if step:
            assert all(torch.equal(first[name], state[name]) for state in states for name in first)
            weights = [dict(module.named_parameters()) for module in group.modules]
            assert all(torch.equal(weights[0][name], each[name]) for each in weights for name in each)
            answers = [module.eval()(torch.ones(2, 8)) for module in group.modules]
            assert all(torch.equal(answers[0], answer) for answer in answers)
            for module in group.modules:
                module.train()
    assert group.compressors[0].ledger.payload_bytes < 1_000_000, "the constant was sent"
    with torch.no_grad():
        for rank, module in enumerate(group.modules):
            module.mask.add_(rank + 1)
    group.step(of_random)
    group.step(of_random)
    assert all(module.mask.eq(2).all() for module in group.modules)
    group.step(of_random)
    assert group.compressors[0].ledger.payload_bytes < 5_000_000, "it was sent again"
    assert int(first["norm.num_batches_tracked"]) == 7


def test_buffers_stay_each_ranks_own_if_asked_for() -> None:
    group = Ranks(Averaging, broadcast_buffers=False)
    group.step(of_random)
    assert not torch.equal(*(module.running for module in group.modules))
    assert group.sources[0].texts_to_compare == {}
    assert Ranks(Averaging).sources[0].texts_to_compare["buffer 2"] == "rebound [3] float32"


# failures, and the end


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


@pytest.mark.parametrize("again", ["forward", "the same graph"])
def test_a_backward_that_breaks_on_all_ranks_is_a_step_that_counts_for_nothing(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_of_module, "FIRST_GROUP_BYTES", 1)
    monkeypatch.setattr(source_of_module, "GROUP_BYTES", 1)

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])

    def forward(module: Any, rank: int) -> Any:
        breaks: Any = Breaks.apply
        return module[1](breaks(module[0](torch.full((3, 8), rank + 1.0)))).square().mean()

    group = Ranks(make)
    group.step(lambda module, rank: forward(module, rank).backward())
    monkeypatch.setattr(Breaks, "broken", True)
    losses = [forward(module, rank) for rank, module in enumerate(group.modules)]
    for module, value in zip(group.modules, losses, strict=True):
        module.zero_grad()
        with pytest.raises(ArithmeticError, match="broken"):
            value.backward(retain_graph=True)
        module.zero_grad()
    assert group.sources[0]._running_backward is None
    monkeypatch.setattr(Breaks, "broken", False)

    def backward(module: torch.nn.Module, rank: int) -> None:
        if again == "forward" or module not in group.modules:
            forward(module, rank).backward()
        else:
            losses[rank].backward()

    found = group.step(backward)
    assert all(alike(each, mean(make, backward, 2)) for each in found)
    assert group.steps == 3


def test_compiled_autograd_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Ranks().sources[0]
    with pytest.raises(TypeError, match="compiled autograd"):
        source._accumulated("0.weight", torch.zeros(()))


def test_detach_undoes_all() -> None:
    group = Ranks()
    group.step(plain)
    group.step(plain)
    for module, source in zip(group.modules, group.sources, strict=True):
        source.detach()
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
        assert source.module is None
        with pytest.raises(RuntimeError, match="not attached"):
            source.detach()
        source.bind(module)
    assert not ranks_agree(group.step(plain))
    for module, source in zip(group.modules, group.sources, strict=True):
        source.watch(module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert ranks_agree(group.step(plain))
    assert group.steps == 3


def test_a_parameter_whose_gradient_something_else_takes_is_named() -> None:
    group = Ranks(ranks=1)
    with pytest.raises(RuntimeError, match=r"0\.weight already has a post-accumulate-grad hook"):
        group.sources[0].watch(group.modules[0], None)
    assert alike(group.step(plain)[0], mean(network, plain, 1))


def test_within_a_backward_nothing_is_detached() -> None:
    group = Ranks(ranks=1)
    tried = []

    def detach(_: torch.Tensor) -> None:
        with pytest.raises(RuntimeError, match="a backward is running"):
            group.sources[0].detach()
        tried.append(True)

    next(group.modules[0].parameters()).register_hook(detach)
    group.step(plain)
    assert tried


def test_copies_and_pickles_leave_the_hooks_behind() -> None:
    group = Ranks(ranks=1)
    group.step(plain)
    file = io.BytesIO()
    torch.save(group.modules[0], file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for module in (copy.deepcopy(group.modules[0]), loaded):
        plain(module, 0)
    assert group.steps == 1


def test_moments_and_the_learning_rate_are_told() -> None:
    group = Ranks()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.25) for module in group.modules]
    for module, source, optimizer in zip(group.modules, group.sources, optimizers, strict=True):
        source.detach()
        source.bind(module)
        source.watch(module, optimizer)
        source.loss_scale = lambda: 8.0
    for step in range(2):
        group.step(lambda module, rank, step=step: plain(module, rank, step))  # type: ignore[misc]
        for optimizer in optimizers:
            optimizer.step()
    measurement = group.sources[0]._engine._last_measurement
    assert measurement is not None
    assert (measurement.learning_rate, measurement.loss_scale) == (0.25, 8.0)
    assert None not in (measurement.forward_began, measurement.optimizer_ended, measurement.backward_ended)


# what is refused


class FullyShardedDataParallel(torch.nn.Linear):
    """Has the name of torch's."""


class DTensor(torch.nn.Parameter):
    """Has the name of torch's."""


def with_parameter(parameter: torch.nn.Parameter) -> torch.nn.Module:
    module = torch.nn.Linear(3, 3)
    module.weight = parameter
    return module


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: torch.nn.Sequential(FullyShardedDataParallel(3, 3)), TypeError, "0 is in shards"),
        (lambda: with_parameter(DTensor(torch.ones(3, 3))), TypeError, r"weight is in shards \(DTensor"),
        (
            lambda: with_parameter(torch.nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))),
            TypeError,
            "weight: complex64",
        ),
        (lambda: with_parameter(torch.nn.Parameter(torch.ones(6, 3)[::2])), ValueError, "weight has shape"),
        (lambda: torch.nn.LazyLinear(3), ValueError, "weight has no memory yet"),
        (lambda: torch.nn.Linear(3, 3, device="meta"), ValueError, "weight has no memory yet"),
        (lambda: torch.nn.Linear(3, 3).requires_grad_(False), ValueError, "no parameter that requires a gradient"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_by_name(
    make: Callable[[], torch.nn.Module], error: type[Exception], words: str
) -> None:
    executor = Lockstep(1).executors[0]
    engine = AdaptiveCompressor().door({"weight": torch.zeros(3)}, executor=executor)
    with pytest.raises(error, match=words):
        ModuleSource(engine).bind(make())
