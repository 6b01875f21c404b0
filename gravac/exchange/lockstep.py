# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Simulates N ranks in one process, without threads or clocks, for tests and simulations.

Each rank queues jobs (generators of collectives) and calls (functions). When a rank waits for its queue, the jobs and
calls at the front of all ranks' queues run together, until a queue is empty. A step runs the same code as over a
network. With two ranks, its results equal the results over a network, bit for bit.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gravac.collectives import AllReduce, Collective, Ledger
from gravac.exchange import memory
from gravac.exchange.executor import Fail, Job, Number, Verdict
from gravac.guarded import GuardedCaller


class _Work(NamedTuple):
    """Entry of a rank's queue: a job (generator of collectives) or a call (function), and a function for a failure.

    Attributes:
        fail: function that is called with the exception if the job or call, or an earlier one of any rank, failed.
        job: generator of collectives; ``None`` for a call.
        call: function to call, without arguments; ``None`` for a job.
    """

    fail: Fail
    job: Job | None = None
    call: Callable[[], None] | None = None


class Lockstep:
    """N simulated ranks in one process, each with an executor, which runs the rank's collectives and functions.

    Args:
        ranks: number of ranks.
        latency: number of steps from a measurement to the decision that it leads to, see ``Executor``; 2 or more.
        host_looks: whether the host may read values of tensors within a step; False simulates a GPU's streams.
        seconds: simulated time, in seconds, that each job (generator of collectives) takes.

    Attributes:
        executors: an executor for each rank, in the order of the ranks.
        seconds: simulated time, in seconds, that each job takes.
        failure: exception of the first generator of collectives or function that failed; ``None``: none failed.

    Example:
        >>> {executor.world for executor in Lockstep(3).executors}
        {3}
    """

    def __init__(self, ranks: int, latency: int = 2, host_looks: bool = True, seconds: float = 0.0) -> None:
        self.executors = tuple(LockstepExecutor(self, rank, ranks, latency, host_looks) for rank in range(ranks))
        self.seconds = seconds
        self.failure: BaseException | None = None
        self._call_guarded = GuardedCaller()

    def run(self) -> None:
        """Run the first entries of all ranks' queues together, again and again, until a queue is empty.

        An entry is a job (generator of collectives) or a call (function). After a failure, entries are not run: the
        function ``fail`` of each is called with the exception.

        Raises:
            RuntimeError: the first entry is a call in some ranks' queues, and a job in others.
        """
        queues = [executor.queue for executor in self.executors]
        while all(queues):
            work_by_rank = [queue.popleft() for queue in queues]
            calls = [work.call for work in work_by_rank if work.call is not None]
            jobs = [work.job for work in work_by_rank if work.job is not None]
            if self.failure is None and calls and jobs:
                raise RuntimeError(
                    f"simulated ranks: {len(calls)} queued a function next, but {len(jobs)} an exchange; queue the "
                    "same work in the same order on all ranks"
                )
            if self.failure is None:
                try:
                    self._run(calls, jobs)
                except Exception as failure:
                    self.failure = failure
            if self.failure is not None:
                for work in work_by_rank:
                    self._call_guarded(work.fail, self.failure)

    def _run(self, calls: Sequence[Callable[[], None]], jobs: Sequence[Job]) -> None:
        for call in calls:
            call()
        if jobs:
            memory.run(jobs, [executor.ledger for executor in self.executors])
            for executor in self.executors:
                executor.exchange_seconds += self.seconds


class LockstepExecutor:
    """Runs collectives and functions of one simulated rank of ``Lockstep``; see ``Executor``, whose methods it has."""

    def __init__(self, lockstep: Lockstep, rank: int, world: int, latency: int, host_looks: bool) -> None:
        self.rank, self.world, self.latency = rank, world, latency
        self.agree_rank, self.agree_world = rank, world
        self.ledger = Ledger(world)
        self.exchange_seconds = 0.0
        self.queue: deque[_Work] = deque()
        self.host_looks = host_looks
        self._lockstep = lockstep
        self._seconds_at_spent = 0.0  # ``exchange_seconds`` at the last call of ``spent``
        self._started_collectives: deque[tuple[list[Collective], list[list[Any]]]] = deque()

    def mark(self) -> float:
        """Return the simulated time in seconds: the sum of the times that exchanges have taken so far."""
        return self.exchange_seconds

    def between(self, earlier: float, later: float) -> float:
        """Return the simulated seconds from one result of ``mark`` to a later one."""
        return later - earlier

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Return a function that returns ``(0.0, simulated seconds of exchange since the last call of spent)``.

        Encoding and decoding take no simulated time. See ``Executor``.
        """
        previous_seconds, self._seconds_at_spent = self._seconds_at_spent, self.exchange_seconds
        spent_seconds = (0.0, self._seconds_at_spent - previous_seconds)
        return lambda: spent_seconds

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Queue a function; ``Lockstep.run`` calls the functions that are first in the queues of all ranks.

        Args:
            function: function to call, without arguments.
            fail: function that is called with the exception if ``function``, or earlier queued work, failed.
        """
        self.queue.append(_Work(fail, call=function))

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Queue a job; ``Lockstep.run`` runs the jobs that are first in the queues of all ranks, together.

        Args:
            job: generator of collectives.
            fail: function that is called with the exception if the job, or earlier queued work, failed.
            device: not used, since simulated ranks compute on any device.
            one_round: function that returns whether the job yields only once; not used.
        """
        self.queue.append(_Work(fail, job=job))

    def launch(self, collectives: list[Collective]) -> list[Any]:
        """Start collectives; return a list to which results are added once every rank has started the collectives."""
        for collective in collectives:
            self.ledger.book(collective)
        results: list[Any] = []
        self._started_collectives.append((collectives, results))
        if all(executor._started_collectives for executor in self._lockstep.executors):
            oldest_by_rank = [executor._started_collectives.popleft() for executor in self._lockstep.executors]
            for collective_by_rank in zip(
                *(started_collectives for started_collectives, _ in oldest_by_rank), strict=True
            ):
                for (_, rank_results), result in zip(
                    oldest_by_rank, memory.results_by_rank(collective_by_rank), strict=True
                ):
                    rank_results.append(result)
        return results

    def finish(self, started: list[Any]) -> list[Any]:
        """Return the results of collectives that ``launch`` started: the same list, which must be filled by now.

        Raises:
            RuntimeError: not every rank has started the collectives yet.
        """
        if not started:
            raise RuntimeError(
                f"simulated rank {self.rank} of {self.world} waits for collectives that other ranks have not started; "
                "start the collectives on all ranks before a rank waits"
            )
        return started

    def agree(self, vectors: Sequence[Sequence[Number]]) -> list[Any]:
        """Start to sum vectors over the ranks; return a list, filled when every rank has called ``agree``."""
        tensors = [torch.tensor([*map(float, vector)], dtype=torch.float64, device="cpu") for vector in vectors]
        return self.launch([AllReduce(tensor) for tensor in tensors])

    def agreed(self, started: list[Any]) -> list[list[float]]:
        """Return the sums that ``agree`` started, each as a list of floats."""
        return [total.tolist() for total in self.finish(started)]

    def everywhere(self, finite: Verdict) -> Verdict:
        """Return ``finite`` unchanged: all simulated ranks average together, so each of them has the same verdict."""
        return finite

    def wait_for_previous_step(self) -> None:
        """Do nothing: there is no device to wait for."""

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return a bool scalar (0-d tensor) as a bool; return the tensor itself if ``host_looks`` is False."""
        return bool(finite) if self.host_looks else finite

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself, of any shape, since the tensor is in host memory already."""
        return verdicts

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return scalars (0-d tensors) as floats; the scalars themselves if ``host_looks`` is False."""
        return [float(number) for number in numbers] if self.host_looks else [*numbers]

    def order(self) -> None:
        """Run the queued work of all simulated ranks, until a rank's queue is empty."""
        self._lockstep.run()

    def join(self) -> None:
        """Do nothing: with simulated ranks, there are no streams that could have to wait."""

    def drain(self, seconds: float | None = None) -> bool:
        """Run the queued work of all simulated ranks, until a rank's queue is empty; return True.

        Args:
            seconds: not used.
        """
        self._lockstep.run()
        return True

    def abandon(self, failure: BaseException) -> None:
        """Make all later work of all simulated ranks fail with an exception, unless earlier work has failed already."""
        self._lockstep.failure = self._lockstep.failure or failure

    def close(self, wait: bool = True) -> None:
        """Run the queued work of all simulated ranks, until a rank's queue is empty; there is nothing to close.

        Args:
            wait: False: do nothing.
        """
        if wait:
            self._lockstep.run()
