# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A clock that times the phases of a training step in the same way for every method, also for methods of torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import Variable


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step and of its phases.

    Attributes:
        seconds: seconds of the whole step.
        input_wait_s: seconds of waiting for the batch.
        compute_s: seconds of forward, backward and optimizer.
        exposed_s: seconds that the exchange adds to the step: from the computation of the last gradient to the end of
            backward; for outer steps, seconds of waiting for the exchange.
    """

    seconds: float
    input_wait_s: float
    compute_s: float
    exposed_s: float


class TrainingClock:
    """A clock of training steps.

    In each step, call ``mark_begin``, ``mark_inputs``, ``watch_backward``, ``mark_backward_return`` and ``end_step``,
    in this order.
    """

    def mark_begin(self) -> None:
        """Record the time at which a step begins."""
        self._begin_time = time.perf_counter()

    def mark_inputs(self) -> None:
        """Record the time at which the batch is ready."""
        self._inputs_time = time.perf_counter()

    def watch_backward(self, loss: torch.Tensor) -> None:
        """Register a hook that records the time at which all gradients are computed, before DDP waits for the exchange.

        Call before ``loss.backward()``. The hook queues a callback when backward starts. DDP queues its own callback,
        which waits for the exchange, only when the last bucket is ready, so DDP's callback runs second.

        Args:
            loss: training loss, a scalar tensor.
        """
        self._gradients_time: float | None = None

        def queue_callback(gradient: torch.Tensor) -> None:
            Variable._execution_engine.queue_callback(self._mark_gradients)

        loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]

    def mark_backward_return(self) -> None:
        """Record the time at which ``loss.backward()`` returned."""
        self._return_time = time.perf_counter()

    def end_step(self, exposed_of: Callable[[float], float] | None = None) -> StepTimes:
        """End the step, and return the seconds of its phases.

        Args:
            exposed_of: function that takes the seconds from the computation of the last gradient to backward's
                return, and returns ``StepTimes.exposed_s``; ``None``: the identity.
        """
        end = time.perf_counter()
        exposed_s = max(0.0, self._return_time - (self._gradients_time or self._return_time))
        exposed_s = exposed_s if exposed_of is None else exposed_of(exposed_s)
        input_wait_s = self._inputs_time - self._begin_time
        step_s = end - self._begin_time
        return StepTimes(step_s, input_wait_s, step_s - input_wait_s - exposed_s, exposed_s)

    def _mark_gradients(self) -> None:
        """Record the time at which all gradients are computed."""
        self._gradients_time = time.perf_counter()
