# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor of collectives that are ordered by streams (NCCL): inline in whoever hands work over, without a thread.

Nothing here makes the host wait but ``catch_up``, for what the device was given a step ago. If that takes long, the
host looks whether another rank failed. Streams, and who waits for whom:

- the *main* stream runs what is called (the beginning of a step, its end): after all that was handed over before, on
  the caller's stream and on every side stream;
- a *side* stream runs a job: after the main stream's last call, and after the moment at which its tensors were handed
  over. Jobs take side streams in turn, so that one is coded while another's collectives travel;
- the *aside* stream runs what ranks agree on, beside all that.

Whatever a step puts in another's place (residuals, memories) is let go of at its end, on the main stream, or
overwritten where it lies, so that no memory is given to a stream while another one still reads it. Collectives are
started by the thread that runs backward, in its order, on the group that they are given: which is the order that NCCL
asks for, and the same on all ranks.
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
from gravac.guarded import Guarded

FAILED_SECONDS = 5.0
"""Longest wait for the device after a failure: its streams may wait for a rank that never answers."""

SIDES = 3
"""Number of side streams: one that is coded, one that travels, one that is decoded."""


class Stretch(NamedTuple):
    """A stretch of a stream's work, between two moments."""

    began: Event
    ended: Event


class Agreeing(NamedTuple):
    """Sums under way to the host.

    Attributes:
        sums: pinned vectors that will hold them.
        there: when they do.
        number: how many were sent on their way before.
        given: what the sums were made of; the device may not have read it yet.
    """

    sums: list[torch.Tensor]
    there: Event
    number: int
    given: Sequence[Sequence[Number]]


class StreamExecutor:
    """Runs a rank's steps on an accelerator's streams; see ``Executor``.

    Args:
        transport: what exchanges over the ranks that average; waiting for its collectives makes a stream wait, and not
            the host.
        device: where the gradients lie.
        agreement: what exchanges over the ranks that agree on measurements and decisions; ``None``: the same.

    Attributes:
        ledger: what was handed to the transport; an agreement over other ranks is not in it.
        host_waits: number of times that the host waited for the device, by ``catch_up`` and by ``drain``.
    """

    latency = 3
    host_looks = False

    def __init__(self, transport: GroupTransport, device: Device, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self.host_waits = 0
        self._agreement = transport if agreement is None else agreement
        self.agree_world = self._agreement.world
        self._device = device
        self._main, self._aside = device.stream(), device.stream()
        self._sides = [device.stream() for _ in range(SIDES)]
        self._turn = 0
        self._handed_over: list[Event] = []
        self._tails: list[Event] = []
        self._called: Event | None = None
        self._sent = 0
        self._past: Event | None = None
        self._reached = 0
        self._coded: list[Stretch] = []
        self._travelled: list[Stretch] = []
        self._failure: BaseException | None = None
        transports = [transport, *([] if agreement is None else [agreement])]
        groups = [getattr(one, "group", None) for one in transports]
        self._failures = Failures([group for group in groups if group is not None])
        self._guarded = Guarded()

    # time

    def mark(self) -> Event:
        """Return this moment of the present stream."""
        return self._device.record()

    def between(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two moments; both are past."""
        return float(earlier.elapsed_time(later)) / 1e3

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Take what jobs did since the last call; see ``Executor``."""
        coded, self._coded = self._coded, []
        travelled, self._travelled = self._travelled, []

        def seconds() -> tuple[float, float]:
            return sum(self.between(*span) for span in coded), self._covered(travelled)

        return seconds

    def _covered(self, spans: Sequence[Stretch]) -> float:
        """Seconds that some spans cover together."""
        if not spans:
            return 0.0
        since = spans[0].began
        offsets = sorted((self.between(since, began), self.between(since, ended)) for began, ended in spans)
        covered, until = 0.0, offsets[0][0]
        for began, ended in offsets:
            covered += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return covered

    # work

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function on the main stream, after all that was handed over before."""
        self._try(fail, lambda: self._call(function))

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job on the next side stream."""
        self._try(fail, lambda: self._run(job))

    def launch(self, collectives: list[Collective]) -> list[Any]:
        """Start collectives, on the present stream, which waits for them."""
        return self.transport.finish(self.transport.launch(collectives))

    def finish(self, started: list[Any]) -> list[Any]:
        """Return their results."""
        return started

    def agree(self, vectors: Sequence[Sequence[Number]]) -> Agreeing:
        """Sum vectors of numbers over the ranks that agree, and send the sums on their way to the host."""
        called = self._device.record()
        with self._on(self._aside):
            self._device.follow(called)
            sums = [AllReduce(self._vector(numbers)) for numbers in vectors]
            self._agreement.finish(self._agreement.launch([*sums]))
            here = [self._device.pinned(one.tensor).copy_(one.tensor, non_blocking=True) for one in sums]
            self._sent += 1
            self._past = self._device.record()
            return Agreeing(here, self._past, self._sent, vectors)

    def agreed(self, started: Agreeing) -> list[list[float]]:
        """Return the sums; the host waits where they were not sent a step ago, but now (a run that was taken up)."""
        if started.number > self._reached:
            self.host_waits += 1
            self._wait(started.there)
        return [vector.tolist() for vector in started.sums]

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return the scalar (0-d tensor) itself: the host must not look."""
        return finite

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Copy a bool tensor, any shape, to pinned memory; the host may read it after the next ``catch_up`` but one."""
        return self._device.pinned(verdicts).copy_(verdicts, non_blocking=True)

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return the scalars (0-d tensors) themselves: the host must not look."""
        return [*numbers]

    def catch_up(self) -> None:
        """Wait for what was handed over before the last such call, and what ``agree`` sent since: the host waits once.

        Streams have come that far while the step between was computed.
        """
        if self._past is not None:
            self.host_waits += 1
            self._wait(self._past)
            self._reached = self._sent
        here = self._device.record()
        with self._on(self._aside):
            self._device.follow(here)
            self._past = self._device.record()

    def order(self) -> None:
        """Have the present stream wait for all that was handed over; the host does not."""
        self.join()

    def join(self) -> None:
        """Have the present stream wait for all that has been given to the others; the host does not."""
        for event in (*self._tails, *([self._called] if self._called else ())):
            self._device.follow(event)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until the device has done all that was handed over, for at most ``seconds``; return whether it has.

        After a failure, for at most ``FAILED_SECONDS``.

        Raises:
            ExchangeError: another rank failed.
        """
        with self._on(self._main):
            self.order()
            end = self._device.record()
        self.host_waits += 1
        if self._failure is not None:
            seconds = min(FAILED_SECONDS, math.inf if seconds is None else seconds)
        return self._wait(end, seconds)

    def abandon(self, failure: BaseException) -> None:
        """Refuse what is handed over from now on, and tell the other ranks; the device goes on with what it has."""
        if self._failure is None:
            self._failure = failure
            self._failures.tell(failure)

    def close(self) -> None:
        """Refuse what is handed over from now on; no thread has to end."""
        self._failure = self._failure or RuntimeError("the compressor is closed: make a new one")
        self._failures.linger()

    # within

    def _wait(self, event: Event, seconds: float | None = None) -> bool:
        """Wait for a moment, for at most ``seconds``; return whether it is past.

        Raises:
            ExchangeError: another rank failed.
        """
        began = looked = time.monotonic()
        pause = 5e-5
        while not event.query():
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
            now = time.monotonic()
            if seconds is not None and now - began > seconds:
                return False
            if now - looked > LOOK_SECONDS and self._failure is None:
                looked = now
                if (said := self._failures.look()) is not None:
                    raise ExchangeError(f"rank {self.rank} of {self.world} got no answer: {said}")
        event.synchronize()  # at once; and tools that watch what the host waits for see it
        return True

    def _call(self, function: Callable[[], None]) -> None:
        here = self._device.record()
        with self._on(self._main):
            self._device.follow(here)
            self.order()
            self._tails.clear()
            function()
            self._called = self._device.record()

    def _run(self, job: Job) -> None:
        self._handed_over.append(self._device.record())
        with self._on(self._sides[self._turn]):
            for event in (*([self._called] if self._called else ()), *self._handed_over):
                self._device.follow(event)
            if self._drive(job):
                self._tails.append(self._device.record())
                self._handed_over.clear()
                self._turn = (self._turn + 1) % SIDES

    def _drive(self, job: Job) -> bool:
        """Run a job to its end; False where it asked for nothing, since it waits for the next one."""
        began = self._device.record()
        try:
            asked = next(job)
        except StopIteration:
            return False
        while True:
            sent = self._device.record()
            self._coded.append(Stretch(began, sent))
            try:
                answers = self.transport.finish(self.transport.launch(asked))
            except Exception as failure:
                job.throw(failure)  # which says what was exchanged
                raise
            began = self._device.record()
            self._travelled.append(Stretch(sent, began))
            try:
                asked = job.send(answers)
            except StopIteration:
                self._coded.append(Stretch(began, self._device.record()))
                return True

    def _try(self, fail: Fail, function: Callable[[], None]) -> None:
        """Call; on an exception remember it, tell whoever waits, and let everything after fail with it."""
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
            self.abandon(failure)
        self._guarded(fail, self._failure)

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        with self._device.on(stream), torch.no_grad():
            yield

    def _vector(self, numbers: Sequence[Number]) -> torch.Tensor:
        """Return numbers, some known to the host and some to the device, as a vector there: float64, flat."""
        parts = []
        for on_device, run in groupby(numbers, key=lambda number: isinstance(number, torch.Tensor)):
            if on_device:
                parts.append(torch.stack([torch.as_tensor(number).double() for number in run]))
            else:
                here = torch.tensor([*run], dtype=torch.float64)
                parts.append(self._device.pinned(here).copy_(here).to(self._device.device, non_blocking=True))
        return torch.cat(parts)
