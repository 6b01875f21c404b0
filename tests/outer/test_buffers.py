# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Buffers that are not finite, or change their shape: they are averaged where they are finite, and weights train on."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.ao import quantization

from gravac import AdaptiveCompressor, Static, dense
from gravac.modes.outer.buffers import Buffers
from tests.distributed.training import batch, network, parallel
from tests.outer.ranks import Ranks
from tests.ranks import processes

EVERY = 4

OUTER: dict[str, Any] = {"controller": Static(cf=1), "cf_range": (1, 2), "every": EVERY}

ELEMENTS = [math.inf, -math.inf, math.nan, 0.0, 1.5, -2.0, 3e38]


class Holder(torch.nn.Module):
    """Some layers beside a buffer."""

    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Linear(48, 8)
        self.register_buffer("odd", buffer.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def expected(anchor: float, elements: list[float]) -> float:
    """Return what the module's documentation promises of one element."""
    finite = [element for element in elements if math.isfinite(element)]
    if finite:
        return sum(element / len(finite) for element in finite)
    return elements[0] if math.isinf(elements[0]) and set(elements) == {elements[0]} else anchor


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize(("world", "dtype"), [(1, torch.float32), (2, torch.float64), (3, torch.float32)])
def test_an_anchor_is_the_mean_over_ranks_whose_element_is_finite(
    world: int, dtype: torch.dtype, host_looks: bool
) -> None:
    """All combinations of an anchor and of the ranks' elements, each in an element of one buffer."""
    anchors, *of_ranks = torch.cartesian_prod(*[torch.tensor(ELEMENTS, dtype=dtype)] * (1 + world)).t()
    ranks = Ranks(world, make=lambda: Holder(anchors), every=1, host_looks=host_looks)
    for module, elements in zip(ranks.modules, of_ranks, strict=True):
        module.odd.copy_(elements)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks.train(4)
    wanted = torch.tensor(
        [expected(float(anchor), [float(one) for one in row]) for anchor, *row in zip(anchors, *of_ranks, strict=True)],
        dtype=dtype,
    )
    for outer, module in zip(ranks.outer, ranks.modules, strict=True):
        torch.testing.assert_close(outer._buffers.anchors["odd"], wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(module.odd, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert torch.equal(module.odd.nan_to_num(7.0), ranks.modules[0].odd.nan_to_num(7.0)), "bit for bit"
    assert [outer.skipped for outer in ranks.outer] == [0] * world
    assert len(caught) == world, "each rank says once in which buffer it lost elements"


def test_a_rank_that_becomes_finite_while_the_exchange_is_in_flight_keeps_its_element() -> None:
    ranks = Ranks(2, make=lambda: Holder(torch.tensor([math.inf])), every=4, delay=2).train(4)
    ranks.modules[1].odd.fill_(3.0)
    ranks.train(2)
    assert [float(module.odd) for module in ranks.modules] == [math.inf, 3.0]
    ranks.train(4)
    assert [float(module.odd) for module in ranks.modules] == [3.0, 3.0]


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("shape", [(2, 4), (5,), ()])
def test_a_buffer_that_gets_the_same_new_shape_on_some_ranks_gets_it_on_all(
    shape: tuple[int, ...], host_looks: bool
) -> None:
    ranks = Ranks(3, make=lambda: Holder(torch.zeros(0)), every=2, host_looks=host_looks)
    ranks.modules[0].odd = torch.full(shape, 1.0)
    ranks.modules[2].odd.resize_(shape).fill_(3.0)
    ranks.train(2 if host_looks else 8)
    for module in ranks.modules:
        assert torch.equal(module.odd, torch.full(shape, 2.0))


def test_new_shapes_that_differ_between_ranks_are_refused_by_name_and_with_the_remedy() -> None:
    ranks = Ranks(2, make=lambda: Holder(torch.zeros(0)), every=2)
    ranks.train(1)
    for rank, module in enumerate(ranks.modules):
        module.odd = torch.zeros(2 + rank)
    with pytest.raises(ValueError, match=r"buffer odd, of shape \(2,\) on this rank.*local_buffers=\['odd'\]"):
        ranks.train(1)


@pytest.mark.parametrize("host_looks", [True, False])
def test_when_rounds_are_closed_buffers_become_the_mean_of_all_ranks(host_looks: bool) -> None:
    ranks = Ranks(2, make=lambda: Holder(torch.zeros(3)), every=4, host_looks=host_looks).train(1)
    for rank, module in enumerate(ranks.modules):
        module.odd.fill_(1.0 + 2 * rank)
    for outer in ranks.outer:
        outer._rounds.end_early(0.05, dense=True)
    ranks.lockstep.run()
    for outer, module in zip(ranks.outer, ranks.modules, strict=True):
        outer.steps.close_rounds()
        assert torch.equal(module.odd, torch.full((3,), 2.0))


def test_buffers_that_are_local_are_not_sent() -> None:
    module = Holder(torch.tensor([math.inf]))
    module.register_buffer("flags", torch.tensor([True]))
    assert not Buffers(module, ["odd"]).anchors


# programs, on real ranks


class Watching(torch.nn.Module):
    """Layers, and a module that watches their outputs in its buffers."""

    def __init__(self, watcher: torch.nn.Module) -> None:
        super().__init__()
        self.layers, self.watcher = network(2), watcher

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(x)
        self.watcher(outputs.detach())
        return outputs


class Range(torch.nn.Module):
    """An observer that begins at infinity; on rank 1 it sees no data before ``first_step``."""

    def __init__(self, first_step: int = 0) -> None:
        super().__init__()
        self.register_buffer("smallest", torch.tensor(math.inf))
        self.register_buffer("largest", torch.full((10,), -math.inf))
        self.register_buffer("seen", torch.tensor(0))
        self.first_step = first_step

    def forward(self, x: torch.Tensor) -> None:
        if self.seen >= self.first_step:
            self.smallest.copy_(torch.minimum(self.smallest, x.min()))
            self.largest = torch.maximum(self.largest, x.amax(0))
        self.seen += 1


class Mask(torch.nn.Module):
    """A mask that the first forward fills, a marker of NaN, and a mask of the lowest number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(4, 4), persistent=False)
        self.register_buffer("lowest", torch.zeros(3), persistent=False)
        self.register_buffer("marker", torch.full((2,), math.nan))
        self.filled = False

    def forward(self, x: torch.Tensor) -> None:
        if not self.filled:
            self.mask.fill_(-math.inf).triu_(1)
            self.lowest.fill_(torch.finfo(torch.float32).min)
            self.filled = True
        self.marker[0] = x.mean()


def range_of_late_rank(rank: int) -> torch.nn.Module:
    return Range(6 * rank)


def range_of_rank_without_data(rank: int) -> torch.nn.Module:
    return Range(1000 * rank)


def mask(rank: int) -> torch.nn.Module:
    return Mask()


def min_max(rank: int) -> torch.nn.Module:
    return quantization.MinMaxObserver()


def per_channel(rank: int) -> torch.nn.Module:
    return quantization.PerChannelMinMaxObserver(ch_axis=1)


def moving_average(rank: int) -> torch.nn.Module:
    return quantization.FakeQuantize(quantization.MovingAverageMinMaxObserver)


WATCHERS = [range_of_late_rank, range_of_rank_without_data, mask, min_max, per_channel, moving_average]


def trained(
    rank: int, world: int, watcher: Callable[[int], torch.nn.Module], local: bool
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], list[str]]:
    """Train in rounds; return weights, averaged buffers, and warnings."""
    ddp = parallel(Watching(watcher(rank)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    compressor = AdaptiveCompressor(dense, **OUTER, outer={"delay": 0, "local_buffers": ["watcher"] if local else []})
    compressor.attach(ddp, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3 * EVERY):
            inputs, labels = batch(rank, step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
        compressor.detach()
    texts = [str(warning.message) for warning in caught if "gravac" in str(warning.message)]
    weights = [parameter.detach().clone() for parameter in ddp.parameters()]
    buffers = {name: buffer.clone() for name, buffer in ddp.module.named_buffers() if buffer.is_floating_point()}
    return weights, buffers, texts


def watched(
    rank: int, world: int
) -> tuple[list[torch.Tensor], list[tuple[list[torch.Tensor], dict[str, torch.Tensor], list[str]]]]:
    """Train with every watcher; before, with a buffer that nobody exchanges, of which the weights are returned."""
    weights, _, _ = trained(rank, world, mask, True)
    return weights, [trained(rank, world, watcher, False) for watcher in WATCHERS]


@functools.cache
def runs() -> list[Any]:
    return processes(watched, 2)


@pytest.mark.parametrize("watcher", WATCHERS)
def test_observers_masks_and_markers_are_averaged_and_no_weight_is_reset(watcher: Any) -> None:
    averaged = [found[WATCHERS.index(watcher)] for _, found in runs()]
    for (weights, buffers, texts), (weights_alone, _) in zip(averaged, runs(), strict=True):
        assert all(map(torch.equal, weights, weights_alone)), "as with buffers that nobody exchanges"
        assert not texts
        for name, buffer in buffers.items():
            assert torch.equal(buffer.nan_to_num(7.0), averaged[0][1][name].nan_to_num(7.0)), name
            if watcher is not mask:
                assert buffer.numel(), name
                assert buffer.isfinite().all(), name
    if watcher is mask:
        buffers = averaged[0][1]
        assert torch.equal(buffers["watcher.mask"], torch.full((4, 4), -math.inf).triu(1))
        assert torch.equal(buffers["watcher.lowest"], torch.full((3,), torch.finfo(torch.float32).min))
        assert [*buffers["watcher.marker"].isnan()] == [False, True]


def quantized(rank: int, world: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """Train with fake quantization as torch prepares it, weights per channel."""
    model: Any = torch.nn.Sequential(quantization.QuantStub(), *network(2), quantization.DeQuantStub())
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    ddp = parallel(quantization.prepare_qat(model.train()))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    compressor = AdaptiveCompressor(dense, **OUTER, outer={"delay": 0})
    compressor.attach(ddp, optimizer)
    initial_weights = [parameter.detach().clone() for parameter in ddp.parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6 * EVERY):
            inputs, labels = batch(rank, step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
        compressor.detach()
    assert not any(map(torch.equal, initial_weights, ddp.parameters()))
    buffers = [buffer.clone() for buffer in ddp.module.buffers() if buffer.is_floating_point()]
    texts = [str(warning.message) for warning in caught if "gravac" in str(warning.message)]
    return [parameter.detach().clone() for parameter in ddp.parameters()], buffers, texts


def test_quantization_aware_training_runs_in_rounds() -> None:
    (weights, buffers, texts), (other_weights, other_buffers, other_texts) = processes(quantized, 2)
    assert all(map(torch.equal, weights, other_weights))
    assert all(map(torch.equal, buffers, other_buffers))
    assert all(buffer.isfinite().all() for buffer in buffers)
    assert texts == other_texts == []
