# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What runs a step: it starts and finishes collectives, looks at data where looking is allowed, and keeps the order.

A step never waits and never looks at data: it hands over jobs and calls, and its executor runs them, in order, the same
on all ranks. ``exchange.fifo`` does so on a thread over a process group, ``exchange.lockstep`` for N ranks in memory.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import torch

from gravac.collectives import Collective, Ledger

Job = Generator[list[Collective], list[Any], None]
"""Yields lists of collectives, is resumed with their results, or with what went wrong."""

Fail = Callable[[BaseException], None]
"""Takes the exception that ended a job, or one before it."""

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
        masked: whether ``judge`` gives tensors, because the host must not look at data.
        ledger: what this rank handed to collectives so far.
        compress_seconds: seconds spent inside jobs (encode, decode, feedback), since the start.
        exchange_seconds: seconds in which collectives were under way, since the start.
    """

    rank: int
    world: int
    agree_world: int
    latency: int
    masked: bool
    ledger: Ledger
    compress_seconds: float
    exchange_seconds: float

    def now(self) -> float:
        """Return the time in seconds, since whenever."""

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all that was handed over before it has ended."""

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job when its turn comes.

        Args:
            job: must not start before the collectives of earlier jobs have.
            fail: is told of the exception when the job, or one before it, failed.
            device: device that the job's tensors are on.
            one_round: asked when the job's turn comes: whether it ends with its first collectives.
        """

    def start(self, collectives: list[Collective], agreement: bool = False) -> Any:
        """Start collectives from within a call, and return what ``finish`` takes.

        Args:
            collectives: all of them ``AllReduce``.
            agreement: whether the ranks that agree take part, and not those that average.
        """

    def finish(self, started: Any) -> list[Any]:
        """Return the results of what ``start`` started; called once, in the order of the starts.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return what a bool scalar (0-d tensor) holds, or the tensor itself where the host must not look."""

    def read(self, numbers: Sequence[torch.Tensor]) -> list[float]:
        """Return what scalars (0-d tensors) hold."""

    def drain(self, seconds: float | None = None) -> None:
        """Return when all that was handed over has ended, or after ``seconds``."""

    def close(self) -> None:
        """End after what was handed over."""


def choose(verdict: Verdict, finite: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return one of two tensors of any equal shape, by a verdict; elementwise where only the device knows it."""
    if isinstance(verdict, bool):
        return finite if verdict else otherwise
    return torch.where(verdict, finite, otherwise)
