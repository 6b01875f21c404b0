# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How ranks agree on the measurement of a step, and at which points of later steps they sum their numbers.

1. A step ends: its ``StepRecording`` is pending, that is, not summed over the ranks yet.
2. ``read``: the host converts the measurement's squared norms and recorded times (events on a device) to numbers.
3. ``send``: the ranks start to sum the numbers.
4. ``observe``: the sums have arrived, and the engine decides by the sums.

A schedule says when each of these happens. All ranks follow the same schedule.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gravac.averaging.recording import StepRecording
from gravac.engine.run_state import RunState
from gravac.exchange.executor import Executor
from gravac.exchange.failures import ExchangeError
from gravac.measurement import vectors

AGREEMENT_TEXT = "the ranks' agreement on an earlier step"
"""Text for error messages: what the ranks exchanged when a sum of measurements failed."""

Observe = Callable[[StepRecording, list[list[float]]], None]
"""Function that is called with a step's recording, and with the sums over the ranks of its ``vectors``, in order."""


class Agreement:
    """Sums the pending measurements of a run over the ranks: those of steps that the ranks have not agreed on yet.

    Args:
        executor: object that sums vectors over the ranks.
        state: state of the run, with the pending measurements.
        observe: function that is called with each pending measurement and its sums, in the order of steps.
    """

    def __init__(self, executor: Executor, state: RunState, observe: Observe) -> None:
        self.executor = executor
        self._state, self._observe = state, observe
        self._in_flight: list[Any] = []

    def read(self, last_step: int) -> None:
        """Convert squared norms and recorded times of pending measurements to numbers.

        Args:
            last_step: number of the last step to convert; this step and all earlier ones have ended.
        """
        for measurement in self._state.pending:
            if measurement.step <= last_step and measurement.own is None:
                measurement.read(self.executor)

    def send(self, last_step: int) -> None:
        """Start to sum the numbers of pending measurements up to ``last_step`` over the ranks."""
        for measurement in self._state.pending[len(self._in_flight) :]:
            if measurement.step > last_step:
                return
            assert measurement.own is not None
            numbers, *norms = vectors(measurement.own)
            self._state.totals.norm_bytes += sum(8 * len(vector) for vector in norms)
            with named_failure(self._state, lambda: AGREEMENT_TEXT):
                self._in_flight.append(self.executor.agree([numbers, *norms]))

    def observe(self, last_step: int) -> None:
        """Wait for the sums of the steps up to ``last_step``, and let the engine decide by each of these steps.

        For each step, the function ``observe`` that the constructor got is called with the measurement and its sums.
        """
        while self._in_flight and self._state.pending[0].step <= last_step:
            with named_failure(self._state, lambda: AGREEMENT_TEXT):
                sums = self.executor.agreed(self._in_flight.pop(0))
            self._observe(self._state.pending.pop(0), sums)

    def drop_in_flight(self) -> None:
        """Drop sums in flight, so that their connections can close; no caller will wait for them."""
        self._in_flight.clear()


class AgreementSchedule(Protocol):
    """Says when measurements are read (converted to numbers), sent (to be summed over the ranks) and observed.

    The executor calls the three methods at fixed points of each step; each does what is due at that point.

    Attributes:
        host_looks: whether the host may read tensors' numbers within a step.
    """

    host_looks: bool

    def before_step(self, step: int) -> None:
        """Read the numbers of earlier steps if that is due before a step begins.

        Called before ``step_begins``, in a call of the executor that does nothing else.

        Args:
            step: number of the step that will begin.
        """

    def step_begins(self, step: int) -> None:
        """Send or observe the numbers of earlier steps, as far as that is due when a step begins.

        Args:
            step: number of the step that begins.
        """

    def step_ends(self, step: int) -> None:
        """Read, send or observe numbers, as far as that is due when a step has ended and its measurement is pending.

        Args:
            step: number of the step that has ended.
        """


class HostSchedule:
    """Schedule for a host that may wait for the device that computes the tensors, such as a CPU.

    The numbers of step t are read when step t ends, and summed over the ranks in step t + 1. The ranks decide by the
    sums when step t + 1 ends.
    """

    host_looks = True

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, self._latency = agreement, agreement.executor.latency

    def before_step(self, step: int) -> None:
        """Do nothing: numbers of earlier steps were read when these steps ended."""

    def step_begins(self, step: int) -> None:
        """Start to sum the numbers of the previous step over the ranks."""
        self._agreement.send(step + 1 - self._latency)

    def step_ends(self, step: int) -> None:
        """Convert the step's measurement to numbers, and decide by the sums of the previous step's numbers."""
        self._agreement.read(step)
        self._agreement.observe(step + 1 - self._latency)


class DeviceSchedule:
    """Schedule for a host that must not wait for the device that computes the tensors, such as a GPU.

    The numbers of step t are read before step t + 2 begins, and summed over the ranks in step t + 2. The ranks decide
    by the sums when step t + 3 begins.
    """

    host_looks = False

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, self._latency = agreement, agreement.executor.latency

    def before_step(self, step: int) -> None:
        """Wait until the device has run the step before the last, and read its numbers.

        If the run was restored from a checkpoint, also send the numbers that are not in flight yet.
        """
        self._agreement.executor.wait_for_previous_step()
        self._agreement.read(step + 1 - self._latency)
        self._agreement.send(step - self._latency)

    def step_begins(self, step: int) -> None:
        """Decide by the oldest step in flight, whose sums have arrived; send the numbers of the step after that."""
        self._agreement.observe(step - self._latency)
        self._agreement.send(step + 1 - self._latency)

    def step_ends(self, step: int) -> None:
        """Do nothing: the device has not yet computed the step."""


def schedule_of(agreement: Agreement) -> AgreementSchedule:
    """Return the schedule by which the ranks agree: for a host that may read tensors, or for one that must not."""
    return HostSchedule(agreement) if agreement.executor.host_looks else DeviceSchedule(agreement)


@contextmanager
def named_failure(state: RunState, what: Callable[[], str]) -> Iterator[None]:
    """Return a context manager that adds to an ``ExchangeError`` the training step, what was exchanged, the candidate.

    Args:
        state: state of the run, with the step and the candidate.
        what: function that returns a text: what is exchanged within the context. Called only if the exchange fails.
    """
    try:
        yield
    except ExchangeError as failure:
        since_text = f" (since step {state.trained})" if state.covered > 1 else ""
        raise ExchangeError(
            f"gravac: step {state.training_step}{since_text}, exchange of {what()}, {state.candidate}: {failure}"
        ) from failure.__cause__


def gain(error: float, energy: float) -> float | None:
    """Return the share of the energy that was sent, ``1 - error / energy``; ``None`` if not finite.

    Args:
        error: squared norm of what was not sent.
        energy: squared norm of what was to be sent: gradients plus residuals. If the energy is 0, the gain is 1.
    """
    if not math.isfinite(error + energy):
        return None  # if a gradient was not finite, the error is nan, and the energy may be 0
    if energy == 0:
        return 1.0
    sent_fraction = 1 - error / energy
    return sent_fraction if math.isfinite(sent_fraction) else None
