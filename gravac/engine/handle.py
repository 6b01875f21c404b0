# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a source waits for: tensors in flight, sums over the ranks, what a job returns. All rest on ``Future``."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import torch

from gravac.exchange.executor import Executor, Job, Returning
from gravac.exchange.failures import ExchangeError
from gravac.guarded import Guarded

T = TypeVar("T")

Then = Callable[[BaseException | None], None]
"""Takes ``None`` when the tensors hold the mean, or what went wrong."""


def fail(future: "Future[Any]", failure: BaseException) -> None:
    """Make a future fail, unless it is done."""
    with suppress(InvalidStateError):
        future.set_exception(failure)


class Exchanging(Protocol):
    """What a handle must know of the engine."""

    @property
    def ready_to_run(self) -> bool:
        """Whether there is an executor."""

    @property
    def executor(self) -> Executor:
        """What runs the exchange."""

    def flush(self) -> None:
        """Average what was handed over without waiting for more."""


class Handle:
    """Tensors in flight: they hold their mean over the ranks when it is done.

    Args:
        engine: exchanges them.
        guarded: calls the functions that are given to ``then``.
    """

    def __init__(self, engine: Exchanging, guarded: Guarded) -> None:
        self._engine, self._guarded = engine, guarded
        self._future: Future[None] = Future()

    def wait(self) -> None:
        """Return when the tensors hold the mean: for the present stream, if streams run the exchange.

        Called alike on all ranks, if at all.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: of ranks in memory, not all have handed the tensors over.
        """
        if not self._future.done() or self._engine.ready_to_run:  # a closed engine has told what became of them
            self._engine.executor.order()
        if not self._future.done():
            self._engine.flush()
            self._engine.executor.order()
        if not self._future.done():
            raise RuntimeError("not every rank in memory has handed these tensors over")
        self._future.result()

    def then(self, function: Then) -> None:
        """Call a function when it is done: by the executor, so that it must not wait; at once, if it is.

        If the function raises, that is reported once, as a ``RuntimeWarning``, and training goes on.

        If streams run the exchange it is done at once, and the present stream waits; see ``Engine.exchange`` for
        another way.
        """
        if self._future.done() and self._engine.ready_to_run:
            self._engine.executor.join()
        self._future.add_done_callback(lambda future: self._guarded(function, future.exception()))

    def ends(self, failure: BaseException | None = None) -> None:
        """The tensors hold their mean, or the exchange failed; called by the executor."""
        with suppress(InvalidStateError):
            if failure is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(failure)


class RankSums:
    """Numbers in flight to all ranks: sent when this is made, then received in order with the steps, then read.

    Args:
        executor: sums them.
        what: what they are, for errors.
        numbers: this rank's; as many on every rank.
    """

    def __init__(self, executor: Executor, what: str, numbers: Sequence[float]) -> None:
        self._executor, self._what = executor, what
        self._in_flight: Any = None
        self._sums: Future[list[float]] = Future()

        def send() -> None:
            self._in_flight = executor.agree([numbers])

        executor.call(send, self._fail)

    def receive(self) -> None:
        """Have the executor wait for the sums. Called on every rank at the same point, before a step begins."""
        self._executor.call(self._receive, self._fail)

    def result(self) -> list[float]:
        """Return the sums over the ranks, float64, once they were received.

        Raises:
            ExchangeError: a rank did not answer.
        """
        return self._sums.result()

    def _receive(self) -> None:
        try:
            (sums,) = self._executor.agreed(self._in_flight)
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: {self._what}: {failure}") from failure.__cause__
        self._sums.set_result(sums)

    def _fail(self, failure: BaseException) -> None:
        fail(self._sums, failure)


class JobResult(Generic[T]):
    """What a job between two steps returns: the job is handed over when this is made, then its result is waited for.

    Args:
        executor: runs the job.
        what: what the job exchanges, for errors.
        job: asks for the same collectives on every rank; it may look at data.
        device: device of its tensors.
    """

    def __init__(self, executor: Executor, what: str, job: Returning[T], device: torch.device) -> None:
        self._executor, self._what, self._device = executor, what, device
        self._returned: Future[T] = Future()
        executor.exchange(self._run(job), functools.partial(fail, self._returned), device, lambda: False)

    def result(self) -> T:
        """Return what the job returned, once it has ended. Called alike on all ranks, if at all.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: of ranks in memory, not all have handed the job over.
        """
        self._executor.order()
        if not self._returned.done():
            raise RuntimeError(f"not every rank in memory has handed over {self._what}")
        return self._returned.result()

    def _run(self, job: Returning[T]) -> Job:
        try:
            returned = yield from job
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: {self._what}: {failure}") from failure.__cause__
        if self._device.type == "cuda" and self._executor.host_looks:
            torch.cuda.current_stream(self._device).synchronize()  # a thread's own, which no other stream waits for
        self._returned.set_result(returned)
