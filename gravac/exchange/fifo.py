# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor over a process group: one thread runs jobs (generators of collectives) in order.

A DDP hook holds the reducer's lock and must not wait. Collectives must start in the same order on all ranks, and on
gloo never from a callback. The hook therefore only submits jobs. Encoding, collectives and decoding run on one thread,
the exchange thread, and overlap with backward.

The link should never wait for the processor. Most jobs yield collectives only once. While these are in flight, the
collectives of the next jobs may start. If a job yields several times, the next job is encoded meanwhile, but its
collectives start only when the earlier job has ended. Collectives therefore start in the order in which jobs yield
them, which does not depend on any rank's timing.

Waiting for a collective blocks a thread, so a second thread waits. The second thread reports to the exchange thread
through the queue that also receives jobs. A job that arrives while a collective is in flight is therefore encoded and
started at once. The exchange thread can also check at intervals whether another rank failed, instead of waiting for the
process group's timeout.

With HSDP, more ranks agree on decisions than average gradients. A third thread then waits for the collectives by which
all of them agree.
"""

import atexit
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gravac.collectives import Collective
from gravac.exchange.device import follow_thread, stream_order
from gravac.exchange.executor import Job, Round, Spent, T, TimedBytes, fail, job_of
from gravac.exchange.failures import LOOK_SECONDS, ExchangeError, Failures
from gravac.exchange.group import CPU, GroupTransport, Pending, destroy_private
from gravac.exchange.reading import ReadsAtOnce
from gravac.guarded import GuardedCaller

MAX_JOBS_BEHIND = 4
"""Largest number of jobs in flight at the same time, not counting the oldest job."""

JOIN_SECONDS = 5.0
"""Longest time, in seconds, for which ``close`` waits until a thread ends: another rank may never answer."""


RoundResults = list[Any] | BaseException
"""Results of the collectives that a job yielded together, or the exception that one of these collectives raised."""


@dataclass(slots=True, eq=False)
class _Submitted:
    """State of one job, from when the job is submitted until it ends.

    Attributes:
        job: generator of collectives.
        future: future of the job's result.
        alone: whether no other job runs while this one does.
        timed: whether the executor counts the job's seconds.
        follow_stream: function that makes the exchange thread's stream wait for the job's tensors; called before the
            job is run.
        requests: collectives that the job yielded last.
        is_last: whether ``requests`` are the job's last collectives.
        over_all: whether all ranks that agree on decisions take part in ``requests``.
        pending: handles of ``requests`` in flight; empty before the first collectives start.
        results: results of ``requests``, or the exception of one of them; ``None`` until the results have arrived.
    """

    job: Job[Any]
    future: "Future[Any]"
    alone: bool
    timed: bool
    follow_stream: Callable[[], None]
    requests: list[Collective] = field(default_factory=list)
    is_last: bool = False
    over_all: bool = False
    pending: list[Pending] = field(default_factory=list)
    results: RoundResults | None = None

    @property
    def has_results(self) -> bool:
        """True if the results of the collectives that the job yielded last have arrived."""
        return self.results is not None


class _RoundEnded(NamedTuple):
    """Message to the exchange thread: a job's collectives have ended, with results.

    Attributes:
        submitted: the job.
        results: results of the job's collectives, or the exception of one of them.
        ended_s: time of the end, in seconds of ``time.perf_counter``.
    """

    submitted: _Submitted
    results: RoundResults
    ended_s: float


class _Abandon(NamedTuple):
    """Message to the exchange thread: make all jobs fail with the exception ``failure``."""

    failure: BaseException


_Message = _Submitted | _RoundEnded | _Abandon | None
"""Message to the exchange thread; ``None`` ends the thread when the jobs before it have ended."""


class Fifo(ReadsAtOnce):
    """Runs a rank's jobs (generators of collectives) in order on one thread; see ``Executor``.

    Args:
        transport: runs collectives over the ranks that average gradients.
        agreement: runs collectives over the ranks that agree on measurements and decisions; ``None``: these are the
            ranks that average.
        device: device of the gradients.

    Attributes:
        transport: runs collectives over the ranks that average gradients.
        ledger: totals of the payload bytes and wire bytes of collectives over the ranks that average.
        compress_seconds: seconds spent inside timed jobs (encode, decode, error feedback), since the executor was
            created.
        exchange_seconds: seconds in which collectives of timed jobs were in flight, since the executor was created.
    """

    latency = 2

    def __init__(
        self, transport: GroupTransport, agreement: GroupTransport | None = None, device: torch.device = CPU
    ) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self._agree_transport = transport if agreement is None else agreement
        self.agree_rank, self.agree_world = self._agree_transport.rank, self._agree_transport.world
        self.compress_seconds = 0.0
        self.exchange_seconds = 0.0
        self._device = device
        self._transports = [self.transport, *([] if agreement is None else [agreement])]
        groups = [getattr(used_transport, "group", None) for used_transport in self._transports]
        self._failures = Failures([group for group in groups if group is not None])
        self._call_guarded = GuardedCaller()
        self._creator_pid = os.getpid()
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._wait_queue: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._agree_wait_queue = self._wait_queue if agreement is None else queue.SimpleQueue()
        self._queued_jobs: deque[_Submitted | None] = deque()
        self._encoded_job: _Submitted | None = None  # its collectives have not started yet
        self._jobs_in_flight: deque[_Submitted] = deque()  # jobs with collectives in flight, oldest first
        self._timed_bytes = TimedBytes(self.ledger)
        # ``compress_seconds`` and ``exchange_seconds`` at the last call of ``spent``
        self._seconds_at_spent = (0.0, 0.0)
        self._timed_rounds_in_flight = 0
        self._flight_began_s = 0.0
        self._failure: BaseException | None = None
        self._abandon_failure: BaseException | None = None
        self._refuses_jobs = self._ends_alone = False
        self._thread = threading.Thread(target=self._run_exchange_thread, name="gravac-exchange", daemon=True)
        self._waiting_threads = [self._waiting_thread(self.transport, self._wait_queue, "gravac-wait")]
        if agreement is not None:
            self._waiting_threads.append(self._waiting_thread(agreement, self._agree_wait_queue, "gravac-agree"))
        for thread in (self._thread, *self._waiting_threads):
            thread.start()
        atexit.register(self.close)

    def mark(self) -> float:
        """Return the present moment, in seconds of ``time.perf_counter``."""
        return time.perf_counter()

    def between(self, earlier: float, later: float) -> float:
        """Return the seconds from one result of ``mark`` to a later one."""
        return later - earlier

    def spent(self) -> Spent:
        """Return what timed jobs since the last call of ``spent`` took. Called on the exchange thread."""
        previous_seconds = self._seconds_at_spent
        seconds = self._seconds_at_spent = (self.compress_seconds, self.exchange_seconds)
        spent_seconds = (seconds[0] - previous_seconds[0], seconds[1] - previous_seconds[1])
        return Spent(*self._timed_bytes.take(), lambda: spent_seconds)

    def submit(self, job: Job[T], alone: bool = False, timed: bool = False) -> "Future[T]":
        """Queue a job, to be run after all jobs that were submitted earlier; return a future of its result.

        The job also waits for the current CUDA stream's work so far. See ``Executor``.
        """
        submitted = _Submitted(job, Future(), alone, timed, stream_order(self._device))
        self._inbox.put(submitted)
        if self._refuses_jobs:
            self._refuse_inbox()
        return submitted.future

    def order(self) -> None:
        """Wait until all submitted jobs have ended."""
        self.drain()
        self.join()

    def join(self) -> None:
        """Make the current CUDA stream, if there is one, wait for the exchange thread's stream."""
        if threading.current_thread() is not self._thread:
            follow_thread(self._device)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all submitted jobs have ended, for at most ``seconds``; return False if they have not by then.

        Returns True at once in two cases: if the exchange thread itself calls this method, through a telemetry sink;
        and if the process was forked, since it then has no exchange thread.

        Args:
            seconds: longest wait, in seconds; ``None``: no limit.
        """
        if threading.current_thread() is self._thread or os.getpid() != self._creator_pid:
            return True
        return bool(wait([self.submit(job_of(lambda: None), alone=True)], seconds).done)

    def abandon(self, failure: BaseException) -> None:
        """Make all submitted and all later jobs fail with an exception, and tell the other ranks."""
        self._abandon_failure = failure
        self._inbox.put(_Abandon(failure))

    def close(self, wait: bool = True) -> None:
        """End the threads when all submitted jobs have ended, and destroy the process groups that only gravac uses.

        Waits for at most ``JOIN_SECONDS`` until the jobs have ended, and makes the rest fail. Collectives that are
        still in flight then fail, too, so that no thread waits for them. If this rank failed, the method also waits for
        at most ``LINGER_SECONDS`` until the other ranks have read its error.

        Also called when the interpreter exits: a thread that still waits for a collective would then abort the process.
        Does nothing in a forked process, which has no such threads.

        Args:
            wait: False: return at once; the exchange thread then does the rest when the submitted jobs have ended.
        """
        if os.getpid() != self._creator_pid:
            return
        self._ends_alone = not wait
        self._inbox.put(None)
        if not wait or threading.current_thread() is self._thread:
            return
        atexit.unregister(self.close)
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            closing_text = (
                "the compressor was closed before its exchange ended: a rank did not answer; see other ranks' logs"
            )
            self.abandon(ExchangeError(closing_text))
            self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            self._refuse_all_jobs()  # the thread is stuck, so the queued jobs are made to fail here
        self._release()
        self._failures.linger()

    def _release(self) -> None:
        """End the waiting threads, and destroy the process groups that only gravac uses."""
        if self._failure is not None or self._abandon_failure is not None:
            self._interrupt()
        for waiting_thread in self._waiting_threads:
            waiting_thread.join(JOIN_SECONDS)
        if any(thread.is_alive() for thread in self._waiting_threads):
            return
        groups = [used.__dict__.pop("group", None) for used in self._transports]
        if self._failure is None and self._abandon_failure is None:
            self._destroy(groups)
            atexit.unregister(self.close)  # not before: at exit, ``close`` waits for the thread that destroys groups
            return
        # gloo waits, without a limit, for collectives that it has not begun or that do not notice the failure
        destroying_thread = threading.Thread(target=self._destroy, args=(groups,), name="gravac-destroy", daemon=True)
        destroying_thread.start()
        destroying_thread.join(JOIN_SECONDS)
        atexit.unregister(self.close)

    def _destroy(self, groups: list[Any]) -> None:
        """Destroy process groups (not ``None``), and empty the list, so that no other thread runs their destructors."""
        while groups:
            if (group := groups.pop()) is not None:
                self._call_guarded(destroy_private, group)

    def _interrupt(self) -> None:
        """Make all collectives in flight fail, on this rank and on the other ranks."""
        for transport in self._transports:
            if hasattr(transport, "group"):  # not destroyed yet
                self._call_guarded(transport.interrupt)

    def _refuse_all_jobs(self) -> None:
        """Make all jobs in the inbox fail, and all jobs that are submitted later."""
        self._refuses_jobs = True
        self._refuse_inbox()

    def _refuse_inbox(self) -> None:
        """Make all jobs in the inbox fail, since no thread will run them. Called by any thread."""
        failure = (
            self._failure
            or self._abandon_failure
            or RuntimeError("the compressor is closed; make a new AdaptiveCompressor")
        )
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Submitted):
                fail(message.future, failure)

    # the threads that wait

    def _waiting_thread(
        self, transport: GroupTransport, wait_queue: "queue.SimpleQueue[_Submitted | None]", name: str
    ) -> threading.Thread:
        return threading.Thread(target=self._run_waiting_thread, args=(transport, wait_queue), name=name, daemon=True)

    def _run_waiting_thread(
        self, transport: GroupTransport, wait_queue: "queue.SimpleQueue[_Submitted | None]"
    ) -> None:
        """Run a waiting thread: wait for each job's collectives in flight, in order, and report their results.

        Args:
            transport: transport that started the collectives.
            wait_queue: queue of jobs with collectives in flight; ``None`` ends the thread.
        """
        while (submitted := wait_queue.get()) is not None:
            try:
                results: RoundResults = transport.finish(submitted.pending)
            except BaseException as failure:
                results = failure.with_traceback(None)  # a traceback would keep collectives and connections alive
            self._inbox.put(_RoundEnded(submitted, results, time.perf_counter()))
            del submitted, results  # otherwise they would stay in memory until the next job

    # the exchange thread

    def _run_exchange_thread(self) -> None:
        """Run all submitted jobs on the exchange thread; if an exception ends the thread, make the rest fail."""
        torch.set_grad_enabled(False)
        torch.get_num_threads()  # the first call on a thread applies set_num_threads to it; BLAS calls do not
        try:
            self._run_jobs()
        except BaseException as failure:
            self._give_up(failure)
        finally:
            for wait_queue in (self._wait_queue, self._agree_wait_queue):
                wait_queue.put(None)
            self._refuse_all_jobs()
            if self._ends_alone:
                self._release()

    def _run_jobs(self) -> None:
        """Run submitted jobs until the message ``None`` arrives, which ends the exchange thread."""
        while True:
            self._receive(wait=False)
            # no local variable refers to a job: while the thread waits, that would keep the owner of the executor alive
            if self._oldest_has_results and not self._jobs_in_flight[0].is_last:
                self._resume_oldest()  # the job's next collectives start before another job's
                continue
            self._encode_and_send()
            if self._oldest_has_results:
                self._resume_oldest()
            elif self._jobs_in_flight or not self._queued_jobs:
                self._receive(wait=True)
            elif self._queued_jobs[0] is None:
                return

    @property
    def _oldest_has_results(self) -> bool:
        """True if the results of the oldest job in flight have arrived."""
        return bool(self._jobs_in_flight) and self._jobs_in_flight[0].has_results

    def _receive(self, wait: bool) -> None:
        """Take all messages out of the inbox: queue jobs, store results of collectives, note failures.

        Args:
            wait: whether to wait for a message if there is none.
        """
        while wait or not self._inbox.empty():
            message = self._message()
            wait = False
            if isinstance(message, _RoundEnded):
                self._store_results(message)
            elif isinstance(message, _Abandon):
                self._give_up(message.failure)
            elif self._failure is not None and message is not None:
                fail(message.future, self._failure)
            else:
                self._queued_jobs.append(message)

    def _message(self) -> _Message:
        """Wait for a message and return it. While a job is in flight, check at intervals if another rank failed."""
        while True:
            try:
                return self._inbox.get(timeout=LOOK_SECONDS if self._jobs_in_flight else None)
            except queue.Empty:
                if (failure := self._error_of_other_rank()) is not None:
                    self._jobs_in_flight[0].results = failure
                    self._resume_oldest()

    def _store_results(self, message: _RoundEnded) -> None:
        """Store the results of a job's collectives, unless the job failed meanwhile; count the time of their flight."""
        submitted, results, ended_s = message
        if submitted.results is None:
            submitted.results = self._error_with_report(results) if isinstance(results, ExchangeError) else results
        if submitted.timed:
            self._timed_rounds_in_flight -= 1
            if not self._timed_rounds_in_flight:
                self.exchange_seconds += ended_s - self._flight_began_s

    def _error_of_other_rank(self) -> ExchangeError | None:
        """Return an error that names another rank that failed, and that rank's error; ``None`` if no rank failed."""
        failure_text = self._failures.look()
        return (
            None
            if failure_text is None
            else ExchangeError(f"rank {self.rank} of {self.world} got no answer: {failure_text}")
        )

    def _error_with_report(self, failure: ExchangeError) -> ExchangeError:
        """Return an error that names the rank that failed first, and its error; ``failure`` itself if none is known.

        Args:
            failure: error of a collective that got no answer.
        """
        failure_text = self._failures.look(causes_only=True)
        if failure_text is None:
            return failure
        explained_failure = ExchangeError(f"rank {self.rank} of {self.world} got no answer: {failure_text}")
        explained_failure.__cause__ = failure.__cause__
        return explained_failure

    def _may_encode(self) -> bool:
        """True if the next job in the queue may begin: not while a job runs that must be alone, or before that."""
        if self._encoded_job is not None or not self._queued_jobs or self._queued_jobs[0] is None:
            return False
        return not self._jobs_in_flight or not (self._queued_jobs[0].alone or self._jobs_in_flight[-1].alone)

    def _encode_and_send(self) -> None:
        """Encode the next jobs, and start the collectives of those that need not wait.

        A job's collectives wait if too many jobs are in flight, or if an earlier job yields further collectives.
        """
        while True:
            while self._may_encode():
                submitted = self._queued_jobs.popleft()
                assert submitted is not None
                if self._guard(submitted, self._encode):
                    self._encoded_job = submitted
                del submitted
            if self._encoded_job is None:
                return
            if self._jobs_in_flight and not (
                self._jobs_in_flight[-1].is_last and len(self._jobs_in_flight) <= MAX_JOBS_BEHIND
            ):
                return
            submitted, self._encoded_job = self._encoded_job, None
            if self._guard(submitted, self._send):
                self._jobs_in_flight.append(submitted)
            del submitted

    def _resume_oldest(self) -> None:
        """Resume the oldest job in flight with its results, until it ends or starts further collectives."""
        submitted = self._jobs_in_flight.popleft()
        if self._guard(submitted, self._resume):
            self._jobs_in_flight.appendleft(submitted)

    def _encode(self, submitted: _Submitted) -> bool:
        """Run a job until it yields its first collectives; return False if it ends without collectives."""
        submitted.follow_stream()
        return self._advance(submitted, lambda: next(submitted.job))

    def _send(self, submitted: _Submitted) -> bool:
        """Start the collectives that a job yielded last, and return True.

        If starting fails, the exception is raised inside the job, which adds the names of the exchanged tensors.
        """
        transport = self._agree_transport if submitted.over_all else self.transport
        try:
            with self._timed_bytes.counting(submitted.timed):
                submitted.pending = transport.launch([*submitted.requests])
        except Exception as failure:
            submitted.job.throw(self._error_with_report(failure) if isinstance(failure, ExchangeError) else failure)
            raise
        submitted.results = None
        if submitted.timed:
            if not self._timed_rounds_in_flight:
                self._flight_began_s = time.perf_counter()
            self._timed_rounds_in_flight += 1
        (self._agree_wait_queue if submitted.over_all else self._wait_queue).put(submitted)
        return True

    def _resume(self, submitted: _Submitted) -> bool:
        """Resume a job with results or an exception; return whether it started further collectives."""
        results, was_last = submitted.results, submitted.is_last
        assert results is not None
        if isinstance(results, BaseException):
            failure = results
            has_requests = self._advance(submitted, lambda: submitted.job.throw(failure))
        else:
            submitted.requests, submitted.pending = [], []  # frees what was sent, before the job decodes
            has_requests = self._advance(submitted, lambda: submitted.job.send(results))
        if has_requests and was_last:
            raise RuntimeError(
                "one_round: a compressor declares one_round = True, but yielded collectives twice; "
                "set one_round = False"
            )
        return has_requests and self._send(submitted)

    def _advance(self, submitted: _Submitted, resume: Callable[[], list[Collective]]) -> bool:
        """Run a job, by ``resume``, until it yields its next collectives; return False if it ended."""
        began_s = time.perf_counter()
        try:
            submitted.requests = resume()
        except StopIteration as end:
            result = end.value
        else:
            submitted.is_last = isinstance(submitted.requests, Round) and submitted.requests.last
            submitted.over_all = isinstance(submitted.requests, Round) and submitted.requests.over_all
            return True
        finally:
            if submitted.timed:
                self.compress_seconds += time.perf_counter() - began_s
        if not submitted.future.done():
            submitted.future.set_result(result)
        return False

    def _guard(self, submitted: _Submitted, function: Callable[[_Submitted], bool]) -> bool:
        """Call a function with a job and return its result; if it raises, make this and all later jobs fail."""
        try:
            return function(submitted)
        except BaseException as failure:
            self._give_up(failure, submitted)
            return False

    def _give_up(self, failure: BaseException, *failed_jobs: _Submitted) -> None:
        """Make all unfinished and all later jobs fail with an exception, and tell the other ranks.

        The connections to the other ranks close, so that these ranks fail soon, too, even without a store.

        Args:
            failure: exception; if an earlier job has failed already, that job's exception is used instead.
            failed_jobs: jobs to make fail, in addition to all unfinished jobs.
        """
        self._failure = self._failure or failure
        no_answer = isinstance(self._failure, ExchangeError) and self._failure is not self._abandon_failure
        self._failures.report(self._failure, no_answer)
        self._interrupt()
        unfinished_jobs = [*failed_jobs, *self._jobs_in_flight, self._encoded_job, *self._queued_jobs]
        self._jobs_in_flight.clear()
        self._encoded_job = None
        self._queued_jobs = deque(submitted for submitted in self._queued_jobs if submitted is None)
        for submitted in unfinished_jobs:
            if submitted is not None:
                fail(submitted.future, self._failure)
