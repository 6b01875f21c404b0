# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The compressor bench: what each costs in time and memory, and what it loses, on this machine and without a network.

N ranks are stepped in lock step in this process on one thread, and only rank 0's own segments are timed. Encode lasts
from the gradient to the first collective, the residual's part included; decode is all the rest: what follows each
answer, the mean written to the gradient, the residual and the stats of gain. Time is told in copies: right before each
call, the gradient is copied once into the buffer that the call works on, and that copy is timed.

Loss is that of the first step, without a residual: ``gain`` of rank 0, and ``vnmse``, the squared error of the averaged
gradient over the squared norm of the true mean.

The gradients are a mixture of normals (1 in 20 elements is 8 times larger), half common to the ranks and half their
own, multiplied by a log-normal scale of the row, as neighbours in a layer's gradient are alike.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gravac.collectives import AllReduce, Ledger
from gravac.exchange import memory
from gravac.lab.bench.bench import Bench, Contender
from gravac.lab.bench.ranks import Rank, Shape, Steps

TYPICAL = 1e-3
"""Rough standard deviation of the synthetic gradients."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """The measurement of one compressor at one CF.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor asked for.
        achieved_cf: elements / elements sent; for quantizers 32 / bits.
        wire_ratio: wire bytes of a dense float32 all-reduce / those booked, per rank, flags and padding included.
        gain: ``1 - ‖x - sent‖² / ‖x‖²`` of rank 0; below 0 where what is sent is noisier than it is near.
        vnmse: ``‖mean - averaged‖² / ‖mean‖²``.
        encode_over_copy: time of encode / time of a copy, median over the repeats.
        decode_over_copy: the same ratio for decode.
        total_over_copy: the same ratio for encode and decode together.
        total_over_copy_low: lower quartile of that ratio.
        total_over_copy_high: upper quartile of that ratio.
        extra_bytes: largest number of bytes that rank 0's call on the largest tensor held at one time of what it
            allocated itself, in the second step: the residual is there already, and what a collective delivered is not
            counted.
        gb_per_s: bytes of the float32 tensors / median total time / 1e9.
        workers: number of ranks.
        elements: number of elements of all tensors.
        host_waits: see ``Compressor``; ``None``: not known.
    """

    compressor: str
    cf: float
    achieved_cf: float
    wire_ratio: float
    gain: float
    vnmse: float
    encode_over_copy: float
    decode_over_copy: float
    total_over_copy: float
    total_over_copy_low: float
    total_over_copy_high: float
    extra_bytes: int
    gb_per_s: float
    workers: int
    elements: int
    host_waits: bool | None


def measure(bench: Bench, contender: Contender, gradients: Gradients) -> BenchRow:
    """Measure one compressor at one CF; return its row. It takes seconds to minutes, and keeps nothing."""
    sums = _Sums(bench.repeats)
    shapes = bench.shapes
    with _one_thread():
        for shape in shapes:
            _measure_tensor(contender, shape, gradients(shape), sums)
        largest = max(shapes, key=math.prod)
        extra = _extra_bytes(contender, largest, gradients(largest))
    elements = sum(math.prod(shape) for shape in shapes)
    totals = [encode + decode for encode, decode in zip(sums.encode, sums.decode, strict=True)]
    multiples = [total / copy for total, copy in zip(totals, sums.copy, strict=True)]
    low, middle, high = statistics.quantiles(multiples, n=4, method="inclusive") if bench.repeats > 1 else multiples * 3
    return BenchRow(
        compressor=contender.name,
        cf=contender.cf,
        achieved_cf=elements / sums.sent,
        wire_ratio=AllReduce.wire_bytes(4 * elements, bench.workers) / sums.wire_bytes,
        gain=1 - sums.error / sums.energy,
        vnmse=sums.mean_error / sums.mean_energy,
        encode_over_copy=_median_ratio(sums.encode, sums.copy),
        decode_over_copy=_median_ratio(sums.decode, sums.copy),
        total_over_copy=middle,
        total_over_copy_low=low,
        total_over_copy_high=high,
        extra_bytes=extra,
        gb_per_s=4e-9 * elements / statistics.median(totals),
        workers=bench.workers,
        elements=elements,
        host_waits=contender.host_waits,
    )


class Gradients:
    """Synthetic gradients by shape, flat, one per rank; made at first use and kept, so tensors alike share them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._made: dict[Shape, list[torch.Tensor]] = {}

    def __call__(self, shape: Shape) -> list[torch.Tensor]:
        """Return each rank's gradient of a shape, flat, float32. It must not be written to."""
        if shape not in self._made:
            generator = torch.Generator().manual_seed(len(self._made))
            rows = torch.randn(shape[0], 1, generator=generator).mul_(0.7).exp_().mul_(TYPICAL)
            common = _heavy_tailed(shape, generator)
            private = (_heavy_tailed(shape, generator) for _ in range(self._workers))
            self._made[shape] = [one.add_(common).mul_(0.5**0.5).mul_(rows).view(-1) for one in private]
        return self._made[shape]


def _heavy_tailed(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """``[rows, columns]``: standard normal, 1 in 20 times 8."""
    size = (shape[0], math.prod(shape[1:]))
    rare = torch.rand(size, generator=generator) < 0.05
    return torch.randn(size, generator=generator).mul_(rare.float().mul_(7).add_(1))


@dataclass
class _Sums:
    """Over the tensors: seconds by repeat, and what the first step sent and lost."""

    repeats: int
    copy: list[float] = field(init=False)
    encode: list[float] = field(init=False)
    decode: list[float] = field(init=False)
    wire_bytes: int = 0
    sent: float = 0.0
    error: float = 0.0
    energy: float = 0.0
    mean_error: float = 0.0
    mean_energy: float = 0.0

    def __post_init__(self) -> None:
        self.copy, self.encode, self.decode = ([0.0] * self.repeats for _ in range(3))


def _measure_tensor(contender: Contender, shape: Shape, sources: Sequence[torch.Tensor], sums: _Sums) -> None:
    world = len(sources)
    ranks = [contender.make(rank, world) for rank in range(world)]
    buffers = [source.clone() for source in sources]
    ledgers = [Ledger(world) for _ in ranks]
    _step(ranks, buffers, shape, 0, ledgers)
    sums.wire_bytes += ledgers[0].wire_bytes
    loss = ranks[0].loss(sources[0], shape)
    sums.sent += loss.sent
    sums.error += loss.error
    sums.energy += loss.energy
    mean = sources[0].clone()
    for other in sources[1:]:
        mean.add_(other)
    mean.div_(world)
    sums.mean_energy += _squared(mean)
    sums.mean_error += _squared(mean.sub_(buffers[0]))
    for repeat in range(len(sums.copy)):
        for buffer, source in zip(buffers[1:], sources[1:], strict=True):
            buffer.copy_(source)
        start = time.perf_counter()
        buffers[0].copy_(sources[0])
        sums.copy[repeat] += time.perf_counter() - start
        seconds: list[float] = []
        _step(ranks, buffers, shape, 1 + repeat, wrap=partial(_timed, seconds=seconds))
        sums.encode[repeat] += seconds[0]
        sums.decode[repeat] += sum(seconds[1:])


def _step(
    ranks: Sequence[Rank],
    buffers: Sequence[torch.Tensor],
    shape: Shape,
    step: int,
    ledgers: Sequence[Ledger] = (),
    wrap: Callable[[Steps], Steps] = lambda steps: steps,
) -> None:
    """Run one step of all ranks; ``wrap`` is put around rank 0."""
    running = [rank.average(buffer, shape, step) for rank, buffer in zip(ranks, buffers, strict=True)]
    memory.run([wrap(running[0]), *running[1:]], ledgers)
    for rank in ranks:
        rank.commit()


def _timed(steps: Steps, seconds: list[float]) -> Steps:
    """Return the same steps; append how long each took, up to a collective or the end."""
    answers: Any = None
    while True:
        start = time.perf_counter()
        try:
            asked = steps.send(answers)
        except StopIteration:
            return
        finally:
            seconds.append(time.perf_counter() - start)
        answers = yield asked


def _extra_bytes(contender: Contender, shape: Shape, sources: Sequence[torch.Tensor]) -> int:
    """Two steps of all ranks, then rank 0's alone again with the same answers, the second one watched."""
    world = len(sources)
    ranks = [contender.make(rank, world) for rank in range(world)]
    heard: list[list[list[Any]]] = [[], []]
    for step, answers in enumerate(heard):
        _step(ranks, [s.clone() for s in sources], shape, step, wrap=partial(_overheard, heard=answers))
    del ranks
    alone = contender.make(0, world)
    buffer = sources[0].clone()
    _replay(alone.average(buffer, shape, 0), heard[0])
    alone.commit()
    steps = alone.average(buffer.copy_(sources[0]), shape, 1)
    with _silent(), torch.autograd.profiler.profile(profile_memory=True) as profile:
        _replay(steps, heard[1])
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _overheard(steps: Steps, heard: list[list[Any]]) -> Steps:
    """Return the same steps; keep copies of the answers, which a rank may write to."""
    answers: Any = None
    while True:
        try:
            asked = steps.send(answers)
        except StopIteration:
            return
        answers = yield asked
        heard.append([_copy(answer) for answer in answers])


def _copy(answer: Any) -> Any:
    return tuple(map(torch.clone, answer)) if isinstance(answer, tuple) else answer.clone()


def _replay(steps: Steps, heard: Sequence[list[Any]]) -> None:
    next(steps, None)
    for answers in heard:
        try:
            steps.send(answers)
        except StopIteration:
            return


def _squared(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def _median_ratio(times: Sequence[float], copies: Sequence[float]) -> float:
    return statistics.median(time / copy for time, copy in zip(times, copies, strict=True))


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _silent() -> Iterator[None]:
    """Without what PyTorch's profiler prints on standard error, from C++."""
    before = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
