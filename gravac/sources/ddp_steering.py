# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switches, between steps, what exchanges a DDP module's gradients: gravac's hook, DDP itself, or nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.candidate import Candidate
from gravac.sources.ddp import DDPAdapter
from gravac.sources.ddp_private import Reducer, register_hook, shards_of_tensor_parallelism
from gravac.sources.gradient_hooks import register_own_hook
from gravac.sources.local_model import LocalModel, innermost, with_inner_optimizers


class SteeredDDP:
    """A DDP module whose gradients are exchanged by gravac's hook, by DDP itself, or not at all.

    See ``gravac.modes.source.Source`` for the methods.

    Args:
        adapter: object that hands gradients from the hook to the engine.
        ddp: module that is trained.
        hook: gravac's communication hook, which is registered already, see ``register_hook``.

    Raises:
        SettingsError: this torch's DistributedDataParallel lacks a private name that this class needs.
    """

    def __init__(self, adapter: DDPAdapter, ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
        self.inner_module: torch.nn.Module = ddp.module
        self.forward_exchanges = bool(shards_of_tensor_parallelism(ddp))
        self._adapter, self._hook = adapter, hook
        self._reducer = Reducer(ddp)  # refers to the module weakly: the module's hook refers to this object
        self._watched: dict[int, tuple[torch.nn.Parameter, Any]] = {}  # parameters with a hook on their gradient, by id

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the module inside DDP and its optimizers, which this rank trains by itself in outer steps."""
        return LocalModel(innermost(self.inner_module), with_inner_optimizers(optimizers), self._reducer.averaged_names)

    @property
    def called_module(self) -> torch.nn.Module:
        """The DDP module."""
        return self._reducer.ddp

    @property
    def decided_candidate(self) -> "Future[Candidate] | None":
        """Future of the candidate that the controller had chosen when the last hook step began.

        ``None`` before the first hook step.
        """
        return self._adapter.decided_candidate

    @decided_candidate.setter
    def decided_candidate(self, candidate: "Future[Candidate] | None") -> None:
        self._adapter.decided_candidate = candidate

    @property
    def send_residuals(self) -> bool:
        """True if the next hook step sends all residuals (unsent parts of earlier gradients), without compression."""
        return self._adapter.send_residuals

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None:
        self._adapter.send_residuals = send_residuals

    @property
    def will_exchange(self) -> bool:
        """True if DDP is to average gradients in the next backward; read when a forward begins."""
        return self._reducer.will_average

    @property
    def in_pipeline(self) -> bool:
        """True if a pipeline schedule seems to run the module; read when a forward begins.

        A schedule runs all forwards in ``no_sync()``, and makes DDP exchange in the last backward. The property is
        therefore True if this forward and all others since the last exchange are in ``no_sync()``.
        """
        return not (self.will_exchange or self._adapter.exchanging_forward_began)

    @property
    def in_join(self) -> bool:
        """True if training runs, or once ran, under ``ddp.join()``, which excludes outer steps.

        In ``join()``, a rank without further inputs makes no steps, so it would miss exchanges of outer steps.
        """
        return self._reducer.in_join

    @property
    def shares_buffers(self) -> bool:
        """True if DDP copies rank 0's buffers to all ranks in each forward."""
        return bool(self._reducer.ddp.broadcast_buffers)

    def use_hook(self) -> None:
        """Let gravac exchange gradients: give DDP a new reducer with gravac's hook."""
        self._reducer.renew()
        register_hook(self._reducer.ddp, self._hook)

    def use_native(self, cf: float) -> None:
        """Let DDP exchange gradients: give DDP a new reducer without gravac's hook.

        Args:
            cf: 1 for an exchange in float32, 2 for float16, by torch's own hook.
        """
        self._adapter.forget_step()
        self._reducer.renew()
        if cf == 2:
            self._reducer.use_float16()

    def stop_exchange(self) -> None:
        """Prepare for steps without exchange; from now on the caller calls ``silence_exchange`` in each forward."""
        self._adapter.forget_step()

    def silence_exchange(self) -> None:
        """Turn DDP's averaging off for a forward and its backward. Called when the forward begins."""
        self._reducer.silence_exchange()

    def restore_exchange(self) -> None:
        """Set DDP's flags back to what the training loop had set. Called when a forward has ended."""
        self._reducer.restore_flags()

    def watch_gradients(self, gradient_accumulated: Callable[[torch.Tensor], None] | None) -> None:
        """Call a function with each parameter (any shape) that gets a gradient in a backward; ``None``: no longer."""
        if gradient_accumulated is None:
            for _, handle in self._watched.values():
                handle.remove()
            self._watched.clear()
            return
        for parameter in self.inner_module.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched[id(parameter)] = parameter, register_own_hook(parameter, gradient_accumulated)

    def has_averaged(self) -> bool:
        """Return whether DDP itself has averaged gradients since the last call."""
        has_averaged = self._reducer.has_averaged()
        if has_averaged:
            self._adapter.exchange_ended()
        return has_averaged

    def forward_starts(self) -> None:
        """Record the time at which the forward of a hook step begins."""
        self._adapter.forward_starts()

    def step_ended(self) -> None:
        """Record the time at which an optimizer's step ended. Called in hook mode."""
        self._adapter.step_ended()
