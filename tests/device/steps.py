# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whole steps of the engine on a made-up GPU: what they would launch and copy, and what the host would wait for."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gravac import Compressor
from gravac.collectives import AllGather, Collective, Ledger, tensors_of
from gravac.controllers import Static
from gravac.controllers.base import Controller
from gravac.engine.inputs import StepInputs
from gravac.exchange.reading import HostCopy
from gravac.exchange.streams import StreamExecutor
from tests.device.counting import DEVICE, Counting, counting
from tests.device.idle import Idle
from tests.device.storages import Storages
from tests.policies import adaptive

WARM = 3
"""Steps before those that are counted: tables are made in the first, measurements travel from the third on."""


class There:
    """A group that has a backend for the made-up device alone, as NCCL's has for GPUs."""

    def __init__(self, world: int) -> None:
        self.rank, self.world, self.ledger = 0, world, Ledger(world)

    def launch(self, requests: list[Collective]) -> list[Collective]:
        for asked in requests:
            self.ledger.book(asked)
            for tensor in tensors_of(asked):
                if tensor.device.type != DEVICE.partition(":")[0]:
                    raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        return [self._answer(asked) for asked in pending]

    def _answer(self, asked: Collective) -> Any:
        if isinstance(asked, AllGather):
            return tuple(tensor.new_empty(self.world, *tensor.shape) for tensor in asked.tensors)
        return tensors_of(asked)[0]


class Counted(StreamExecutor):
    """Streams whose agreements' copies, from and to pinned memory, are counted by themselves.

    Attributes:
        seen: what the operators so far came to.
        carried: copies of numbers that the ranks agree on, and of the sums.
    """

    def __init__(self, seen: Counting, world: int) -> None:
        super().__init__(There(world), Idle(torch.device(DEVICE)))  # type: ignore[arg-type]
        self.seen, self.carried = seen, list[str]()

    def vector(self, numbers: Sequence[Any]) -> torch.Tensor:
        with self._carrying():
            return super().vector(numbers)

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        if tensor.dtype == torch.bool:
            return super().to_host(tensor)
        with self._carrying():
            return Ones(super().to_host(tensor), len(tensor))

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        before = len(self.seen.copies)
        yield
        self.carried += self.seen.copies[before:]
        del self.seen.copies[before:]


class Ones:
    """Sums over ranks, which the made-up device does not compute."""

    def __init__(self, copy: HostCopy, size: int, number: float = 1.0) -> None:
        self.copy, self.numbers = copy, [number] * size

    def read(self) -> list[float]:
        self.copy.read()
        return self.numbers


def steps(
    base: Compressor,
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 2,
    controller: Controller[Any] | None = None,
    cf: float = 1.0,
    count: int = 1,
    dtype: torch.dtype = torch.float32,
    scaled: bool = False,
    apart: bool = True,
    each: int = 1,
    storages: Storages | None = None,
    **settings: Any,
) -> tuple[Counting, Counted]:
    """Count what steps of a model come to, after some that are not counted.

    Args:
        base: the compressor.
        shapes: shapes of the gradients, by name, in the order in which they are handed over.
        world: number of ranks.
        controller: decides; ``None``: always ``cf``.
        cf: compression factor.
        count: number of steps that are counted.
        dtype: number format of the gradients.
        scaled: whether there is a loss scale, which only the device knows.
        apart: whether they are handed over group by group, or all together.
        each: number of tensors of a group.
        storages: follows what is made in the steps that are counted, gradients too.
        settings: others of the compressor.
    """
    with counting() as seen, storages or nullcontext():
        executor = Counted(seen, world)
        gradients = {name: torch.empty(shape, dtype=dtype, device=DEVICE) for name, shape in shapes.items()}
        decides = Static(cf=cf) if controller is None else controller
        compressor = adaptive(base, (1, 1000), controller=decides, **settings)
        engine = compressor.attach_parameters(gradients, executor=executor)
        scale = torch.empty((), device=DEVICE) if scaled else None
        for step in range(WARM + count):
            if step == WARM:
                for found in (seen.kernels, seen.waits, seen.copies, executor.carried):
                    found.clear()
                executor.host_waits = 0
                if storages is not None:
                    storages.begin()
            begun = engine.begin(StepInputs(loss_scale=scale))
            tensors = [*gradients.items()]
            size = each if apart else len(tensors)
            handles = [engine.ready(tensors[at : at + size]) for at in range(0, len(tensors), size)]
            engine.end()
            handles[-1].wait()
            begun.result(timeout=0)
        if storages is not None:
            storages.end()
    return seen, executor
