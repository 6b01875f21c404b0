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

FloatArray = npt.NDArray[np.float64]
"""A numpy array of float64."""

FEWEST_OBSERVATIONS = 3
"""Smallest number of measured steps over a link from which the bandwidth of the link is fitted."""

HUBER_THRESHOLD = 0.05
"""Threshold of the Huber loss, as a relative error of a predicted step time: the loss is quadratic in smaller errors,
and linear in larger errors. Therefore a few outliers change the fit little."""

SMALLEST_S_PER_GIGABYTE = 1e-6
"""Lower limit of the fitted time of copying a gigabyte, in seconds, so that the fitted speed of copies is finite."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the arguments of ``gravac.costmodel.predict``, and the step's time.

    Attributes:
        shapes: shapes of the parameters.
        compressor: compressor of the tensors that are large enough; ``None``: no tensor was compressed.
        cf: compression factor; ignored without a compressor.
        compute_s: time of forward, backward and optimizer, seconds.
        world: number of ranks.
        step_s: time of the step, seconds.
        buckets: number of buckets that the exchange was cut into; ``None``: a bucket for each 25 MiB of gradients.
        dense: number format of tensors that were not compressed.
        dense_below: number of elements below which a tensor was not compressed.
        link: name of the network that the step used; steps over the same network have the same name.
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
        """Return the work of this step (bytes to copy and to send), with the costs of coding from ``machine``."""
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
    """Constants of the model of step times, fitted to measured steps.

    Attributes:
        networks: latency and bandwidth of each link, by the name of the link (``Observation.link``).
        machine: the machine, with fitted ``copy_bytes_per_s``, ``start_s`` and ``overlap``.
    """

    networks: Mapping[str, Network]
    machine: Machine

    def predict(self, observation: Observation) -> Prediction:
        """Return the times that the fitted constants predict for a step, whose link must be in ``networks``."""
        return observation.load(self.machine).over(self.networks[observation.link], self.machine)

    def error(self, observation: Observation) -> float:
        """Return predicted step time / measured step time - 1: 0.1 means that the prediction is 10 % too long."""
        return self.predict(observation).step_s / observation.step_s - 1


def fit(observations: Sequence[Observation], machine: Machine | None = None) -> Fit:
    """Fit the bandwidth of each link, the latency, the speed of coding and the overlap to measured steps.

    The fit assumes that all links have the same latency, and differ in bandwidth alone. Two reasons: most of a
    message's latency comes from the machine; and the steps cannot separate a link's latency from the time of coding
    (encode and decode). Fit very different links in separate calls.

    The fit minimizes the Huber loss of the relative errors. A search finds the overlap. For each overlap that the
    search tries, least squares find the other constants. They are repeated, since the constants decide in which steps
    the exchange takes longer than backward can hide.

    Args:
        observations: measured steps; steps of a single rank are ignored. Each link needs at least three steps. To
            separate the constants, steps must differ in bytes, in buckets or ranks, and in compression. Backward must
            partly hide some exchanges.
        machine: machine on which the steps ran. The fit uses its ``costs`` of encode and decode. If no step compressed,
            the fit also keeps its ``copy_bytes_per_s`` and ``start_s``. ``None``: a machine that copies 14e9 bytes per
            second, with the costs in the compressors' profiles.

    Returns:
        The latency and bandwidth of each link, and the machine with its fitted constants.

    Raises:
        ValueError: a link has too few observations, an observed time is not above 0, or the steps over a link do not
            take longer if they send more bytes.
    """
    machine = machine or Machine(14e9)
    rows = [observation for observation in observations if observation.world > 1]
    links = list(dict.fromkeys(row.link for row in rows))
    link_texts = {link: f" over {link}" if link else "" for link in links or [""]}
    for link, link_text in link_texts.items():
        if (count := sum(row.link == link for row in rows)) < FEWEST_OBSERVATIONS:
            raise ValueError(
                f"observations: only {count} steps{link_text} ran on more than one rank; measure "
                f"{FEWEST_OBSERVATIONS} or more such steps"
            )
    for row in rows:
        check("step_s", row.step_s, row.step_s > 0, "seconds, above 0")
    problem = _Problem(rows, links, machine)
    constants, overlap = problem.solve()
    alpha, *s_per_gigabit, s_per_gigabyte, start_s = map(float, constants)
    for link, seconds in zip(links, s_per_gigabit, strict=True):
        if seconds <= 0:
            raise ValueError(
                f"observations: steps{link_texts[link]} do not take longer with more bytes, so no bandwidth explains "
                "them; measure over a slower link, or steps that send more"
            )
    if problem.coding_columns.any():
        machine = replace(machine, copy_bytes_per_s=1e9 / max(s_per_gigabyte, SMALLEST_S_PER_GIGABYTE), start_s=start_s)
    networks = {link: Network(alpha, 1e9 / seconds) for link, seconds in zip(links, s_per_gigabit, strict=True)}
    return Fit(networks, replace(machine, overlap=overlap))


class _Problem:
    """The least-squares problem of a fit.

    The unknowns, in this order: latency of a message in seconds; seconds per gigabit of each link; seconds per gigabyte
    copied; and ``Machine.start_s``. Arrays have a row for each observation.
    """

    def __init__(self, rows: Sequence[Observation], links: Sequence[str], machine: Machine) -> None:
        loads = [row.load(machine) for row in rows]
        on_link = np.array([[row.link == link for link in links] for row in rows], dtype=float)
        self.measured_s = np.array([row.step_s for row in rows])
        self.compute_s = np.array([step.compute_s for step in loads])
        self.bucket_counts = np.array([step.buckets for step in loads], dtype=float)
        messages = np.array([[step.messages] for step in loads], dtype=float)
        gigabits = np.array([[step.bits * 1e-9] for step in loads])
        self.bucket_columns = np.hstack([messages, on_link * gigabits])
        self.coding_columns = np.array([[step.copied_bytes * 1e-9, step.starts] for step in loads])

    def solve(self) -> tuple[FloatArray, float]:
        """Return the constants with the smallest error, in the order of the class's unknowns, and their overlap.

        The constants have shape ``(number of links + 3,)``. The overlap is a fraction, 0 to 1; see ``Machine.overlap``.
        """
        overlaps, half_width = np.linspace(0, 1, 21), 0.05
        best_overlap = min(overlaps, key=lambda overlap: self.solve_at(float(overlap))[0])
        for _ in range(3):
            overlaps = np.clip(np.linspace(best_overlap - half_width, best_overlap + half_width, 11), 0, 1)
            best_overlap = min(overlaps, key=lambda overlap: self.solve_at(float(overlap))[0])
            half_width /= 5
        return self.solve_at(float(best_overlap))[1], float(best_overlap)

    def solve_at(self, overlap: float) -> tuple[float, FloatArray]:
        """Return the smallest error (sum of Huber losses) at a given overlap, and the constants with that error."""
        hideable_s = overlap * BACKWARD_FRACTION * self.compute_s
        best_error_and_constants = (math.inf, np.zeros(self.bucket_columns.shape[1] + 2))
        for is_exposed in (np.ones(len(hideable_s), dtype=bool), np.zeros(len(hideable_s), dtype=bool)):
            weights = 1 / self.measured_s
            for _ in range(30):
                exposed_exchanges = np.where(is_exposed, self.bucket_counts, 1.0)[:, None]
                columns = np.hstack([self.bucket_columns * exposed_exchanges, self.coding_columns])
                target_s = self.measured_s - self.compute_s + np.where(is_exposed, hideable_s, 0.0)
                constants = _solve_not_negative(columns * weights[:, None], target_s * weights)
                bucket_s = self.bucket_columns @ constants[:-2]
                waits_s = (self.bucket_counts - 1) * bucket_s - hideable_s
                coding_s = self.coding_columns @ constants[-2:]
                predicted_s = self.compute_s + coding_s + np.maximum(0.0, waits_s) + bucket_s
                errors = np.abs(predicted_s / self.measured_s - 1)
                losses = np.where(
                    errors < HUBER_THRESHOLD, errors * errors / (2 * HUBER_THRESHOLD), errors - HUBER_THRESHOLD / 2
                )
                error = float(losses.sum())
                if error < best_error_and_constants[0]:
                    best_error_and_constants = (error, constants)
                was_exposed, is_exposed = is_exposed, waits_s > 0
                new_weights = 1 / (self.measured_s * np.sqrt(np.maximum(errors, HUBER_THRESHOLD)))
                same_exposed = bool((was_exposed == is_exposed).all())
                has_converged = same_exposed and np.allclose(new_weights, weights, rtol=1e-3)
                weights = new_weights
                if has_converged:
                    break
        return best_error_and_constants


def _solve_not_negative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Solve ``columns @ unknowns = target`` by least squares, without negative unknowns.

    As long as an unknown is negative, the most negative unknown is set to 0, and the others are solved for again.
    ``columns`` has shape ``(observations, unknowns)``, ``target`` has shape ``(observations,)``.
    """
    column_norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    is_free = np.ones(columns.shape[1], dtype=bool)
    while True:
        solution = np.zeros(columns.shape[1])
        solution[is_free] = np.linalg.lstsq(columns[:, is_free] / column_norms[is_free], target, rcond=None)[0]
        if (solution >= 0).all():
            return np.asarray(solution / column_norms)
        is_free[int(np.argmin(solution))] = False
