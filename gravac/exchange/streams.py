# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor for collectives that run on a GPU's streams (NCCL); it has no thread of its own.

During training only ``catch_up`` makes the host wait, for work that was queued a step ago. If that takes long, the host
checks whether another rank failed. A job (generator of collectives) runs as soon as it is submitted, on one of two
kinds of streams:

- The *main* stream runs jobs that are alone, at the beginning and at the end of a step. Such a job waits for all
  earlier work on the caller's stream and on every side stream.
- *Side* streams run the other jobs, in turn, so that one job is encoded or decoded while another job's collectives are
  in flight. A job waits for the main stream's last job, and for the work on its tensors that was queued before the job.

Tensors that a step replaces (residuals, memories) are freed on the main stream at the end of the step, or overwritten
in place. So one stream never reuses memory that another stream still reads. The thread that runs backward starts all
collectives on the given group. Their order is therefore the same on all ranks, as NCCL requires.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, NamedTuple

import torch

from gravac.collectives import Collective
from gravac.exchange.device import Device, Event, Stream
from gravac.exchange.executor import Job, Round, Spent, T, TimedBytes, fail
from gravac.exchange.failures import LOOK_SECONDS, ExchangeError, Failures
from gravac.exchange.group import GroupTransport
from gravac.exchange.reading import HostCopy, Number, ReadsLater

FAILED_SECONDS = 5.0
"""Longest wait for the device after a failure, in seconds: its streams may wait for a rank that never answers."""

SIDE_STREAM_COUNT = 3
"""Number of streams that run jobs, in turn: one each for a job in encoding, a job in flight, and a job in decoding."""


class Interval(NamedTuple):
    """Events at the beginning and at the end of a piece of a CUDA stream's work."""

    began: Event
    ended: Event


class PinnedCopy:
    """A copy of a tensor on its way to pinned host memory; see ``HostCopy``.

    Args:
        executor: executor that made the copy.
        tensor: the copy.
    """

    def __init__(self, executor: "StreamExecutor", tensor: torch.Tensor) -> None:
        self._executor, self._tensor = executor, tensor
        self._arrival = executor.mark()

    def read(self) -> list[float]:
        """Return the numbers.

        The host waits only if the copy has not arrived yet, as in a run that was restored from a checkpoint.
        """
        self._executor.wait_for_copy(self._arrival)
        return list(self._tensor.tolist())


class StreamExecutor(ReadsLater):
    """Runs a rank's jobs (generators of collectives) on a GPU's streams; see ``Executor``.

    Args:
        transport: runs collectives over the ranks that average gradients; its ``finish`` must make only the current
            stream wait, not the host.
        device: streams and events of the gradients' GPU.
        agreement: runs collectives over the ranks that agree on measurements and decisions; ``None``: these are the
            ranks that average.

    Attributes:
        transport: runs collectives over the ranks that average gradients.
        ledger: totals of the payload bytes and wire bytes of collectives over the ranks that average.
        host_waits: number of times that the host waited for the GPU.
    """

    latency = 3

    def __init__(self, transport: GroupTransport, device: Device, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self.host_waits = 0
        self._agree_transport = transport if agreement is None else agreement
        self.agree_rank, self.agree_world = self._agree_transport.rank, self._agree_transport.world
        self._device = device
        self._main_stream = device.stream()
        self._side_streams = [device.stream() for _ in range(SIDE_STREAM_COUNT)]
        self._next_side_index = 0
        self._submitted_events: list[Event] = []  # recorded when a job is submitted; cleared when a job has yielded
        self._job_end_events: list[Event] = []  # recorded at the end of each job since the last one that was alone
        self._alone_end_event: Event | None = None
        self._awaited_event: Event | None = None  # awaited by the next ``catch_up``
        self._timed_bytes = TimedBytes(self.ledger)
        self._coding_intervals: list[Interval] = []
        self._exchange_intervals: list[Interval] = []
        self._failure: BaseException | None = None
        transports = [transport, *([] if agreement is None else [agreement])]
        groups = [getattr(used_transport, "group", None) for used_transport in transports]
        self._failures = Failures([group for group in groups if group is not None])

    # time

    def mark(self) -> Event:
        """Return an event that is recorded in the current stream, after the work queued so far."""
        return self._device.record()

    def between(self, earlier: Any, later: Any) -> float:
        """Return the seconds from one event to a later one; the GPU has reached both."""
        return float(earlier.elapsed_time(later)) / 1e3

    def spent(self) -> Spent:
        """Return the bytes and seconds of timed jobs since the last call of ``spent``."""
        coding_intervals, self._coding_intervals = self._coding_intervals, []
        exchange_intervals, self._exchange_intervals = self._exchange_intervals, []

        def spent_seconds() -> tuple[float, float]:
            coding_s = sum(self.between(began, ended) for began, ended in coding_intervals)
            return coding_s, self._covered_seconds(exchange_intervals)

        return Spent(*self._timed_bytes.take(), spent_seconds)

    def _covered_seconds(self, intervals: Sequence[Interval]) -> float:
        """Return the seconds that the intervals cover together; overlapping intervals count once."""
        if not intervals:
            return 0.0
        origin_event = intervals[0].began
        begins_and_ends_s = sorted(
            (self.between(origin_event, began), self.between(origin_event, ended)) for began, ended in intervals
        )
        covered_s, covered_until_s = 0.0, begins_and_ends_s[0][0]
        for began, ended in begins_and_ends_s:
            covered_s += max(0.0, ended - max(began, covered_until_s))
            covered_until_s = max(covered_until_s, ended)
        return covered_s

    # numbers

    def vector(self, numbers: Sequence[Number]) -> torch.Tensor:
        """Return floats and 0-d tensors, in order, as one flat float64 tensor on the GPU, ``[len(numbers)]``."""
        vectors = []
        for are_tensors, same_kind_numbers in groupby(numbers, key=lambda number: isinstance(number, torch.Tensor)):
            if are_tensors:
                vectors.append(torch.stack([n.double() for n in same_kind_numbers if isinstance(n, torch.Tensor)]))
            else:
                host_numbers = torch.tensor([*same_kind_numbers], dtype=torch.float64, device="cpu")
                vectors.append(
                    self._device.pinned(host_numbers).copy_(host_numbers).to(self._device.device, non_blocking=True)
                )
        return torch.cat(vectors)

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Start to copy a tensor to pinned host memory."""
        return PinnedCopy(self, self._device.pinned(tensor).copy_(tensor, non_blocking=True))

    def catch_up(self) -> None:
        """Make the host wait for the GPU work of the step before the last.

        The host waits for the work that had been queued at the last call of this method, or at the end of a later job
        over all ranks. The wait is short, since the GPU has had a whole step to finish.
        """
        if self._awaited_event is not None:
            self.host_waits += 1
            self._wait_for_event(self._awaited_event)
        self._await_next()

    def wait_for_copy(self, arrival: Event) -> None:
        """Make the host wait until a copy has arrived.

        Args:
            arrival: event that the GPU reaches when the copy has arrived.
        """
        if not arrival.query():
            self.host_waits += 1
            self._wait_for_event(arrival)

    def _await_next(self) -> None:
        """Let the next ``catch_up`` wait for the work that is queued on the current stream."""
        self._awaited_event = self._device.record()

    # jobs

    def submit(self, job: Job[T], alone: bool = False, timed: bool = False) -> "Future[T]":
        """Run a job at once; its GPU work goes to the main stream if the job is alone, otherwise to a side stream.

        There, the work waits for the current stream's work so far, which computes the job's tensors. See ``Executor``.
        """
        future: Future[T] = Future()
        try:
            if self._failure is None:
                if self._device.capturing:
                    raise RuntimeError(
                        "gravac cannot be captured into a CUDA graph: what it sends changes while training; capture "
                        "forward and backward without the exchange (no_sync), or leave DistributedDataParallel out"
                    )
                future.set_result(self._run_alone(job, timed) if alone else self._run_beside_others(job, timed))
                return future
        except BaseException as failure:
            self._give_up(failure, no_answer=isinstance(failure, ExchangeError))
        assert self._failure is not None
        fail(future, self._failure)
        return future

    def order(self) -> None:
        """Make the current stream wait for all jobs that were submitted so far; the host does not wait."""
        self.join()

    def join(self) -> None:
        """Make the current stream wait for all work that was queued on other streams; the host does not wait."""
        for event in (*self._job_end_events, *([self._alone_end_event] if self._alone_end_event else ())):
            self._device.follow(event)

    def drain(self, seconds: float | None = None) -> bool:
        """Make the host wait until the GPU has done all jobs; return False if ``seconds`` passed before.

        After a failure, the host waits for at most ``FAILED_SECONDS``.

        Args:
            seconds: longest wait, in seconds; ``None``: no limit.

        Raises:
            ExchangeError: another rank failed.
        """
        with self._on(self._main_stream):
            self.order()
            end_event = self._device.record()
        self.host_waits += 1
        if self._failure is not None:
            seconds = min(FAILED_SECONDS, math.inf if seconds is None else seconds)
        return self._wait_for_event(end_event, seconds)

    def abandon(self, failure: BaseException) -> None:
        """Make all later jobs fail with an exception, and tell the other ranks.

        The GPU finishes the work that is queued already.
        """
        self._give_up(failure, no_answer=False)

    def close(self, wait: bool = True) -> None:
        """Make all later jobs fail; there is no thread to end.

        Args:
            wait: whether, if this rank failed, to wait for at most ``LINGER_SECONDS`` until the other ranks have read
                its error.
        """
        self._failure = self._failure or RuntimeError("the compressor is closed; make a new AdaptiveCompressor")
        if wait:
            self._failures.linger()

    # internal methods

    def _give_up(self, failure: BaseException, no_answer: bool) -> None:
        """Make all later jobs fail with an exception, and tell the other ranks.

        Args:
            failure: the exception.
            no_answer: whether this rank failed only because another rank did not answer.
        """
        if self._failure is None:
            self._failure = failure
            self._failures.report(failure, no_answer)

    def _wait_for_event(self, event: Event, seconds: float | None = None) -> bool:
        """Make the host wait until the GPU reaches an event; return False if ``seconds`` passed before.

        Args:
            event: event to wait for.
            seconds: longest wait, in seconds; ``None``: no limit.

        Raises:
            ExchangeError: another rank failed.
        """
        began_s = looked_s = time.monotonic()
        pause_s = 5e-5
        while not event.query():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1e-3)
            now_s = time.monotonic()
            if seconds is not None and now_s - began_s > seconds:
                return False
            if now_s - looked_s > LOOK_SECONDS and self._failure is None:
                looked_s = now_s
                if (failure_text := self._failures.look()) is not None:
                    raise ExchangeError(f"rank {self.rank} of {self.world} got no answer: {failure_text}")
        event.synchronize()  # returns at once; tools that record the host's waits see this call
        return True

    def _run_alone(self, job: Job[T], timed: bool) -> T:
        """Run a job on the main stream, after the caller's stream and all earlier work; return the job's result."""
        caller_event = self._device.record()
        with self._on(self._main_stream):
            self._device.follow(caller_event)
            self.order()
            self._job_end_events.clear()
            result, _ = self._run_to_end(job, timed)
            self._alone_end_event = self._device.record()
            return result

    def _run_beside_others(self, job: Job[T], timed: bool) -> T:
        """Run a job on the next side stream, after the last job that was alone; return the job's result.

        The stream first waits for the work on the job's tensors. A job that yields nothing leaves its tensors to a
        later job.
        """
        self._submitted_events.append(self._device.record())
        with self._on(self._side_streams[self._next_side_index]):
            for event in (*([self._alone_end_event] if self._alone_end_event else ()), *self._submitted_events):
                self._device.follow(event)
            result, has_yielded = self._run_to_end(job, timed)
            if has_yielded:
                self._job_end_events.append(self._device.record())
                self._submitted_events.clear()
                self._next_side_index = (self._next_side_index + 1) % SIDE_STREAM_COUNT
            return result

    def _run_to_end(self, job: Job[T], timed: bool) -> tuple[T, bool]:
        """Run a job to its end on the current stream; return its result, and whether it yielded any collectives."""
        began_event = self._device.record()
        has_yielded = sums_to_host = False
        resume: Callable[[], list[Collective]] = job.__next__
        while True:
            try:
                requests = resume()
            except StopIteration as end:
                if timed and has_yielded:
                    self._coding_intervals.append(Interval(began_event, self._device.record()))
                if sums_to_host:
                    self._await_next()
                return end.value, has_yielded
            is_over_all = isinstance(requests, Round) and requests.over_all
            sums_to_host, has_yielded = isinstance(requests, Round) and requests.over_all and requests.last, True
            sent_event = self._device.record()
            transport = self._agree_transport if is_over_all else self.transport
            try:
                with self._timed_bytes.counting(timed):
                    pending = transport.launch([*requests])
                results = transport.finish(pending)
            except Exception as failure:
                job.throw(failure)  # the job adds the names of the exchanged tensors
                raise
            if timed:
                self._coding_intervals.append(Interval(began_event, sent_event))
            began_event = self._device.record()
            if timed:
                self._exchange_intervals.append(Interval(sent_event, began_event))
            resume = _send(job, results)

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        with self._device.on(stream), torch.no_grad():
            yield


def _send(job: Job[Any], results: list[Any]) -> Callable[[], list[Collective]]:
    """Return a function that resumes a job with results."""
    return lambda: job.send(results)
