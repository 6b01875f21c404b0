# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One thread that runs all exchange work in the order it was handed over.

A DDP hook holds the reducer's lock and must not wait; collectives must start in the same order on all ranks, and on
gloo never from a callback. So the hook only enqueues, and encode, rounds and decode run here, overlapping with
backward. While one job's collectives travel, the next job is encoded; its collectives start only after the first
job's last, so that their order does not depend on any rank's timing.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch

from gravac.collectives import Collective
from gravac.exchange.group import GroupTransport

Job = Generator[list[Collective], list[Any], None]
"""Yields lists of collectives, is resumed with their results."""


class _Exchange(NamedTuple):
    job: Job
    fail: Callable[[BaseException], None]
    ready: Callable[[], None]


class _Call(NamedTuple):
    function: Callable[[], None]
    fail: Callable[[BaseException], None]


class _Encoded(NamedTuple):
    item: _Exchange
    requests: list[Collective] | None


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
        self._items: queue.SimpleQueue[_Exchange | _Call | None] = queue.SimpleQueue()
        self._ahead: _Exchange | _Call | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gravac-exchange", daemon=True)
        self._thread.start()

    def exchange(self, job: Job, fail: Callable[[BaseException], None], device: torch.device) -> None:
        """Run a job when its turn comes.

        Args:
            job: must not start before the collectives of earlier jobs have.
            fail: is told of the exception when the job, or one before it, failed.
            device: of the job's tensors; on CUDA the job's work waits for what its stream was given so far.
        """
        self._items.put(_Exchange(job, fail, _stream_order(device)))

    def call(self, function: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
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
        """Let the thread end after what was handed over."""
        self._items.put(None)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        encoded: _Encoded | None = None
        while True:
            if encoded is None:
                item = self._ahead or self._items.get()
                self._ahead = None
                if item is None:
                    return
                if self._failure is not None:
                    item.fail(self._failure)
                    continue
                if isinstance(item, _Call):
                    self._guard(item, item.function)
                    continue
                encoded = self._encode(item)
            encoded = self._carry_out(encoded)

    def _encode(self, item: _Exchange) -> _Encoded:
        return _Encoded(item, self._guard(item, lambda: self._advance(item, None)))

    def _carry_out(self, encoded: _Encoded) -> _Encoded | None:
        """Run a job to its end; returns the job encoded meanwhile, if any."""
        item, requests = encoded
        following: _Encoded | None = None
        while requests is not None and self._failure is None:
            pending = self._guard(item, lambda asked=requests: self.transport.start(asked))  # type: ignore[misc]
            if pending is None:
                break
            if following is None:
                following = self._encode_next()
            answers = self._guard(item, lambda started=pending: self._finish(started))  # type: ignore[misc]
            if answers is None:
                break
            requests = self._guard(item, lambda given=answers: self._advance(item, given))  # type: ignore[misc]
        if following is not None and self._failure is not None:
            following.item.fail(self._failure)
            return None
        return following

    def _encode_next(self) -> _Encoded | None:
        """Encode the next item if it is there and is a job; a call must wait for this job's end."""
        if self._ahead is None:
            try:
                self._ahead = self._items.get_nowait()
            except queue.Empty:
                return None
            if self._ahead is None:
                self._items.put(None)
                return None
        if not isinstance(self._ahead, _Exchange):
            return None
        item, self._ahead = self._ahead, None
        return self._encode(item)

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

    def _finish(self, pending: Any) -> list[Any]:
        start = time.perf_counter()
        try:
            return self.transport.finish(pending)
        finally:
            self.exchange_seconds += time.perf_counter() - start

    def _guard(self, item: _Exchange | _Call, function: Callable[[], Any]) -> Any:
        """Call; on an exception remember it, tell the item, and let everything after fail with it."""
        try:
            return function()
        except BaseException as failure:
            self._failure = failure
            item.fail(failure)
            return None


def _stream_order(device: torch.device) -> Callable[[], None]:
    """Makes the calling thread's stream wait for what the present stream was given so far."""
    if device.type == "cpu":
        return lambda: None
    event = torch.Event(device)
    event.record()
    return event.wait
