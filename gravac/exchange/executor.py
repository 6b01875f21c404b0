# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of executors, which run a step's collectives and functions in the same order on all ranks.

The code of a step never waits, and never looks at tensors' numbers. It hands jobs (generators of collectives) and calls
(functions) to an executor, which runs them in order. The executor of ``exchange.fifo`` is a thread over a process
group; that of ``exchange.streams`` uses a GPU's streams; ``exchange.lockstep`` simulates N ranks in one process.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from gravac.collectives import Collective, Ledger

Job = Generator[list[Collective], list[Any], None]
"""Generator that yields lists of collectives, and is resumed with their results, or with a collective's exception."""

T = TypeVar("T")

Returning = Generator[list[Collective], list[Any], T]
"""A job that returns a result, and does not catch exceptions of collectives."""

Fail = Callable[[BaseException], None]
"""Function that is called with the exception because of which a job failed: its own, or that of an earlier job."""

Mark = Any
"""A moment: seconds of the host's clock, or an event that a device's stream may not have reached yet."""

Number = float | torch.Tensor
"""A number that the host knows, or a scalar (0-d tensor) that only the device knows."""

Verdict = bool | torch.Tensor
"""Whether all gradients were finite: known to the host, or a 0-d bool tensor that only the device reads."""


class Executor(Protocol):
    """Runs one rank's jobs (generators of collectives) and calls (functions), in order.

    Attributes:
        rank: number of this rank among those that average.
        world: number of ranks that average.
        agree_rank: number of this rank among those that agree; 0 writes the logs.
        agree_world: number of ranks that agree on measurements and decisions; the same ranks, or more.
        latency: number of steps from a measurement to the decision that it leads to: the measurement of step t decides
            about step t + ``latency``; 2 or more.
        host_looks: whether the host may look at tensors' numbers within a step. If not, ``judge`` and ``numbers``
            return tensors, and numbers of a step are read when a later step begins.
        ledger: totals of the bytes that this rank handed to collectives, and sent.
    """

    rank: int
    world: int
    agree_rank: int
    agree_world: int
    latency: int
    host_looks: bool
    ledger: Ledger

    def mark(self) -> Mark:
        """Return the present moment of the caller: the time, or an event of its stream."""

    def between(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds from one moment to another; both have passed."""

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Return a function that returns the seconds of jobs' coding and exchange since the last call of ``spent``.

        Returns:
            A function, to be called once, when these jobs have ended. It returns the seconds spent inside jobs (encode,
            decode, error feedback), and the seconds for which the jobs' collectives were in flight.
        """

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all jobs and calls that were handed over earlier have ended."""

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job after all earlier jobs and calls.

        Args:
            job: generator of collectives, which start after those of earlier jobs.
            fail: function that is called with the exception if the job, or an earlier job, failed. An exception of
                ``fail`` itself is reported as a warning.
            device: device of the job's tensors.
            one_round: function that returns whether the job yields only once; called when the job is run.
        """

    def launch(self, collectives: list[Collective]) -> Any:
        """Start all-reduces, from within a function that ``call`` runs; return a handle that ``finish`` takes."""

    def finish(self, started: Any) -> list[Any]:
        """Wait for collectives that ``launch`` started, and return their results, in order.

        Called once for each call of ``launch``, in the same order.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def agree(self, vectors: Sequence[Sequence[Number]]) -> Any:
        """Start to sum vectors, in float64, over the ranks that agree on decisions; return a handle for ``agreed``."""

    def agreed(self, started: Any) -> list[list[float]]:
        """Wait for the sums that ``agree`` started, and return the sums as lists.

        Called once for each call of ``agree``, in the same order.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def everywhere(self, finite: Verdict) -> Verdict:
        """Return whether a verdict (all gradients were finite) is true on all ranks that agree on decisions.

        Each of these ranks calls the method when a step ends.
        """

    def wait_for_previous_step(self) -> None:
        """Make the host wait until the device has run the previous step's calls; called before each step.

        Not called if ``host_looks`` is True: the host then reads the step's tensors, and so waits for them anyway.
        """

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return a bool scalar (0-d tensor) as a bool; the tensor itself if the host must not look at it."""

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return scalars (0-d tensors) as floats; the scalars themselves if the host must not look at them."""

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Start to copy a bool tensor, of any shape, to the host, which does not wait; called within a job.

        Returns:
            The tensor in host memory. Its elements arrive at once if ``host_looks`` is True, otherwise when the next
            step but one begins.
        """

    def order(self) -> None:
        """Make later work of the caller's thread or stream wait for all jobs and calls handed over so far.

        Called on all ranks at the same point.
        """

    def join(self) -> None:
        """Make later work on the calling job's stream wait for the work of all jobs that have ended, on any stream."""

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all jobs and calls handed over have ended, for at most ``seconds``; return whether they have."""

    def abandon(self, failure: BaseException) -> None:
        """Fail all present and later jobs and calls with an exception, and tell the other ranks.

        May be called by any thread, and also between two steps.
        """

    def close(self) -> None:
        """End the executor after all jobs and calls; if a rank does not answer, make those that have not ended fail."""


def both(first: Verdict, second: Verdict) -> Verdict:
    """Return whether two verdicts are both true: a bool, or a 0-d bool tensor if only the device knows."""
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return first & second


def choose(verdict: Verdict, finite: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return one of two tensors of the same shape: ``finite`` if all gradients were finite, else ``otherwise``.

    A new tensor is returned if only the device knows whether all gradients were finite (``verdict``).
    """
    if isinstance(verdict, bool):
        return finite if verdict else otherwise
    return torch.where(verdict, finite, otherwise)
