# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What one rank records of one step: bytes, seconds, and squared norms of the gradients and of their unsent parts.

1. The engine creates a ``StepRecording`` when a step begins. While gradients are averaged, their squared norms are
   added, and the squared norms of the parts that the compressor did not send.
2. At the step's end, the engine adds bytes, and the times at which backward and the exchange ended. On a GPU these
   times are events that the device may not have reached, and the host does not know the squared norms yet.
3. ``read`` converts times and squared norms to this rank's ``Measurement``, in a later step or when the engine is
   drained.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gravac.candidate import Candidate
from gravac.collectives import AllReduce, wire_ratio
from gravac.exchange.executor import Executor, Mark
from gravac.exchange.reading import Finite, Number
from gravac.measurement import Measurement


@dataclass(slots=True, eq=False)
class StepRecording:
    """One rank's record of one step of the engine; a number that is still on the device is a scalar (0-d tensor).

    The engine counts a round of outer steps, or successive native steps (a stretch), as one step. A moment is a point
    in time: seconds of the host's clock, or an event of a GPU's stream (``Executor.mark``); ``None`` if not known.

    Attributes:
        step: index of the engine's step, counted from 0.
        candidate: candidate that ran.
        first: number of training steps made before the engine's step.
        steps: number of training steps that the measurement covers: 1, or those of a round or a stretch.
        native_step_s: seconds of a native step, from its forward to the next; ``None`` for other steps, whose seconds
            are differences of moments.
        forward_s: seconds of a step's forward; nan if it was not timed, see ``AgreedNumbers.forward_seconds``.
        shadow: CFs whose error is computed without sending anything, ascending.
        learning_rate: learning rate that the step's gradients are applied with; nan if not known.
        loss_scale: factor by which a GradScaler multiplied the step's gradients; 1 without a scaler.
        loss: mean of the training losses reported on this rank since the last measurement; nan if none were reported.
        errors: squared norms of what was not sent, ``‖g_ef - sent‖²`` (g_ef: gradient plus residual). Each number
            belongs to some of the model's tensors, and their sum to all tensors.
        energies: squared norms of what was to be sent, ``‖g_ef‖²``; numbers as in ``errors``.
        shadow_errors: list for each tensor, with the squared norm of what would not be sent at each shadow CF.
        norms: squared norm, by tensor name, of the sum of this rank's gradients of the tensor over several steps; empty
            if the controller did not request norms in this step.
        elements: number of elements of all tensors.
        compressed: number of elements of the compressed tensors.
        sent: number of elements of the compressed tensors that were sent, ``Σ elements / achieved CF``.
        verdicts: results of the checks that gradients are finite on every rank, 0-d bool; each is for some of the
            tensors.
        inverse_drift: norm of what this rank sent / norm of the mean over ranks, in outer steps; nan otherwise.
        emptied: names of the tensors whose residuals are zero if all gradients were finite, see ``Residuals.emptied``.
        payload_bytes: bytes that this rank handed to collectives.
        wire_bytes: bytes that this rank sent.
        dense_wire_bytes: bytes that a dense float32 all-reduce would have sent.
        forward_began: moment at which forward started, with its inputs loaded.
        optimizer_ended: moment at which the optimizer's step before that forward ended.
        backward_ended: moment at which backward ended, before any wait for the exchange.
        exchange_ended: moment at which the exchange ended.
        ended: moment at which the step is over: ``backward_ended`` if training overlaps with the exchange, otherwise
            ``exchange_ended``.
        waits_since: moment after ``ended`` from which training waited for the exchange; ``None``: no wait.
        overlaps: whether training continues while the exchange is in flight (outer steps with a delay).
        paused: seconds since the last step for which no rank trained, such as during an evaluation.
        previous: measurement of the step before; ``None`` for the first step, and after ``read``.
        spent: function that returns seconds of coding, and seconds with collectives in flight, see ``Executor.spent``;
            ``None`` after ``read``.
        seconds: end-to-end step time. ``seconds``, ``compute``, ``coded``, ``in_flight``, ``input_wait`` and ``waited``
            are nan before ``read``.
        compute: seconds of forward, backward and optimizer.
        coded: seconds of encode, decode and error feedback.
        in_flight: seconds in which collectives were in flight.
        input_wait: seconds from the end of the optimizer's step to the next forward.
        waited: seconds for which the step waited for the exchange; nan if ``backward_ended`` is not known.
        own: this rank's measurement of the step, which the ranks will sum; ``None`` before ``read``.
        restored: whether ``own`` is from a checkpoint; bytes and moments are then not known.
    """

    step: int
    candidate: Candidate
    first: int = 0
    steps: int = 1
    native_step_s: float | None = None
    forward_s: float = math.nan
    shadow: tuple[float, ...] = ()
    learning_rate: float = math.nan
    loss_scale: Number = 1.0
    loss: Number = math.nan
    errors: list[Number] = field(default_factory=list)
    energies: list[Number] = field(default_factory=list)
    shadow_errors: list[list[Number]] = field(default_factory=list)
    norms: dict[str, Number] = field(default_factory=dict)
    elements: int = 0
    compressed: int = 0
    sent: float = 0.0
    verdicts: list[torch.Tensor] = field(default_factory=list)
    inverse_drift: Number = math.nan
    emptied: Sequence[str] = ()
    payload_bytes: int = 0
    wire_bytes: int = 0
    dense_wire_bytes: int = 0
    forward_began: Mark | None = None
    optimizer_ended: Mark | None = None
    backward_ended: Mark | None = None
    exchange_ended: Mark | None = None
    ended: Mark | None = None
    waits_since: Mark | None = None
    overlaps: bool = False
    paused: float = 0.0
    previous: "StepRecording | None" = None
    spent: Callable[[], tuple[float, float]] | None = None
    seconds: float = math.nan
    compute: float = math.nan
    coded: float = math.nan
    in_flight: float = math.nan
    input_wait: float = math.nan
    waited: float = math.nan
    own: Measurement | None = None
    restored: bool = False

    # numbers that averaging adds

    @property
    def error(self) -> Number:
        """Squared norm of what was not sent, ``‖g_ef - sent‖²``, over all tensors."""
        return _total(self.errors)

    @property
    def energy(self) -> Number:
        """Squared norm of what was to be sent, ``‖g_ef‖²``, over all tensors."""
        return _total(self.energies)

    @property
    def finite(self) -> Finite:
        """Whether every gradient was finite, on every rank."""
        if len(self.verdicts) < 2:
            return self.verdicts[0] if self.verdicts else None
        return torch.stack(self.verdicts).all()

    @property
    def achieved_cf(self) -> float:
        """Dense elements / sent elements of the compressed tensors; 1 if no tensor was compressed."""
        return self.compressed / self.sent if self.sent else 1.0

    @property
    def timed_steps(self) -> int:
        """Number of training steps in ``seconds``: of native steps, which are timed one by one, 1."""
        return self.steps if self.native_step_s is None else 1

    # bytes and moments

    def open(self, executor: Executor) -> None:
        """Start to count the step's bytes and its seconds of coding and exchange; called when the step begins."""
        executor.spent()

    def close(self, executor: Executor) -> None:
        """Record the step's bytes, and the present moment as the end of the exchange; called when the step ends."""
        self.exchange_ended = executor.mark()
        self.ended = self.backward_ended if self.overlaps else self.exchange_ended
        self.payload_bytes, self.wire_bytes, self.spent = executor.spent()
        self.dense_wire_bytes = self.steps * AllReduce.wire_bytes(4 * self.elements, executor.world)
        if self.candidate.mode == "native":  # torch sent these bytes, so the executor's ledger does not count them
            self.payload_bytes += self.steps * round(4 * self.elements / self.candidate.cf)
            step_wire_bytes = AllReduce.wire_bytes(round(4 * self.elements / self.candidate.cf), executor.world)
            self.wire_bytes += self.steps * step_wire_bytes

    @property
    def wire_ratio(self) -> float:
        """Bytes of a dense float32 all-reduce / bytes that this rank sent."""
        return wire_ratio(self.dense_wire_bytes, self.wire_bytes)

    def read(self, executor: Executor) -> None:
        """Convert moments and squared norms to ``own``; called once, after all moments have passed."""
        self._time(executor.between)
        shadow_errors = [sum(errors, 0.0) for errors in zip(*self.shadow_errors, strict=True)] or [0.0] * len(
            self.shadow
        )
        norms = {name: self.norms[name] for name in sorted(self.norms)}
        finite = self.finite
        error = self.error if finite is None else torch.where(finite, self.error, math.nan)
        error, energy, loss, *further_numbers = executor.numbers(
            [error, self.energy, self.loss, *shadow_errors, *norms.values()]
        )
        shadow_errors, squared_norms = further_numbers[: len(shadow_errors)], further_numbers[len(shadow_errors) :]
        numbers: dict[str, Any] = {
            "seconds": self.seconds / self.timed_steps,
            "error": error,
            "energy": energy,
            "shadow": tuple(zip(self.shadow, shadow_errors, strict=True)),
            "waited": self.waited / self.timed_steps,
            "coded": self.coded / self.timed_steps,
            "exchanged": self.in_flight / self.timed_steps,
            "norms": tuple(
                (name, squared_norm / self.loss_scale**2)
                for name, squared_norm in zip(norms, squared_norms, strict=True)
            ),
            "learning_rate": self.learning_rate,
            "drift": self.inverse_drift,
            "loss": loss,
            "forward_seconds": self.forward_s,
        }
        self.own = Measurement(
            self.step, self.candidate, samples=math.nan, first=self.first, steps=self.steps, **numbers
        )
        self.previous, self.spent = None, None

    def _time(self, between: Callable[[Mark, Mark], float]) -> None:
        """Set the step's seconds: of the whole step, of compute, of waiting for inputs, of waiting for the exchange.

        Args:
            between: function that returns the seconds from an earlier moment to a later one, see ``Executor.between``.
        """
        assert self.spent is not None
        if self.native_step_s is not None:  # the time of DDP's own exchange is not known
            self.seconds = self.compute = self.native_step_s
            return
        self.coded, self.in_flight = self.spent()
        previous = self.previous
        if previous is not None:
            idle_s = self._idle_after(between)
            self.seconds = between(previous.ended, self.ended) + idle_s - previous._idle_after(between) - self.paused
        forward_could_begin = [self.optimizer_ended, previous and previous.exchange_ended]
        self.input_wait = 0.0
        if self.forward_began is not None:
            waits_s = [between(mark, self.forward_began) for mark in forward_could_begin if mark is not None]
            self.input_wait = max(0.0, min(waits_s, default=0.0))
        exposed_s = self._exposed(between)
        self.compute = max(self.seconds - exposed_s - self.input_wait, 0.0)
        self.waited = math.nan if self.backward_ended is None else min(exposed_s, self.in_flight)

    def _idle_after(self, between: Callable[[Mark, Mark], float]) -> float:
        """Return the seconds for which training waited for the exchange after ``ended``."""
        return 0.0 if self.waits_since is None else max(0.0, between(self.waits_since, self.exchange_ended))

    def _exposed(self, between: Callable[[Mark, Mark], float]) -> float:
        """Return the seconds for which training waited for the exchange, before and after ``backward_ended``."""
        is_hidden = self.overlaps or self.backward_ended is None
        seconds_after_backward = 0.0 if is_hidden else between(self.backward_ended, self.exchange_ended)
        return seconds_after_backward + self._idle_after(between)

    @classmethod
    def restored_from(cls, own: Measurement) -> "StepRecording":
        """Return a recording of a measurement from a checkpoint, without its bytes and moments."""
        return cls(own.step, own.candidate, own.first, own.steps, own=own, restored=True)


def _total(numbers: Sequence[Number]) -> Number:
    """Return the sum of floats and 0-d tensors; 0 if there are none. A single number is returned unchanged."""
    return numbers[0] if len(numbers) == 1 else sum(numbers, 0.0)


def summed(squares: Sequence[torch.Tensor]) -> Number:
    """Return the sum of scalars (0-d tensors) as a 0-d float64 tensor; 0.0 if there are none."""
    if len(squares) == 1:
        return squares[0].double()
    if len(squares) == 2:  # one kernel instead of two
        return squares[0].double() + squares[1].double()
    return torch.stack([*squares]).double().sum() if squares else 0.0
