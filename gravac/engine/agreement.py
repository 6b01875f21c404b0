# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How a rank's measurement becomes one that all ranks share, and at which points of a step.

1. A step ends: its ``LocalMeasurement`` is pending.
2. ``read``: its sums and moments become numbers.
3. ``send``: the ranks start to sum the numbers.
4. ``observe``: the sums are there, and the engine decides by them.

The schedule says when. Each of the two schedules does 2 to 4 at the same points on all ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from gravac.controllers.base import Measurement
from gravac.engine.run_state import RunState
from gravac.exchange.executor import Executor
from gravac.exchange.failures import ExchangeError
from gravac.measurement import FIRST, LAST, UNRELEASED, LocalMeasurement, error_at, slots

AGREEMENT = "the ranks' agreement on an earlier step"

TIMES = ("seconds", "waited", "coded", "exchanged")
"""Names of the slots that a round of several steps is measured in as a whole, and told of by the step."""

SUMS = ("error", "energy")
"""Names of the slots that hold sums over ranks, as every shadow's error does; the others hold means."""

Observe = Callable[[LocalMeasurement, list[list[float]]], None]
"""Takes a measurement and the sums of its vectors over the ranks."""


class Agreement:
    """The pending measurements of a run on their way to agreement.

    Args:
        executor: sums over the ranks.
        state: state of the run, with the measurements that are pending.
        observe: called with each measurement that the ranks agree on, in order.
    """

    def __init__(self, executor: Executor, state: RunState, observe: Observe) -> None:
        self.executor = executor
        self._state, self._observe = state, observe
        self._in_flight: list[Any] = []

    def read(self, last: int) -> None:
        """Read the measurements of steps up to ``last`` as numbers; these steps have ended."""
        for measurement in self._state.pending:
            if measurement.step <= last and not measurement.numbers:
                measurement.read(self.executor)

    def send(self, last: int) -> None:
        """Start to sum the numbers of steps up to ``last`` over the ranks."""
        for measurement in self._state.pending[len(self._in_flight) :]:
            if measurement.step > last:
                return
            vectors = measurement.vectors()
            self._state.totals.norm_bytes += sum(8 * len(vector) for vector in vectors[1:])
            with named_failure(self._state, lambda: AGREEMENT):
                self._in_flight.append(self.executor.agree(vectors))

    def observe(self, last: int) -> None:
        """Wait for the sums of steps up to ``last``, and have each observed."""
        while self._in_flight and self._state.pending[0].step <= last:
            with named_failure(self._state, lambda: AGREEMENT):
                sums = self.executor.agreed(self._in_flight.pop(0))
            self._observe(self._state.pending.pop(0), sums)

    def let_go(self) -> None:
        """Let go of sums that are in flight, which hold connections; nobody will wait for them."""
        self._in_flight.clear()


class AgreementSchedule(Protocol):
    """When a step's numbers are read, sent and observed.

    Attributes:
        looks: whether the host looks at data within a step.
    """

    looks: bool

    def step_follows(self, step: int) -> None:
        """A step is about to begin; a call of its own, before ``step_begins``."""

    def step_begins(self, step: int) -> None:
        """A step begins, before anything of it is exchanged."""

    def step_ends(self, step: int) -> None:
        """A step ended, and its measurement is pending."""


class HostSchedule:
    """The host reads a step's numbers at its end. The ranks sum them in the next step, and decide at its end."""

    looks = True

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, self._latency = agreement, agreement.executor.latency

    def step_follows(self, step: int) -> None:
        """Do nothing: the host is never behind the device."""

    def step_begins(self, step: int) -> None:
        """Send the numbers of the last step."""
        self._agreement.send(step + 1 - self._latency)

    def step_ends(self, step: int) -> None:
        """Read the step's numbers, and decide by the step before."""
        self._agreement.read(step)
        self._agreement.observe(step + 1 - self._latency)


class DeviceSchedule:
    """The host must not wait for the device: numbers are read a step later, and decided by when the next begins."""

    looks = False

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, self._latency = agreement, agreement.executor.latency

    def step_follows(self, step: int) -> None:
        """Wait for what the device was given a step ago, read its numbers; send what a restored run has to send."""
        self._agreement.executor.catch_up()
        self._agreement.read(step + 1 - self._latency)
        self._agreement.send(step - self._latency)

    def step_begins(self, step: int) -> None:
        """Decide by the step whose sums are on the host, and send the next."""
        self._agreement.observe(step - self._latency)
        self._agreement.send(step + 1 - self._latency)

    def step_ends(self, step: int) -> None:
        """Do nothing: the device has not yet computed the step."""


def schedule_of(agreement: Agreement) -> AgreementSchedule:
    """Return the schedule for an executor."""
    return HostSchedule(agreement) if agreement.executor.host_looks else DeviceSchedule(agreement)


@contextmanager
def named_failure(state: RunState, what: Callable[[], str]) -> Iterator[None]:
    """Add to a failure of the exchange in which step it happened, and what was exchanged."""
    try:
        yield
    except ExchangeError as failure:
        raise ExchangeError(f"gravac: step {state.step}, {what()}, {state.candidate}: {failure}") from failure.__cause__


def agreed_measurement(
    local: LocalMeasurement, sums: Sequence[Sequence[float]], world: int, samples: float
) -> Measurement:
    """Return the measurement that all ranks share.

    Args:
        local: this rank's numbers; only what is the same on all ranks is taken from them.
        sums: sums of ``local.vectors()`` over the ranks.
        world: number of ranks that agree.
        samples: number of samples processed in a step, over all ranks.
    """
    total = slot_numbers(local.shadow, sums[0])
    numbers = {slot: total[slot] if slot in SUMS else total[slot] / world for slot in (*FIRST, *LAST)}
    if local.watched is None:
        numbers |= {slot: numbers[slot] / local.steps for slot in TIMES}
    # a rank's number is its norm over the mean's, so the mean over ranks is the inverse of drift
    numbers["drift"] = 1 / numbers["drift"] if numbers["drift"] else math.nan
    squares = sums[1] if len(sums) > 1 else ()
    return Measurement(
        step=local.step,
        first=local.first,
        steps=local.steps,
        candidate=local.candidate,
        samples=samples,
        shadow=tuple((cf, total[error_at(cf)]) for cf in local.shadow),
        norms=tuple((name, math.sqrt(square / world)) for name, square in zip(local.norms, squares, strict=False)),
        **numbers,
    )


def all_released(local: LocalMeasurement, sums: Sequence[Sequence[float]]) -> bool:
    """True if no rank has a residual left of tensors that are sent whole: their squared norms sum to 0."""
    return slot_numbers(local.shadow, sums[0])[UNRELEASED] == 0


def slot_numbers(shadow: Sequence[float], vector: Sequence[float]) -> dict[str, float]:
    """Return the numbers of a vector by the names of its slots.

    Raises:
        ValueError: the vector is not as long as the slots are many.
    """
    names = slots(shadow)
    if len(vector) != len(names):
        raise ValueError(f"vector: {len(vector)} numbers, and the slots are {', '.join(names)}")
    return dict(zip(names, vector, strict=True))


def gain(error: float, energy: float) -> float | None:
    """Return ``1 - error / energy``; 1 if there was nothing to send, ``None`` if not finite."""
    if not math.isfinite(error + energy):
        return None  # of a refused step the error is nan, and the energy may be 0
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if math.isfinite(share) else None
