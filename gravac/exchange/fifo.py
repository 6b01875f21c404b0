# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor over a process group: one thread runs jobs (generators of collectives) and calls (functions) in order.

A DDP hook holds the reducer's lock and must not wait. Collectives must start in the same order on all ranks, and on
gloo never from a callback. The hook therefore only enqueues jobs. Encoding, collectives and decoding run on one thread,
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
ranks agree. Ranks also agree within a job (``everywhere``), when the next job's collectives may be in flight on one
rank, and not yet started on another.
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
from gravac.exchange.group import GroupTransport, Pending, destroy_private
from gravac.guarded import GuardedCaller

MAX_JOBS_BEHIND = 4
"""Largest number of jobs (generators of collectives) in flight at the same time, not counting the oldest job."""

JOIN_SECONDS = 5.0
"""Longest time, in seconds, for which ``close`` waits until a thread ends: another rank may never answer."""


RoundResults = list[Any] | BaseException
"""Results of the collectives that a job yielded together, or the exception that one of these collectives raised."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """State of one job (generator of collectives), from when the job is queued until it ends.

    Attributes:
        job: generator of collectives.
        fail: function that is called with the exception if the job, or an earlier job, failed.
        promises_one_round: function that returns whether the job yields only once; called when the job's first
            collectives are known.
        follow_stream: function that makes the exchange thread's stream wait for the job's tensors; called before the
            job is run.
        one_round: whether the job yields only once, as ``promises_one_round`` returned.
        requests: collectives that the job yielded last.
        pending: handles of ``requests`` in flight; empty before the first collectives start.
        results: results of ``requests``, or the exception of one of them; ``None`` until the results have arrived.
    """

    job: Job
    fail: Fail
    promises_one_round: Callable[[], bool]
    follow_stream: Callable[[], None]
    one_round: bool = False
    requests: list[Collective] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    results: RoundResults | None = None

    @property
    def has_results(self) -> bool:
        """True if the results of the collectives that the job yielded last have arrived."""
        return self.results is not None


class _Call(NamedTuple):
    """Message to the exchange thread: call ``function``; if that raises, call ``fail`` with the exception."""

    function: Callable[[], None]
    fail: Fail


class _RoundEnded(NamedTuple):
    """Message to the exchange thread: a job's collectives have ended, with results.

    Attributes:
        exchange: the job.
        results: results of the job's collectives, or the exception of one of them.
        ended_s: time of the end, in seconds of ``time.perf_counter``.
    """

    exchange: _Exchange
    results: RoundResults
    ended_s: float


class _Await(NamedTuple):
    """Message to a waiting thread: wait for the collectives of a call, and put their results into a queue.

    Attributes:
        transport: transport that started the collectives.
        pending: the collectives in flight.
        results_queue: queue for the results, or for the exception of one of the collectives.
    """

    transport: GroupTransport
    pending: list[Pending]
    results_queue: "queue.SimpleQueue[RoundResults]"


class _Abandon(NamedTuple):
    """Message to the exchange thread: make all work fail with the exception ``failure``."""

    failure: BaseException


_Work = _Exchange | _Call | None
"""Message to the exchange thread: run a job, or call a function; ``None`` ends the thread."""


class Fifo:
    """Runs a rank's jobs (generators of collectives) and calls (functions) in order on one thread; see ``Executor``.

    Args:
        transport: runs collectives over the ranks that average gradients.
        agreement: runs collectives over the ranks that agree on measurements and decisions; ``None``: these are the
            ranks that average.

    Attributes:
        transport: runs collectives over the ranks that average gradients.
        ledger: totals of the payload bytes and wire bytes of collectives over the ranks that average.
        compress_seconds: seconds spent inside jobs (encode, decode, error feedback), since the executor was created.
        exchange_seconds: seconds in which collectives were in flight, since the executor was created.
    """

    latency = 2
    host_looks = True

    def __init__(self, transport: GroupTransport, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world, self.ledger = transport.rank, transport.world, transport.ledger
        self._agree_transport = transport if agreement is None else agreement
        self.agree_rank, self.agree_world = self._agree_transport.rank, self._agree_transport.world
        self.compress_seconds = 0.0
        self.exchange_seconds = 0.0
        self._transports = [self.transport, *([] if agreement is None else [agreement])]
        groups = [getattr(used_transport, "group", None) for used_transport in self._transports]
        self._failures = Failures([group for group in groups if group is not None])
        self._call_guarded = GuardedCaller()
        self._creator_pid = os.getpid()
        self._inbox: queue.SimpleQueue[_Work | _RoundEnded | _Abandon] = queue.SimpleQueue()
        self._wait_queue: queue.SimpleQueue[_Exchange | _Await | None] = queue.SimpleQueue()
        self._agree_wait_queue = self._wait_queue if agreement is None else queue.SimpleQueue()
        self._queued_work: deque[_Work] = deque()
        self._encoded_job: _Exchange | None = None  # its collectives have not started yet
        self._jobs_in_flight: deque[_Exchange] = deque()  # jobs with collectives in flight, oldest first
        # ``compress_seconds`` and ``exchange_seconds`` at the last call of ``spent``
        self._seconds_at_spent = (0.0, 0.0)
        self._rounds_in_flight = 0
        self._flight_began_s = 0.0
        self._failure: BaseException | None = None
        self._abandon_failure: BaseException | None = None
        self._refuses_work = self._ends_alone = False
        self._thread = threading.Thread(target=self._run_exchange_thread, name="gravac-exchange", daemon=True)
        self._waiting_threads = [
            threading.Thread(target=self._run_waiting_thread, args=(self._wait_queue,), name="gravac-wait", daemon=True)
        ]
        if agreement is not None:
            thread_arguments = (self._agree_wait_queue,)
            self._waiting_threads.append(
                threading.Thread(
                    target=self._run_waiting_thread, args=thread_arguments, name="gravac-agree", daemon=True
                )
            )
        for thread in (self._thread, *self._waiting_threads):
            thread.start()
        atexit.register(self.close)

    def mark(self) -> float:
        """Return the present moment, in seconds of ``time.perf_counter``."""
        return time.perf_counter()

    def between(self, earlier: float, later: float) -> float:
        """Return the seconds from one result of ``mark`` to a later one."""
        return later - earlier

    def spent(self) -> Callable[[], tuple[float, float]]:
        """Return a function that returns the seconds of encoding and decoding, and the seconds of exchange.

        Both count from the last call of ``spent``. Called on the exchange thread. See ``Executor``.
        """
        previous_seconds = self._seconds_at_spent
        seconds = self._seconds_at_spent = (self.compress_seconds, self.exchange_seconds)
        spent_seconds = (seconds[0] - previous_seconds[0], seconds[1] - previous_seconds[1])
        return lambda: spent_seconds

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Queue a job (generator of collectives), to be run after all work that was queued earlier.

        The job also waits for the current CUDA stream's work so far. For the arguments, see ``Executor``.
        """
        self._hand_over(_Exchange(job, fail, one_round, stream_order(device)))

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Queue a function, to be called when all work that was queued earlier has ended.

        If the function or earlier queued work raises, ``fail`` is called with the exception.
        """
        self._hand_over(_Call(function, fail))

    def _hand_over(self, work: _Exchange | _Call) -> None:
        self._inbox.put(work)
        if self._refuses_work:
            self._refuse_inbox()

    def launch(self, collectives: list[Collective]) -> list[Pending]:
        """Start collectives, and return a handle of each, for ``finish``; called on the exchange thread."""
        return self._launch(self.transport, collectives)

    def finish(self, started: list[Pending]) -> list[Any]:
        """Wait for collectives that ``launch`` started, and return their results; called on the exchange thread."""
        return self._await(self.transport, started)

    def agree(self, vectors: Sequence[Sequence[Number]]) -> list[Pending]:
        """Start to sum vectors over the ranks that agree on decisions; return a handle of each sum, for ``agreed``.

        Called on the exchange thread.
        """
        sums = [AllReduce(torch.tensor(vector, dtype=torch.float64, device="cpu")) for vector in vectors]
        return self._launch(self._agree_transport, sums)

    def agreed(self, started: list[Pending]) -> list[list[float]]:
        """Wait for the sums that ``agree`` started, and return each as a list; called on the exchange thread."""
        return [total.tolist() for total in self._await(self._agree_transport, started)]

    def everywhere(self, finite: Verdict) -> Verdict:
        """Return whether ``finite`` (all gradients were finite) is true on every rank that agrees on decisions."""
        if self._agree_transport is self.transport:
            return finite
        ((finite_count,),) = self.agreed(self.agree([[float(finite)]]))
        return finite_count == self.agree_world

    def _launch(self, transport: GroupTransport, collectives: Sequence[Collective]) -> list[Pending]:
        try:
            return transport.launch([*collectives])
        except ExchangeError as failure:
            raise self._error_with_report(failure) from failure.__cause__

    def _await(self, transport: GroupTransport, started: list[Pending]) -> list[Any]:
        """Wait for collectives in flight, and return their results; check at intervals whether another rank failed.

        Called on the exchange thread.
        """
        if transport.has_ended(started):
            return transport.finish(started)
        results_queue: queue.SimpleQueue[RoundResults] = queue.SimpleQueue()
        wait_queue = self._wait_queue if transport is self.transport else self._agree_wait_queue
        wait_queue.put(_Await(transport, started, results_queue))
        while True:
            try:
                results = results_queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if (failure := self._abandon_failure or self._error_of_other_rank()) is not None:
                    raise failure from None
                continue
            if isinstance(results, ExchangeError):
                raise self._error_with_report(results)
            if isinstance(results, BaseException):
                raise results
            return results

    def wait_for_previous_step(self) -> None:
        """Do nothing: with this executor, the host may read values of tensors at any time."""

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return a bool scalar (0-d tensor) as a bool."""
        return bool(finite)

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Copy a bool tensor, of any shape, to the host, and return the copy; the exchange thread waits for it."""
        return verdicts.cpu()

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return numbers (floats or 0-d tensors) as floats."""
        return [float(number) for number in numbers]

    def order(self) -> None:
        """Wait until all queued work has ended."""
        self.drain()

    def join(self) -> None:
        """Do nothing: this executor uses one thread, not several CUDA streams of which one must wait for another."""

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all queued work has ended, for at most ``seconds``; return False if it has not ended by then.

        Returns True at once in two cases: if the exchange thread itself calls this method, through a telemetry sink;
        and if the process was forked, since it then has no exchange thread.

        Args:
            seconds: longest wait, in seconds; ``None``: no limit.
        """
        if threading.current_thread() is self._thread or os.getpid() != self._creator_pid:
            return True
        done_event = threading.Event()
        self.call(done_event.set, lambda _: done_event.set())
        return done_event.wait(seconds)

    def abandon(self, failure: BaseException) -> None:
        """Make all queued and all later work fail with an exception, and tell the other ranks."""
        self._abandon_failure = failure
        self._inbox.put(_Abandon(failure))

    def close(self, wait: bool = True) -> None:
        """End the threads when all queued work has ended, and destroy the process groups that only gravac uses.

        Waits for at most ``JOIN_SECONDS`` until the work has ended, and makes the rest fail. Collectives that are still
        in flight then fail, too, so that no thread waits for them. If this rank failed, the method also waits for at
        most ``LINGER_SECONDS`` until the other ranks have read its error.

        Also called when the interpreter exits: a thread that still waits for a collective would then abort the process.
        Does nothing in a forked process, which has no such threads.

        Args:
            wait: False: return at once; the exchange thread then does the rest when the queued work has ended.
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
            self._refuse_all_work()  # the thread is stuck, so the queued work is made to fail here
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
        atexit.unregister(self.close)
        groups = [used.__dict__.pop("group", None) for used in self._transports]
        if self._failure is None and self._abandon_failure is None:
            self._destroy(groups)
            return
        # gloo waits, without a limit, for collectives that it has not begun or that do not notice the failure
        destroying_thread = threading.Thread(target=self._destroy, args=(groups,), name="gravac-destroy", daemon=True)
        destroying_thread.start()
        destroying_thread.join(JOIN_SECONDS)

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

    def _refuse_all_work(self) -> None:
        """Make all work in the inbox fail, and all work that is queued later."""
        self._refuses_work = True
        self._refuse_inbox()

    def _refuse_inbox(self) -> None:
        """Make all work in the inbox fail, since no thread will run it. Called by any thread."""
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
            if isinstance(message, _Exchange | _Call):
                self._call_guarded(message.fail, failure)

    # the threads that wait

    def _run_waiting_thread(self, wait_queue: "queue.SimpleQueue[_Exchange | _Await | None]") -> None:
        """Run a waiting thread: wait for the collectives of each message, in order, and report their results.

        Args:
            wait_queue: queue of messages, each with collectives in flight; ``None`` ends the thread.
        """
        while (wait_message := wait_queue.get()) is not None:
            if isinstance(wait_message, _Await):
                wait_message.results_queue.put(_finish(wait_message.transport, wait_message.pending))
            else:
                self._inbox.put(
                    _RoundEnded(wait_message, _finish(self.transport, wait_message.pending), time.perf_counter())
                )
            del wait_message  # otherwise the job would stay in memory until the next message

    # the exchange thread

    def _run_exchange_thread(self) -> None:
        """Run all queued work on the exchange thread; if an exception ends the thread, make the rest fail."""
        torch.set_grad_enabled(False)
        torch.get_num_threads()  # the first call on a thread applies set_num_threads to it; BLAS calls do not
        try:
            self._run_queued_work()
        except BaseException as failure:
            self._give_up(failure)
        finally:
            for wait_queue in (self._wait_queue, self._agree_wait_queue):
                wait_queue.put(None)
            self._refuse_all_work()
            if self._ends_alone:
                self._release()

    def _run_queued_work(self) -> None:
        """Run queued work until the message ``None`` arrives, which ends the exchange thread."""
        while True:
            self._receive(wait=False)
            # no local variable refers to work: while the thread waits, work would keep the owner of the executor alive
            if self._oldest_has_results and not self._jobs_in_flight[0].one_round:
                self._resume_oldest()  # the job's next collectives start before another job's
                continue
            self._encode_and_send()
            if self._oldest_has_results:
                self._resume_oldest()
            elif self._jobs_in_flight or not self._queued_work:
                self._receive(wait=True)
            elif not self._run_call():
                return

    @property
    def _oldest_has_results(self) -> bool:
        """True if the results of the oldest job in flight have arrived."""
        return bool(self._jobs_in_flight) and self._jobs_in_flight[0].has_results

    def _run_call(self) -> bool:
        """Run the call that is queued next; return False if the message that ends the thread is next."""
        call = self._queued_work.popleft()
        if call is None:
            return False
        assert isinstance(call, _Call)
        self._guard(call.fail, call.function)
        return True

    def _receive(self, wait: bool) -> None:
        """Take all messages out of the inbox: queue work, store results of collectives, note failures.

        Args:
            wait: whether to wait for a message if there is none.
        """
        while wait or not self._inbox.empty():
            message = self._message()
            wait = False
            if isinstance(message, _RoundEnded):
                exchange = message.exchange
                if exchange.results is None:
                    results = message.results
                    exchange.results = (
                        self._error_with_report(results) if isinstance(results, ExchangeError) else results
                    )
                self._rounds_in_flight -= 1
                if not self._rounds_in_flight:
                    self.exchange_seconds += message.ended_s - self._flight_began_s
            elif isinstance(message, _Abandon):
                self._give_up(message.failure)
            elif self._failure is not None and message is not None:
                self._call_guarded(message.fail, self._failure)
            else:
                self._queued_work.append(message)

    def _message(self) -> _Work | _RoundEnded | _Abandon:
        """Wait for a message and return it. While a job is in flight, check at intervals if another rank failed."""
        while True:
            try:
                return self._inbox.get(timeout=LOOK_SECONDS if self._jobs_in_flight else None)
            except queue.Empty:
                if (failure := self._error_of_other_rank()) is not None:
                    self._jobs_in_flight[0].results = failure
                    self._resume_oldest()

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

    def _encode(self) -> bool:
        """Encode the next job (generator of collectives), unless a function is queued before the job.

        Returns:
            Whether there is an encoded job whose collectives have not started.
        """
        while (
            self._encoded_job is None and self._queued_work and isinstance(exchange := self._queued_work[0], _Exchange)
        ):
            self._queued_work.popleft()
            if self._guard(exchange.fail, self._encode_job, exchange):
                self._encoded_job = exchange
        return self._encoded_job is not None

    def _encode_and_send(self) -> None:
        """Encode the next jobs (generators of collectives), and start the collectives of those that need not wait.

        A job waits if too many jobs are in flight, or if an earlier job yields more than once.
        """
        while self._encode():
            if self._jobs_in_flight and not (
                self._jobs_in_flight[-1].one_round and len(self._jobs_in_flight) <= MAX_JOBS_BEHIND
            ):
                return
            assert self._encoded_job is not None
            exchange, self._encoded_job = self._encoded_job, None
            if self._guard(exchange.fail, self._send, exchange):
                self._jobs_in_flight.append(exchange)

    def _resume_oldest(self) -> None:
        """Resume the oldest job (generator) in flight with its results, until it ends or starts further collectives."""
        exchange = self._jobs_in_flight.popleft()
        if self._guard(exchange.fail, self._resume, exchange):
            self._jobs_in_flight.appendleft(exchange)

    def _encode_job(self, exchange: _Exchange) -> bool:
        """Run a job's generator until it yields its first collectives; return False if it ends without collectives."""
        exchange.follow_stream()
        has_requests = self._advance(exchange, lambda: next(exchange.job))
        exchange.one_round = exchange.promises_one_round()
        return has_requests

    def _send(self, exchange: _Exchange) -> bool:
        """Start the collectives that a job's generator yielded last, and return True.

        If starting fails, the exception is raised inside the job, which adds the names of the exchanged tensors.
        """
        try:
            exchange.pending = self._launch(self.transport, exchange.requests)
        except Exception as failure:
            exchange.job.throw(failure)
            raise
        exchange.results = None
        if not self._rounds_in_flight:
            self._flight_began_s = time.perf_counter()
        self._rounds_in_flight += 1
        self._wait_queue.put(exchange)
        return True

    def _resume(self, exchange: _Exchange) -> bool:
        """Resume a job's generator with results or an exception; return whether it started new collectives."""
        results = exchange.results
        assert results is not None
        if isinstance(results, BaseException):
            failure = results
            has_requests = self._advance(exchange, lambda: exchange.job.throw(failure))
        else:
            has_requests = self._advance(exchange, lambda: exchange.job.send(results))
        if has_requests and exchange.one_round:
            raise RuntimeError(
                "one_round: a compressor declares one_round = True, but yielded collectives twice; "
                "set one_round = False"
            )
        return has_requests and self._send(exchange)

    def _advance(self, exchange: _Exchange, resume: Callable[[], list[Collective]]) -> bool:
        """Run a job's generator, by ``resume``, until it yields its next collectives; return False if it ended."""
        began_s = time.perf_counter()
        try:
            exchange.requests = resume()
        except StopIteration:
            return False
        finally:
            self.compress_seconds += time.perf_counter() - began_s
        return True

    def _guard(self, fail: Fail, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and return its result; if it raises, call ``fail``, make later work fail, return ``None``."""
        try:
            return function(*arguments)
        except BaseException as failure:
            self._give_up(failure, fail)
            return None

    def _give_up(self, failure: BaseException, *fail_functions: Fail) -> None:
        """Make all unfinished and all later work fail with an exception, and tell the other ranks.

        The connections to the other ranks close, so that these ranks fail soon, too, even without a store.

        Args:
            failure: exception; if earlier work has failed already, that work's exception is used instead.
            fail_functions: functions to call with the exception, in addition to the ``fail`` functions of all
                unfinished work.
        """
        self._failure = self._failure or failure
        no_answer = isinstance(self._failure, ExchangeError) and self._failure is not self._abandon_failure
        self._failures.report(self._failure, no_answer)
        self._interrupt()
        unfinished_work: list[_Work] = [*self._jobs_in_flight, self._encoded_job, *self._queued_work]
        self._jobs_in_flight.clear()
        self._encoded_job = None
        self._queued_work = deque(work for work in self._queued_work if work is None)
        for fail in (*fail_functions, *(work.fail for work in unfinished_work if work is not None)):
            self._call_guarded(fail, self._failure)


def _finish(transport: GroupTransport, pending: list[Pending]) -> RoundResults:
    """Wait for collectives that a transport started; return their results, or the exception that was raised."""
    try:
        return transport.finish(pending)
    except BaseException as failure:
        return failure.with_traceback(None)  # a traceback would keep collectives and connections alive
