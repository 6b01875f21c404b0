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

Where waiting for a collective blocks the thread that does it (tensors on the processor), a second thread waits, and
tells the first through the same queue that jobs come by: what arrives while something travels is encoded and started at
once, and not when that has landed.
"""

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gravac.collectives import Collective
from gravac.exchange.executor import Fail, Job
from gravac.exchange.group import GroupTransport, Pending

DEPTH = 4
"""Jobs whose collectives may be under way behind the one that is waited for."""

JOIN_SECONDS = 5.0
"""Longest wait for the threads' end: after a failure, a peer may never answer."""


class _Exchange(NamedTuple):
    job: Job
    fail: Fail
    one_round: Callable[[], bool]
    ready: Callable[[], None]
    blocks: bool


class _Call(NamedTuple):
    function: Callable[[], None]
    fail: Fail


class _Stop(NamedTuple):
    pass


class _Encoded(NamedTuple):
    item: _Exchange
    requests: list[Collective]
    one_round: bool


@dataclass(slots=True, eq=False)
class _Flying:
    """A job whose collectives are under way.

    Attributes:
        answers: once they have landed: gives their results, or raises what went wrong.
    """

    item: _Exchange
    one_round: bool
    pending: list[Pending]
    answers: Callable[[], list[Any]] | None = None

    @property
    def landed(self) -> bool:
        """Whether going on with it would not block."""
        return self.answers is not None or not self.item.blocks


class _Landed(NamedTuple):
    flying: _Flying
    at: float
    answers: Callable[[], list[Any]]


class Fifo:
    """Runs jobs and calls in order on one thread.

    Args:
        transport: starts and finishes jobs' collectives.

    Attributes:
        compress_seconds: seconds spent inside jobs (encode, decode, feedback), since the start.
        exchange_seconds: seconds in which collectives were under way, since the start; on a GPU, where that is not
            known, those spent waiting for them.
    """

    def __init__(self, transport: GroupTransport) -> None:
        self.transport = transport
        self.compress_seconds = 0.0
        self.exchange_seconds = 0.0
        self._inbox: queue.SimpleQueue[_Exchange | _Call | _Stop | _Landed] = queue.SimpleQueue()
        self._waits: queue.SimpleQueue[_Flying | None] = queue.SimpleQueue()
        self._todo: deque[_Exchange | _Call | _Stop] = deque()
        self._next: _Encoded | None = None
        self._flight: deque[_Flying] = deque()
        self._under_way = 0
        self._since = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gravac-exchange", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name="gravac-wait", daemon=True)
        self._thread.start()
        self._waiter.start()
        atexit.register(self.close)

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job when its turn comes, see ``Executor``; on CUDA it waits for what its stream was given so far."""
        self._inbox.put(_Exchange(job, fail, one_round, _stream_order(device), device.type == "cpu"))

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all before it has ended."""
        self._inbox.put(_Call(function, fail))

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
        """Let the threads end after what was handed over, and wait for that for at most ``JOIN_SECONDS``.

        A thread that outlives the interpreter's shutdown while it holds the last reference to a process group aborts
        the process; so this also runs at exit.
        """
        atexit.unregister(self.close)
        self._inbox.put(_Stop())
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            if not self._thread.is_alive():
                self._waiter.join(JOIN_SECONDS)

    # the second thread

    def _wait(self) -> None:
        """Wait for collectives in the order they were started."""
        while (flying := self._waits.get()) is not None:
            self._inbox.put(self._landed(flying))
            del flying  # nothing of a job may live on here until the next one

    def _landed(self, flying: _Flying) -> _Landed:
        try:
            answers = _gives(self.transport.finish(flying.pending))
        except BaseException as failure:
            answers = _raises(failure)
        return _Landed(flying, time.perf_counter(), answers)

    # the exchange thread

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            self._receive(wait=False)
            oldest = self._flight[0] if self._flight else None
            if oldest is not None and oldest.landed and not oldest.one_round:
                if not oldest.item.blocks:
                    self._encode()  # a GPU does that while the collectives travel
                self._land()  # its next round comes before anything else is started
                continue
            self._launch()
            if self._flight and self._flight[0].landed:
                self._land()
            elif self._flight or not self._todo:
                self._receive(wait=True)
            else:
                item = self._todo.popleft()
                if isinstance(item, _Stop):
                    self._waits.put(None)
                    return
                assert isinstance(item, _Call)
                self._guard(item.fail, item.function)

    def _receive(self, wait: bool) -> None:
        """Take in what was handed over and what has landed: all that there is, or at least one when told to wait."""
        while wait or not self._inbox.empty():
            message = self._inbox.get()
            wait = False
            if isinstance(message, _Landed):
                message.flying.answers = message.answers
                self._under_way -= 1
                if not self._under_way:
                    self.exchange_seconds += message.at - self._since
            elif self._failure is not None and not isinstance(message, _Stop):
                message.fail(self._failure)
            else:
                self._todo.append(message)

    def _encode(self) -> bool:
        """Have the next job encoded, if it is a job's turn; False where there is none."""
        while self._next is None and self._todo and isinstance(item := self._todo[0], _Exchange):
            self._todo.popleft()
            requests = self._guard(item.fail, lambda turn=item: self._first(turn))  # type: ignore[misc]
            if requests is not None:
                self._next = _Encoded(item, requests, item.one_round())
        return self._next is not None

    def _launch(self) -> None:
        """Encode what comes next, and start what may start now."""
        while self._encode():
            if self._flight and not (self._flight[-1].one_round and len(self._flight) <= DEPTH):
                return
            assert self._next is not None
            encoded, self._next = self._next, None
            flying = self._guard(encoded.item.fail, lambda asked=encoded: self._start(*asked))  # type: ignore[misc]
            if flying is None:
                return
            self._flight.append(flying)

    def _start(self, item: _Exchange, requests: list[Collective], one_round: bool) -> _Flying:
        """Start a round of a job's collectives; what goes wrong is raised by the job, which knows what it exchanges."""
        try:
            pending = self.transport.start(requests)
        except Exception as failure:
            item.job.throw(failure)
            raise
        flying = _Flying(item, one_round, pending)
        if item.blocks:
            if not self._under_way:
                self._since = time.perf_counter()
            self._under_way += 1
            self._waits.put(flying)
        return flying

    def _land(self) -> None:
        """Go on with the oldest job under way: to its end, or to its next round."""
        landed = self._flight.popleft()
        item = landed.item
        requests = self._guard(item.fail, lambda: self._go_on(landed))
        if requests is None:
            return
        again = self._guard(item.fail, lambda: self._again(item, requests, landed.one_round))
        if again is not None:
            self._flight.appendleft(again)

    def _again(self, item: _Exchange, requests: list[Collective], one_round: bool) -> _Flying:
        if one_round:
            raise RuntimeError("a compressor that declares one_round asked for a second one")
        return self._start(item, requests, one_round)

    def _first(self, item: _Exchange) -> list[Collective] | None:
        item.ready()
        return self._advance(lambda: next(item.job))

    def _go_on(self, landed: _Flying) -> list[Collective] | None:
        """Resume a job with its collectives' results, or with what went wrong."""
        job = landed.item.job
        try:
            answers = landed.answers() if landed.answers else self._finish(landed.pending)
        except Exception as failure:
            error = failure
            return self._advance(lambda: job.throw(error))
        return self._advance(lambda: job.send(answers))

    def _advance(self, resume: Callable[[], list[Collective]]) -> list[Collective] | None:
        start = time.perf_counter()
        try:
            return resume()
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
            waiting: list[_Exchange | _Call] = [flying.item for flying in self._flight]
            waiting += [self._next.item] if self._next else []
            waiting += [item for item in self._todo if not isinstance(item, _Stop)]
            self._flight.clear()
            self._next = None
            self._todo = deque(item for item in self._todo if isinstance(item, _Stop))
            for item in waiting:
                item.fail(failure)
            return None


def _gives(answers: list[Any]) -> Callable[[], list[Any]]:
    return lambda: answers


def _raises(failure: BaseException) -> Callable[[], list[Any]]:
    def throw() -> list[Any]:
        raise failure

    return throw


def _stream_order(device: torch.device) -> Callable[[], None]:
    """Makes the calling thread's stream wait for what the present stream was given so far."""
    if device.type == "cpu":
        return lambda: None
    event = torch.Event(device)
    event.record()
    return event.wait
