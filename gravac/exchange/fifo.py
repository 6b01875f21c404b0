# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor over a process group: one thread that runs all exchange work in the order it was handed over.

A DDP hook holds the reducer's lock and must not wait; collectives must start in the same order on all ranks, and on
gloo never from a callback. So the hook only enqueues, and encode, rounds and decode run here, overlapping with
backward.

The link should never wait for the processor. A job that ends with its first collectives (one round, as most do) leaves
the next ones free to start while it travels. A job of several rounds is followed only after its last; meanwhile the
next is encoded. Either way collectives start in the order of jobs and rounds, which does not depend on any rank's
timing.

Waiting for a collective blocks the thread that does it, so a second thread waits, and
tells the first through the same queue that jobs come by: what arrives while something travels is encoded and started at
once, and not when that has landed. It also keeps the first free to look, once it has waited for a while, whether
another rank failed: then nobody waits for the process group's timeout.
"""

import atexit
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gravac.collectives import AllReduce, Collective
from gravac.exchange.device import stream_order
from gravac.exchange.executor import Fail, Job, Number, Verdict
from gravac.exchange.failures import LOOK_SECONDS, ExchangeError, Failures
from gravac.exchange.group import GroupTransport, Pending, give_back
from gravac.guarded import Guarded

DEPTH = 4
"""Jobs whose collectives may be under way behind the one that is waited for."""

JOIN_SECONDS = 5.0
"""Longest wait of ``close`` for each thread's end: another rank may never answer."""


Answers = list[Any] | BaseException
"""Results of a round's collectives, or what went wrong."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A job, from when it is handed over until its end.

    Attributes:
        promises: tells whether it ends with its first collectives; asked once these are known.
        ready: called before the job is.
        one_round: what it promised.
        requests: collectives of the round that it is in.
        pending: the same, under way.
        answers: their results, once they have landed.
    """

    job: Job
    fail: Fail
    promises: Callable[[], bool]
    ready: Callable[[], None]
    one_round: bool = False
    requests: list[Collective] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    answers: Answers | None = None

    @property
    def landed(self) -> bool:
        """Whether going on with it would not block."""
        return self.answers is not None


class _Call(NamedTuple):
    function: Callable[[], None]
    fail: Fail


class _Landed(NamedTuple):
    item: _Exchange
    answers: Answers
    at: float


class _Await(NamedTuple):
    """Collectives that a call started and waits for: what finishes them, and where their results go."""

    transport: GroupTransport
    pending: list[Pending]
    answers: "queue.SimpleQueue[Answers]"


class _Abandon(NamedTuple):
    """What was handed over is given up."""

    failure: BaseException


_Work = _Exchange | _Call | None
"""What is handed over to the exchange thread; ``None`` ends it."""


class Fifo:
    """Runs a rank's jobs and calls in order on one thread, where the host looks at data; see ``Executor``.

    Args:
        transport: starts and finishes collectives over the ranks that average.
        agreement: the same over those that agree on measurements and decisions; ``None``: the same ranks.

    Attributes:
        ledger: what was handed to the transport; an agreement over other ranks is not in it.
        compress_seconds: seconds spent inside jobs (encode, decode, feedback), since the start.
        exchange_seconds: seconds in which collectives were under way, since the start.
    """

    latency = 2
    host_looks = True

    def __init__(self, transport: GroupTransport, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self._agreement = transport if agreement is None else agreement
        self.agree_world = self._agreement.world
        self.compress_seconds = 0.0
        self.exchange_seconds = 0.0
        self._transports = [self.transport, *([] if agreement is None else [agreement])]
        groups = [getattr(one, "group", None) for one in self._transports]
        self._failures = Failures([group for group in groups if group is not None])
        self._guarded = Guarded()
        self._pid = os.getpid()
        self._inbox: queue.SimpleQueue[_Work | _Landed | _Abandon] = queue.SimpleQueue()
        self._waits: queue.SimpleQueue[_Exchange | _Await | None] = queue.SimpleQueue()
        self._todo: deque[_Work] = deque()
        self._next: _Exchange | None = None
        self._flight: deque[_Exchange] = deque()
        self._told = (0.0, 0.0)
        self._under_way = 0
        self._since = 0.0
        self._failure: BaseException | None = None
        self._abandoned: BaseException | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="gravac-exchange", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name="gravac-wait", daemon=True)
        self._thread.start()
        self._waiter.start()
        atexit.register(self.close)

    def mark(self) -> float:
        """Return ``time.perf_counter()``."""
        return time.perf_counter()

    def between(self, earlier: float, later: float) -> float:
        """Return the seconds between two moments."""
        return later - earlier

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Take the seconds spent coding, and with collectives under way, since the last call; on the thread."""
        before, self._told = self._told, (self.compress_seconds, self.exchange_seconds)
        spent = (self._told[0] - before[0], self._told[1] - before[1])
        return lambda: spent

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job when its turn comes, see ``Executor``; on CUDA it waits for what its stream was given so far."""
        self._hand_over(_Exchange(job, fail, one_round, stream_order(device)))

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function when all before it has ended."""
        self._hand_over(_Call(function, fail))

    def _hand_over(self, work: _Exchange | _Call) -> None:
        self._inbox.put(work)
        if self._over:
            self._refuse()

    def launch(self, collectives: list[Collective]) -> list[Pending]:
        """Start collectives, on the thread."""
        return self._launch(self.transport, collectives)

    def finish(self, started: list[Pending]) -> list[Any]:
        """Wait for them, on the thread."""
        return self._await(self.transport, started)

    def agree(self, vectors: Sequence[Sequence[Number]]) -> list[Pending]:
        """Start to sum vectors over the ranks that agree, on the thread."""
        sums = [AllReduce(torch.tensor(vector, dtype=torch.float64)) for vector in vectors]
        return self._launch(self._agreement, sums)

    def agreed(self, started: list[Pending]) -> list[list[float]]:
        """Wait for the sums, on the thread."""
        return [total.tolist() for total in self._await(self._agreement, started)]

    def _launch(self, transport: GroupTransport, collectives: Sequence[Collective]) -> list[Pending]:
        try:
            return transport.launch([*collectives])
        except ExchangeError as failure:
            raise self._explained(failure) from failure.__cause__

    def _await(self, transport: GroupTransport, started: list[Pending]) -> list[Any]:
        """Return the results of collectives; meanwhile look whether another rank failed."""
        if transport.landed(started):
            return transport.finish(started)
        answers: queue.SimpleQueue[Answers] = queue.SimpleQueue()
        self._waits.put(_Await(transport, started, answers))
        while True:
            try:
                landed = answers.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if (failure := self._abandoned or self._failed_elsewhere()) is not None:
                    raise failure from None
                continue
            if isinstance(landed, ExchangeError):
                raise self._explained(landed)
            if isinstance(landed, BaseException):
                raise landed
            return landed

    def catch_up(self) -> None:
        """Nothing is behind: the host looks when it likes."""

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Look at a bool scalar (0-d tensor)."""
        return bool(finite)

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Copy a bool tensor, any shape, to the host, which waits: on the thread it may."""
        return verdicts.cpu()

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return what scalars (0-d tensors) hold."""
        return [float(number) for number in numbers]

    def order(self) -> None:
        """Wait until all that was handed over has ended."""
        self.drain()

    def join(self) -> None:
        """Jobs end one after the other."""

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all that was handed over has ended, for at most ``seconds``; return whether it has.

        On the thread itself (in a sink) there is nothing to wait for, and in a forked process there is no thread.
        """
        if threading.current_thread() is self._thread or os.getpid() != self._pid:
            return True
        done = threading.Event()
        self.call(done.set, lambda _: done.set())
        return done.wait(seconds)

    def abandon(self, failure: BaseException) -> None:
        """Give up what was handed over, and what will be: it fails with that exception, and the other ranks are told.

        Args:
            failure: why.
        """
        self._abandoned = failure
        self._inbox.put(_Abandon(failure))

    def close(self) -> None:
        """End the threads after what was handed over, and give back the process group.

        Waits for at most ``JOIN_SECONDS`` for what was handed over, gives that up, and waits as long again for each
        thread's end; if this rank failed, for at most ``LINGER_SECONDS`` for the others to see why.

        A thread that outlives the interpreter's shutdown while it holds the last reference to a process group aborts
        the process; so this also runs at exit. In a forked process, which has no such threads, nothing is done.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        self._inbox.put(None)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            self.abandon(ExchangeError("the compressor was closed before its exchange ended: a rank did not answer"))
            self._thread.join(JOIN_SECONDS)
        if not self._thread.is_alive():
            self._waiter.join(JOIN_SECONDS)
            if not self._waiter.is_alive():
                self._give_back()
        else:
            self._end()  # it is stuck in what it was given: whoever waits is told here
        self._failures.linger()

    def _give_back(self) -> None:
        for transport in self._transports:
            group = transport.__dict__.pop("group", None)
            if group is not None:
                self._guarded(give_back, group)

    def _end(self) -> None:
        """Refuse all work that is handed over from now on."""
        self._over = True
        self._refuse()

    def _refuse(self) -> None:
        """Have what nobody will run fail. Called by any thread."""
        failure = self._failure or self._abandoned or RuntimeError("the compressor is closed: make a new one")
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Exchange | _Call):
                self._guarded(message.fail, failure)

    # the second thread

    def _wait(self) -> None:
        """Wait for collectives in the order they were started."""
        while (item := self._waits.get()) is not None:
            if isinstance(item, _Await):
                item.answers.put(_finish(item.transport, item.pending))
            else:
                self._inbox.put(_Landed(item, _finish(self.transport, item.pending), time.perf_counter()))
            del item  # nothing of a job may live on here until the next one

    # the exchange thread

    def _run(self) -> None:
        """Run what is handed over; whatever ends the thread, nobody waits for it any longer."""
        torch.set_grad_enabled(False)
        try:
            self._work()
        except BaseException as failure:
            self._give_up(failure)
        finally:
            self._waits.put(None)
            self._end()

    def _work(self) -> None:
        while True:
            self._receive(wait=False)
            oldest = self._flight[0] if self._flight else None
            if oldest is not None and oldest.landed and not oldest.one_round:
                self._land()  # its next round comes before anything else is started
                continue
            self._encode_and_send()
            if self._flight and self._flight[0].landed:
                self._land()
            elif self._flight or not self._todo:
                self._receive(wait=True)
            else:
                item = self._todo.popleft()
                if item is None:
                    return
                assert isinstance(item, _Call)
                self._guard(item.fail, item.function)

    def _receive(self, wait: bool) -> None:
        """Take in what was handed over and what has landed: all that there is, or at least one when told to wait."""
        while wait or not self._inbox.empty():
            message = self._message()
            wait = False
            if isinstance(message, _Landed):
                if message.item.answers is None:
                    answers = message.answers
                    message.item.answers = self._explained(answers) if isinstance(answers, ExchangeError) else answers
                self._under_way -= 1
                if not self._under_way:
                    self.exchange_seconds += message.at - self._since
            elif isinstance(message, _Abandon):
                self._give_up(message.failure)
            elif self._failure is not None and message is not None:
                self._guarded(message.fail, self._failure)
            else:
                self._todo.append(message)

    def _message(self) -> _Work | _Landed | _Abandon:
        """Wait for a message; while something is under way, look at times whether another rank failed."""
        while True:
            try:
                return self._inbox.get(timeout=LOOK_SECONDS if self._flight else None)
            except queue.Empty:
                if (failure := self._failed_elsewhere()) is not None:
                    self._flight[0].answers = failure
                    self._land()

    def _failed_elsewhere(self) -> ExchangeError | None:
        """Return what another rank says about its failure, if one does."""
        said = self._failures.look()
        return None if said is None else ExchangeError(f"rank {self.rank} of {self.world} got no answer: {said}")

    def _explained(self, failure: ExchangeError) -> ExchangeError:
        """Return what went wrong, with its cause, if another rank says that it failed."""
        said = self._failures.look(causes_only=True)
        if said is None:
            return failure
        explained = ExchangeError(f"rank {self.rank} of {self.world} got no answer: {said}")
        explained.__cause__ = failure.__cause__
        return explained

    def _encode(self) -> bool:
        """Have the next job encoded, if it is a job's turn; False where there is none."""
        while self._next is None and self._todo and isinstance(item := self._todo[0], _Exchange):
            self._todo.popleft()
            if self._guard(item.fail, self._first, item):
                self._next = item
        return self._next is not None

    def _encode_and_send(self) -> None:
        """Encode what comes next, and start what may start now."""
        while self._encode():
            if self._flight and not (self._flight[-1].one_round and len(self._flight) <= DEPTH):
                return
            assert self._next is not None
            item, self._next = self._next, None
            if self._guard(item.fail, self._send, item):
                self._flight.append(item)

    def _land(self) -> None:
        """Go on with the oldest job under way: to its end, or to its next round."""
        item = self._flight.popleft()
        if self._guard(item.fail, self._go_on, item):
            self._flight.appendleft(item)

    def _first(self, item: _Exchange) -> bool:
        """Have a job encoded; tell whether it asks for collectives."""
        item.ready()
        asks = self._advance(item, lambda: next(item.job))
        item.one_round = item.promises()
        return asks

    def _send(self, item: _Exchange) -> bool:
        """Start a round of a job's collectives, and return True.

        What goes wrong is raised by the job, which knows what it exchanges.
        """
        try:
            item.pending = self._launch(self.transport, item.requests)
        except Exception as failure:
            item.job.throw(failure)
            raise
        item.answers = None
        if not self._under_way:
            self._since = time.perf_counter()
        self._under_way += 1
        self._waits.put(item)
        return True

    def _go_on(self, item: _Exchange) -> bool:
        """Resume a job with its collectives' results, or with what went wrong; tell whether its next round started."""
        answers = item.answers
        assert answers is not None
        if isinstance(answers, BaseException):
            failure = answers
            asks = self._advance(item, lambda: item.job.throw(failure))
        else:
            asks = self._advance(item, lambda: item.job.send(answers))
        if asks and item.one_round:
            raise RuntimeError("a compressor that declares one_round asked for a second one")
        return asks and self._send(item)

    def _advance(self, item: _Exchange, resume: Callable[[], list[Collective]]) -> bool:
        """Run a job to its next collectives; False where there are none."""
        start = time.perf_counter()
        try:
            item.requests = resume()
        except StopIteration:
            return False
        finally:
            self.compress_seconds += time.perf_counter() - start
        return True

    def _guard(self, fail: Fail, function: Callable[..., Any], *given: Any) -> Any:
        """Return what a call returns; on an exception tell whoever waits, and let all after fail with it."""
        try:
            return function(*given)
        except BaseException as failure:
            self._give_up(failure, fail)
            return None

    def _give_up(self, failure: BaseException, *fails: Fail) -> None:
        """Remember a failure; tell the other ranks, those that ``fails`` are of, and all that wait here."""
        self._failure = self._failure or failure
        self._failures.tell(self._failure)
        waiting: list[_Work] = [*self._flight, self._next, *self._todo]
        self._flight.clear()
        self._next = None
        self._todo = deque(item for item in self._todo if item is None)
        for fail in (*fails, *(item.fail for item in waiting if item is not None)):
            self._guarded(fail, self._failure)


def _finish(transport: GroupTransport, pending: list[Pending]) -> Answers:
    try:
        return transport.finish(pending)
    except BaseException as failure:
        return failure.with_traceback(None)  # which would hold the collectives, and these their connections
