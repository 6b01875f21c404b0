# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A device whose streams wait for nothing, since nothing on it is computed later than it is handed over."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import gravac.attach
from gravac.exchange.group import GroupTransport
from gravac.exchange.opening import OpenedExecutor
from gravac.exchange.streams import StreamExecutor


class Moment:
    """A moment, in milliseconds, that is past; see ``gravac.exchange.device.Event``."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """It is past."""

    def elapsed_time(self, later: "Moment") -> float:
        return later.at - self.at


class Idle:
    """See ``gravac.exchange.device.Device``.

    Args:
        device: where tensors lie.
        passes: tells the milliseconds from one moment that is recorded to the next.
    """

    capturing = False

    def __init__(self, device: torch.device, passes: Callable[[], float] = lambda: 1.0) -> None:
        self.device = device
        self._passes, self._at = passes, 0.0

    def stream(self) -> None:
        return None

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        with torch.autocast("cpu", enabled=False):
            yield

    def record(self) -> Moment:
        self._at += self._passes()
        return Moment(self._at)

    def follow(self, event: Moment) -> None:
        """There is nothing to wait for."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)


@contextlib.contextmanager
def streams(rank: int, kind: type[Idle] = Idle) -> Iterator[list[StreamExecutor]]:
    """Have compressors that open within exchange by streams, on CPU tensors and another clock on every rank.

    Yields a list of the executors made.
    """
    made: list[StreamExecutor] = []
    moments = random.Random(rank)

    def opened(device: Any, group: Any, *_: Any) -> OpenedExecutor:
        transport = GroupTransport(group or dist.group.WORLD)
        made.append(StreamExecutor(transport, kind(torch.device("cpu"), lambda: moments.expovariate(1.0))))
        return OpenedExecutor(made[-1])

    with mock.patch.object(gravac.attach, "open_executor", opened):
        yield made
