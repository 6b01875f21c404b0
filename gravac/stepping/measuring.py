# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A step's measurement on its way: 1. what this rank measured  2. its report  3. the ranks' agreement on it.

What only a device knows (sums over a step's gradients, moments on its streams) is not looked at before it is past, so
between these stages lie steps; how many, the executor's latency says. At the same points on all ranks.
"""

import math
from typing import Any, NamedTuple

import torch

from gravac.averaging.norms import summed
from gravac.averaging.plan import Plan
from gravac.averaging.stats import StepStats
from gravac.candidate import Candidate
from gravac.exchange.executor import Executor, Number
from gravac.stepping.agreement import StepReport
from gravac.stepping.clock import ClockedStep
from gravac.stepping.state import StepState, Unobserved
from gravac.stepping.tensor_errors import TensorErrors, WireBytes


class Measured(NamedTuple):
    """What a step came to, before anybody looks at it.

    Attributes:
        step: number of the step, counted from 0.
        ran: what ran.
        plan: plan of the step.
        stats: what averaging reports.
        clocked: bytes and moments.
        loss_scale: factor that its gradients were multiplied with.
        learning_rate: rate that its gradients were applied with; nan when not known.
        leftover: squared norms, 0-d, of what was still kept at its end although it is to be sent, by name; empty where
            the host looks by itself.
        spread: see ``Door.end``.
    """

    step: int
    ran: Candidate
    plan: Plan
    stats: StepStats
    clocked: ClockedStep
    loss_scale: Number
    learning_rate: float
    leftover: dict[str, torch.Tensor]
    spread: Number = math.nan


class Measurements:
    """The measurements that are on their way, oldest first.

    Args:
        wire_bytes: see ``gravac.stepping.tensor_errors.WireBytes``.
    """

    def __init__(self, wire_bytes: WireBytes) -> None:
        self._wire_bytes = wire_bytes
        self._measured: list[Measured] = []
        self._agreeing: list[Any] = []

    def add(self, measured: Measured) -> None:
        """Take in what a step came to."""
        self._measured.append(measured)

    def clear(self) -> None:
        """Forget what nobody has looked at."""
        self._measured.clear()

    def let_go(self) -> None:
        """Let go of what is under way, which holds connections; nobody will wait for it."""
        self._agreeing.clear()

    def report(self, executor: Executor, state: StepState, last: int) -> None:
        """Make reports of steps up to ``last``, whose moments are past."""
        while self._measured and self._measured[0].step <= last:
            one = self._measured.pop(0)
            stats = one.stats if executor.masked else one.stats.looked_at(executor.read)
            costs = one.clocked.costs(executor.between)
            left = summed([*one.leftover.values()])
            ran = (one.step, one.ran, one.plan.shadow)
            report = StepReport.of(*ran, costs, stats, one.learning_rate, left, one.spread)
            errors = TensorErrors.of(stats, one.plan.survey, one.loss_scale, self._wire_bytes)
            state.unobserved.append(Unobserved(report, errors, costs, frozenset(one.leftover)))

    def agree(self, executor: Executor, state: StepState, last: int) -> None:
        """Start to agree on reports of steps up to ``last``."""
        for one in state.unobserved[len(self._agreeing) :]:
            if one.report.step > last:
                return
            vectors = one.vectors()
            state.survey_bytes += sum(8 * len(vector) for vector in vectors[1:])
            self._agreeing.append(executor.agree(vectors))

    def agreed(self, executor: Executor, state: StepState, last: int) -> tuple[Unobserved, list[list[float]]] | None:
        """Return the oldest report of a step up to ``last`` with the ranks' sums of its vectors; ``None``: none."""
        if not self._agreeing or state.unobserved[0].report.step > last:
            return None
        sums = executor.agreed(self._agreeing.pop(0))
        return state.unobserved.pop(0), sums
