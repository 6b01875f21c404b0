# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The exchange thread: one order of collectives, encoding ahead, failures that reach everyone."""

import ctypes
import re
import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac.collectives import AllReduce, Collective, Ledger
from gravac.exchange import fifo as module
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

    def has_ended(self, pending: list[Collective]) -> bool:
        return self.gate.is_set()

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


def job(wire: Wire, number: int, rounds: int = 1) -> Generator[list[Collective], list[Any], None]:
    wire.note(f"encode {number}")
    for turn in range(rounds):
        yield [AllReduce(torch.tensor([10 * number + turn]))]
    wire.note(f"decode {number}")


def several() -> bool:
    return False


def one() -> bool:
    return True


def never(failure: BaseException) -> None:
    raise AssertionError(failure)


def test_a_jobs_collectives_all_come_before_the_next_jobs() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        fifo.exchange(job(wire, number, rounds=2), never, CPU, several)
    wire.gate.set()
    fifo.drain()
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == ["start 10", "start 11", "start 20", "start 21", "start 30", "start 31"]


def test_the_next_job_is_encoded_while_the_first_travels() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.exchange(job(wire, 2), never, CPU, several)
    wire.until("encode 2")
    wire.gate.set()
    fifo.drain()
    assert wire.events.index("encode 2") < wire.events.index("finish 10")
    assert wire.events.index("finish 10") < wire.events.index("start 20")


def test_a_job_of_one_round_lets_the_next_start_while_it_travels() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    for number in range(1, 7):
        fifo.exchange(job(wire, number), never, CPU, one)
    fifo.exchange(job(wire, 7, rounds=2), never, CPU, several)
    fifo.exchange(job(wire, 8), never, CPU, one)
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
    fifo.exchange(job(wire, 1, rounds), never, CPU, one if rounds == 1 else several)
    wire.until("start 10")
    fifo.exchange(job(wire, 2), never, CPU, one)
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
        fifo.exchange(job(wire, number), never, CPU, one)
    wire.until("start 30")
    now[0] = 102.0
    wire.gate.set()
    fifo.drain()
    assert fifo.exchange_seconds == 2.0


def test_a_job_that_breaks_its_promise_of_one_round_fails() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(job(wire, 1, rounds=2), lambda failure: told.append(str(failure)), CPU, one)
    fifo.drain()
    assert told == [
        "one_round: a compressor declares one_round = True, but yielded collectives twice; set one_round = False"
    ]


def test_a_call_waits_for_the_jobs_before_it() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.call(lambda: wire.note("call"), never)
    fifo.exchange(job(wire, 2), never, CPU, several)
    fifo.drain()
    assert wire.events.index("decode 1") < wire.events.index("call") < wire.events.index("encode 2")


@pytest.mark.parametrize("where", ["encode", "decode"])
def test_a_failure_is_told_to_the_job_and_to_all_after_it(where: str) -> None:
    def breaks() -> Generator[list[Collective], list[Any], None]:
        if where == "decode":
            yield [AllReduce(torch.tensor([1]))]
        raise ValueError("boom")
        yield []

    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(breaks(), lambda failure: told.append(f"first {failure}"), CPU, several)
    fifo.exchange(job(wire, 2), lambda failure: told.append(f"second {failure}"), CPU, several)
    fifo.call(lambda: told.append("not run"), lambda failure: told.append(f"call {failure}"))
    fifo.drain()
    assert told == ["first boom", "second boom", "call boom"]


def test_a_collective_that_fails_is_told_to_what_travels_behind_it_too() -> None:
    class Broken(Wire):
        def finish(self, pending: list[Collective]) -> list[Any]:
            super().finish(pending)
            raise RuntimeError("the peer is gone")

    wire = Broken(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    for number in (1, 2):
        fifo.exchange(job(wire, number), lambda failure, n=number: told.append(f"{n} {failure}"), CPU, one)  # type: ignore[misc]
    fifo.call(lambda: told.append("not run"), lambda failure: told.append(f"call {failure}"))
    wire.until("start 10")
    wire.gate.set()
    fifo.drain(HUNG)
    assert told == ["1 the peer is gone", "2 the peer is gone", "call the peer is gone"]


def test_after_a_failure_nobody_waits_for_what_never_lands() -> None:
    def breaks() -> Generator[list[Collective], list[Any], None]:
        raise ValueError("boom")
        yield []

    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(job(wire, 1), lambda failure: told.append(f"first {failure}"), CPU, one)
    wire.until("start 10")
    fifo.exchange(breaks(), lambda failure: told.append(f"second {failure}"), CPU, one)
    fifo.drain(HUNG)
    assert sorted(told) == ["first boom", "second boom"]
    wire.gate.set()


def test_draining_on_the_thread_itself_does_not_wait() -> None:
    fifo = Fifo(Wire())  # type: ignore[arg-type]
    done = threading.Event()

    def drains() -> None:
        fifo.drain()
        done.set()

    fifo.call(drains, never)
    assert done.wait(HUNG)


def test_the_thread_ends_after_what_was_handed_over() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.close()
    fifo._thread.join(HUNG)
    assert not fifo._thread.is_alive()
    assert "decode 1" in wire.events


def breaks() -> Generator[list[Collective], list[Any], None]:
    raise ValueError("boom")
    yield []


def raises(failure: BaseException) -> None:
    raise KeyError("a callback's own")


def waits(fifo: Fifo) -> Callable[[], None]:
    """A call that starts a collective, and waits for it."""

    def call() -> None:
        fifo.finish(fifo.launch([AllReduce(torch.tensor([10]))]))

    return call


def test_a_callback_that_raises_cannot_end_the_thread_and_is_reported_once() -> None:
    fifo = Fifo(Wire())  # type: ignore[arg-type]
    told: list[str] = []

    def hands_over() -> None:
        fifo.exchange(breaks(), raises, CPU, several)
        fifo.exchange(breaks(), raises, CPU, several)
        fifo.call(lambda: told.append("not run"), lambda failure: told.append(f"call {failure}"))
        assert fifo.drain(HUNG)

    with pytest.warns(RuntimeWarning, match=r"raises failed: KeyError.*training continues") as seen:
        hands_over()
    assert len(seen) == 1
    assert told == ["call boom"]
    assert fifo._thread.is_alive()


def test_a_callback_that_raises_cannot_end_the_thread_where_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fifo = Fifo(Wire())  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fifo.exchange(breaks(), raises, CPU, several)
        assert fifo.drain(HUNG)
    assert "raises failed: KeyError" in capsys.readouterr().err
    assert fifo._thread.is_alive()


def test_where_the_thread_ends_all_that_wait_and_all_that_comes_later_get_its_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(self: Fifo) -> None:
        raise MemoryError("the thread's own")

    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(job(wire, 1), lambda failure: told.append(f"first {failure}"), CPU, one)
    fifo.call(lambda: told.append("not run"), lambda failure: told.append(f"call {failure}"))
    wire.until("start 10")
    monkeypatch.setattr(Fifo, "_encode_and_send", bug)
    assert fifo.drain(HUNG)  # which wakes the thread
    fifo._thread.join(HUNG)
    assert not fifo._thread.is_alive()
    fifo.call(lambda: told.append("not run"), lambda failure: told.append(f"late {failure}"))
    assert told == [f"{name} the thread's own" for name in ("first", "call", "late")]
    assert fifo.drain(HUNG)
    wire.gate.set()
    fifo.close()


@pytest.mark.parametrize("where", ["job", "call"])
def test_close_returns_while_another_rank_stalls_and_tells_whoever_waits(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[BaseException] = []
    if where == "job":
        fifo.exchange(job(wire, 1), told.append, CPU, one)
    else:
        fifo.call(waits(fifo), told.append)
    wire.until("start 10")
    assert not fifo.drain(0.05)
    fifo.close()  # it may have returned before the thread told
    fifo._thread.join(HUNG)
    fifo.call(lambda: None, told.append)
    assert len(told) == 2
    assert all(isinstance(failure, ExchangeError) for failure in told)
    assert all("a rank did not answer" in str(failure) for failure in told)
    wire.gate.set()


@pytest.mark.parametrize("where", ["job", "call"])
def test_a_rank_that_waits_learns_that_another_one_failed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    monkeypatch.setattr(fifo._failures, "look", lambda: "rank 1 of 2 failed: ValueError: boom")
    told: list[str] = []
    if where == "job":
        fifo.exchange(job(wire, 1), lambda failure: told.append(str(failure)), CPU, one)
    else:
        fifo.call(waits(fifo), lambda failure: told.append(str(failure)))
    assert fifo.drain(HUNG)
    assert told == ["rank 0 of 1 got no answer: rank 1 of 2 failed: ValueError: boom"]
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
        fifo.exchange(job(wire, number), never, CPU, one)
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
        fifo.call(lambda: found.append(asked()), never)
        fifo.close()
    finally:
        torch.set_num_threads(before)
    assert found == [before + 2]
