# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""N ranks in one process, without threads or clocks: what they hand over is run in lock step, when somebody waits.

For tests, simulation and sweeps: the same steps as over a network; between two ranks the same bits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gravac.collectives import AllReduce, Collective, Ledger
from gravac.exchange import memory
from gravac.exchange.executor import Fail, Job, Number, Verdict
from gravac.guarded import Guarded


class _Item(NamedTuple):
    fail: Fail
    job: Job | None = None
    call: Callable[[], None] | None = None


class Lockstep:
    """The ranks' executors, and what they share.

    Args:
        ranks: number of ranks.
        latency: number of steps from a measurement to its decision, see ``Executor``.
        host_looks: whether the host looks at data within a step; if not, verdicts are masks, as on a device.
        seconds: what each step takes: added to the clock with each round of collectives.

    Example:
        >>> {executor.world for executor in Lockstep(3).executors}
        {3}
    """

    def __init__(self, ranks: int, latency: int = 2, host_looks: bool = True, seconds: float = 0.0) -> None:
        self.executors = tuple(LockstepExecutor(self, rank, ranks, latency, host_looks) for rank in range(ranks))
        self.seconds = seconds
        self.failure: BaseException | None = None
        self._guarded = Guarded()

    def run(self) -> None:
        """Run what all ranks have handed over.

        Raises:
            RuntimeError: ranks handed over different things.
        """
        queues = [executor.queue for executor in self.executors]
        while all(queues):
            items = [queue.popleft() for queue in queues]
            calls = [item.call for item in items if item.call is not None]
            jobs = [item.job for item in items if item.job is not None]
            if self.failure is None and calls and jobs:
                raise RuntimeError("ranks handed over different things: a call on some, a job on others")
            if self.failure is None:
                try:
                    self._run(calls, jobs)
                except Exception as failure:
                    self.failure = failure
            if self.failure is not None:
                for item in items:
                    self._guarded(item.fail, self.failure)

    def _run(self, calls: Sequence[Callable[[], None]], jobs: Sequence[Job]) -> None:
        for call in calls:
            call()
        if jobs:
            memory.run(jobs, [executor.ledger for executor in self.executors])
            for executor in self.executors:
                executor.exchange_seconds += self.seconds


class LockstepExecutor:
    """One rank of ``Lockstep``; see ``Executor``."""

    def __init__(self, ranks: Lockstep, rank: int, world: int, latency: int, host_looks: bool) -> None:
        self.rank, self.world, self.agree_world, self.latency = rank, world, world, latency
        self.ledger = Ledger(world)
        self.exchange_seconds = 0.0
        self.queue: deque[_Item] = deque()
        self.host_looks = host_looks
        self._ranks = ranks
        self._told = 0.0
        self._started: deque[tuple[list[Collective], list[list[Any]]]] = deque()

    def mark(self) -> float:
        """Return the seconds that collectives took so far."""
        return self.exchange_seconds

    def between(self, earlier: float, later: float) -> float:
        """Return the seconds between two moments."""
        return later - earlier

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Take the seconds that collectives took since the last call; coding takes none."""
        since, self._told = self._told, self.exchange_seconds
        return lambda: (0.0, self._told - since)

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Queue a function."""
        self.queue.append(_Item(fail, call=function))

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Queue a job."""
        self.queue.append(_Item(fail, job=job))

    def launch(self, collectives: list[Collective]) -> list[Any]:
        """Hand collectives over; the results are there once every rank has."""
        for collective in collectives:
            self.ledger.book(collective)
        results: list[Any] = []
        self._started.append((collectives, results))
        if all(executor._started for executor in self._ranks.executors):
            asked = [executor._started.popleft() for executor in self._ranks.executors]
            for together in zip(*(collectives for collectives, _ in asked), strict=True):
                for (_, results_of_one), answer in zip(asked, memory.answers(together), strict=True):
                    results_of_one.append(answer)
        return results

    def finish(self, started: list[Any]) -> list[Any]:
        """Return the results.

        Raises:
            RuntimeError: not every rank has started them yet.
        """
        if not started:
            raise RuntimeError("collectives are finished in lock step before all ranks have started them")
        return started

    def agree(self, vectors: Sequence[Sequence[Number]]) -> list[Any]:
        """Hand vectors over, like ``launch``."""
        return self.launch([AllReduce(torch.tensor([*map(float, vector)], dtype=torch.float64)) for vector in vectors])

    def agreed(self, started: list[Any]) -> list[list[float]]:
        """Return their sums."""
        return [total.tolist() for total in self.finish(started)]

    def catch_up(self) -> None:
        """Everything that was called is past."""

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Look at a bool scalar (0-d tensor), unless this stands in for where one must not."""
        return bool(finite) if self.host_looks else finite

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Return the tensor, any shape: it is in host memory."""
        return verdicts

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return what scalars (0-d tensors) hold, unless this stands in for a device."""
        return [float(number) for number in numbers] if self.host_looks else [*numbers]

    def order(self) -> None:
        """Run what all ranks have handed over."""
        self._ranks.run()

    def join(self) -> None:
        """Jobs end one after the other."""

    def drain(self, seconds: float | None = None) -> bool:
        """Run what all ranks have handed over; what some have is no reason to wait."""
        self._ranks.run()
        return True

    def abandon(self, failure: BaseException) -> None:
        """Have what any rank hands over fail."""
        self._ranks.failure = self._ranks.failure or failure

    def close(self) -> None:
        """Run what all ranks have handed over."""
        self._ranks.run()
