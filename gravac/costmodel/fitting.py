# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the model of step times (``step.py``) to measured steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gravac.compressors import Compressor
from gravac.costmodel.machine import Machine
from gravac.costmodel.network import Network, check
from gravac.costmodel.step import BACKWARD_FRACTION, Format, Load, Prediction, Shape, load

Floats = npt.NDArray[np.float64]
"""A numpy array of float64."""

FEWEST_OBSERVATIONS = 3
"""Smallest number of measured steps of a link from which its bandwidth is fitted."""

HUBER_THRESHOLD = 0.05
"""Relative error of a step up to which the fit minimizes the squared error, and above it the absolute error (Huber's
loss), so that a few outliers change little."""

SMALLEST_COST = 1e-6
"""Seconds per gigabyte in place of 0, so that the fitted speed is finite."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the arguments of ``predict``, and the step's time.

    Attributes:
        shapes: shapes of the parameters; ``predict`` explains this attribute and those not listed here.
        step_s: time of the step, seconds.
        link: name of the network; steps with the same name used the same network.
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
    link: str = ""

    def load(self, machine: Machine) -> Load:
        """Return the work that this step makes for a machine and a network."""
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


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants that explain measured steps best.

    Attributes:
        networks: each link's latency and bandwidth, by the link's name.
        machine: the machine while training: speed of copies, seconds of a round's start, and overlap.
    """

    networks: Mapping[str, Network]
    machine: Machine

    def predict(self, observation: Observation) -> Prediction:
        """Return the step time that these constants predict for a step over a fitted link."""
        return observation.load(self.machine).over(self.networks[observation.link], self.machine)

    def error(self, observation: Observation) -> float:
        """Return the error of the predicted step time relative to the measured one: 0.1 means 10 % too long."""
        return self.predict(observation).step_s / observation.step_s - 1


def fit(observations: Sequence[Observation], machine: Machine | None = None) -> Fit:
    """Fit each link's bandwidth, a message's latency, the speed of coding and the overlap to measured steps.

    The fit assumes that links differ in bandwidth alone: most of a message's latency is the machine's, and the steps
    cannot separate a latency of each link from the time of coding. Fit very different links one by one. The fit
    minimizes relative errors, by least squares that weigh large errors less. For a given overlap, and if it is known
    which exchanges outlast backward, a step's time is linear in the other constants; the overlap is found by search.

    Args:
        observations: measured steps of more than one rank, at least three of each link. Steps must differ in bytes, in
            buckets or ranks, and in compression, and backward must partly hide some exchanges; otherwise the constants
            cannot be separated.
        machine: machine on which the steps ran; its costs in copies are used, and if no step compressed, also its speed
            and its start. Default: the machine on which the compressors' costs were measured.

    Raises:
        ValueError: there are too few observations, or no bandwidth explains them.
    """
    machine = machine or Machine(14e9)
    rows = [observation for observation in observations if observation.world > 1]
    links = list(dict.fromkeys(row.link for row in rows))
    suffixes = {link: f" over {link}" if link else "" for link in links or [""]}
    for link, suffix in suffixes.items():
        if (count := sum(row.link == link for row in rows)) < FEWEST_OBSERVATIONS:
            raise ValueError(
                f"observations: {count} of more than one rank{suffix}, fewer than {FEWEST_OBSERVATIONS}; measure more"
            )
    for row in rows:
        check("step_s", row.step_s, row.step_s > 0, "seconds, above 0")
    problem = _Problem(rows, links, machine)
    answer, overlap = problem.solve()
    alpha, *per_gigabit, per_gigabyte, start = map(float, answer)
    for link, seconds in zip(links, per_gigabit, strict=True):
        if seconds <= 0:
            raise ValueError(
                f"observations: steps{suffixes[link]} do not take longer with more bytes, so no bandwidth explains "
                "them; measure over a slower link, or steps that send more"
            )
    if problem.coding.any():
        machine = replace(machine, copy_bytes_per_s=1e9 / max(per_gigabyte, SMALLEST_COST), start_s=start)
    networks = {link: Network(alpha, 1e9 / seconds) for link, seconds in zip(links, per_gigabit, strict=True)}
    return Fit(networks, replace(machine, overlap=overlap))


class _Problem:
    """The least-squares problem of a fit.

    Unknowns: a message's latency, seconds per gigabit of each link and per gigabyte copied, seconds of a start.
    """

    def __init__(self, rows: Sequence[Observation], links: Sequence[str], machine: Machine) -> None:
        loads = [row.load(machine) for row in rows]
        on_link = np.array([[row.link == link for link in links] for row in rows], dtype=float)
        self.measured = np.array([row.step_s for row in rows])
        self.compute = np.array([step.compute_s for step in loads])
        self.buckets = np.array([step.buckets for step in loads], dtype=float)
        messages = np.array([[step.messages] for step in loads], dtype=float)
        gigabits = np.array([[step.bits * 1e-9] for step in loads])
        self.bucket = np.hstack([messages, on_link * gigabits])
        self.coding = np.array([[step.copied_bytes * 1e-9, step.starts] for step in loads])

    def solve(self) -> tuple[Floats, float]:
        """Return the constants with the smallest error, and the overlap at which they have it."""
        overlaps, width = np.linspace(0, 1, 21), 0.05
        best = min(overlaps, key=lambda overlap: self.solve_at(float(overlap))[0])
        for _ in range(3):
            overlaps = np.clip(np.linspace(best - width, best + width, 11), 0, 1)
            best = min(overlaps, key=lambda overlap: self.solve_at(float(overlap))[0])
            width /= 5
        return self.solve_at(float(best))[1], float(best)

    def solve_at(self, overlap: float) -> tuple[float, Floats]:
        """Return the smallest error at an overlap, and the constants that have it."""
        hidden = overlap * BACKWARD_FRACTION * self.compute
        best = (math.inf, np.zeros(self.bucket.shape[1] + 2))
        for exposed in (np.ones(len(hidden), dtype=bool), np.zeros(len(hidden), dtype=bool)):
            weights = 1 / self.measured
            for _ in range(30):
                columns = np.hstack([self.bucket * np.where(exposed, self.buckets, 1.0)[:, None], self.coding])
                target = self.measured - self.compute + np.where(exposed, hidden, 0.0)
                answer = _not_negative(columns * weights[:, None], target * weights)
                bucket = self.bucket @ answer[:-2]
                waits = (self.buckets - 1) * bucket - hidden
                step = self.compute + self.coding @ answer[-2:] + np.maximum(0.0, waits) + bucket
                errors = np.abs(step / self.measured - 1)
                huber = np.where(
                    errors < HUBER_THRESHOLD, errors * errors / (2 * HUBER_THRESHOLD), errors - HUBER_THRESHOLD / 2
                )
                error = float(huber.sum())
                if error < best[0]:
                    best = (error, answer)
                previously_exposed, exposed = exposed, waits > 0
                new_weights = 1 / (self.measured * np.sqrt(np.maximum(errors, HUBER_THRESHOLD)))
                same_exposed = bool((previously_exposed == exposed).all())
                settled = same_exposed and np.allclose(new_weights, weights, rtol=1e-3)
                weights = new_weights
                if settled:
                    break
        return best


def _not_negative(columns: Floats, target: Floats) -> Floats:
    """Solve least squares with unknowns of 0 or more: repeatedly set the most negative unknown to 0."""
    scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    used = np.ones(columns.shape[1], dtype=bool)
    while True:
        answer = np.zeros(columns.shape[1])
        answer[used] = np.linalg.lstsq(columns[:, used] / scale[used], target, rcond=None)[0]
        if (answer >= 0).all():
            return np.asarray(answer / scale)
        used[int(np.argmin(answer))] = False
