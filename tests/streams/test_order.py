# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks hand to NCCL is in one order on all of them, beside what a training loop hands to it itself.

Ranks run in one process, each as far ahead of the others as a host may be. Nothing that travels is ever summed but
what ranks agree on, and that only when a rank looks: so whatever decides on the order has no other number to go by.
Moments, gradients and whether these are finite differ from rank to rank.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis
import pytest
import torch

from gravac import Compressor, artopk, ladder, topk
from gravac.collectives import AllGather, Collective, Ledger, tensors_of
from gravac.controllers import Accordion, Goodput, GraVAC
from gravac.controllers.base import Controller
from gravac.engine.inputs import StepInputs
from gravac.exchange.reading import HostCopy
from gravac.exchange.streams import StreamExecutor
from tests.device.idle import Idle
from tests.policies import adaptive

WORLD, STEPS = 3, 6

SCHEDULES = 10 * hypothesis.settings().max_examples
"""300, and 5000 of the long tests."""

SHAPES = {"a": (8, 8), "b": (16, 8), "bias": (8,)}

POLICIES: Sequence[tuple[Compressor, Controller[Any]]] = (
    (topk, GraVAC(window=2, warmup=1)),
    (ladder, Goodput(window=5)),
    (topk, Accordion(every=2, window=3)),
    (artopk, GraVAC(window=2, warmup=1)),
)

Entry = tuple[str, str, int, str]
"""One collective: communicator, kind, elements, dtype."""


class Log:
    """A transport that writes down what it is handed, and returns it as it is."""

    def __init__(self, name: str, rank: int, log: list[Entry]) -> None:
        self.name, self.rank, self.world, self.log = name, rank, WORLD, log
        self.ledger = Ledger(WORLD)

    def launch(self, requests: list[Collective]) -> list[Any]:
        for asked in requests:
            self.ledger.book(asked)
            tensor = tensors_of(asked)[0]
            self.log.append((self.name, type(asked).__name__, tensor.numel(), str(tensor.dtype)))
        return [self._answer(asked) for asked in requests]

    def finish(self, pending: list[Any]) -> list[Any]:
        return pending

    def _answer(self, asked: Collective) -> Any:
        if isinstance(asked, AllGather):
            return tuple(tensor.unsqueeze(0).expand(WORLD, -1).clone() for tensor in asked.tensors)
        return tensors_of(asked)[0]


class Looking(StreamExecutor):
    """Learns what ranks agree on when it looks, from those that have said something by then: all."""

    def __init__(self, transport: Any, device: Any, agreement: Any, board: list[list[list[float]]]) -> None:
        super().__init__(transport, device, agreement)
        self._said = board[self.rank]
        self._board = board

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        self._said.append(tensor.tolist())
        return Told(self, super().to_host(tensor), len(self._said) - 1)

    def told(self, number: int) -> list[float]:
        """What all ranks have said as their vector of this number, summed."""
        return [sum(numbers) for numbers in zip(*(said[number] for said in self._board), strict=True)]


class Told:
    """A sum that is known when it is read."""

    def __init__(self, executor: Looking, copy: HostCopy, number: int) -> None:
        self.executor, self.copy, self.number = executor, copy, number

    def read(self) -> list[float]:
        self.copy.read()
        return self.executor.told(self.number)


def one_rank(
    rank: int, seed: int, log: list[Entry], board: list[list[list[float]]], executors: type[Looking]
) -> Iterator[int]:
    """Train, and pause after everything that is handed over; yields the step."""
    own = random.Random(f"{seed} {rank}")
    shared = random.Random(seed)
    base, controller = POLICIES[seed % len(POLICIES)]
    agreement = Log("all", rank, log) if shared.random() < 0.5 else None
    group = Log("mine", rank, log)
    loop = Log(shared.choice(("mine", "loop")), rank, log)
    executor = executors(group, Idle(torch.device("cpu"), lambda: own.expovariate(1.0)), agreement, board)
    safe = shared.choice((True, False))
    compressor = adaptive(base, (1, 64), controller=controller, dense_below=16, overflow_safety=safe)
    engine = compressor.attach_parameters(
        {name: torch.zeros(shape) for name, shape in SHAPES.items()}, executor=executor
    )
    order = [*SHAPES]
    shared.shuffle(order)
    unused = shared.choice(order)
    numbers = torch.Generator().manual_seed(1000 * seed + rank)  # sooner there than torch.manual_seed
    for step in range(STEPS):
        begun = engine.begin(StepInputs(loss_scale=torch.tensor(own.choice((1.0, 2.0)))))
        yield step
        for name in order:
            gradient = torch.randn(SHAPES[name], generator=numbers) * own.choice((0.0, 1e-3, 1.0))
            if own.random() < 0.05:
                gradient[0] = float("nan")
            loop.log.append((loop.name, "SyncBatchNorm", 16, "backward"))
            if name != unused or step % 2:
                engine.ready([(name, gradient)])
            yield step
        loop.log.append((loop.name, "unused parameters", len(order), "torch.int32"))
        engine.end()
        assert begun.exception(timeout=0) is None
        yield step


def logs_of(seed: int, executors: type[Looking] = Looking) -> list[list[Entry]]:
    """What each rank hands over in one schedule."""
    draw = random.Random(-seed)
    logs: list[list[Entry]] = [[] for _ in range(WORLD)]
    board: list[list[list[float]]] = [[] for _ in range(WORLD)]
    ranks = [one_rank(rank, seed, logs[rank], board, executors) for rank in range(WORLD)]
    steps = [0] * WORLD
    running = set(range(WORLD))
    while running:
        # a host waits for what was agreed on a step ago, so none is further ahead
        free = [rank for rank in running if steps[rank] <= min(steps[other] for other in running)]
        rank = draw.choice(free)
        try:
            steps[rank] = next(ranks[rank])
        except StopIteration:
            running.remove(rank)
    return logs


@pytest.mark.parametrize("part", range(4))
def test_ranks_hand_over_in_one_order(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        first, *others = logs_of(seed)
        assert all(other == first for other in others), f"seed {seed}"
        assert len({kind for _, kind, *_ in first}) > 2


class Selfish(Looking):
    """Goes by its own numbers."""

    def told(self, number: int) -> list[float]:
        return [WORLD * own for own in self._said[number]]


def test_ranks_that_go_by_numbers_of_their_own_do_not() -> None:
    apart = [seed for seed in range(48) if len({tuple(log) for log in logs_of(seed, Selfish)}) > 1]
    assert len(apart) > 10
