# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A clock that times the phases of a training step, the same for every method, also for those of torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import Variable


@dataclass(frozen=True)
class Lap:
    """The times of one step, in seconds.

    Attributes:
        seconds: time of the step.
        input_wait: time waiting for the batch.
        compute: time of forward, backward and optimizer.
        exposed: time from the computation of the last gradient until the gradients were averaged; of outer steps, the
            time of the step spent waiting for the exchange.
    """

    seconds: float
    input_wait: float
    compute: float
    exposed: float


class TrainingClock:
    """A clock of training steps.

    In each step, call ``step_begins``, ``inputs_ready``, ``watch_backward``, ``exchanged`` and ``stop`` in this order.
    """

    def step_begins(self) -> None:
        """Record the time at which a step begins."""
        self._began = time.perf_counter()

    def inputs_ready(self) -> None:
        """Record the time at which the batch is ready."""
        self._inputs = time.perf_counter()

    def watch_backward(self, loss: torch.Tensor) -> None:
        """Record the time at which all gradients are computed, before DDP waits for the exchange.

        Call it before ``loss.backward()``. The callback is queued when backward starts; DDP queues its own wait only
        when the last bucket is ready, so DDP waits after the callback.

        Args:
            loss: training loss, a scalar.
        """
        self._backward: float | None = None

        def queue_callback(gradient: torch.Tensor) -> None:
            Variable._execution_engine.queue_callback(self._computed)

        loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]

    def exchanged(self) -> None:
        """Record the time at which backward returned."""
        self._returned = time.perf_counter()

    def stop(self, exposed_of: Callable[[float], float] | None = None) -> Lap:
        """End the step, and return its times.

        Args:
            exposed_of: function that returns ``Lap.exposed`` for the seconds from the computation of the last gradient
                to backward's return; ``None``: the identity.
        """
        end = time.perf_counter()
        exposed = max(0.0, self._returned - (self._backward or self._returned))
        exposed = exposed if exposed_of is None else exposed_of(exposed)
        input_wait = self._inputs - self._began
        return Lap(end - self._began, input_wait, end - self._began - input_wait - exposed, exposed)

    def _computed(self) -> None:
        self._backward = time.perf_counter()
