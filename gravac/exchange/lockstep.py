# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Simulates N ranks in one process, without threads or clocks, for tests and simulations.

Each rank queues jobs (generators of collectives). When a rank waits for its queue, the jobs at the front of all ranks'
queues run together, until a queue is empty. A step runs the same code as over a network. With two ranks, its results
equal the results over a network, bit for bit.
"""

from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NamedTuple

from gravac.collectives import Ledger
from gravac.exchange import memory
from gravac.exchange.executor import Job, Spent, T, TimedBytes, fail
from gravac.exchange.reading import ReadsAtOnce, ReadsLater


class _Submitted(NamedTuple):
    """Entry of a rank's queue: a job, the future of its result, and whether the job takes simulated time."""

    job: Job[Any]
    future: "Future[Any]"
    timed: bool


class Lockstep:
    """N simulated ranks in one process, each with an executor, which runs the rank's jobs.

    Args:
        ranks: number of ranks.
        host_looks: whether the host may read values of tensors at once, as on a CPU; False simulates a GPU's streams.
        seconds: simulated time, in seconds, that each timed job (generator of collectives) takes.

    Attributes:
        executors: an executor for each rank, in the order of the ranks.
        seconds: simulated time, in seconds, that each timed job takes.
        failure: exception of the first job that failed; ``None``: none failed.

    Example:
        >>> {executor.world for executor in Lockstep(3).executors}
        {3}
    """

    def __init__(self, ranks: int, host_looks: bool = True, seconds: float = 0.0) -> None:
        executor_class = LockstepExecutor if host_looks else MaskedLockstepExecutor
        self.executors = tuple(executor_class(self, rank, ranks) for rank in range(ranks))
        self.seconds = seconds
        self.failure: BaseException | None = None
        self._is_running = False

    def run(self) -> None:
        """Run the first jobs of all ranks' queues together, again and again, until a queue is empty.

        After a failure, jobs are not run: their futures fail with the exception. Called by a job, the method does
        nothing.
        """
        if self._is_running:
            return
        self._is_running = True
        try:
            while all(executor.queue for executor in self.executors):
                self._run([executor.queue.popleft() for executor in self.executors])
        finally:
            self._is_running = False

    def _run(self, job_by_rank: list[_Submitted]) -> None:
        """Run one job of each rank, together, and complete their futures."""
        results: list[Any] = []
        if self.failure is None:
            try:
                with ExitStack() as stack:
                    for executor, submitted in zip(self.executors, job_by_rank, strict=True):
                        stack.enter_context(executor.timed_bytes.counting(submitted.timed))
                    ledgers = [executor.ledger for executor in self.executors]
                    results = memory.run([submitted.job for submitted in job_by_rank], ledgers)
            except Exception as failure:
                self.failure = failure
        if self.failure is not None:
            for submitted in job_by_rank:
                fail(submitted.future, self.failure)
            return
        for executor, submitted, result in zip(self.executors, job_by_rank, results, strict=True):
            executor.exchange_seconds += self.seconds if submitted.timed else 0.0
            submitted.future.set_result(result)


class LockstepExecutor(ReadsAtOnce):
    """Runs jobs of one simulated rank of ``Lockstep``; see ``Executor``, whose methods it has."""

    latency = 2

    def __init__(self, lockstep: Lockstep, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.agree_rank, self.agree_world = rank, world
        self.ledger = Ledger(world)
        self.timed_bytes = TimedBytes(self.ledger)
        self.exchange_seconds = 0.0
        self.queue: deque[_Submitted] = deque()
        self._lockstep = lockstep
        self._seconds_at_spent = 0.0  # ``exchange_seconds`` at the last call of ``spent``

    def mark(self) -> float:
        """Return the simulated time in seconds: the sum of the times that timed jobs have taken so far."""
        return self.exchange_seconds

    def between(self, earlier: float, later: float) -> float:
        """Return the simulated seconds from one result of ``mark`` to a later one."""
        return later - earlier

    def spent(self) -> Spent:
        """Return the bytes and simulated seconds of timed jobs since the last call; coding takes no simulated time."""
        previous_seconds, self._seconds_at_spent = self._seconds_at_spent, self.exchange_seconds
        spent_seconds = (0.0, self._seconds_at_spent - previous_seconds)
        return Spent(*self.timed_bytes.take(), lambda: spent_seconds)

    def submit(self, job: Job[T], alone: bool = False, timed: bool = False) -> "Future[T]":
        """Queue a job; ``Lockstep.run`` runs the jobs that are first in the queues of all ranks, together."""
        submitted = _Submitted(job, Future(), timed)
        self.queue.append(submitted)
        return submitted.future

    def order(self) -> None:
        """Run the queued jobs of all simulated ranks, until a rank's queue is empty."""
        self._lockstep.run()

    def join(self) -> None:
        """Do nothing: with simulated ranks, there are no streams that could have to wait."""

    def drain(self, seconds: float | None = None) -> bool:
        """Run the queued jobs of all simulated ranks, until a rank's queue is empty; return True.

        Args:
            seconds: not used.
        """
        self._lockstep.run()
        return True

    def abandon(self, failure: BaseException) -> None:
        """Make all later jobs of all simulated ranks fail with an exception, unless an earlier job failed already."""
        self._lockstep.failure = self._lockstep.failure or failure

    def close(self, wait: bool = True) -> None:
        """Run the queued jobs of all simulated ranks, until a rank's queue is empty; there is nothing to close.

        Args:
            wait: False: do nothing.
        """
        if wait:
            self._lockstep.run()


class MaskedLockstepExecutor(ReadsLater, LockstepExecutor):
    """Runs jobs of one simulated rank as on a GPU's streams: the host reads no tensor within a step."""

    latency = 3
