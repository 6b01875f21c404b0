# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank's measurement of one step: bytes, seconds, and squared norms of the gradients and of their unsent parts.

1. The engine creates a ``LocalMeasurement`` when a step begins. While gradients are averaged, their squared norms are
   added, and the squared norms of the parts that the compressor did not send.
2. At the step's end, the engine adds bytes, and the times at which backward and the exchange ended. On a GPU these
   times are events that the device may not have reached, and the host does not know the squared norms yet.
3. ``read`` converts times and squared norms to numbers: at the end of the step if the host may wait for the device, a
   step later if the host must not wait.
4. The ranks sum ``vectors``; ``gravac.engine.agreement`` converts the sums to the ``Measurement`` that all ranks share.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gravac.agreed import AGREED_NAMES
from gravac.candidate import Candidate
from gravac.collectives import AllReduce, wire_ratio
from gravac.exchange.executor import Executor, Mark, Number, Verdict

SLOTS_BEFORE_ERRORS = ("seconds", "error", "energy")
"""Names of the first numbers of the vector that ranks sum: fields of ``Measurement``. Errors at shadow CFs, which are
evaluated without sending anything, follow."""

SLOTS_AFTER_ERRORS = ("waited", "coded", "exchanged", *AGREED_NAMES)
"""Names of the numbers that follow the errors at shadow CFs in the vector that ranks sum: fields of ``Measurement``."""


def slots(shadow: Sequence[float]) -> tuple[str, ...]:
    """Return the name of each number (slot) of the vector that ranks sum, in order.

    The names depend only on the shadow CFs, which are the same on all ranks.

    Args:
        shadow: CFs whose error the step computes without sending anything.
    """
    return (*SLOTS_BEFORE_ERRORS, *map(error_at, shadow), *SLOTS_AFTER_ERRORS)


def error_at(cf: float) -> str:
    """Return the name under which ranks sum the squared error at a shadow CF, which is evaluated without sending."""
    return f"error at {cf!r}"


@dataclass(slots=True, eq=False)
class LocalMeasurement:
    """One rank's numbers of one step of the engine; a number that is still on the device is a scalar (0-d tensor).

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
        probe: loss on this rank's fixed batches, read before the step; nan if it was not read.
        errors: squared norms of what was not sent, ``‖g_ef - sent‖²`` (g_ef: gradient plus residual). Each number
            belongs to some of the model's tensors, and their sum to all tensors.
        energies: squared norms of what was to be sent, ``‖g_ef‖²``; numbers as in ``errors``.
        shadow_errors: list for each tensor, with the squared norm of what would not be sent at each shadow CF.
        norms: squared norm, by tensor name, of the sum of this rank's gradients of the tensor over several steps; empty
            if the controller did not request norms in this step.
        elements: number of elements of all tensors.
        compressed: number of elements of the compressed tensors.
        sent: number of elements of the compressed tensors that were sent, ``Σ elements / achieved CF``.
        verdicts: results of the checks that gradients are finite on every rank; each check is for some of the tensors.
        inverse_drift: norm of what this rank sent / norm of the mean over ranks, in outer steps; nan otherwise.
        emptied: names of the tensors that were sent dense, so that their residuals are zero if all gradients were
            finite; empty if the host knows whether they were, and has dropped these residuals itself.
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
        idle: seconds for which training waited for the exchange before ``backward_ended``.
        paused: seconds since the last step for which no rank trained, such as during an evaluation.
        steps_of_ranks: number of steps that each rank made in a round of outer steps; empty in other modes.
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
        numbers: this rank's numbers of the step that the ranks will sum, such as ``seconds``, ``error`` and ``loss``;
            the keys are the names that ``slots(shadow)`` returns. Empty before ``read``.
        restored: whether the numbers are from a checkpoint; bytes and moments are then not known.
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
    probe: Number = math.nan
    errors: list[Number] = field(default_factory=list)
    energies: list[Number] = field(default_factory=list)
    shadow_errors: list[list[Number]] = field(default_factory=list)
    norms: dict[str, Number] = field(default_factory=dict)
    elements: int = 0
    compressed: int = 0
    sent: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)
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
    idle: float = 0.0
    paused: float = 0.0
    steps_of_ranks: tuple[int, ...] = ()
    previous: "LocalMeasurement | None" = None
    spent: Callable[[], tuple[float, float]] | None = None
    seconds: float = math.nan
    compute: float = math.nan
    coded: float = math.nan
    in_flight: float = math.nan
    input_wait: float = math.nan
    waited: float = math.nan
    numbers: dict[str, Number] = field(default_factory=dict)
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
    def finite(self) -> Verdict:
        """True if every gradient was finite, on every rank; a 0-d bool tensor if this is known on the device only."""
        is_finite_on_host = all(verdict for verdict in self.verdicts if isinstance(verdict, bool))
        device_verdicts = [verdict for verdict in self.verdicts if not isinstance(verdict, bool)]
        if not is_finite_on_host or not device_verdicts:
            return is_finite_on_host
        return device_verdicts[0] if len(device_verdicts) == 1 else torch.stack(device_verdicts).all()

    @property
    def achieved_cf(self) -> float:
        """Dense elements / sent elements of the compressed tensors; 1 if no tensor was compressed."""
        return self.compressed / self.sent if self.sent else 1.0

    # bytes and moments

    def open(self, executor: Executor) -> None:
        """Start to count the step's bytes and its seconds of coding and exchange; called when the step begins."""
        self.payload_bytes, self.wire_bytes = -executor.ledger.payload_bytes, -executor.ledger.wire_bytes
        executor.spent()

    def close(self, executor: Executor) -> None:
        """Record the step's bytes, and the present moment as the end of the exchange; called when the step ends."""
        self.exchange_ended = executor.mark()
        self.ended = self.backward_ended if self.overlaps else self.exchange_ended
        self.payload_bytes += executor.ledger.payload_bytes
        self.wire_bytes += executor.ledger.wire_bytes
        self.dense_wire_bytes = self.steps * AllReduce.wire_bytes(4 * self.elements, executor.world)
        if self.candidate.mode == "native":  # torch sent these bytes, so the executor's ledger does not count them
            self.payload_bytes += self.steps * round(4 * self.elements / self.candidate.cf)
            step_wire_bytes = AllReduce.wire_bytes(round(4 * self.elements / self.candidate.cf), executor.world)
            self.wire_bytes += self.steps * step_wire_bytes
        self.spent = executor.spent()

    @property
    def wire_ratio(self) -> float:
        """Bytes of a dense float32 all-reduce / bytes that this rank sent."""
        return wire_ratio(self.dense_wire_bytes, self.wire_bytes)

    def read(self, executor: Executor) -> None:
        """Convert moments and squared norms to ``numbers``; called once, after all moments have passed."""
        self._time(executor.between)
        shadow_errors = [sum(errors, 0.0) for errors in zip(*self.shadow_errors, strict=True)] or [0.0] * len(
            self.shadow
        )
        norms = {name: self.norms[name] for name in sorted(self.norms)}
        error, energy, finite, loss, probe, *further_numbers = executor.numbers(
            [self.error, self.energy, self.finite, self.loss, self.probe, *shadow_errors, *norms.values()]
        )
        shadow_errors, squared_norms = further_numbers[: len(shadow_errors)], further_numbers[len(shadow_errors) :]
        self.errors, self.energies, self.verdicts = [error], [energy], [_verdict(finite)]
        self.norms = {
            name: squared_norm / self.loss_scale**2 for name, squared_norm in zip(norms, squared_norms, strict=True)
        }
        self.numbers = {
            "seconds": self.seconds,
            "error": _if_finite(self.finite, error),
            "energy": energy,
            **dict(zip(map(error_at, self.shadow), shadow_errors, strict=True)),
            "waited": self.waited,
            "coded": self.coded,
            "exchanged": self.in_flight,
            "learning_rate": self.learning_rate,
            "drift": self.inverse_drift,
            "loss": loss,
            "probe": probe,
            "forward_seconds": self.forward_s,
        }
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
        return seconds_after_backward + (self._idle_after(between) + self.idle)

    # exchange with other ranks, and checkpoints

    def vectors(self) -> list[list[Number]]:
        """Return the vectors that ranks sum: ``numbers`` in the order of ``slots``, and ``norms`` if there are any."""
        return [[self.numbers[slot] for slot in slots(self.shadow)], *([[*self.norms.values()]] if self.norms else [])]

    def dump(self) -> dict[str, Any]:
        """Return the numbers as JSON types, for a checkpoint; the host waits for numbers that are on the device."""
        return {
            "step": self.step,
            "candidate": asdict(self.candidate),
            "first": self.first,
            "steps": self.steps,
            "shadow": list(self.shadow),
            "numbers": {slot: float(number) for slot, number in self.numbers.items()},
            "norms": {name: float(squared_norm) for name, squared_norm in self.norms.items()},
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "LocalMeasurement":
        """Return the measurement that ``dump`` converted to ``dumped``, without its bytes and moments."""
        return cls(
            step=dumped["step"],
            candidate=Candidate(**dumped["candidate"]),
            first=dumped["first"],
            steps=dumped["steps"],
            shadow=tuple(dumped["shadow"]),
            numbers=dict(dumped["numbers"]),
            norms=dict(dumped["norms"]),
            restored=True,
        )


def _total(numbers: Sequence[Number]) -> Number:
    """Return the sum of floats and 0-d tensors; 0 if there are none. A single number is returned unchanged."""
    return numbers[0] if len(numbers) == 1 else sum(numbers, 0.0)


def summed(squares: Sequence[torch.Tensor]) -> Number:
    """Return the sum of scalars (0-d tensors) as a 0-d float64 tensor; 0.0 if there are none."""
    if len(squares) == 1:
        return squares[0].double()
    return torch.stack([*squares]).double().sum() if squares else 0.0


def _verdict(finite: Number | Verdict) -> Verdict:
    """Return whether all gradients were finite: a float as a bool, a 0-d tensor unchanged."""
    return finite if isinstance(finite, torch.Tensor) else bool(finite)


def _if_finite(finite: Verdict, number: Number) -> Number:
    """Return ``number`` if all gradients were finite, otherwise nan; a 0-d tensor if ``finite`` is a tensor."""
    if isinstance(finite, bool):
        return number if finite else math.nan
    return torch.where(finite, number, math.nan)
