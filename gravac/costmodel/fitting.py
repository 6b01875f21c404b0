# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fits the model's constants to step times that were measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gravac.compressors import Compressor
from gravac.costmodel.machine import Machine
from gravac.costmodel.network import Network, check
from gravac.costmodel.step import BACKWARD, Format, Load, Prediction, Shape, load

Floats = npt.NDArray[np.float64]
"""Numbers of the least-squares problem."""

FEWEST = 3
"""Fewest observations of a link from which its bandwidth is fitted."""

TELLING = 0.05
"""Relative error of a step up to which it counts squared, and by its size beyond: a few odd steps move nothing."""

FREE = 1e-6
"""Seconds per gigabyte that stand for no time at all, so that a speed is a finite number."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the arguments of ``predict``, and what it took.

    Attributes:
        shapes: shapes of the parameters; see ``predict`` for this and whatever is not named here.
        step_s: time the step took, seconds.
        link: name of the network; steps of one name went over one network.
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
        """What this step put on a machine and a network."""
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
        networks: each link's latency and bandwidth, by its name.
        machine: speed of its copies, what a start takes and its overlap, while training.
    """

    networks: Mapping[str, Network]
    machine: Machine

    def predict(self, observation: Observation) -> Prediction:
        """The time that these constants predict for a step over a link that was fitted."""
        return observation.load(self.machine).over(self.networks[observation.link], self.machine)

    def error(self, observation: Observation) -> float:
        """Error of the predicted step time relative to the measured one: 0.1 is a tenth too long."""
        return self.predict(observation).step_s / observation.step_s - 1


def fit(observations: Sequence[Observation], machine: Machine | None = None) -> Fit:
    """The bandwidth of each link, a message's latency, and what coding and overlap come to, from measured steps.

    Links are taken to differ in bandwidth alone: most of a message's latency is the machine's, and one for each link
    would leave too little to tell it from what coding takes. Fit links that are far apart one by one. Least squares of
    the errors relative to the steps measured, less swayed by large ones. For a given overlap, and given which exchanges
    stick out of backward, the step is linear in the other constants; the overlap is searched.

    Args:
        observations: measured steps of more than one rank, at least three of each link; to tell the constants apart
            they must differ in bytes, in buckets or ranks, and in what they compress, and some must be partly hidden.
        machine: where the steps ran: costs in copies are taken from it, and speed and start where nothing was
            compressed; default: what the compressors' costs were measured on.

    Raises:
        ValueError: there are too few observations, or no bandwidth explains them.
    """
    machine = machine or Machine(14e9)
    rows = [observation for observation in observations if observation.world > 1]
    links = list(dict.fromkeys(row.link for row in rows))
    over = {link: f" over {link}" if link else "" for link in links or [""]}
    for link, where in over.items():
        if (count := sum(row.link == link for row in rows)) < FEWEST:
            raise ValueError(
                f"observations: {count} of more than one rank{where}, fewer than {FEWEST}; measure more steps"
            )
    for row in rows:
        check("step_s", row.step_s, row.step_s > 0, "seconds, above 0")
    problem = _Problem(rows, links, machine)
    answer, overlap = problem.solve()
    alpha, *per_gigabit, per_gigabyte, start = (float(value) for value in answer)
    for link, seconds in zip(links, per_gigabit, strict=True):
        if seconds <= 0:
            raise ValueError(
                f"observations: steps{over[link]} do not take longer with more bytes, so no bandwidth explains them; "
                "measure over a slower link, or steps that send more"
            )
    if problem.coding.any():
        machine = replace(machine, copy_bytes_per_s=1e9 / max(per_gigabyte, FREE), start_s=start)
    networks = {link: Network(alpha, 1e9 / seconds) for link, seconds in zip(links, per_gigabit, strict=True)}
    return Fit(networks, replace(machine, overlap=overlap))


class _Problem:
    """Columns: a message's latency, seconds per gigabit of each link and per gigabyte copied, seconds of a start."""

    def __init__(self, rows: Sequence[Observation], links: Sequence[str], machine: Machine) -> None:
        loads = [row.load(machine) for row in rows]
        on = np.array([[row.link == link for link in links] for row in rows], dtype=float)
        self.measured = np.array([row.step_s for row in rows])
        self.compute = np.array([held.compute_s for held in loads])
        self.buckets = np.array([held.buckets for held in loads], dtype=float)
        messages = np.array([[held.messages] for held in loads], dtype=float)
        gigabits = np.array([[held.bits * 1e-9] for held in loads])
        self.bucket = np.hstack([messages, on * gigabits])
        self.coding = np.array([[held.copied_bytes * 1e-9, held.starts] for held in loads])

    def solve(self) -> tuple[Floats, float]:
        """The best answer, and its overlap."""
        span, width = np.linspace(0, 1, 21), 0.05
        found = min(span, key=lambda overlap: self.at(float(overlap))[0])
        for _ in range(3):
            span = np.clip(np.linspace(found - width, found + width, 11), 0, 1)
            found = min(span, key=lambda overlap: self.at(float(overlap))[0])
            width /= 5
        return self.at(float(found))[1], float(found)

    def at(self, overlap: float) -> tuple[float, Floats]:
        """The error left at an overlap, and the answer."""
        hidden = overlap * BACKWARD * self.compute
        best = (math.inf, np.zeros(self.bucket.shape[1] + 2))
        for exposed in (np.ones(len(hidden), dtype=bool), np.zeros(len(hidden), dtype=bool)):
            weights = 1 / self.measured
            for _ in range(30):
                columns = np.hstack([self.bucket * np.where(exposed, self.buckets, 1.0)[:, None], self.coding])
                wanted = self.measured - self.compute + np.where(exposed, hidden, 0.0)
                answer = _not_negative(columns * weights[:, None], wanted * weights)
                bucket = self.bucket @ answer[:-2]
                waits = (self.buckets - 1) * bucket - hidden
                step = self.compute + self.coding @ answer[-2:] + np.maximum(0.0, waits) + bucket
                off = np.abs(step / self.measured - 1)
                left = float(np.where(off < TELLING, off * off / (2 * TELLING), off - TELLING / 2).sum())
                if left < best[0]:
                    best = (left, answer)
                before, exposed = exposed, waits > 0
                now = 1 / (self.measured * np.sqrt(np.maximum(off, TELLING)))
                settled = bool((before == exposed).all()) and np.allclose(now, weights, rtol=1e-3)
                weights = now
                if settled:
                    break
        return best


def _not_negative(columns: Floats, wanted: Floats) -> Floats:
    """Least squares with no answer below 0: what comes out below is left out, the worst first."""
    scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    used = np.ones(columns.shape[1], dtype=bool)
    while True:
        answer = np.zeros(columns.shape[1])
        answer[used] = np.linalg.lstsq(columns[:, used] / scale[used], wanted, rcond=None)[0]
        if (answer >= 0).all():
            return np.asarray(answer / scale)
        used[int(np.argmin(answer))] = False
