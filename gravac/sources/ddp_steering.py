# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A DDP module whose gradients are exchanged by the hook, by DDP itself, or not at all, from step to step."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.candidate import Candidate
from gravac.sources.ddp import DDPAdapter
from gravac.sources.ddp_private import Reducer, register


class SteeredDDP:
    """See ``gravac.modes.switch.Source``.

    Args:
        adapter: hands gradients to the engine.
        ddp: module that is trained.
        hook: communication hook; it is registered.

    Raises:
        SettingsError: this torch's DistributedDataParallel lacks what steering it takes.
    """

    def __init__(self, adapter: DDPAdapter, ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
        self.outside: torch.nn.Module = ddp
        self.inside: torch.nn.Module = ddp.module
        self._adapter, self._ddp, self._hook = adapter, ddp, hook
        self._reducer = Reducer(ddp)

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Candidate that was decided when the last step by the hook began."""
        return self._adapter.decided

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None:
        self._adapter.decided = decided

    @property
    def send_whole(self) -> bool:
        """Whether the next step by the hook sends all residuals, dense."""
        return self._adapter.send_whole

    @send_whole.setter
    def send_whole(self, send_whole: bool) -> None:
        self._adapter.send_whole = send_whole

    @property
    def synced(self) -> bool:
        """Whether DDP would average in the backward of a forward that begins now."""
        return self._reducer.synced

    @property
    def in_join(self) -> bool:
        """Whether training runs under ``join()``, where ranks that have no inputs left answer no round."""
        return self._reducer.in_join

    @property
    def shares_buffers(self) -> bool:
        """Whether DDP has all ranks take rank 0's buffers in each forward."""
        return bool(self._ddp.broadcast_buffers)

    def use_hook(self) -> None:
        """Exchange by gravac: give DDP a new reducer with the hook."""
        self._reducer.renew()
        register(self._ddp, self._hook)

    def use_native(self, cf: float) -> None:
        """Exchange by DDP: give it a new reducer without gravac's hook; for CF 2 with torch's float16 hook."""
        self._adapter.rest()
        self._reducer.renew()
        if cf == 2:
            self._reducer.use_float16()

    def part(self) -> None:
        """Exchange nothing: DDP is silenced in each forward."""
        self._adapter.rest()

    def silence(self) -> None:
        """Have DDP average nothing in the backward of the forward that begins."""
        self._reducer.silence()

    def restore(self) -> None:
        """Give DDP the training loop's own flags back."""
        self._reducer.restore()

    def averaged(self) -> bool:
        """Whether DDP has averaged gradients since the last call."""
        return self._reducer.has_averaged()

    def forward_starts(self) -> None:
        """See ``Source``."""
        self._adapter.forward_starts()

    def step_ended(self) -> None:
        """See ``Source``."""
        self._adapter.step_ended()
