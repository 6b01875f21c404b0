# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A message is in memory once while it is in flight, and what was sent is freed before its result is decoded."""

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gravac.averaging import average
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Ledger, tensors_of
from gravac.compressors import Context, dense, quantize
from gravac.compressors.dense import divide
from gravac.exchange.executor import Job, Round
from gravac.exchange.fifo import Fifo
from gravac.exchange.fuse import fuse

Refs = list[StorageWeakRef]
"""Weak references to the memory of tensors."""


def noted(rounds: Generator[Collective, Any, Any], refs: Refs) -> Generator[Collective, Any, Any]:
    """Run a generator of collectives; append weak references to the memory of what it yields."""
    result: Any = None
    while True:
        requests = []
        try:
            requests.append(rounds.send(result))
        except StopIteration as end:
            return end.value
        refs += [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors_of(requests[0])]
        result = yield requests.pop()


def single(collective: type, tensor: torch.Tensor) -> Generator[Collective, Any, Any]:
    arguments = [tensor] if collective is not Broadcast else [tensor, 0]
    del tensor
    request = [collective(*arguments)]
    arguments.clear()
    return (yield request.pop())


@pytest.mark.parametrize("collective", [AllGather, AllReduce, AllToAll, Broadcast])
def test_joined_tensors_are_freed_while_their_copy_is_in_flight(collective: type) -> None:
    refs: Refs = []
    job = fuse([noted(single(collective, torch.ones(2, 50)), refs) for _ in range(2)])
    in_flight = next(job)
    assert in_flight
    assert [ref.expired() for ref in refs] == [True, True]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_quantizer_keeps_no_message_that_is_in_flight(bits: int) -> None:
    refs: Refs = []
    rounds = noted(quantize(bits).rounds(torch.randn(5000), 32 / bits, Context(rank=1, world=2)), refs)
    next(rounds)
    assert [ref.expired() for ref in refs] == [True]


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_a_dense_step_in_16_bits_keeps_no_joined_copy_in_float32(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refs: Refs = []

    def noting(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        refs.append(StorageWeakRef(x.untyped_storage()))
        return divide(x, *arguments)

    monkeypatch.setattr(average, "divide", noting)
    averager = average.Averager(quantize, dense(dtype=wire), None, 0)
    averager.rank, averager.world = 0, 2
    averager.measure(StepRecording(0, Candidate("hook", "dense", 2.0)))
    pieces = [Piece(name, torch.ones(500), (500,)) for name in "ab"]
    job = averager.average(pieces, averager.plan(0, None))
    in_flight = next(job)
    assert in_flight
    assert [ref.expired() for ref in refs] == [True]


class Echo:
    """Stands in for a transport: the result of a collective is a copy of its tensor."""

    rank, world = 0, 1

    def __init__(self) -> None:
        self.ledger = Ledger()

    def launch(self, requests: list[Collective]) -> list[Collective]:
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        return [tensor.clone() for request in pending for tensor in tensors_of(request)]


def test_what_was_sent_is_freed_before_a_job_decodes() -> None:
    refs: Refs = []

    def job() -> Job[bool]:
        requests = [AllReduce(torch.ones(50))]
        refs.append(StorageWeakRef(requests[0].tensor.untyped_storage()))
        yield Round([requests.pop()], last=True)
        return bool(refs[0].expired())

    transport: Any = Echo()
    executor = Fifo(transport)
    try:
        assert executor.submit(job()).result()
    finally:
        executor.close()
