# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training steps of N ranks in one process: the steps that a run makes over a network, without a clock."""

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
from gravac.engine.deciding import Deciding
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.lockstep import Lockstep

BELOW = 1024
"""Number of elements below which a tensor is not compressed."""

FLOAT32 = Candidate("hook", DENSE, 1.0)
"""Dense, not compressed."""


class Totals(NamedTuple):
    """Gain and wire ratio of all steps together, each a ratio of sums."""

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
) -> Totals:
    """Train a model as N ranks would, and return the gain and the wire ratio.

    Args:
        model: model to train.
        optimizer: optimizer of the model.
        loss: function of ``(step, rank)`` that returns the training loss, a scalar tensor.
        base: compressor.
        cf: compression factor, or a function of the step that returns it; ``None`` is dense.
        feedback: share of what was not sent that is kept, in [0, 1]; ``None`` is the compressor's own.
        ranks: number of ranks, in one process.
        steps: number of steps.
        first: number of the first step.
        ramp: number of steps over which the learning rate rises to its own.
        after: function that is called with each step's number once the model is updated.
        schedule: function of the step that returns the factor of the learning rate; ``None``: it rises over ``ramp``
            steps and stays.
        clip: largest norm of the gradients' mean, which is clipped to it; ``None``: not clipped.
    """
    averagers = [_averager(base, feedback) for _ in range(ranks)]
    chosen = Scheduled(base.name if base.compresses else DENSE, cf)

    def admit(*_: object) -> Admission:
        return Admission(
            tuple(Forecast(candidate, wire_ratio=candidate.cf) for candidate in (FLOAT32, chosen.at(first)))
        )

    engines = []
    for averager, executor in zip(averagers, Lockstep(ranks).executors, strict=True):
        engine = Engine(averager, Deciding(chosen, admit, lambda _: None))
        engine.state.step = first
        engine.use(executor)
        engines.append(engine)
    parameters = dict(model.named_parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    error = energy = 0.0
    for step in range(first, first + steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            factor = min(1.0, (step - first + 1) / max(ramp, 1)) if schedule is None else schedule(step)
            group["lr"] = rate * factor
        applied: dict[str, torch.Tensor] = {}
        for rank, engine in enumerate(engines):
            optimizer.zero_grad(set_to_none=True)
            loss(step, rank).backward()  # type: ignore[no-untyped-call]
            gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
            applied = applied or gradients
            engine.begin(StepInputs(forms=[(tuple(g.shape), g.dtype) for g in gradients.values()]))
            handle = engine.ready(list(gradients.items()))
            engine.end()
        handle.wait()
        for averager in averagers:
            error += float(averager.measurement.error)
            energy += float(averager.measurement.energy)
        for name, p in parameters.items():
            p.grad = applied[name]
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        optimizer.step()
        if after is not None:
            after(step)
    totals = [engine.state.totals for engine in engines]
    least = min(wire_ratio(total.dense_wire_bytes, total.wire_bytes) for total in totals)
    return Totals(1 - error / energy if energy else 1.0, least)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A controller that has decided already: a compression factor for each step, whatever is measured.

    Attributes:
        compressor: name of the compressor.
        cf: compression factor, or a function of the step that returns it; ``None`` is dense.
    """

    name: ClassVar[str] = "scheduled"
    keeps_all: ClassVar[bool] = True
    sixteen_bit: ClassVar[bool] = False

    compressor: str
    cf: float | Callable[[int], float | None] | None

    def at(self, step: int) -> Candidate:
        """Return the candidate of a step."""
        cf = self.cf(step) if callable(self.cf) else self.cf
        return FLOAT32 if cf is None else Candidate("hook", self.compressor, cf)

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """Propose nothing: what runs is not chosen from candidates."""
        return ()

    def start(self, forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Decide for the first step, and the second, which nothing is measured before."""
        return 0, Decision(forecasts[-1].candidate, reason="as scheduled")

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        """Decide for the step that a decision from this measurement holds in."""
        return state, Decision(self.at(measurement.step + LATENCY), reason="as scheduled")

    def dump(self, state: int) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        """Start anew."""
        return self.start(forecasts)


def _averager(base: Compressor, feedback: float | None) -> Averager:
    return Averager(base, base if isinstance(base, Dense) else dense, feedback, BELOW, Feedback())
