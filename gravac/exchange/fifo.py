# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One thread that runs all exchange work in the order it was handed over.

A DDP hook holds the reducer's lock and must not wait; collectives must start in the same order on all ranks, and on
gloo never from a callback. So the hook only enqueues, and encode, rounds and decode run here, overlapping with
backward.

The link should never wait for the processor. A job that ends with its first collectives (one round, as most do) leaves
the next ones free to start while it travels. A job of several rounds is followed only after its last; meanwhile the
next is encoded. Either way collectives start in the order of jobs and rounds, which does not depend on any rank's
timing.
"""

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch

from gravac.collectives import Collective
from gravac.exchange.group import GroupTransport, Pending

Job = Generator[list[Collective], list[Any], None]
"""Yields lists of collectives, is resumed with their results."""

Fail = Callable[[BaseException], None]

DEPTH = 4
"""Jobs whose collectives may be under way behind the one that is waited for."""

JOIN_SECONDS = 5.0
"""Longest wait for the thread's end: after a failure, a peer may never answer."""


class _Exchange(NamedTuple):
    job: Job
    fail: Fail
    one_round: Callable[[], bool]
    ready: Callable[[], None]


class _Call(NamedTuple):
    function: Callable[[], None]
    fail: Fail


class _Encoded(NamedTuple):
    item: _Exchange
    requests: list[Collective]
    one_round: bool


class _Flying(NamedTuple):
    item: _Exchange
    pending: list[Pending]
    one_round: bool


class _Stop(NamedTuple):
    pass


class Fifo:
    """Runs jobs and calls in order on one thread.

    Attributes:
        compress_seconds: spent inside jobs (encode, decode, feedback), since the start.
        exchange_seconds: spent waiting for collectives, since the start.
    """

    def __init__(self, transport: GroupTransport) -> None:
        self.transport = transport
        self.compress_seconds = 0.0
        self.exchange_seconds = 0.0
        self._items: queue.SimpleQueue[_Exchange | _Call | _Stop] = queue.SimpleQueue()
        self._next: _Encoded | _Call | _Stop | None = None
        self._flight: deque[_Flying] = deque()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gravac-exchange", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job when its turn comes.

        Args:
            job: must not start before the collectives of earlier jobs have.
            fail: is told of the exception when the job, or one before it, failed.
            device: of the job's tensors; on CUDA the job's work waits for what its stream was given so far.
            one_round: asked when the job's turn comes: whether it ends with its first collectives.
        """
        self._items.put(_Exchange(job, fail, one_round, _stream_order(device)))

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all before it has ended."""
        self._items.put(_Call(function, fail))

    def drain(self, seconds: float | None = None) -> None:
        """Wait until all that was handed over has ended, for at most ``seconds``.

        On the thread itself (in a sink) there is nothing to wait for.
        """
        if threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self.call(done.set, lambda _: done.set())
        done.wait(seconds)

    def close(self) -> None:
        """Let the thread end after what was handed over, and wait for that for at most ``JOIN_SECONDS``.

        A thread that outlives the interpreter's shutdown while it holds the last reference to a process group aborts
        the process; so this also runs at exit.
        """
        atexit.unregister(self.close)
        self._items.put(_Stop())
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            self._launch()
            if self._flight:
                self._land()
            elif self._peek(None) and not isinstance(self._next, _Encoded):
                item, self._next = self._next, None
                if isinstance(item, _Stop):
                    return
                if item is not None:
                    self._guard(item.fail, item.function)

    def _peek(self, seconds: float | None = 0.0) -> bool:
        """Have the next item ready, encoded if it is a job; False when there is none within ``seconds``."""
        while self._next is None:
            try:
                item = self._items.get(seconds != 0.0, seconds)
            except queue.Empty:
                return False
            if isinstance(item, _Stop):
                self._next = item
            elif self._failure is not None:
                item.fail(self._failure)
            elif isinstance(item, _Call):
                self._next = item
            else:
                requests = self._guard(item.fail, lambda turn=item: self._advance(turn, None))  # type: ignore[misc]
                if requests is not None:
                    self._next = _Encoded(item, requests, item.one_round())
        return True

    def _launch(self) -> None:
        """Start what may start now."""
        while (not self._flight or self._flight[-1].one_round) and len(self._flight) < DEPTH:
            if not self._peek() or not isinstance(self._next, _Encoded):
                return
            (item, requests, one_round), self._next = self._next, None
            pending = self._guard(item.fail, lambda asked=requests: self.transport.start(asked))  # type: ignore[misc]
            if pending is not None:
                self._flight.append(_Flying(item, pending, one_round))

    def _land(self) -> None:
        """Bring the oldest job under way to its end."""
        item, pending, one_round = self._flight.popleft()
        if self._failure is not None:
            item.fail(self._failure)
            return
        while pending is not None:
            if not one_round:
                self._peek()
            answers = self._guard(item.fail, lambda started=pending: self._finish(started))  # type: ignore[misc]
            if answers is None:
                return
            if one_round:
                self._launch()
            requests = self._guard(item.fail, lambda given=answers: self._advance(item, given))  # type: ignore[misc]
            if requests is None:
                return
            pending = self._guard(item.fail, lambda asked=requests: self._again(asked, one_round))  # type: ignore[misc]

    def _again(self, requests: list[Collective], one_round: bool) -> list[Pending]:
        if one_round:
            raise RuntimeError("a compressor that declares one_round asked for a second one")
        return self.transport.start(requests)

    def _advance(self, item: _Exchange, answers: list[Any] | None) -> list[Collective] | None:
        start = time.perf_counter()
        try:
            if answers is None:
                item.ready()
                return next(item.job)
            return item.job.send(answers)
        except StopIteration:
            return None
        finally:
            self.compress_seconds += time.perf_counter() - start

    def _finish(self, pending: list[Pending]) -> list[Any]:
        start = time.perf_counter()
        try:
            return self.transport.finish(pending)
        finally:
            self.exchange_seconds += time.perf_counter() - start

    def _guard(self, fail: Fail, function: Callable[[], Any]) -> Any:
        """Call; on an exception remember it, tell whoever waits, and let everything after fail with it."""
        try:
            return function()
        except BaseException as failure:
            self._failure = failure
            fail(failure)
            return None


def _stream_order(device: torch.device) -> Callable[[], None]:
    """Makes the calling thread's stream wait for what the present stream was given so far."""
    if device.type == "cpu":
        return lambda: None
    event = torch.Event(device)
    event.record()
    return event.wait
