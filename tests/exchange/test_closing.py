# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A compressor whose peers never answer: it closes within its bound, on a thread and on streams, and stays readable."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gravac.adaptive
from gravac import AdaptiveCompressor, Static, topk
from gravac.collectives import AllReduce, Collective, Ledger
from gravac.engine.handle import Handle
from gravac.exchange import fifo, streams
from gravac.exchange.failures import ExchangeError
from gravac.exchange.fifo import Fifo
from gravac.exchange.streams import StreamExecutor
from tests.device.idle import Idle, Moment


class Peers:
    """Stands in for a transport: this rank's peers answer while ``answer`` is set."""

    rank, world = 0, 1

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.answer = threading.Event()
        self.answer.set()

    def launch(self, requests: list[Collective]) -> list[Collective]:
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        self.answer.wait()
        return [one.tensor for one in pending if isinstance(one, AllReduce)]


class Stuck(Idle):
    """A device that does nothing more once ``peers`` do not answer: its streams wait for them."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(torch.device("cpu"))
        self.peers = peers

    def record(self) -> Moment:
        moment, answer = super().record(), self.peers.answer
        if not answer.is_set():
            moment.query = answer.is_set  # type: ignore[method-assign]
            moment.synchronize = answer.wait  # type: ignore[method-assign, assignment]
        return moment


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    monkeypatch.setattr(gravac.adaptive, "CLOSING_SECONDS", 0.2)
    monkeypatch.setattr(fifo, "JOIN_SECONDS", 5.0)
    monkeypatch.setattr(fifo, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(streams, "FAILED_SECONDS", 0.2)
    made = Peers()
    yield made
    made.answer.set()


def stalled(peers: Peers, kind: str) -> tuple[AdaptiveCompressor, Handle]:
    """A compressor that made two steps, and a third in which no peer answers."""
    executor: Any = Fifo(peers) if kind == "thread" else None  # type: ignore[arg-type]
    if executor is None:
        executor = StreamExecutor(_OnStreams(peers), Stuck(peers))  # type: ignore[arg-type]
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    gradient = torch.ones(64, 64)
    engine = compressor.attach_parameters({"w": gradient}, executor=executor)
    for step in range(3):
        if step == 2:
            assert compressor.cf == 1
            peers.answer.clear()
        engine.begin()
        handle = engine.ready([("w", gradient)])
        engine.end()
    return compressor, handle


class _OnStreams(Peers):
    """Where streams wait, handing over and finishing return at once."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self.ledger = peers.ledger

    def finish(self, pending: list[Collective]) -> list[Any]:
        return [one.tensor for one in pending if isinstance(one, AllReduce)]


@pytest.mark.parametrize("kind", ["thread", "stream"])
def test_close_returns_while_peers_stall_and_what_is_known_stays_readable(peers: Peers, kind: str) -> None:
    compressor, handle = stalled(peers, kind)
    with pytest.raises(KeyboardInterrupt), compressor:
        raise KeyboardInterrupt
    assert compressor.cf == 1
    assert [record.step for record in compressor.history] == [0]
    state = compressor.state_dict()
    assert state["step"] in (2, 3)  # the streams' host has been further than their device
    AdaptiveCompressor(topk, controller=Static(cf=1)).load_state_dict(state)
    assert compressor.ledger is not None
    if kind == "thread":
        with pytest.raises(ExchangeError, match=r"close\(\) waited 0\.2 s for the exchange in flight, but a rank"):
            handle.wait()


@pytest.mark.parametrize("kind", ["thread", "stream"])
def test_after_a_failure_nobody_waits_for_peers(peers: Peers, kind: str) -> None:
    compressor, _ = stalled(peers, kind)
    compressor._engine.executor.abandon(ValueError("boom"))
    assert compressor.cf == 1
    assert [record.step for record in compressor.history] == [0]
    assert compressor.state_dict()["step"] in (2, 3)
    compressor.close()


def test_on_streams_the_host_learns_that_another_rank_failed(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0.05)
    compressor, _ = stalled(peers, "stream")
    executor: Any = compressor._engine.executor
    monkeypatch.setattr(executor._failures, "look", lambda: "rank 1 of 2 failed: ValueError: boom")
    with pytest.raises(ExchangeError, match="rank 0 of 1 got no answer: rank 1 of 2 failed: ValueError: boom"):
        executor.drain()
    with pytest.raises(ExchangeError, match="rank 1 of 2 failed"):
        compressor._engine.begin().result(timeout=0)
    compressor.close()


class Sink:
    """Records what it is given; raises where it is told to."""

    def __init__(self, raises: str = "") -> None:
        self.raises, self.closed, self.records = raises, False, 0

    def __call__(self, record: object) -> None:
        self.records += 1
        if self.raises == "record":
            raise OSError("no space left")

    def close(self) -> None:
        self.closed = True
        if self.raises == "close":
            raise OSError("no space left")


def test_a_sink_that_fails_to_close_leaves_nothing_open(peers: Peers) -> None:
    executor = Fifo(peers)  # type: ignore[arg-type]
    first, broken, last = Sink(), Sink("close"), Sink()
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1), sinks=[first, broken, last])
    compressor.attach_parameters({"w": torch.ones(64, 64)}, executor=executor)
    with pytest.warns(UserWarning, match="Sink object .* failed when it was closed: OSError") as seen:
        compressor.close()
    assert len(seen) == 1
    assert first.closed and last.closed
    assert not executor._thread.is_alive()
    compressor.close()


@pytest.mark.filterwarnings("error")
def test_a_sink_that_fails_does_not_end_training_where_warnings_are_errors(
    peers: Peers, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other = Sink("record"), Sink()
    with AdaptiveCompressor(topk, controller=Static(cf=1), sinks=[broken, other]) as compressor:
        gradient = torch.ones(64, 64)
        engine = compressor.attach_parameters({"w": gradient}, executor=Fifo(peers))  # type: ignore[arg-type]
        for _ in range(3):
            engine.begin()
            handle = engine.ready([("w", gradient)])
            engine.end()
            handle.wait()
    assert broken.records == 1
    assert other.records > 1
    assert capsys.readouterr().err.count("failed and gets no more records") == 1


FORKS = """
import os, sys, torch
from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.fifo import Fifo
from tests.exchange.test_closing import Peers
compressor = AdaptiveCompressor(topk, controller=Static(cf=1), log_dir=sys.argv[1])
gradient = torch.ones(64, 64)
engine = compressor.attach_parameters({"w": gradient}, executor=Fifo(Peers()))
with compressor:
    engine.begin()
    handle = engine.ready([("w", gradient)])
    engine.end()
    handle.wait()
    child = os.fork()
    if child == 0:
        sys.exit(7)  # through __exit__, and all that is registered to run at exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    engine.begin()
    handle = engine.ready([("w", gradient)])
    engine.end()
    handle.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_ends_and_leaves_its_parents_logs_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], check=True, timeout=200)
    assert (tmp_path / "gravac.jsonl").read_text().count('"kind":"end"') == 1
