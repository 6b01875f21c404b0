# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What runs a step: it starts and finishes collectives, looks at data where looking is allowed, and keeps the order.

A step never waits and never looks at data: it hands over jobs and calls, and its executor runs them, in order, the same
on all ranks. ``exchange.fifo`` does so on a thread over a process group, ``exchange.streams`` inline on a GPU's
streams, ``exchange.lockstep`` for N ranks in memory.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from gravac.collectives import Collective, Ledger

Job = Generator[list[Collective], list[Any], None]
"""Yields lists of collectives, is resumed with their results, or with what went wrong."""

T = TypeVar("T")

Returning = Generator[list[Collective], list[Any], T]
"""A job that returns something, and does not catch what went wrong."""

Fail = Callable[[BaseException], None]
"""Takes the exception that ended a job, or one before it."""

Mark = Any
"""A moment: seconds of the host's clock, or an event on a device's stream, which may not be past yet."""

Number = float | torch.Tensor
"""A number that the host knows, or a scalar (0-d tensor) that only the device does."""

Verdict = bool | torch.Tensor
"""Whether all gradients were finite: known to the host, or a 0-d bool tensor that only the device looks at."""


class Executor(Protocol):
    """Runs one rank's steps.

    Attributes:
        rank: number of this rank among those that average.
        world: number of ranks that average.
        agree_world: number of ranks that agree on measurements and decisions; the same ranks, or more.
        latency: number of steps from a measurement to the decision that it leads to: what step t showed holds from
            t + ``latency``; 2 or more.
        host_looks: whether the host looks at data within a step. If not, ``judge`` and ``numbers`` return tensors, and
            numbers of a step are read when a later one begins.
        ledger: what this rank handed to collectives so far.
    """

    rank: int
    world: int
    agree_world: int
    latency: int
    host_looks: bool
    ledger: Ledger

    def mark(self) -> Mark:
        """Return the present moment of whoever calls."""

    def between(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds between two moments, which are both past."""

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Take what jobs have done since the last call, which is told when that is past.

        Returns:
            A function, called once, that gives seconds spent inside jobs (encode, decode, feedback), and seconds in
            which their collectives were under way.
        """

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all that was handed over before it has ended."""

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job when its turn comes.

        Args:
            job: must not start before the collectives of earlier jobs have.
            fail: is told of the exception when the job, or one before it, failed. If this raises, that is reported.
            device: device that the job's tensors are on.
            one_round: asked when the job's turn comes: whether it ends with its first collectives.
        """

    def launch(self, collectives: list[Collective]) -> Any:
        """Start collectives, all of them ``AllReduce``, from within a call, and return what ``finish`` takes."""

    def finish(self, started: Any) -> list[Any]:
        """Return the results of what ``start`` started; called once, in the order of the starts.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def agree(self, vectors: Sequence[Sequence[Number]]) -> Any:
        """Start to sum vectors, in float64, over the ranks that agree; return what ``agreed`` takes."""

    def agreed(self, started: Any) -> list[list[float]]:
        """Return the sums of what ``agree`` started; called once, in the order of the starts.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def catch_up(self) -> None:
        """Wait until all that was called a step ago is past. Called before each step, unless ``host_looks``."""

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return what a bool scalar (0-d tensor) holds, or the tensor itself where the host must not look."""

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return what scalars (0-d tensors) hold; the scalars themselves, unless ``host_looks``."""

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Send a bool tensor, of any shape, on its way to the host, which does not wait; called within a job.

        Returns:
            The tensor in host memory. Unless ``host_looks``, the host reads it when the next step but one has begun.
        """

    def order(self) -> None:
        """Have what the caller does next come after all that was handed over. Called alike on all ranks."""

    def join(self) -> None:
        """Have what a job does next come after all jobs that have ended before, on whatever stream."""

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all that was handed over has ended, for at most ``seconds``; return whether it has."""

    def abandon(self, failure: BaseException) -> None:
        """Give up what was handed over, and what will be: it fails with that exception, and the other ranks are told.

        May be called by any thread, and without a step under way.
        """

    def close(self) -> None:
        """End after what was handed over; give that up, and tell those that wait for it, if a rank does not answer."""


def both(one: Verdict, other: Verdict) -> Verdict:
    """Return whether two verdicts are true; a 0-d bool tensor if only the device knows it."""
    if isinstance(one, bool):
        return other if one else False
    if isinstance(other, bool):
        return one if other else False
    return one & other


def choose(verdict: Verdict, finite: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return one of two tensors of any equal shape, by a verdict; elementwise where only the device knows it."""
    if isinstance(verdict, bool):
        return finite if verdict else otherwise
    return torch.where(verdict, finite, otherwise)
