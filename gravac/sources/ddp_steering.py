# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Steers a DDP module: gravac's hook exchanges its gradients, or DDP itself, or nobody; changeable at each step."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.candidate import Candidate
from gravac.sources.ddp import DDPAdapter
from gravac.sources.ddp_private import Reducer, register


class SteeredDDP:
    """A DDP module as a source of gradients; see ``gravac.modes.switch.Source``.

    Args:
        adapter: hands gradients to the engine.
        ddp: module that is trained.
        hook: communication hook, which is registered already.

    Raises:
        SettingsError: this torch's DistributedDataParallel lacks a name that steering needs.
    """

    def __init__(self, adapter: DDPAdapter, ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
        self.outside: torch.nn.Module = ddp
        self.inside: torch.nn.Module = ddp.module
        self._adapter, self._ddp, self._hook = adapter, ddp, hook
        self._reducer = Reducer(ddp)

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Future of the candidate of the last hook step that began."""
        return self._adapter.decided

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None:
        self._adapter.decided = decided

    @property
    def send_residuals(self) -> bool:
        """True if the next hook step sends all residuals, dense."""
        return self._adapter.send_residuals

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None:
        self._adapter.send_residuals = send_residuals

    @property
    def synced(self) -> bool:
        """True if DDP will average in the backward that follows the forward that now begins."""
        return self._reducer.synced

    @property
    def in_join(self) -> bool:
        """True if training runs under ``join()``, in which ranks without inputs would miss exchanges of outer steps."""
        return self._reducer.in_join

    @property
    def shares_buffers(self) -> bool:
        """True if DDP copies rank 0's buffers to all ranks in each forward."""
        return bool(self._ddp.broadcast_buffers)

    def use_hook(self) -> None:
        """Exchange by gravac: give DDP a new reducer with the hook."""
        self._reducer.renew()
        register(self._ddp, self._hook)

    def use_native(self, cf: float) -> None:
        """Exchange by DDP: give it a new reducer without gravac's hook; for CF 2, with torch's float16 hook."""
        self._adapter.rest()
        self._reducer.renew()
        if cf == 2:
            self._reducer.use_float16()

    def stop_exchange(self) -> None:
        """Exchange nothing from the next forward on: ``silence`` is called in each forward."""
        self._adapter.rest()

    def silence(self) -> None:
        """Turn DDP's averaging off for the backward of the forward that begins."""
        self._reducer.silence()

    def restore(self) -> None:
        """Restore DDP's flags to what the training loop had set."""
        self._reducer.restore()

    def has_averaged(self) -> bool:
        """True if DDP has averaged gradients since the last call."""
        return self._reducer.has_averaged()

    def forward_starts(self) -> None:
        """Record the moment when a forward with gradients begins, in a hook step."""
        self._adapter.forward_starts()

    def step_ended(self) -> None:
        """Record the moment when an optimizer's step has ended, in a hook step."""
        self._adapter.step_ended()
