# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A device whose streams wait for nothing, since nothing on it is computed later than it is handed over."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Moment:
    """A moment, in milliseconds, that is past; see ``gravac.exchange.device.Event``."""

    def __init__(self, at: float) -> None:
        self.at = at

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
        yield

    def record(self) -> Moment:
        self._at += self._passes()
        return Moment(self._at)

    def wait(self, event: Moment) -> None:
        """There is nothing to wait for."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
