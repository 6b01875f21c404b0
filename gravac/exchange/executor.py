# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of executors, which run a step's jobs in the same order on all ranks.

A job is a generator that yields rounds: lists of collectives that start together. It is resumed with their results. The
code of a training step never waits: it submits jobs, and gets futures. There are three executors: ``exchange.fifo``
runs a thread, ``exchange.streams`` uses a GPU's streams, and ``exchange.lockstep`` simulates N ranks in one process.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from gravac.collectives import AllReduce, Collective, Ledger
from gravac.exchange.reading import Finite, HostCopy, Number, Reads

T = TypeVar("T")


class Round(list[Collective]):
    """Collectives that a job yields together. A plain list is a round over the ranks that average, and not the last.

    Args:
        collectives: the collectives, in the same order on all ranks.
        last: whether the job yields no further round, so that the next job's collectives may start meanwhile.
        over_all: whether all ranks that agree on decisions take part, and not only those that average.
    """

    def __init__(self, collectives: Iterable[Collective], last: bool = False, over_all: bool = False) -> None:
        super().__init__(collectives)
        self.last, self.over_all = last, over_all


Job = Generator[list[Collective], list[Any], T]
"""Generator that yields rounds, is resumed with their results, or with a collective's exception, and returns a result.

A job that catches an exception of a collective must raise it again, or another one."""

Mark = Any
"""A moment: seconds of the host's clock, or a CUDA event, which the GPU may not have reached yet."""


class Spent(NamedTuple):
    """What a rank's timed jobs took.

    Attributes:
        payload_bytes: bytes that the jobs handed to collectives over the ranks that average.
        wire_bytes: bytes that this rank sent for these collectives.
        seconds: function that returns the seconds spent inside the jobs (encode, decode, error feedback), and the
            seconds for which their collectives were in flight; to be called once, when the jobs have ended.
    """

    payload_bytes: int
    wire_bytes: int
    seconds: Callable[[], tuple[float, float]]


class TimedBytes:
    """Counts the bytes of a rank's timed jobs.

    Args:
        ledger: totals of the bytes of all of the rank's collectives.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._payload_bytes = self._wire_bytes = 0

    @contextmanager
    def counting(self, timed: bool) -> Iterator[None]:
        """Return a context in which collectives are started; their bytes are counted if their job is ``timed``."""
        payload_bytes, wire_bytes = self._ledger.payload_bytes, self._ledger.wire_bytes
        yield
        if timed:
            self._payload_bytes += self._ledger.payload_bytes - payload_bytes
            self._wire_bytes += self._ledger.wire_bytes - wire_bytes

    def take(self) -> tuple[int, int]:
        """Return the payload bytes and wire bytes counted since the last call."""
        taken = self._payload_bytes, self._wire_bytes
        self._payload_bytes = self._wire_bytes = 0
        return taken


class Executor(Reads, Protocol):
    """Runs one rank's jobs in order, and says how numbers on the gradients' device are read (``Reads``).

    Attributes:
        rank: number of this rank among the ranks that average gradients.
        world: number of ranks that average gradients.
        agree_rank: number of this rank among the ranks that agree on decisions; rank 0 of these writes the logs.
        agree_world: number of ranks that agree on measurements and decisions. These are the ranks that average or, with
            HSDP, more ranks.
        latency: number of steps from a measurement to the decision that it leads to: the measurement of step t decides
            about step t + ``latency``; 2 or more.
        ledger: totals of the payload bytes and wire bytes of this rank's collectives.
    """

    rank: int
    world: int
    agree_rank: int
    agree_world: int
    latency: int
    ledger: Ledger

    def submit(self, job: Job[T], alone: bool = False, timed: bool = False) -> "Future[T]":
        """Queue a job, to be run after all jobs that were submitted earlier; return a future of its result.

        The job's collectives start after those of earlier jobs, which may still be in flight. If the job, or an earlier
        one, fails, the future fails with that exception, and so do the futures of all later jobs.

        Args:
            job: the job; the same on all ranks.
            alone: whether the job begins when all earlier jobs have ended, and later jobs begin when it has ended.
            timed: whether ``spent`` counts the job.
        """

    def mark(self) -> Mark:
        """Return the present moment: seconds of the host's clock, or an event in the caller's current CUDA stream."""

    def between(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds from one result of ``mark`` to a later one; called when the device has reached both."""

    def spent(self) -> Spent:
        """Return what the timed jobs since the last call of ``spent`` took; called within a job that is alone."""

    def order(self) -> None:
        """Make the caller's thread, or its current CUDA stream, wait for all jobs that were submitted so far.

        Called on all ranks at the same point.
        """

    def join(self) -> None:
        """Make the current CUDA stream wait for the GPU work of all jobs that have ended; the host does not wait."""

    def drain(self, seconds: float | None = None) -> bool:
        """Make the host wait until all jobs have ended; return False if ``seconds`` passed before.

        Args:
            seconds: longest wait, in seconds; ``None``: no limit.
        """

    def abandon(self, failure: BaseException) -> None:
        """Make all submitted and all later jobs fail with an exception, and tell the other ranks.

        May be called by any thread, and also between two steps.
        """

    def close(self, wait: bool = True) -> None:
        """End the executor when all jobs have ended, or have failed because a rank does not answer.

        Args:
            wait: False: return at once, and free threads and process groups later. May then be called by any thread.
        """


def fail(future: "Future[Any]", failure: BaseException) -> None:
    """Make a future fail with an exception, unless the future is done."""
    with suppress(InvalidStateError):
        future.set_exception(failure)


def job_of(function: Callable[[], T]) -> Job[T]:
    """Return a job that calls a function and yields no collectives."""
    yield from ()
    return function()


def sums_over_all(executor: Executor, vectors: Sequence[Sequence[Number]]) -> Job[list[HostCopy]]:
    """Sum vectors, in float64, over all ranks that agree on decisions; return the sums on their way to the host.

    Args:
        executor: executor that runs the job.
        vectors: this rank's vectors; of the same lengths on every rank. The caller keeps their tensors in memory until
            the sums have arrived, since a GPU may not have read them before.
    """
    requests = [AllReduce(executor.vector(vector)) for vector in vectors]
    sums = yield Round(requests, last=True, over_all=True)
    return [executor.to_host(total) for total in sums]


def everywhere(executor: Executor | None, finite: Finite) -> Job[Finite]:
    """Return whether numbers are finite on every rank that agrees on decisions, given those of the ranks that average.

    Args:
        executor: executor that runs the job; ``None``: the ranks that average are all ranks.
        finite: whether the numbers are finite on all ranks that average with this rank.
    """
    if executor is None or executor.agree_world == executor.world:
        return finite
    own_flag = 1.0 if finite is None else finite.double()
    (flags,) = yield Round([AllReduce(executor.vector([own_flag]))], over_all=True)
    is_finite: torch.Tensor = flags[0] == executor.agree_world
    return is_finite if finite is None else is_finite.to(finite.device)
