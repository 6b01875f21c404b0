# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The exchange thread: one order of collectives, encoding ahead, failures that reach everyone."""

import threading
import time
from collections.abc import Generator
from typing import Any

import pytest
import torch

from gravac.collectives import AllReduce, Collective
from gravac.exchange.fifo import DEPTH, Fifo

CPU = torch.device("cpu")


class Wire:
    """Stands in for a transport: answers when told to, and keeps the order of what was started."""

    def __init__(self, open_: bool = True) -> None:
        self.events: list[str] = []
        self.gate = threading.Event()
        self.started = threading.Event()
        if open_:
            self.gate.set()

    def start(self, requests: list[Collective]) -> list[Collective]:
        self.events += [f"start {int(r.tensor[0])}" for r in requests if isinstance(r, AllReduce)]
        self.started.set()
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        assert self.gate.wait(20)
        self.events += [f"finish {int(r.tensor[0])}" for r in pending if isinstance(r, AllReduce)]
        return [r.tensor for r in pending if isinstance(r, AllReduce)]


def job(wire: Wire, number: int, rounds: int = 1) -> Generator[list[Collective], list[Any], None]:
    wire.events.append(f"encode {number}")
    for turn in range(rounds):
        yield [AllReduce(torch.tensor([10 * number + turn]))]
    wire.events.append(f"decode {number}")


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
    hold = threading.Event()

    def wait() -> None:
        hold.wait(20)

    fifo.call(wait, never)
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.exchange(job(wire, 2), never, CPU, several)
    hold.set()
    assert wire.started.wait(20)
    wire.gate.set()
    fifo.drain()
    assert wire.events.index("encode 2") < wire.events.index("finish 10")
    assert wire.events.index("finish 10") < wire.events.index("start 20")


def test_a_job_of_one_round_lets_the_next_start_while_it_travels() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    hold = threading.Event()

    def wait() -> None:
        hold.wait(20)

    fifo.call(wait, never)
    for number in range(1, 7):
        fifo.exchange(job(wire, number), never, CPU, one)
    fifo.exchange(job(wire, 7, rounds=2), never, CPU, several)
    fifo.exchange(job(wire, 8), never, CPU, one)
    hold.set()
    assert wire.started.wait(20)
    wire.gate.set()
    fifo.drain()
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == [f"start {n}" for n in (10, 20, 30, 40, 50, 60, 70, 71, 80)]
    assert wire.events.index("start 20") < wire.events.index("finish 10")
    under_way = [
        sum(e.startswith("start") for e in wire.events[:at]) - sum(e.startswith("finish") for e in wire.events[:at])
        for at in range(len(wire.events))
    ]
    assert 1 < max(under_way) <= DEPTH + 1
    assert [e for e in wire.events if e.startswith("decode")] == [f"decode {n}" for n in range(1, 9)]


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_arrives_while_another_travels_is_encoded_then(rounds: int) -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1, rounds), never, CPU, one if rounds == 1 else several)
    assert wire.started.wait(20)
    wire.started.clear()
    second = threading.Event()

    def following() -> Generator[list[Collective], list[Any], None]:
        wire.events.append("encode 2")
        second.set()
        yield [AllReduce(torch.tensor([20]))]

    fifo.exchange(following(), never, CPU, one)
    assert second.wait(20), "the thread waited for what travels"
    assert wire.started.wait(20) if rounds == 1 else not wire.started.wait(0.1)
    wire.gate.set()
    fifo.drain()
    starts = [event for event in wire.events if event.startswith("start")]
    assert starts == (["start 10", "start 20"] if rounds == 1 else ["start 10", "start 11", "start 20"])


def test_time_under_way_is_counted_once() -> None:
    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    began = time.perf_counter()
    for number in (1, 2, 3):
        fifo.exchange(job(wire, number), never, CPU, one)
    time.sleep(0.2)
    wire.gate.set()
    fifo.drain()
    assert 0.15 < fifo.exchange_seconds <= time.perf_counter() - began


def test_a_job_that_breaks_its_promise_of_one_round_fails() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(job(wire, 1, rounds=2), lambda failure: told.append(str(failure)), CPU, one)
    fifo.drain()
    assert told == ["a compressor that declares one_round asked for a second one"]


def test_a_call_waits_for_the_jobs_before_it() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.call(lambda: wire.events.append("call"), never)
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
    assert wire.started.wait(20)
    wire.gate.set()
    fifo.drain(20)
    assert told == ["1 the peer is gone", "2 the peer is gone", "call the peer is gone"]


def test_after_a_failure_nobody_waits_for_what_never_lands() -> None:
    def breaks() -> Generator[list[Collective], list[Any], None]:
        raise ValueError("boom")
        yield []

    wire = Wire(open_=False)
    fifo = Fifo(wire)  # type: ignore[arg-type]
    told: list[str] = []
    fifo.exchange(job(wire, 1), lambda failure: told.append(f"first {failure}"), CPU, one)
    assert wire.started.wait(20)
    fifo.exchange(breaks(), lambda failure: told.append(f"second {failure}"), CPU, one)
    fifo.drain(20)
    assert sorted(told) == ["first boom", "second boom"]
    wire.gate.set()


def test_draining_on_the_thread_itself_does_not_wait() -> None:
    fifo = Fifo(Wire())  # type: ignore[arg-type]
    done = threading.Event()

    def drains() -> None:
        fifo.drain()
        done.set()

    fifo.call(drains, never)
    assert done.wait(20)


def test_the_thread_ends_after_what_was_handed_over() -> None:
    wire = Wire()
    fifo = Fifo(wire)  # type: ignore[arg-type]
    fifo.exchange(job(wire, 1), never, CPU, several)
    fifo.close()
    fifo._thread.join(20)
    assert not fifo._thread.is_alive()
    assert "decode 1" in wire.events
