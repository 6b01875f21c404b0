# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The model's constants, from step times that were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gravac.compressors import Compressor
from gravac.costmodel.machine import Machine
from gravac.costmodel.network import Network, check
from gravac.costmodel.step import BACKWARD, Format, Load, Shape, load


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the arguments of ``predict``, and what it took.

    Attributes:
        shapes: see ``predict``, as are the others.
        step_s: measured, seconds.
    """

    shapes: Sequence[Shape]
    compressor: Compressor | None
    cf: float
    compute_s: float
    world: int
    step_s: float
    buckets: int | None = None
    dense: Format = "bfloat16"
    dense_below: int = 1024

    def load(self, machine: Machine) -> Load:
        """What it put on a machine and a network."""
        return load(
            self.shapes,
            self.compressor,
            self.cf,
            self.compute_s,
            self.world,
            machine,
            self.buckets,
            self.dense,
            self.dense_below,
        )


def fit(observations: Sequence[Observation], machine: Machine | None = None) -> tuple[Network, Machine]:
    """Latency, bandwidth and overlap that explain measured steps best.

    Least squares of the errors relative to the steps measured. For a given overlap, and given which exchanges stick
    out of backward, the step is linear in latency and 1 / bandwidth; the overlap is searched.

    Args:
        observations: of more than one rank, at least three; to tell the three apart they must differ in bytes, in
            buckets or ranks, and some must be partly hidden.
        machine: its speed and costs are taken as they are; default: what ``COSTS`` was measured on.

    Raises:
        ValueError: too few observations, or no bandwidth explains them.
    """
    machine = machine or Machine(14e9)
    rows = [observation for observation in observations if observation.world > 1]
    if len(rows) < 3:
        raise ValueError(f"observations: {len(rows)} of more than one rank, fewer than 3; measure more steps")
    for row in rows:
        check("step_s", row.step_s, row.step_s > 0, "seconds, above 0")
    loads = [row.load(machine) for row in rows]
    measured = np.array([row.step_s for row in rows])
    spent = np.array([held.compute_s + held.compress_s for held in loads])
    hideable = BACKWARD * np.array([held.compute_s for held in loads])
    buckets = np.array([held.buckets for held in loads], dtype=float)
    # in gigabits, so that the columns are of like size
    columns = np.array([[held.messages, held.bits * 1e-9] for held in loads])

    def solve(overlap: float) -> tuple[float, npt.NDArray[np.float64]]:
        """The error left, and (alpha, seconds per gigabit)."""
        best = (math.inf, np.zeros(2))
        for start in (np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)):
            exposed = start
            for _ in range(30):
                times = np.where(exposed, buckets, 1.0)
                wanted = measured - spent + np.where(exposed, overlap * hideable, 0.0)
                answer = _not_negative(columns * (times / measured)[:, None], wanted / measured)
                bucket = columns @ answer
                step = spent + np.maximum(0.0, (buckets - 1) * bucket - overlap * hideable) + bucket
                left = float((((step - measured) / measured) ** 2).sum())
                if left < best[0]:
                    best = (left, answer)
                now = (buckets - 1) * bucket > overlap * hideable
                if bool((now == exposed).all()):
                    break
                exposed = now
        return best

    span, width = np.linspace(0, 1, 51), 0.02
    found = min(span, key=lambda overlap: solve(float(overlap))[0])
    for _ in range(4):
        span = np.clip(np.linspace(found - width, found + width, 21), 0, 1)
        found = min(span, key=lambda overlap: solve(float(overlap))[0])
        width /= 10
    alpha, per_gigabit = solve(float(found))[1]
    if per_gigabit <= 0:
        raise ValueError(
            "observations: steps do not take longer with more bytes, so no bandwidth explains them; measure over a "
            "slower link, or steps that send more"
        )
    return (
        Network(float(alpha), 1e9 / float(per_gigabit)),
        Machine(machine.copy_bytes_per_s, float(found), machine.costs, machine.per_rank),
    )


def _not_negative(columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares of two columns with no answer below 0."""
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if (both >= 0).all():
        return np.asarray(both)
    answers = []
    for one in range(2):
        answer = np.zeros(2)
        square = float(columns[:, one] @ columns[:, one])
        answer[one] = max(0.0, float(columns[:, one] @ wanted) / square) if square else 0.0
        answers.append(answer)
    return min(answers, key=lambda answer: float(((columns @ answer - wanted) ** 2).sum()))
