# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The exchange thread: one order of collectives, encoding ahead, failures that reach everyone."""

import ctypes
import re
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac.collectives import AllReduce, Collective, Ledger
from gravac.exchange import fifo as module
from gravac.exchange.executor import Job, Round, job_of
from gravac.exchange.failures import ExchangeError
from gravac.exchange.fifo import MAX_JOBS_BEHIND, Fifo

CPU = torch.device("cpu")

HUNG = 120.0
"""Seconds after which a test gives up on what should have happened; no test passes by waiting for so long."""


class Wire:
    """Stands in for a transport: keeps the order of events, and lets nothing land while its gate is shut."""

    rank, world = 0, 1

    def __init__(self, open_: bool = True) -> None:
        self.ledger = Ledger()
        self.events: list[str] = []
        self.gate = threading.Event()
        self._news = threading.Condition()
        if open_:
            self.gate.set()

    def launch(self, requests: list[Collective]) -> list[Collective]:
        self.note(*(f"start {int(r.tensor[0])}" for r in requests if isinstance(r, AllReduce)))
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        assert self.gate.wait(HUNG)
        self.note(*(f"finish {int(r.tensor[0])}" for r in pending if isinstance(r, AllReduce)))
        return [r.tensor for r in pending if isinstance(r, AllReduce)]

    def note(self, *events: str) -> None:
        with self._news:
            self.events += events
            self._news.notify_all()

    def until(self, event: str) -> None:
        """Wait until it has happened."""
        with self._news:
            assert self._news.wait_for(lambda: event in self.events, HUNG), f"no {event!r} in {self.events}"


def job(wire: Wire, number: int, rounds: int = 1) -> Job[int]:
    """Yields some rounds, and does not say which one is the last."""
    wire.note(f"encode {number}")
    for turn in range(rounds):
        yield [AllReduce(torch.tensor([10 * number + turn]))]
    wire.note(f"decode {number}")
    return number


def one_round(wire: Wire, number: int, rounds: int = 1) -> Job[int]:
    """Yields one round, and says that it is the last; with more rounds, it breaks that promise."""
    wire.note(f"encode {number}")
    for turn in range(rounds):
        yield Round([AllReduce(torch.tensor([10 * number + turn]))], last=True)
    wire.note(f"decode {number}")
    return number


def failures(futures: Sequence[Future[Any]]) -> list[str]:
    """Messages of the exceptions of futures that are done."""
    return [str(future.exception(timeout=HUNG)) for future in futures]


def test_a_jobs_collectives_all_come_before_the_next_jobs() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = list[Future[int]]()
    for number in (1, 2, 3):
        futures = [*futures, fifo.submit(job(wire, number, rounds=2))]
    wire.gate.set()
    assert [future.result(HUNG) for future in futures] == [1, 2, 3]
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == ["start 10", "start 11", "start 20", "start 21", "start 30", "start 31"]


def test_the_next_job_is_encoded_while_the_first_travels() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.submit(job(wire, 1))
    fifo.submit(job(wire, 2))
    wire.until("encode 2")
    wire.gate.set()
    fifo.drain()
    assert wire.events.index("encode 2") < wire.events.index("finish 10")
    assert wire.events.index("finish 10") < wire.events.index("start 20")


def test_a_job_of_one_round_lets_the_next_start_while_it_travels() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    for number in range(1, 7):
        fifo.submit(one_round(wire, number), timed=True)
    fifo.submit(job(wire, 7, rounds=2))
    fifo.submit(one_round(wire, 8), timed=True)
    wire.until(f"encode {MAX_JOBS_BEHIND + 2}")  # which nothing but the depth keeps from starting
    wire.gate.set()
    fifo.drain()
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == [f"start {n}" for n in (10, 20, 30, 40, 50, 60, 70, 71, 80)]
    assert wire.events.index(f"start {MAX_JOBS_BEHIND + 1}0") < wire.events.index("finish 10")
    under_way = [
        sum(e.startswith("start") for e in wire.events[:at]) - sum(e.startswith("finish") for e in wire.events[:at])
        for at in range(len(wire.events))
    ]
    assert max(under_way) == MAX_JOBS_BEHIND + 1
    assert [e for e in wire.events if e.startswith("decode")] == [f"decode {n}" for n in range(1, 9)]


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_arrives_while_another_travels_is_encoded_then(rounds: int) -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.submit(one_round(wire, 1) if rounds == 1 else job(wire, 1, rounds))
    wire.until("start 10")
    fifo.submit(one_round(wire, 2), timed=True)
    wire.until("start 20" if rounds == 1 else "encode 2")  # nothing has landed: the gate is shut
    wire.gate.set()
    fifo.drain()
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == (["start 10", "start 20"] if rounds == 1 else ["start 10", "start 11", "start 20"])


def test_time_under_way_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gravac.exchange.fifo.time", SimpleNamespace(perf_counter=lambda: now[0]))
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        fifo.submit(one_round(wire, number), timed=True)
    wire.until("start 30")
    now[0] = 102.0
    wire.gate.set()
    fifo.drain()
    assert fifo.exchange_seconds == 2.0


def test_a_job_that_breaks_its_promise_of_one_round_fails() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    future = fifo.submit(one_round(wire, 1, rounds=2))
    fifo.drain()
    assert failures([future]) == [
        "one_round: a compressor declares one_round = True, but yielded collectives twice; set one_round = False"
    ]


def test_a_job_that_is_alone_waits_for_those_before_it_and_lets_those_after_it_wait() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.submit(job(wire, 1))
    fifo.submit(one_round(wire, 2), alone=True)
    fifo.submit(job(wire, 3))
    fifo.drain()
    assert wire.events.index("decode 1") < wire.events.index("encode 2")
    assert wire.events.index("decode 2") < wire.events.index("encode 3")


def test_all_ranks_take_part_where_a_round_says_so_and_those_that_average_elsewhere() -> None:
    averaging, everyone = Wire(), Wire()
    fifo = Fifo(averaging, everyone)  # type: ignore[arg-type]

    def mixed() -> Job[int]:
        (first,) = yield Round([AllReduce(torch.tensor([1]))], over_all=True)
        (second,) = yield [AllReduce(torch.tensor([2]))]
        return int(first + second)

    assert fifo.submit(mixed()).result(HUNG) == 3
    assert everyone.events == ["start 1", "finish 1"]
    assert averaging.events == ["start 2", "finish 2"]
    fifo.close()


def test_only_timed_jobs_count() -> None:
    class Booked(Wire):
        def launch(self, requests: list[Collective]) -> list[Collective]:
            for request in requests:
                self.ledger.book(request)
            return super().launch(requests)

    wire = Booked()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.submit(one_round(wire, 1), timed=True)
    fifo.submit(one_round(wire, 2))
    fifo.drain()
    spent = fifo.spent()
    coded_s, exchanged_s = spent.seconds()
    assert spent.payload_bytes == 8
    assert wire.ledger.payload_bytes == 16
    assert coded_s > 0 and exchanged_s > 0
    fifo.submit(one_round(wire, 3))
    fifo.drain()
    later = fifo.spent()
    assert (later.payload_bytes, *later.seconds()) == (0, 0.0, 0.0)


@pytest.mark.parametrize("where", ["encode", "decode"])
def test_a_failure_is_told_to_the_job_and_to_all_after_it(where: str) -> None:
    def breaks() -> Generator[list[Collective], list[Any], None]:
        if where == "decode":
            yield [AllReduce(torch.tensor([1]))]
        raise ValueError("boom")
        yield []

    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = [fifo.submit(breaks()), fifo.submit(job(wire, 2)), fifo.submit(job(wire, 3), alone=True)]
    fifo.drain()
    assert failures(futures) == ["boom"] * 3
    assert failures([fifo.submit(job(wire, 4))]) == ["boom"]
    assert "encode 3" not in wire.events


def test_a_collective_that_fails_is_told_to_what_travels_behind_it_too() -> None:
    class Broken(Wire):
        def finish(self, pending: list[Collective]) -> list[Any]:
            super().finish(pending)
            raise RuntimeError("the peer is gone")

    wire = Broken(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = [fifo.submit(one_round(wire, number)) for number in (1, 2)]
    futures.append(fifo.submit(job(wire, 3), alone=True))
    wire.until("start 10")
    wire.gate.set()
    fifo.drain(HUNG)
    assert failures(futures) == ["the peer is gone"] * 3


def test_after_a_failure_nobody_waits_for_what_never_lands() -> None:
    def breaks() -> Generator[list[Collective], list[Any], None]:
        raise ValueError("boom")
        yield []

    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = [fifo.submit(one_round(wire, 1))]
    wire.until("start 10")
    futures.append(fifo.submit(breaks()))
    fifo.drain(HUNG)
    assert failures(futures) == ["boom", "boom"]
    wire.gate.set()


def test_draining_on_the_thread_itself_does_not_wait() -> None:
    fifo = Fifo(Wire())  # type: ignore[arg-type]
    done = threading.Event()

    def drains() -> None:
        fifo.drain()
        done.set()

    fifo.submit(job_of(drains))
    assert done.wait(HUNG)


def test_the_thread_ends_after_what_was_handed_over() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.submit(job(wire, 1))
    fifo.close()
    fifo._thread.join(HUNG)
    assert not fifo._thread.is_alive()
    assert "decode 1" in wire.events


def test_a_callback_that_raises_cannot_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def raises(_: Future[Any]) -> None:
        raise KeyError("a callback's own")

    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    first = fifo.submit(job(wire, 1))
    first.add_done_callback(raises)
    assert fifo.submit(job(wire, 2)).result(HUNG) == 2
    assert fifo._thread.is_alive()


def test_where_the_thread_ends_all_that_wait_and_all_that_comes_later_get_its_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(self: Fifo) -> None:
        raise MemoryError("the thread's own")

    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = [fifo.submit(one_round(wire, 1)), fifo.submit(job(wire, 2), alone=True)]
    wire.until("start 10")
    monkeypatch.setattr(Fifo, "_encode_and_send", bug)
    assert fifo.drain(HUNG)  # which wakes the thread
    fifo._thread.join(HUNG)
    assert not fifo._thread.is_alive()
    futures.append(fifo.submit(job(wire, 3)))
    assert failures(futures) == ["the thread's own"] * 3
    assert fifo.drain(HUNG)
    wire.gate.set()
    fifo.close()


@pytest.mark.parametrize("alone", [False, True])
def test_close_returns_while_another_rank_stalls_and_tells_whoever_waits(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    futures = [fifo.submit(one_round(wire, 1), alone)]
    wire.until("start 10")
    assert not fifo.drain(0.05)
    fifo.close()  # it may have returned before the thread told
    fifo._thread.join(HUNG)
    futures.append(fifo.submit(job(wire, 2)))
    assert all(isinstance(future.exception(timeout=HUNG), ExchangeError) for future in futures)
    assert all("a rank did not answer" in failure for failure in failures(futures))
    wire.gate.set()


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_waits_learns_that_another_one_failed(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    monkeypatch.setattr(fifo._failures, "look", lambda: "rank 1 of 2 failed: ValueError: boom")
    future = fifo.submit(job(wire, 1), alone)
    assert fifo.drain(HUNG)
    assert failures([future]) == ["rank 0 of 1 got no answer: rank 1 of 2 failed: ValueError: boom"]
    wire.gate.set()


@pytest.mark.parametrize("failed", [True, False])
def test_after_a_failure_close_waits_for_no_process_group_that_cannot_end(
    failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destructor of gloo waits for the collectives that gloo has begun, which may never end."""
    may_end = threading.Event()
    ended_by: list[threading.Thread] = []

    class Group:
        def __del__(self) -> None:
            if failed:
                assert may_end.wait(HUNG)
            ended_by.append(threading.current_thread())

    monkeypatch.setattr(module, "JOIN_SECONDS", 0.2)
    monkeypatch.setattr(module, "destroy_private", lambda group: None)
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    wire.group, wire.interrupt = Group(), lambda: None  # type: ignore[attr-defined]
    if failed:
        fifo.abandon(ValueError("boom"))
    fifo.close()
    assert ended_by == ([] if failed else [threading.main_thread()])
    may_end.set()


def test_nobody_asks_for_failures_while_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]

    asked_while_under_way: list[bool] = []

    def asks() -> None:
        asked_while_under_way.append(bool(fifo._jobs_in_flight))

    monkeypatch.setattr(fifo._failures, "look", asks)
    for number in range(1, 4):
        fifo.submit(one_round(wire, number), timed=True)
        fifo.drain()
        fifo._thread.join(0.05)  # it idles
    assert fifo._thread.is_alive()
    assert all(asked_while_under_way), "on a slow machine a job may be under way for longer than LOOK_SECONDS"
    fifo.close()


def test_the_exchange_thread_computes_with_as_many_threads_as_the_user_set() -> None:
    maps = Path("/proc/self/maps")
    openmp = re.search(r"/\S*lib[gi]?omp\S*", maps.read_text()) if maps.exists() else None
    if openmp is None:
        pytest.skip("torch's OpenMP library is not to be found here")
    asked = ctypes.CDLL(openmp[0]).omp_get_max_threads
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(before + 2)
    try:
        fifo = Fifo(Wire())  # type: ignore[arg-type]
        fifo.submit(job_of(lambda: found.append(asked())))
        fifo.close()
    finally:
        torch.set_num_threads(before)
    assert found == [before + 2]
