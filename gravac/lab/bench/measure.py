# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures compressors: their time, their memory and their loss, on this machine and without a network.

The bench steps N ranks in lock step in this process, on one thread, and times only rank 0's segments. Encode lasts from
the gradient to the first collective, and includes adding the residual. Decode is all the rest: it follows the result of
each collective, and includes writing the mean, the residual and the statistics of gain. The unit of time is a copy:
right before each call, the gradient is copied once into the call's buffer, and that copy is timed.

The loss is measured in the first step, without a residual: ``gain`` of rank 0, and ``vnmse``, the squared error of the
averaged gradient over the squared norm of the true mean.

The gradients are a mixture of normals (1 in 20 elements is 8 times larger). Half is common to all ranks, half is
private to each rank. Each row is multiplied by a log-normal scale, since neighbours in a layer's gradient are alike.
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
    """Measurement of one compressor at one CF.

    Attributes:
        compressor: name of the compressor.
        cf: requested compression factor.
        achieved_cf: elements / elements sent; for quantizers 32 / bits.
        wire_ratio: wire bytes of a dense float32 all-reduce / booked wire bytes, per rank, with flags and padding.
        gain: ``1 - ‖x - sent‖² / ‖x‖²`` of rank 0; below 0 if the error of ``sent`` is larger than ``x``.
        vnmse: ``‖mean - averaged‖² / ‖mean‖²``.
        encode_over_copy: time of encode / time of a copy, median over the repeats.
        decode_over_copy: the same ratio for decode.
        total_over_copy: the same ratio for encode and decode together.
        total_over_copy_low: lower quartile of that ratio.
        total_over_copy_high: upper quartile of that ratio.
        extra_bytes: peak of the bytes that rank 0's call on the largest tensor allocated, in the second step. The
            residual exists by then, and results of collectives are not counted.
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
    """Measure one compressor at one CF and return its row; this takes seconds to minutes.

    Args:
        bench: settings of the bench.
        contender: compressor and CF.
        gradients: source of the ranks' gradients.
    """
    sums = _Sums(bench.repeats)
    shapes = bench.shapes
    with _one_thread():
        for shape in shapes:
            _measure_tensor(contender, shape, gradients(shape), sums)
        largest = max(shapes, key=math.prod)
        extra = _extra_bytes(contender, largest, gradients(largest))
    elements = sum(math.prod(shape) for shape in shapes)
    totals = [encode + decode for encode, decode in zip(sums.encode_s, sums.decode_s, strict=True)]
    multiples = [total / copy for total, copy in zip(totals, sums.copy_s, strict=True)]
    low, middle, high = statistics.quantiles(multiples, n=4, method="inclusive") if bench.repeats > 1 else multiples * 3
    return BenchRow(
        compressor=contender.name,
        cf=contender.cf,
        achieved_cf=elements / sums.sent,
        wire_ratio=AllReduce.wire_bytes(4 * elements, bench.workers) / sums.wire_bytes,
        gain=1 - sums.error / sums.energy,
        vnmse=sums.mean_error / sums.mean_energy,
        encode_over_copy=_median_ratio(sums.encode_s, sums.copy_s),
        decode_over_copy=_median_ratio(sums.decode_s, sums.copy_s),
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
    """Synthetic gradients by shape, flat, one per rank; created at first use, and shared by tensors of a shape."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._by_shape: dict[Shape, list[torch.Tensor]] = {}

    def __call__(self, shape: Shape) -> list[torch.Tensor]:
        """Return each rank's gradient of a shape, flat, float32; callers must not write to the gradients."""
        if shape not in self._by_shape:
            generator = torch.Generator().manual_seed(len(self._by_shape))
            rows = torch.randn(shape[0], 1, generator=generator).mul_(0.7).exp_().mul_(TYPICAL)
            common = _heavy_tailed(shape, generator)
            private = (_heavy_tailed(shape, generator) for _ in range(self._workers))
            self._by_shape[shape] = [gradient.add_(common).mul_(0.5**0.5).mul_(rows).view(-1) for gradient in private]
        return self._by_shape[shape]


def _heavy_tailed(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor ``[rows, columns]`` of standard normal elements, of which 1 in 20 is multiplied by 8."""
    size = (shape[0], math.prod(shape[1:]))
    rare = torch.rand(size, generator=generator) < 0.05
    return torch.randn(size, generator=generator).mul_(rare.float().mul_(7).add_(1))


@dataclass
class _Sums:
    """Sums over the tensors: seconds of each repeat, and bytes, elements and errors of the first step."""

    repeats: int
    copy_s: list[float] = field(init=False)
    encode_s: list[float] = field(init=False)
    decode_s: list[float] = field(init=False)
    wire_bytes: int = 0
    sent: float = 0.0
    error: float = 0.0
    energy: float = 0.0
    mean_error: float = 0.0
    mean_energy: float = 0.0

    def __post_init__(self) -> None:
        self.copy_s, self.encode_s, self.decode_s = ([0.0] * self.repeats for _ in range(3))


def _measure_tensor(contender: Contender, shape: Shape, sources: Sequence[torch.Tensor], sums: _Sums) -> None:
    """Measure one tensor, whose gradients on the ranks are ``sources``, and add the results to ``sums``."""
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
    for repeat in range(len(sums.copy_s)):
        for buffer, source in zip(buffers[1:], sources[1:], strict=True):
            buffer.copy_(source)
        start = time.perf_counter()
        buffers[0].copy_(sources[0])
        sums.copy_s[repeat] += time.perf_counter() - start
        seconds: list[float] = []
        _step(ranks, buffers, shape, 1 + repeat, wrap=partial(_timed, seconds=seconds))
        sums.encode_s[repeat] += seconds[0]
        sums.decode_s[repeat] += sum(seconds[1:])


def _step(
    ranks: Sequence[Rank],
    buffers: Sequence[torch.Tensor],
    shape: Shape,
    step: int,
    ledgers: Sequence[Ledger] = (),
    wrap: Callable[[Steps], Steps] = lambda steps: steps,
) -> None:
    """Run one step of all ranks; ``wrap`` wraps rank 0's generator."""
    running = [rank.average(buffer, shape, step) for rank, buffer in zip(ranks, buffers, strict=True)]
    memory.run([wrap(running[0]), *running[1:]], ledgers)
    for rank in ranks:
        rank.commit()


def _timed(steps: Steps, seconds: list[float]) -> Steps:
    """Yield the same collectives; append the seconds of each segment up to a collective or the end."""
    answers: Any = None
    while True:
        start = time.perf_counter()
        try:
            collectives = steps.send(answers)
        except StopIteration:
            return
        finally:
            seconds.append(time.perf_counter() - start)
        answers = yield collectives


def _extra_bytes(contender: Contender, shape: Shape, sources: Sequence[torch.Tensor]) -> int:
    """Return the peak of the bytes that rank 0 allocates in its second step; see ``BenchRow.extra_bytes``.

    All ranks run two steps. Then a new rank 0 runs alone, with the recorded results, and its second step is profiled.
    """
    world = len(sources)
    ranks = [contender.make(rank, world) for rank in range(world)]
    recorded: list[list[list[Any]]] = [[], []]
    for step, answers in enumerate(recorded):
        _step(ranks, [source.clone() for source in sources], shape, step, wrap=partial(_recording, recorded=answers))
    del ranks
    alone = contender.make(0, world)
    buffer = sources[0].clone()
    _replay(alone.average(buffer, shape, 0), recorded[0])
    alone.commit()
    steps = alone.average(buffer.copy_(sources[0]), shape, 1)
    with _silent(), torch.autograd.profiler.profile(profile_memory=True) as profile:
        _replay(steps, recorded[1])
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def _recording(steps: Steps, recorded: list[list[Any]]) -> Steps:
    """Yield the same collectives; append copies of their results, since a rank may write to the results."""
    answers: Any = None
    while True:
        try:
            collectives = steps.send(answers)
        except StopIteration:
            return
        answers = yield collectives
        recorded.append([_copy(answer) for answer in answers])


def _copy(answer: Any) -> Any:
    return tuple(map(torch.clone, answer)) if isinstance(answer, tuple) else answer.clone()


def _replay(steps: Steps, recorded: Sequence[list[Any]]) -> None:
    """Run a rank's generator to its end with recorded results of its collectives."""
    next(steps, None)
    for answers in recorded:
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
    """Run the block with one thread of PyTorch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _silent() -> Iterator[None]:
    """Discard the text that PyTorch's profiler prints on standard error, from C++."""
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
