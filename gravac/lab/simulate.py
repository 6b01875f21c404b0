# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Simulates the training of N ranks in one process, with the same compressed averaging as over a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.candidate import DENSE, Candidate, Forecast, Span
from gravac.collectives import wire_ratio
from gravac.compressors import Compressor, Dense, dense
from gravac.controllers.base import LATENCY, Decision, Measurement
from gravac.engine.admission import Admission
from gravac.engine.decisions import Deciding
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.lockstep import Lockstep

MIN_COMPRESSED_ELEMENTS = 1024
"""Minimum number of elements of a tensor to be compressed; smaller tensors are averaged uncompressed."""

DENSE_FLOAT32 = Candidate("hook", DENSE, 1.0)
"""Candidate that averages gradients in float32, uncompressed."""


class TrainingTotals(NamedTuple):
    """Gain and wire ratio over all steps of a run.

    Attributes:
        gain: 1 - squared norm of what was not sent / squared norm of gradient and residual, both summed over all steps
            and ranks; 1 for dense steps.
        wire_ratio: wire bytes of a dense float32 all-reduce / wire bytes sent, both summed over all steps; the lowest
            ratio of any rank.
    """

    gain: float
    wire_ratio: float


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int, int], torch.Tensor],
    base: Compressor,
    cf: float | Callable[[int], float | None] | None,
    feedback: float | None,
    ranks: int,
    steps: int,
    first: int = 0,
    ramp: int = 20,
    after: Callable[[int], None] | None = None,
    schedule: Callable[[int], float] | None = None,
    clip: float | None = None,
) -> TrainingTotals:
    """Simulate the training of a model by N ranks in this process; return gain and wire ratio over all steps.

    Args:
        model: model to train, not wrapped by DDP; all ranks share its weights.
        optimizer: optimizer of the model; ``ramp`` or ``schedule`` multiplies its present learning rates.
        loss: function of ``(step, rank)`` that returns the training loss of the rank's batch in the step, a scalar
            tensor that requires a gradient.
        base: compressor of the gradients.
        cf: compression factor, or a function that takes the number of a step and returns the compression factor.
            ``None``, also as the function's result: dense float32.
        feedback: fraction of the residual that error feedback keeps, in [0, 1]; ``None``: the compressor's default.
        ranks: number of ranks to simulate.
        steps: number of steps to train.
        first: number of the first step, which ``loss``, ``cf``, ``after`` and ``schedule`` receive.
        ramp: number of steps over which the learning rate rises to the optimizer's; not used with ``schedule``.
        after: function that is called with the number of each step, after the optimizer's step; its result is not used.
            ``None``: no call.
        schedule: function that takes the number of a step and returns a multiple of the optimizer's learning rate;
            ``None``: the multiple rises to 1 over ``ramp`` steps and stays 1.
        clip: maximum norm to which the averaged gradient is clipped; ``None``: no clipping.
    """
    averagers = [_averager(base, feedback) for _ in range(ranks)]
    controller = ScheduledController(base.name if base.compresses else DENSE, cf)

    def admit(*_: object) -> Admission:
        return Admission(
            tuple(
                Forecast(candidate, wire_ratio=candidate.cf)
                for candidate in (DENSE_FLOAT32, controller.candidate_at(first))
            )
        )

    engines = []
    for averager, executor in zip(averagers, Lockstep(ranks).executors, strict=True):
        engine = Engine(averager, Deciding(controller, admit, lambda _: None))
        engine.state.step = first
        engine.use(executor)
        engines.append(engine)
    parameters = dict(model.named_parameters())
    initial_rates = [group["lr"] for group in optimizer.param_groups]
    error_sum = energy_sum = 0.0
    for step in range(first, first + steps):
        for group, initial_rate in zip(optimizer.param_groups, initial_rates, strict=True):
            rate_factor = min(1.0, (step - first + 1) / max(ramp, 1)) if schedule is None else schedule(step)
            group["lr"] = initial_rate * rate_factor
        averaged_gradients: dict[str, torch.Tensor] = {}
        for rank, engine in enumerate(engines):
            optimizer.zero_grad(set_to_none=True)
            loss(step, rank).backward()  # type: ignore[no-untyped-call]
            gradients = {
                name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None
            }
            averaged_gradients = averaged_gradients or gradients
            engine.begin(StepInputs(forms=[(tuple(gradient.shape), gradient.dtype) for gradient in gradients.values()]))
            handle = engine.ready(list(gradients.items()))
            engine.end()
        handle.wait()
        for averager in averagers:
            error_sum += float(averager.measurement.error)
            energy_sum += float(averager.measurement.energy)
        for name, parameter in parameters.items():
            parameter.grad = averaged_gradients[name]
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        optimizer.step()
        if after is not None:
            after(step)
    totals_of_ranks = [engine.state.totals for engine in engines]
    lowest_ratio = min(
        wire_ratio(rank_totals.dense_wire_bytes, rank_totals.wire_bytes) for rank_totals in totals_of_ranks
    )
    return TrainingTotals(1 - error_sum / energy_sum if energy_sum else 1.0, lowest_ratio)


@dataclass(frozen=True, slots=True)
class ScheduledController:
    """A controller that runs a given compression factor in each step and ignores all measurements.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor, or a function that takes the number of a step and returns the compression factor.
            ``None``, also as the function's result: dense float32.
    """

    name: ClassVar[str] = "scheduled"
    keeps_all: ClassVar[bool] = True
    chooses_sixteen_bit: ClassVar[bool] = False

    compressor: str
    cf: float | Callable[[int], float | None] | None

    def candidate_at(self, step: int) -> Candidate:
        """Return the candidate to run in a step, counted from 0."""
        cf = self.cf(step) if callable(self.cf) else self.cf
        return DENSE_FLOAT32 if cf is None else Candidate("hook", self.compressor, cf)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return an empty tuple: the controller follows its schedule and does not choose between CFs."""
        return ()

    def start(self, forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Return the state (always 0) and the decision for the first steps: the candidate of the last forecast."""
        return 0, Decision(forecasts[-1].candidate, reason="as scheduled")

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        """Return the same state, and the decision for the step that is ``LATENCY`` steps after the measured step."""
        return state, Decision(self.candidate_at(measurement.step + LATENCY), reason="as scheduled")

    def dump(self, state: int) -> dict[str, Any]:
        """Return an empty dict: the controller has no state."""
        return {}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Return what ``start`` returns: the controller has no state to restore."""
        return self.start(forecasts)


def _averager(base: Compressor, feedback: float | None) -> Averager:
    """Return the averager of one rank; see ``train`` for the arguments."""
    return Averager(base, base if isinstance(base, Dense) else dense, feedback, MIN_COMPRESSED_ELEMENTS, Feedback())
