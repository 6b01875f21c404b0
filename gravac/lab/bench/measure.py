# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the time, memory and error of compressors, on this machine and without a network.

The bench runs N ranks in lock step in this process, on one thread, and times only the code of rank 0. Encode is the
code before the first collective, and includes adding the residual. Decode is all code after that collective, and
includes writing the mean, the residual and the statistics of gain. The unit of time is a copy: right before each step,
rank 0's gradient is copied into the buffer that the step averages in place, and this copy is timed.

The error is measured in the first step, without a residual: ``gain`` of rank 0, and ``vnmse``, the squared error of the
averaged gradient over the squared norm of the true mean.

The gradients are a mixture of normals (1 in 20 elements is 8 times larger). Half of the variance is common to all
ranks, the other half is private to each rank. Each row has a log-normal scale, since the elements of a row of a real
gradient are of similar size.
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
from gravac.lab.bench.ranks import Rank, Rounds, Shape

GRADIENT_SCALE = 1e-3
"""Standard deviation of a synthetic gradient's elements in a typical row, leaving out the elements 8 times larger."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Measurement of one compressor at one CF.

    Attributes:
        compressor: name of the compressor.
        cf: requested compression factor.
        achieved_cf: elements / elements sent; for quantizers 32 / bits.
        wire_ratio: wire bytes of a dense float32 all-reduce / wire bytes of the compressor, flags and padding included.
        gain: ``1 - ‖x - sent‖² / ‖x‖²``, with gradient ``x`` and sent tensor ``sent`` of rank 0; below 0 if the error
            is larger than ``x``.
        vnmse: ``‖mean - averaged‖² / ‖mean‖²``, with the ranks' true mean and the mean that the compressor returned.
        encode_over_copy: time of encode / time of a copy, median over the repeats.
        decode_over_copy: time of decode / time of a copy, median over the repeats.
        total_over_copy: time of encode and decode / time of a copy, median over the repeats.
        total_over_copy_low: lower quartile of ``total_over_copy`` over the repeats.
        total_over_copy_high: upper quartile of ``total_over_copy`` over the repeats.
        extra_bytes: peak of the bytes that rank 0 allocates in the second step on the largest tensor, when the residual
            exists already; results of collectives are not counted.
        gb_per_s: bytes of the float32 tensors / median total time / 1e9.
        workers: number of ranks.
        elements: number of elements of all tensors.
        host_waits: whether the host waits for a GPU while encoding, see ``Compressor``; ``None``: not known.
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
    """Measure one compressor at one CF and return the results as a row; takes seconds to minutes.

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
        largest_shape = max(shapes, key=math.prod)
        extra_bytes = _extra_bytes(contender, largest_shape, gradients(largest_shape))
    elements = sum(math.prod(shape) for shape in shapes)
    total_s = [encode + decode for encode, decode in zip(sums.encode_s, sums.decode_s, strict=True)]
    total_over_copy = [total / copy for total, copy in zip(total_s, sums.copy_s, strict=True)]
    low_quartile, median, high_quartile = (
        statistics.quantiles(total_over_copy, n=4, method="inclusive") if bench.repeats > 1 else total_over_copy * 3
    )
    return BenchRow(
        compressor=contender.name,
        cf=contender.cf,
        achieved_cf=elements / sums.sent_elements,
        wire_ratio=AllReduce.wire_bytes(4 * elements, bench.workers) / sums.wire_bytes,
        gain=1 - sums.error / sums.energy,
        vnmse=sums.mean_error / sums.mean_energy,
        encode_over_copy=_median_time_over_copy(sums.encode_s, sums.copy_s),
        decode_over_copy=_median_time_over_copy(sums.decode_s, sums.copy_s),
        total_over_copy=median,
        total_over_copy_low=low_quartile,
        total_over_copy_high=high_quartile,
        extra_bytes=extra_bytes,
        gb_per_s=4e-9 * elements / statistics.median(total_s),
        workers=bench.workers,
        elements=elements,
        host_waits=contender.host_waits,
    )


class Gradients:
    """Source of synthetic gradients, one per rank, for any shape; all tensors of a shape have the same gradients."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._gradients_by_shape: dict[Shape, list[torch.Tensor]] = {}

    def __call__(self, shape: Shape) -> list[torch.Tensor]:
        """Return a list of each rank's gradient for a shape, flat, float32; callers must not write to the gradients."""
        if shape not in self._gradients_by_shape:
            generator = torch.Generator().manual_seed(len(self._gradients_by_shape))
            row_scales = torch.randn(shape[0], 1, generator=generator).mul_(0.7).exp_().mul_(GRADIENT_SCALE)
            common_part = _heavy_tailed(shape, generator)
            private_parts = (_heavy_tailed(shape, generator) for _ in range(self._workers))
            self._gradients_by_shape[shape] = [
                gradient.add_(common_part).mul_(0.5**0.5).mul_(row_scales).view(-1) for gradient in private_parts
            ]
        return self._gradients_by_shape[shape]


def _heavy_tailed(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor ``[rows, columns]`` of standard normal elements, of which 1 in 20 is multiplied by 8."""
    matrix_shape = (shape[0], math.prod(shape[1:]))
    is_large = torch.rand(matrix_shape, generator=generator) < 0.05
    return torch.randn(matrix_shape, generator=generator).mul_(is_large.float().mul_(7).add_(1))


@dataclass
class _Sums:
    """Sums over the tensors: seconds of each repeat, and bytes, elements and errors of the first step."""

    repeats: int
    copy_s: list[float] = field(init=False)
    encode_s: list[float] = field(init=False)
    decode_s: list[float] = field(init=False)
    wire_bytes: int = 0
    sent_elements: float = 0.0
    error: float = 0.0
    energy: float = 0.0
    mean_error: float = 0.0
    mean_energy: float = 0.0

    def __post_init__(self) -> None:
        self.copy_s, self.encode_s, self.decode_s = ([0.0] * self.repeats for _ in range(3))


def _measure_tensor(contender: Contender, shape: Shape, gradients: Sequence[torch.Tensor], sums: _Sums) -> None:
    """Measure a compressor on one tensor; add the results to ``sums``. ``gradients`` has the flat gradient by rank."""
    world = len(gradients)
    ranks = [contender.make(rank, world) for rank in range(world)]
    buffers = [gradient.clone() for gradient in gradients]
    ledgers = [Ledger(world) for _ in ranks]
    _run_step(ranks, buffers, shape, 0, ledgers)
    sums.wire_bytes += ledgers[0].wire_bytes
    measured_compression = ranks[0].measured_compression(gradients[0], shape)
    sums.sent_elements += measured_compression.sent
    sums.error += measured_compression.error
    sums.energy += measured_compression.energy
    mean = gradients[0].clone()
    for rank_gradient in gradients[1:]:
        mean.add_(rank_gradient)
    mean.div_(world)
    sums.mean_energy += _squared_norm(mean)
    sums.mean_error += _squared_norm(mean.sub_(buffers[0]))
    for repeat in range(len(sums.copy_s)):
        for buffer, gradient in zip(buffers[1:], gradients[1:], strict=True):
            buffer.copy_(gradient)
        copy_start = time.perf_counter()
        buffers[0].copy_(gradients[0])
        sums.copy_s[repeat] += time.perf_counter() - copy_start
        segment_seconds: list[float] = []
        _run_step(ranks, buffers, shape, 1 + repeat, wrap_rounds=partial(_time_rounds, segment_seconds=segment_seconds))
        sums.encode_s[repeat] += segment_seconds[0]
        sums.decode_s[repeat] += sum(segment_seconds[1:])


def _run_step(
    ranks: Sequence[Rank],
    buffers: Sequence[torch.Tensor],
    shape: Shape,
    step: int,
    ledgers: Sequence[Ledger] = (),
    wrap_rounds: Callable[[Rounds], Rounds] = lambda rounds: rounds,
) -> None:
    """Run one step of all ranks, which replaces each rank's gradient in ``buffers`` by the mean.

    Args:
        ranks: simulated ranks that exchange the gradients.
        buffers: gradient of each rank, flat.
        shape: shape of the tensor.
        step: number of the step, from 0.
        ledgers: ledgers that count the bytes of each rank; empty: bytes are not counted.
        wrap_rounds: function that takes rank 0's generator of collectives, and returns a generator that yields the same
            collectives and passes their results on; used to time the code or to record the results.
    """
    rank_rounds = [rank.average(buffer, shape, step) for rank, buffer in zip(ranks, buffers, strict=True)]
    memory.run([wrap_rounds(rank_rounds[0]), *rank_rounds[1:]], ledgers)
    for rank in ranks:
        rank.commit()


def _time_rounds(rounds: Rounds, segment_seconds: list[float]) -> Rounds:
    """Run ``rounds`` and yield its collectives; measure the time of the generator's own code.

    Args:
        rounds: generator of one rank that averages a tensor.
        segment_seconds: list to which the seconds of the code before each collective, and after the last, are appended.
    """
    results: Any = None
    while True:
        segment_start = time.perf_counter()
        try:
            collectives = rounds.send(results)
        except StopIteration:
            return
        finally:
            segment_seconds.append(time.perf_counter() - segment_start)
        results = yield collectives


def _extra_bytes(contender: Contender, shape: Shape, gradients: Sequence[torch.Tensor]) -> int:
    """Return the peak of the bytes that rank 0 allocates in the second step; see ``BenchRow.extra_bytes``.

    All ranks run two steps, and the results of rank 0's collectives are recorded. Then a new rank 0 runs alone with the
    recorded results, and the second step is profiled.
    """
    world = len(gradients)
    ranks = [contender.make(rank, world) for rank in range(world)]
    recorded_results: list[list[list[Any]]] = [[], []]
    for step, results in enumerate(recorded_results):
        _run_step(
            ranks,
            [gradient.clone() for gradient in gradients],
            shape,
            step,
            wrap_rounds=partial(_record_results, recorded_results=results),
        )
    del ranks
    lone_rank = contender.make(0, world)
    buffer = gradients[0].clone()
    _replay(lone_rank.average(buffer, shape, 0), recorded_results[0])
    lone_rank.commit()
    rounds = lone_rank.average(buffer.copy_(gradients[0]), shape, 1)
    with _discard_stderr(), torch.autograd.profiler.profile(profile_memory=True) as profile:
        _replay(rounds, recorded_results[1])
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    allocated_bytes = peak_bytes = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated_bytes += event.nbytes()
        peak_bytes = max(peak_bytes, allocated_bytes)
    return peak_bytes


def _record_results(rounds: Rounds, recorded_results: list[list[Any]]) -> Rounds:
    """Run ``rounds`` and yield its collectives; append copies of their results to ``recorded_results``."""
    results: Any = None
    while True:
        try:
            collectives = rounds.send(results)
        except StopIteration:
            return
        results = yield collectives
        recorded_results.append([_copy(result) for result in results])


def _copy(result: Any) -> Any:
    return tuple(map(torch.clone, result)) if isinstance(result, tuple) else result.clone()


def _replay(rounds: Rounds, recorded_results: Sequence[list[Any]]) -> None:
    """Run a rank's generator to the end, with recorded results of its collectives."""
    next(rounds, None)
    for results in recorded_results:
        try:
            rounds.send(results)
        except StopIteration:
            return


def _squared_norm(x: torch.Tensor) -> float:
    """Return ``‖x‖²`` of a tensor, summed in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def _median_time_over_copy(times_s: Sequence[float], copy_times_s: Sequence[float]) -> float:
    return statistics.median(time / copy for time, copy in zip(times_s, copy_times_s, strict=True))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread while the block runs."""
    previous_thread_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous_thread_count)


@contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard standard error, to which PyTorch's profiler prints from C++, while the block runs."""
    saved_stderr = os.dup(2)
    devnull_descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull_descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(devnull_descriptor)
