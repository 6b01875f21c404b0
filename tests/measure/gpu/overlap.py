# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether computing and exchange overlap: a link that is made up of sleeps on a stream of its own, at several rates.

The exchange cannot begin before the first gradient is there, nor end before the last one has travelled: a step takes at
least ``max(compute + the last message, the first gradient's time + all messages)``, which is what it is held against;
``max(compute, link)`` is told beside. What is sent is booked as of ``WORLD`` ranks, which all have the same tensors.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from gravac import AdaptiveCompressor, Compressor, Static, quantize, topk
from gravac.collectives import AllGather, AllReduce, AllToAll, Collective, Ledger
from gravac.exchange.device import CudaDevice, Device, Event
from gravac.exchange.streams import Interval, StreamExecutor
from tests.measure.gpu.parts import Row, at_most, attempts
from tests.measure.gpu.timing import GPU, sleep

WORLD = 4

LAYERS, WIDTH, ROWS = 24, 2048, 4096

WARM, STEPS, SEEN = 8, 15, 5

OVER_BEST = 1.05


class Link:
    """A transport over ranks that all have the same tensors, whose messages take time on a stream of its own.

    Args:
        device: where tensors lie.
        rate: bytes per second.
        sleep: function that takes seconds, and lets the present stream sleep for that time.

    Attributes:
        seconds: what each message is to take.
        spans: what it took; a sleep counts a clock's cycles, and clocks change with the load.
    """

    def __init__(self, device: Device, rate: float, sleep: Callable[[float], None] = sleep) -> None:
        self.rank, self.world, self.ledger = 0, WORLD, Ledger(WORLD)
        self.seconds: list[float] = []
        self.spans: list[Interval] = []
        self._device, self._rate, self._sleep = device, rate, sleep
        self._stream = device.stream()

    def launch(self, requests: list[Collective]) -> list[tuple[Event, Any]]:
        """Start collectives, one after the other."""
        return [self._start(request) for request in requests]

    def finish(self, pending: list[tuple[Event, Any]]) -> list[Any]:
        """Have the present stream wait for them."""
        for done, _ in pending:
            self._device.follow(done)
        return [answer for _, answer in pending]

    def _start(self, request: Collective) -> tuple[Event, Any]:
        self.seconds.append(self.ledger.book(request) / self._rate)
        answer = request.tensor if isinstance(request, AllReduce) else answered(request)
        ready = self._device.record()
        with self._device.on(self._stream):
            self._device.follow(ready)
            began = self._device.record()
            self._sleep(self.seconds[-1])
            if isinstance(request, AllReduce):
                request.tensor.mul_(WORLD)
            self.spans.append(Interval(began, self._device.record()))
            return self.spans[-1].ended, answer


def answered(request: Collective) -> Any:
    """What ranks that all have the same tensors answer, where that is no sum."""
    if isinstance(request, AllGather):
        return tuple(one.unsqueeze(0).repeat(WORLD, *(1 for _ in one.shape)) for one in request.tensors)
    if isinstance(request, AllToAll):
        return request.tensor.clone()
    return request.tensor


class Loop:
    """A plain training loop, whose gradients go through the door as they are ready.

    Args:
        base: the compressor.
        cf: its compression factor.
        transport: carries them; ``None``: nothing is exchanged.
        device: where it trains.
        size: layers, features and rows.
    """

    def __init__(
        self, base: Compressor, cf: float, transport: Any, device: Device, size: Sequence[int] = (LAYERS, WIDTH, ROWS)
    ) -> None:
        layers, width, batch = size
        torch.manual_seed(0)
        made = [torch.nn.Linear(width, width, bias=False) for _ in range(layers)]
        for one in made:
            torch.nn.init.normal_(one.weight, std=width**-0.5)
        self.model = torch.nn.Sequential(*made).to(device.device)
        self.x = torch.randn(batch, width, device=device.device)
        self.device, self.first = device, list[Event]()
        parameters = dict(self.model.named_parameters())
        self.compressor = AdaptiveCompressor(base, (1, 1000), controller=Static(cf=cf))
        self.door = None
        if transport is not None:
            executor = StreamExecutor(transport, device)
            self.door = self.compressor.door(parameters, executor=executor)
        self.handles: list[Any] = []
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._ready, name))

    def _ready(self, name: str, parameter: torch.Tensor) -> None:
        if not self.first:
            self.first.append(self.device.record())
        if self.door is not None:
            assert parameter.grad is not None
            self.handles.append(self.door.ready([(name, parameter.grad)]))

    def step(self) -> None:
        """Train one step, without an optimizer."""
        self.model.zero_grad(set_to_none=False)
        self.first.clear()
        self.handles.clear()
        loss = self.model(self.x).square().mean()
        if self.door is not None:
            begun = self.door.begin()
        loss.backward()
        if self.door is not None:
            self.door.end()
            self.handles[-1].wait()
            begun.result()


class Timed(NamedTuple):
    """Median seconds of a step, and until its first gradient."""

    step: float
    first: float


def timed(loop: Loop, wait: Callable[[], None] = torch.cuda.synchronize, steps: int = STEPS) -> Timed:
    """Time a loop's steps, by its device's events."""
    taken = []
    for turn in range(WARM + steps):
        wait()
        begin = loop.device.record()
        loop.step()
        end = loop.device.record()
        wait()
        if turn >= WARM:
            taken.append(Timed(begin.elapsed_time(end) / 1e3, begin.elapsed_time(loop.first[0]) / 1e3))
    return Timed(*(statistics.median(column) for column in zip(*taken, strict=True)))


def best(compute: Timed, messages: Sequence[float]) -> float:
    """The least seconds of a step whose messages travel one after the other, as their gradients are ready."""
    return max(compute.step + messages[-1], compute.first + sum(messages))


def rows() -> Iterator[Row]:
    device = CudaDevice(GPU)
    sleep(1e-3)
    slept = time.perf_counter()
    sleep(0.05)
    torch.cuda.synchronize()
    yield {"case": "a sleep of 50 ms", "ms": (time.perf_counter() - slept) * 1e3}
    alone = Loop(topk, 1.0, None, device)
    compute = timed(alone)
    yield {"case": "compute alone", "ms": compute.step * 1e3, "first_gradient_ms": compute.first * 1e3}
    dense = AllReduce.wire_bytes(4 * LAYERS * WIDTH**2, WORLD)
    cases: dict[str, Callable[[], Row]] = {}
    for share in (0.25, 0.5, 1.0, 2.0):
        name = f"dense, a link {share:g} times as long as compute"
        cases[name] = partial(overlapped, topk, 1.0, dense / (share * compute.step), alone)
    slow = dense / (8 * compute.step)
    for base, cf in ((quantize(2), 16.0), (topk, 100.0)):
        name = f"{base.name} @ {cf:g}, a link on which dense takes 8 times as long as compute"
        cases[name] = partial(overlapped, base, cf, slow, alone)
    yield from attempts(cases)


def overlapped(base: Compressor, cf: float, rate: float, alone: Loop) -> Row:
    """Time a loop whose gradients travel, next to one whose do not."""
    link = Link(alone.device, rate)
    loop = Loop(base, cf, link, alone.device)
    took, compute = timed(loop).step, timed(alone)
    least, busy = [], []
    for _ in range(SEEN):
        link.seconds.clear()
        link.spans.clear()
        loop.step()
        torch.cuda.synchronize()
        messages = large(link, rate)
        least.append(best(compute, messages))
        busy.append(sum(messages))
    travels, over = statistics.median(busy), took / statistics.median(least)
    row = {"step_ms": took * 1e3, "compute_ms": compute.step * 1e3, "link_ms": travels * 1e3}
    row["over_max"] = took / max(compute.step, travels)
    return {**row, **(at_most(over, OVER_BEST) if cf == 1 else {"value": over})}


def large(link: Link, rate: float) -> list[float]:
    """Seconds that messages of more than 4 KiB took: without what ranks agree on."""
    both = zip(link.seconds, link.spans, strict=True)
    return [span.began.elapsed_time(span.ended) / 1e3 for wanted, span in both if wanted > 4096 / rate]
