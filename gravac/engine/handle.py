# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Handles of work in flight, on which a source of gradients waits: averaged tensors, sums over ranks, results of jobs.

A source of gradients is DDP's communication hook, for example.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import torch

from gravac.exchange.executor import Executor, Job, Number, Returning
from gravac.exchange.failures import ExchangeError
from gravac.guarded import GuardedCaller

T = TypeVar("T")

Then = Callable[[BaseException | None], None]
"""Function called with ``None`` when tensors hold the mean, or with the exception if the exchange failed."""


def fail(future: "Future[Any]", failure: BaseException) -> None:
    """Make a future fail with an exception, unless the future is done."""
    with suppress(InvalidStateError):
        future.set_exception(failure)


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
        guarded: object that calls the functions given to ``then``, and reports their exceptions.
    """

    def __init__(self, engine: ExchangeEngine, guarded: GuardedCaller) -> None:
        self._engine, self._call_guarded = engine, guarded
        self._future: Future[None] = Future()

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
        To avoid that wait, give the function to ``Engine.exchange`` as ``then``.
        """
        if self._future.done() and self._engine.ready_to_run:
            self._engine.executor.join()
        self._future.add_done_callback(lambda future: self._call_guarded(function, future.exception()))

    def set_ended(self, failure: BaseException | None = None) -> None:
        """Mark the handle as done: the tensors hold their mean, or the exchange failed. Called by the executor.

        Args:
            failure: exception because of which the exchange failed; ``None``: it succeeded.
        """
        with suppress(InvalidStateError):
            if failure is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(failure)


class RankSums:
    """Sums of numbers over the ranks, in flight: creating the object sends the numbers, ``result`` returns the sums.

    Args:
        executor: object that sums the numbers over the ranks.
        description: description of the numbers, for error messages.
        numbers: this rank's numbers; every rank has as many.
    """

    def __init__(self, executor: Executor, description: str, numbers: Sequence[Number]) -> None:
        self._executor, self._description = executor, description
        self._sums_in_flight: Any = None
        self._sums_future: Future[list[float]] = Future()

        def send() -> None:
            self._sums_in_flight = executor.agree([numbers])

        executor.call(send, self._fail_sums)

    def receive(self) -> None:
        """Let the executor wait for the sums; the caller does not wait.

        Called on every rank at the same point, before the next step begins.
        """
        self._executor.call(self._receive, self._fail_sums)

    def result(self) -> list[float]:
        """Return the sums over the ranks, in float64; waits for them. ``receive`` must have been called.

        Raises:
            ExchangeError: a rank did not answer.
        """
        return self._sums_future.result()

    def _receive(self) -> None:
        try:
            (sums,) = self._executor.agreed(self._sums_in_flight)
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: {self._description}: {failure}") from failure.__cause__
        self._sums_future.set_result(sums)

    def _fail_sums(self, failure: BaseException) -> None:
        fail(self._sums_future, failure)


class JobResult(Generic[T]):
    """Result of a job that runs between two steps: creating the object starts the job, ``result`` waits for its end.

    Args:
        executor: object that runs the job.
        description: what the job exchanges, for error messages.
        job: generator of collectives, the same on every rank; it may read tensors' values, for which
            the host waits.
        device: device of the job's tensors.
    """

    def __init__(self, executor: Executor, description: str, job: Returning[T], device: torch.device) -> None:
        self._executor, self._description, self._device = executor, description, device
        self._result_future: Future[T] = Future()
        executor.exchange(self._run_job(job), functools.partial(fail, self._result_future), device, lambda: False)

    def result(self) -> T:
        """Wait for the job to end; return its result. If a rank calls this method, all ranks must call it.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: ranks are simulated in one process, and not all of them have handed the job over.
        """
        self._executor.order()
        if not self._result_future.done():
            raise RuntimeError(
                f"not every simulated rank has handed over {self._description}; let all ranks hand them over before a "
                "rank waits"
            )
        return self._result_future.result()

    def _run_job(self, job: Returning[T]) -> Job:
        try:
            job_result = yield from job
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: {self._description}: {failure}") from failure.__cause__
        if self._device.type == "cuda" and self._executor.host_looks:
            torch.cuda.current_stream(self._device).synchronize()  # no other stream waits for the thread's stream
        self._result_future.set_result(job_result)
