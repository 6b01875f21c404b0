# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A clock for the parts of a training step, the same for every method, also for those that are not ours."""

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
        seconds: time of the whole step.
        input_wait: time waiting for the batch.
        compute: time of forward, backward and optimizer.
        exposed: time from the end of backward's own work until its gradients were averaged; of outer steps, time
            that the exchange took of it.
    """

    seconds: float
    input_wait: float
    compute: float
    exposed: float


class TrainingClock:
    """A clock whose methods are called in the order of the loop: step_begins, inputs_ready, watch, exchanged, stop."""

    def step_begins(self) -> None:
        """Note that a step begins."""
        self._began = time.perf_counter()

    def inputs_ready(self) -> None:
        """Note that the batch is there."""
        self._inputs = time.perf_counter()

    def watch(self, loss: torch.Tensor) -> None:
        """Have the moment noted when all gradients are computed, before DDP waits for the exchange.

        Called before ``loss.backward()``; ``loss`` is a scalar.

        DDP queues its own wait at the end of backward only when the last bucket is ready; this is queued at its start.
        """
        self._backward: float | None = None

        def begun(gradient: torch.Tensor) -> None:
            Variable._execution_engine.queue_callback(self._computed)

        loss.register_hook(begun)  # type: ignore[no-untyped-call]

    def exchanged(self) -> None:
        """Note that backward returned."""
        self._returned = time.perf_counter()

    def stop(self, exposed_of: Callable[[float], float] | None = None) -> Lap:
        """Note that the step is over; return its times.

        Args:
            exposed_of: gives ``Lap.exposed``, told the time from the end of backward's own work to its return; ``None``
                takes that.
        """
        now = time.perf_counter()
        exposed = max(0.0, self._returned - (self._backward or self._returned))
        exposed = exposed if exposed_of is None else exposed_of(exposed)
        waited = self._inputs - self._began
        return Lap(now - self._began, waited, now - self._began - waited - exposed, exposed)

    def _computed(self) -> None:
        self._backward = time.perf_counter()
