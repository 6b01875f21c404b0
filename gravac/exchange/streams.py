# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor for collectives that run on a GPU's streams (NCCL); it has no thread of its own.

During training only ``wait_for_previous_step`` makes the host wait, for work that was queued a step ago. If that takes
long, the host checks whether another rank failed. There are three kinds of streams:

- The *main* stream runs calls: functions at the beginning and at the end of a step. A call waits for all earlier work
  on the caller's stream and on every side stream.
- *Side* streams run jobs: generators of collectives. A job waits for the main stream's last call, and for the work on
  its tensors that was queued before the job. Jobs take side streams in turn, so that one job is encoded or decoded
  while another job's collectives are in flight.
- The *agreement* stream runs the all-reduces by which ranks agree on decisions, at the same time as all other work.

Tensors that a step replaces (residuals, memories) are freed on the main stream at the end of the step, or overwritten
in place. So one stream never reuses memory that another stream still reads. The thread that runs backward starts all
collectives on the given group. Their order is therefore the same on all ranks, as NCCL requires.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from gravac.collectives import AllReduce, Collective
from gravac.exchange.device import Device, Event, Stream
from gravac.exchange.executor import Fail, Job, Number, Verdict
from gravac.exchange.failures import LOOK_SECONDS, ExchangeError, Failures
from gravac.exchange.group import GroupTransport
from gravac.guarded import GuardedCaller

FAILED_SECONDS = 5.0
"""Longest wait for the device after a failure, in seconds: its streams may wait for a rank that never answers."""

SIDE_STREAM_COUNT = 3
"""Number of streams that run jobs, in turn: one each for a job in encoding, a job in flight, and a job in decoding."""


class Interval(NamedTuple):
    """Events at the beginning and at the end of a piece of a CUDA stream's work."""

    began: Event
    ended: Event


class PendingSums(NamedTuple):
    """Sums of vectors over the ranks, which the GPU computes and copies to the host.

    Attributes:
        sums: pinned host tensors, float64, to which the sums are copied; one for each vector.
        arrival: event that the GPU reaches when all sums have been copied.
        call_number: number of the call of ``agree`` that started the sums, counted from 1.
        vectors: this rank's vectors, kept in memory because the GPU may not have read them yet.
    """

    sums: list[torch.Tensor]
    arrival: Event
    call_number: int
    vectors: Sequence[Sequence[Number]]


class StreamExecutor:
    """Runs a rank's jobs (generators of collectives) and calls (functions) on a GPU's streams; see ``Executor``.

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
    host_looks = False

    def __init__(self, transport: GroupTransport, device: Device, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self.host_waits = 0
        self._agree_transport = transport if agreement is None else agreement
        self.agree_rank, self.agree_world = self._agree_transport.rank, self._agree_transport.world
        self._device = device
        self._main_stream, self._agreement_stream = device.stream(), device.stream()
        self._side_streams = [device.stream() for _ in range(SIDE_STREAM_COUNT)]
        self._next_side_index = 0
        self._handed_over_events: list[Event] = []  # recorded when a job is queued; cleared when a job has yielded
        self._job_end_events: list[Event] = []  # recorded at the end of each job since the last call
        self._call_end_event: Event | None = None
        self._agreement_count = 0  # number of calls of ``agree`` so far
        self._previous_step_event: Event | None = None  # awaited by the next ``wait_for_previous_step``
        self._agreements_on_host = 0  # number of calls of ``agree`` whose sums are on the host
        self._coding_intervals: list[Interval] = []
        self._exchange_intervals: list[Interval] = []
        self._failure: BaseException | None = None
        transports = [transport, *([] if agreement is None else [agreement])]
        groups = [getattr(used_transport, "group", None) for used_transport in transports]
        self._failures = Failures([group for group in groups if group is not None])
        self._call_guarded = GuardedCaller()

    # time

    def mark(self) -> Event:
        """Return an event that is recorded in the current stream, after the work queued so far."""
        return self._device.record()

    def between(self, earlier: Any, later: Any) -> float:
        """Return the seconds from one event to a later one; the GPU has reached both."""
        return float(earlier.elapsed_time(later)) / 1e3

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Return a function that returns the seconds of encoding and decoding, and the seconds of exchange.

        Both count from the last call of ``spent``. See ``Executor``.
        """
        coding_intervals, self._coding_intervals = self._coding_intervals, []
        exchange_intervals, self._exchange_intervals = self._exchange_intervals, []

        def spent_seconds() -> tuple[float, float]:
            coding_s = sum(self.between(began, ended) for began, ended in coding_intervals)
            return coding_s, self._covered_seconds(exchange_intervals)

        return spent_seconds

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

    # work

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function at once; its GPU work goes to a stream for such calls, and waits for all earlier work.

        If the function raises, or earlier work failed, ``fail`` is called with the exception.
        """
        self._run_guarded(fail, lambda: self._call(function))

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job (generator of collectives) at once; its GPU work goes to one of several streams, in turn.

        There, the work waits for the last function that ``call`` ran, and for the current stream's work so far, which
        computes the job's tensors. If the job raises, or earlier work failed, ``fail`` is called with the exception.
        ``device`` and ``one_round`` have no use here.
        """
        self._run_guarded(fail, lambda: self._run_job(job))

    def launch(self, collectives: list[Collective]) -> list[Any]:
        """Start collectives on the current stream and return their results; the stream waits for them, not the host."""
        return self.transport.finish(self.transport.launch(collectives))

    def finish(self, started: list[Any]) -> list[Any]:
        """Return ``started``, the results that ``launch`` returned, unchanged.

        The stream waits for these results; the host does not wait.
        """
        return started

    def agree(self, vectors: Sequence[Sequence[Number]]) -> PendingSums:
        """Start to sum vectors over the ranks that agree on decisions, and to copy the sums to the host.

        Returns:
            Handle for ``agreed``.
        """
        caller_event = self._device.record()
        with self._on(self._agreement_stream):
            self._device.follow(caller_event)
            all_reduces = [AllReduce(self._vector_on_gpu(numbers)) for numbers in vectors]
            self._agree_transport.finish(self._agree_transport.launch([*all_reduces]))
            sums = [
                self._device.pinned(reduce.tensor).copy_(reduce.tensor, non_blocking=True) for reduce in all_reduces
            ]
            self._agreement_count += 1
            self._previous_step_event = self._device.record()
            return PendingSums(sums, self._previous_step_event, self._agreement_count, vectors)

    def agreed(self, started: PendingSums) -> list[list[float]]:
        """Return the sums that ``agree`` started, each as a list of floats.

        The host waits only if the sums were started after the last call of ``wait_for_previous_step``, as in a run that
        was restored from a checkpoint.
        """
        if started.call_number > self._agreements_on_host:
            self.host_waits += 1
            self._wait_for_event(started.arrival)
        return [vector_sum.tolist() for vector_sum in started.sums]

    def everywhere(self, finite: Verdict) -> Verdict:
        """Return whether ``finite`` (all gradients were finite) is true on every rank that agrees on decisions.

        The current stream waits for these ranks; the host does not.
        """
        if self._agree_transport is self.transport:
            return finite
        caller_event = self._device.record()
        with self._on(self._agreement_stream):
            self._device.follow(caller_event)
            sum_request = AllReduce(
                self._vector_on_gpu([finite.double() if isinstance(finite, torch.Tensor) else float(finite)])
            )
            self._agree_transport.finish(self._agree_transport.launch([sum_request]))
            sum_event = self._device.record()
        self._device.follow(sum_event)
        return sum_request.tensor[0] == self.agree_world

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return the bool scalar (0-d tensor) itself: reading its value would make the host wait for the GPU."""
        return finite

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Start to copy a bool tensor, of any shape, to pinned host memory, and return the copy.

        The host may read the copy after two calls of ``wait_for_previous_step``.
        """
        return self._device.pinned(verdicts).copy_(verdicts, non_blocking=True)

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return floats and 0-d tensors unchanged: reading a tensor's value would make the host wait for the GPU."""
        return [*numbers]

    def wait_for_previous_step(self) -> None:
        """Make the host wait for the GPU work of the step before the last. Called before each step.

        The host waits for the work that the current stream had queued at the last call of this method or of ``agree``,
        and for all sums that ``agree`` has started. The wait is short, since the GPU has had a whole step to finish.
        """
        if self._previous_step_event is not None:
            self.host_waits += 1
            self._wait_for_event(self._previous_step_event)
            self._agreements_on_host = self._agreement_count
        caller_event = self._device.record()
        with self._on(self._agreement_stream):
            self._device.follow(caller_event)
            self._previous_step_event = self._device.record()

    def order(self) -> None:
        """Make the current stream wait for all work that was queued so far; the host does not wait."""
        self.join()

    def join(self) -> None:
        """Make the current stream wait for all work that was queued on other streams; the host does not wait."""
        for event in (*self._job_end_events, *([self._call_end_event] if self._call_end_event else ())):
            self._device.follow(event)

    def drain(self, seconds: float | None = None) -> bool:
        """Make the host wait until the GPU has done all queued work; return False if ``seconds`` passed before.

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
        """Make all later work fail with an exception, and tell the other ranks.

        The GPU finishes the work that is queued already.
        """
        self._give_up(failure, no_answer=False)

    def close(self, wait: bool = True) -> None:
        """Make all later work fail; there is no thread to end.

        Args:
            wait: whether, if this rank failed, to wait for at most ``LINGER_SECONDS`` until the other ranks have read
                its error.
        """
        self._failure = self._failure or RuntimeError("the compressor is closed; make a new AdaptiveCompressor")
        if wait:
            self._failures.linger()

    # internal methods

    def _give_up(self, failure: BaseException, no_answer: bool) -> None:
        """Make all later work fail with an exception, and tell the other ranks.

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

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function with ``_main_stream`` as current stream, after the caller's stream and all earlier work."""
        caller_event = self._device.record()
        with self._on(self._main_stream):
            self._device.follow(caller_event)
            self.order()
            self._job_end_events.clear()
            function()
            self._call_end_event = self._device.record()

    def _run_job(self, job: Job) -> None:
        """Run a job (generator of collectives) with the next of ``_side_streams`` as current stream.

        The stream first waits for the last function that ``call`` ran, and for the work on the job's tensors.
        """
        self._handed_over_events.append(self._device.record())
        with self._on(self._side_streams[self._next_side_index]):
            for event in (*([self._call_end_event] if self._call_end_event else ()), *self._handed_over_events):
                self._device.follow(event)
            if self._run_to_end(job):
                self._job_end_events.append(self._device.record())
                self._handed_over_events.clear()
                self._next_side_index = (self._next_side_index + 1) % SIDE_STREAM_COUNT

    def _run_to_end(self, job: Job) -> bool:
        """Run a generator of collectives to its end; return False if it yields none.

        A generator yields none if a later generator exchanges its tensors.
        """
        began_event = self._device.record()
        try:
            requests = next(job)
        except StopIteration:
            return False
        while True:
            sent_event = self._device.record()
            self._coding_intervals.append(Interval(began_event, sent_event))
            try:
                results = self.transport.finish(self.transport.launch(requests))
            except Exception as failure:
                job.throw(failure)  # the job adds the names of the exchanged tensors
                raise
            began_event = self._device.record()
            self._exchange_intervals.append(Interval(sent_event, began_event))
            try:
                requests = job.send(results)
            except StopIteration:
                self._coding_intervals.append(Interval(began_event, self._device.record()))
                return True

    def _run_guarded(self, fail: Fail, function: Callable[[], None]) -> None:
        """Call a function; if it raises, call ``fail`` with the exception, and make all later work fail.

        After a failure, only ``fail`` is called, with that failure's exception.
        """
        try:
            if self._failure is None:
                if self._device.capturing:
                    raise RuntimeError(
                        "gravac cannot be captured into a CUDA graph: what it sends changes while training; capture "
                        "forward and backward without the exchange (no_sync), or leave DistributedDataParallel out"
                    )
                function()
                return
        except BaseException as failure:
            self._give_up(failure, no_answer=isinstance(failure, ExchangeError))
        self._call_guarded(fail, self._failure)

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        with self._device.on(stream), torch.no_grad():
            yield

    def _vector_on_gpu(self, numbers: Sequence[Number]) -> torch.Tensor:
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
