# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of executors, which run a step's collectives and functions in the same order on all ranks.

The code of a training step never waits, and never reads values of tensors. It queues jobs (generators of collectives)
and calls (functions) on an executor, which runs them in order. There are three executors: ``exchange.fifo`` runs a
thread, ``exchange.streams`` uses a GPU's streams, and ``exchange.lockstep`` simulates N ranks in one process.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from gravac.collectives import Collective, Ledger

Job = Generator[list[Collective], list[Any], None]
"""Generator that yields lists of collectives, and is resumed with their results, or with a collective's exception."""

T = TypeVar("T")

Returning = Generator[list[Collective], list[Any], T]
"""Generator like ``Job`` that also returns a result, of type ``T``, and does not catch exceptions of collectives."""

Fail = Callable[[BaseException], None]
"""Function that is called, with the exception, if queued work fails, or cannot run since earlier work failed."""

Mark = Any
"""A moment: seconds of the host's clock, or a CUDA event, which the GPU may not have reached yet."""

Number = float | torch.Tensor
"""A number: a float, or a 0-d tensor if reading its value would make the host wait for the GPU."""

Verdict = bool | torch.Tensor
"""Whether all gradients were finite: a bool, or a 0-d bool tensor if reading it would make the host wait for a GPU."""


class Executor(Protocol):
    """Runs one rank's jobs (generators of collectives) and calls (functions), in order.

    Attributes:
        rank: number of this rank among the ranks that average gradients.
        world: number of ranks that average gradients.
        agree_rank: number of this rank among the ranks that agree on decisions; rank 0 of these writes the logs.
        agree_world: number of ranks that agree on measurements and decisions. These are the ranks that average or, with
            HSDP, more ranks.
        latency: number of steps from a measurement to the decision that it leads to: the measurement of step t decides
            about step t + ``latency``; 2 or more.
        host_looks: whether the host may read values of tensors within a step. If False, ``judge`` and ``numbers``
            return tensors, and the host reads a step's values when a later step begins.
        ledger: totals of the payload bytes and wire bytes of this rank's collectives.
    """

    rank: int
    world: int
    agree_rank: int
    agree_world: int
    latency: int
    host_looks: bool
    ledger: Ledger

    def mark(self) -> Mark:
        """Return the present moment: seconds of the host's clock, or an event in the caller's current CUDA stream."""

    def between(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds from one result of ``mark`` to a later one; called when the device has reached both."""

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Return a function that returns the seconds of coding, and of exchange, since the last call of ``spent``.

        Returns:
            A function, to be called once, when the jobs (generators of collectives) since the last call have ended. It
            returns the seconds spent inside these jobs (encode, decode, error feedback), and the seconds for which
            their collectives were in flight.
        """

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Queue a function, to be called when all work that was queued earlier has ended.

        Args:
            function: function to call, without arguments.
            fail: function that is called with the exception if ``function``, or earlier queued work, failed.
        """

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Queue a job (generator of collectives), to be run after all work that was queued earlier.

        Args:
            job: generator of collectives. They start after the collectives of earlier jobs, which may still be in
                flight.
            fail: function that is called with the exception if the job, or earlier queued work, failed. An exception of
                ``fail`` itself is reported as a warning.
            device: device of the job's tensors.
            one_round: function that returns whether the job yields only once. It is called after the job's first
                yield, if at all.
        """

    def launch(self, collectives: list[Collective]) -> Any:
        """Start all-reduces, and return a handle for ``finish``; called by a function that ``call`` has queued."""

    def finish(self, started: Any) -> list[Any]:
        """Wait for collectives that ``launch`` started, and return their results, in order.

        Called once for each call of ``launch``, in the same order.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def agree(self, vectors: Sequence[Sequence[Number]]) -> Any:
        """Start to sum vectors, in float64, over the ranks that agree on decisions; return a handle for ``agreed``."""

    def agreed(self, started: Any) -> list[list[float]]:
        """Wait for the sums that ``agree`` started, and return each sum as a list of floats.

        Called once for each call of ``agree``, in the same order.

        Raises:
            ExchangeError: a rank did not answer.
        """

    def everywhere(self, finite: Verdict) -> Verdict:
        """Return whether ``finite`` (all gradients were finite) is true on every rank that agrees on decisions.

        Each of these ranks calls this method, at the same point of a step.
        """

    def wait_for_previous_step(self) -> None:
        """Make the host wait until the GPU has done the work of the step before the last; called before each step.

        Not called if ``host_looks`` is True, because the host then waits anyway when it reads values of tensors.
        """

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return a bool scalar (0-d tensor) as a bool; return the tensor itself if ``host_looks`` is False."""

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return numbers (floats or 0-d tensors) as floats; return them unchanged if ``host_looks`` is False."""

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Copy a bool tensor, of any shape, to host memory; called within a job, in step t.

        The thread that trains does not wait for the copy.

        Returns:
            The copy. If ``host_looks`` is True, it is complete; otherwise it is complete when step t + 2 begins.
        """

    def order(self) -> None:
        """Make the caller's thread, or its current CUDA stream, wait for all work that was queued so far.

        Called on all ranks at the same point.
        """

    def join(self) -> None:
        """Make the current CUDA stream wait for the GPU work of all earlier jobs (generators of collectives).

        Called within a job.
        """

    def drain(self, seconds: float | None = None) -> bool:
        """Make the host wait until all queued work has ended; return False if ``seconds`` passed before.

        Args:
            seconds: longest wait, in seconds; ``None``: no limit.
        """

    def abandon(self, failure: BaseException) -> None:
        """Make all queued and all later work fail with an exception, and tell the other ranks.

        May be called by any thread, and also between two steps.
        """

    def close(self, wait: bool = True) -> None:
        """End the executor when all queued work has ended, or has failed because a rank does not answer.

        Args:
            wait: False: return at once, and free threads and process groups later. May then be called by any thread.
        """


def both_true(first: Verdict, second: Verdict) -> Verdict:
    """Return whether two verdicts (gradients were finite) are both true.

    The result is a bool if both verdicts are bools, or if one is the bool False; otherwise it is a 0-d bool tensor.
    """
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return first & second


def choose(verdict: Verdict, if_finite: torch.Tensor, if_not_finite: torch.Tensor) -> torch.Tensor:
    """Return one of two tensors of the same shape: ``if_finite`` if the verdict is true, else ``if_not_finite``.

    Args:
        verdict: whether all gradients were finite; a bool or a 0-d bool tensor. With a tensor, the result is a copy.
        if_finite: tensor to return if all gradients were finite.
        if_not_finite: tensor to return if a gradient was not finite.
    """
    if isinstance(verdict, bool):
        return if_finite if verdict else if_not_finite
    return torch.where(verdict, if_finite, if_not_finite)
