# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times the phases of a training step in the same way for methods of gravac and torch."""

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
        input_wait_s: seconds from the start of the step until the batch is ready.
        compute_s: seconds of forward, backward and optimizer, without ``exposed_s``.
        exposed_s: seconds for which the step waits for the exchange: the time from the computation of the last gradient
            to the end of backward; in outer steps, also waits outside backward.
    """

    seconds: float
    input_wait_s: float
    compute_s: float
    exposed_s: float


class TrainingClock:
    """A clock that measures the seconds of a training step and of its phases.

    In each step, the training loop calls ``mark_step_begin``, ``mark_inputs_ready``, ``watch_backward``,
    ``mark_backward_return`` and ``end_step``, in this order.
    """

    def mark_step_begin(self) -> None:
        """Record that a step begins now; called before the batch is fetched."""
        self._step_begin_time = time.perf_counter()

    def mark_inputs_ready(self) -> None:
        """Record that the batch is ready now; called before forward."""
        self._inputs_ready_time = time.perf_counter()

    def watch_backward(self, loss: torch.Tensor) -> None:
        """Register a hook that records when all gradients are computed; called before ``loss.backward()``.

        The recorded time is before DDP waits for the exchange: the hook queues a callback of the autograd engine when
        backward starts. DDP queues its own callback, which waits, when the last bucket is ready, so DDP's runs later.

        Args:
            loss: training loss, a scalar tensor.
        """
        self._gradients_ready_time: float | None = None

        def queue_callback(gradient: torch.Tensor) -> None:
            Variable._execution_engine.queue_callback(self._mark_gradients_ready)

        loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]

    def mark_backward_return(self) -> None:
        """Record that ``loss.backward()`` has returned now."""
        self._backward_return_time = time.perf_counter()

    def end_step(self, exposed_seconds_of: Callable[[float], float]) -> StepTimes:
        """Return the seconds of the step and of its phases; called at the end of the step.

        Args:
            exposed_seconds_of: function that takes the seconds from the computation of the last gradient to the return
                of backward, and returns ``StepTimes.exposed_s``.
        """
        end_time = time.perf_counter()
        exposed_s = exposed_seconds_of(
            max(0.0, self._backward_return_time - (self._gradients_ready_time or self._backward_return_time))
        )
        input_wait_s = self._inputs_ready_time - self._step_begin_time
        step_s = end_time - self._step_begin_time
        return StepTimes(step_s, input_wait_s, step_s - input_wait_s - exposed_s, exposed_s)

    def _mark_gradients_ready(self) -> None:
        """Record that all gradients are computed now; called by the autograd engine at the end of backward."""
        self._gradients_ready_time = time.perf_counter()
