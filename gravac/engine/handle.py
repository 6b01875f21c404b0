# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Handles of work in flight, on which a source of gradients waits: averaged tensors, sums over ranks, results of jobs.

A source of gradients is DDP's communication hook, for example.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

import torch

from gravac.exchange.executor import Executor
from gravac.exchange.reading import HostCopy, Number
from gravac.guarded import GuardedCaller

T = TypeVar("T")

Averaged = Future[list[torch.Tensor]]
"""Future that is done when tensors hold their mean over the ranks.

Its result says whether the means are finite: a 0-d bool tensor for each part that was checked."""

Then = Callable[[BaseException | None], None]
"""Function called with ``None`` when tensors hold the mean, or with the exception if the exchange failed."""


class ExchangeEngine(Protocol):
    """The part of the engine's interface that a handle uses."""

    @property
    def ready_to_run(self) -> bool:
        """True if the engine has an executor."""

    @property
    def executor(self) -> Executor:
        """The executor, which runs the exchange."""

    def flush(self) -> None:
        """Start to average all tensors handed over so far, without waiting for more tensors."""


class Handle:
    """Handle of tensors in flight: when the handle is done, the tensors hold their mean over the ranks.

    Args:
        engine: engine that exchanges the tensors.
        averaged: future of the exchange.
        guarded: object that calls the functions given to ``then``, and reports their exceptions.
    """

    def __init__(self, engine: ExchangeEngine, averaged: Averaged, guarded: GuardedCaller) -> None:
        self._engine, self._future, self._call_guarded = engine, averaged, guarded

    def wait(self) -> None:
        """Wait until the tensors hold their mean over the ranks.

        If the exchange runs on a GPU's streams, the host does not wait; the current stream does. If a rank calls this
        method, all ranks must call it.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: ranks are simulated in one process, and some of them have not handed the tensors over yet.
        """
        if not self._future.done() or self._engine.ready_to_run:  # if the engine was closed, the future is done
            self._engine.executor.order()
        if not self._future.done():
            self._engine.flush()
            self._engine.executor.order()
        if not self._future.done():
            raise RuntimeError(
                "wait: not all simulated ranks have handed over their tensors; let every rank do so before any rank "
                "waits"
            )
        self._future.result()

    def then(self, function: Then) -> None:
        """Call a function, see ``Then``, when the handle is done; at once if it is done already.

        The executor calls the function, which therefore must not wait. If the function raises, the exception is
        reported once, as a ``RuntimeWarning``, and training continues.

        If a GPU's streams run the exchange, the function is called at once, and the current stream waits for the mean.
        To avoid that wait, give the function to ``Engine.submit`` as ``then``.
        """
        if self._future.done() and self._engine.ready_to_run:
            self._engine.executor.join()
        self._future.add_done_callback(lambda future: self._call_guarded(function, future.exception()))


class RankSums:
    """Sums of numbers over all ranks that agree on decisions, in flight.

    Args:
        future: future of the job that sums the numbers.
        numbers: this rank's numbers; kept in memory until the sums have arrived, since a GPU may not have read them
            before.
    """

    def __init__(self, future: "Future[list[HostCopy]]", numbers: Sequence[Number]) -> None:
        self._future, self._numbers = future, numbers

    def result(self) -> list[float]:
        """Return the sums over the ranks, in float64; waits for them.

        Raises:
            ExchangeError: a rank did not answer.
        """
        (sums,) = self._future.result()
        sums_on_host = sums.read()
        self._numbers = []
        return sums_on_host


class JobResult(Generic[T]):
    """Result of a job that runs between two steps, in flight; ``result`` waits for its end.

    Args:
        executor: object that runs the job.
        description: what the job exchanges, for error messages.
        future: future of the job's result.
    """

    def __init__(self, executor: Executor, description: str, future: "Future[T]") -> None:
        self._executor, self._description, self._future = executor, description, future

    def result(self) -> T:
        """Wait for the job to end; return its result. If a rank calls this method, all ranks must call it.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: ranks are simulated in one process, and not all of them have handed the job over.
        """
        self._executor.order()
        if not self._future.done():
            raise RuntimeError(
                f"not every simulated rank has handed over {self._description}; let all ranks hand them over before a "
                "rank waits"
            )
        return self._future.result()
