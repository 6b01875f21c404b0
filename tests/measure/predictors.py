# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether quantities that a run could take in a few steps predict the efficiency of a candidate; no clock.

Each program of ``tests.measure.progress`` trains natively, at each of its three learning rates, under the cosine. At
two fifths of its steps are taken, each as a mean:

- the gradient noise scale over a rank's batch (Pollux, arXiv:2008.12260, 3.1), over ``STEPS`` steps;
- the gain of 1 bit without residuals, in plain energy and in the optimizer's metric: each element's square over the
  root of its mean square so far;
- drift and alignment of outer steps of 10: the norm of the ranks' mean pseudo-gradient over the mean of their norms,
  and the cosine of successive means, over ``ROUNDS`` rounds.

What each predicts is compared by rank with the efficiency of whole runs, in the record of ``tests.measure.progress``.

    python -m tests.measure.predictors [--json FILE] [--nanogpt CLONE] [--programs ...] [--workers N] [--steps N]
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gravac.lab.training.expression import compressor
from gravac.testing.compressor_laws import as_dense, exchange
from tests.measure.programs import PROGRAMS, shortened
from tests.measure.progress import NATIVE, RANKS, Case, Ranks, Way, best_rates
from tests.measure.results import read, todays
from tests.measure.resuming import Book, run_in

AT = 0.4
"""Share of the run's steps after which the quantities are taken."""

STEPS, ROUNDS, EVERY = 40, 8, 10
"""Number of steps, of rounds of outer steps, and of steps of a round."""

SEEN = 0.05
"""Share of an element's last square in its mean square so far."""

NOISE, GAIN, GAIN_IN_METRIC, DRIFT, ALIGNMENT = "noise scale", "gain", "gain in the metric", "drift", "alignment"

PREDICTS = {
    Way("quantize(1)", 32.0): (GAIN, GAIN_IN_METRIC, NOISE),
    Way(every=10): (DRIFT, ALIGNMENT, NOISE),
}
"""What is tried as a predictor of each candidate's efficiency."""


def taken(work: tuple[Case, str | None]) -> dict[str, Any]:
    """Train one case to ``AT``, and return the row of what was taken there."""
    case, clone = work
    torch.set_num_threads(1)
    program = PROGRAMS[case.program]
    task = program.make(case.seed, case.rate, None if clone is None else Path(clone))
    ranks = Ranks(case, task, program.clip)
    gradients = Gradients()
    first = round(AT * case.steps)
    for step in range(first):
        ranks.step(step, together=True, seen=gradients.follow)
    for step in range(first, first + STEPS):
        ranks.step(step, together=True, seen=gradients.take)
    drift, alignment = _apart(ranks, first + STEPS)
    found = {**gradients.found, DRIFT: drift, ALIGNMENT: alignment}
    return {**case._asdict(), "way": case.way._asdict(), "taken": found}


class Gradients:
    """Takes what gradients tell: the noise scale, and gains of 1 bit."""

    def __init__(self) -> None:
        self._squares: list[torch.Tensor] = []
        self._large: list[float] = []
        self._small: list[float] = []
        self._gains: list[float] = []
        self._gains_in_metric: list[float] = []
        self._bits = compressor("quantize(1)")

    def follow(self, of_ranks: Sequence[Sequence[torch.Tensor]]) -> None:
        """Keep the mean square of each element of the mean gradient."""
        means = [torch.stack(same).mean(0) for same in zip(*of_ranks, strict=True)]
        if not self._squares:
            self._squares = [mean.square() for mean in means]
        for square, mean in zip(self._squares, means, strict=True):
            square.lerp_(mean.square(), SEEN)

    def take(self, of_ranks: Sequence[Sequence[torch.Tensor]]) -> None:
        """Take one step's numbers."""
        self.follow(of_ranks)
        means = [torch.stack(same).mean(0) for same in zip(*of_ranks, strict=True)]
        self._large.append(sum(float(mean.square().sum()) for mean in means))
        self._small.append(sum(float(one.square().sum()) for rank in of_ranks for one in rank) / len(of_ranks))
        sums = torch.zeros(4, dtype=torch.float64)
        for gradient, square in zip(of_ranks[0], self._squares, strict=True):
            flat = gradient.flatten()
            error = flat - as_dense(exchange(self._bits, [flat], 32.0)[0].sent, flat)
            weights = 1 / (square.flatten().sqrt() + 1e-8)
            parts = (error.square(), flat.square(), weights * error.square(), weights * flat.square())
            sums += torch.stack([part.sum() for part in parts]).double()
        self._gains.append(float(1 - sums[0] / sums[1]))
        self._gains_in_metric.append(float(1 - sums[2] / sums[3]))

    @property
    def found(self) -> dict[str, float]:
        """What was taken."""
        large, small = statistics.fmean(self._large), statistics.fmean(self._small)
        signal, noise = (RANKS * large - small) / (RANKS - 1), (small - large) * RANKS / (RANKS - 1)
        return {
            NOISE: noise / signal if signal > 0 else math.inf,
            GAIN: statistics.fmean(self._gains),
            GAIN_IN_METRIC: statistics.fmean(self._gains_in_metric),
        }


def _apart(ranks: Ranks, first: int) -> tuple[float, float]:
    """Return mean drift and alignment of rounds of outer steps."""
    drifts, cosines, before = list[float](), list[float](), None
    for number in range(ROUNDS):
        anchor = _flat(ranks.models[0])
        for step in range(EVERY):
            ranks.step(first + number * EVERY + step, together=False)
        moved = [anchor - _flat(model) for model in ranks.models]
        mean = torch.stack(moved).mean(0)
        drifts.append(float(mean.norm() / statistics.fmean(float(one.norm()) for one in moved)))
        if before is not None:
            cosines.append(float(torch.nn.functional.cosine_similarity(mean, before, dim=0)))
        before = mean
        ranks.unite(moments=False)
    return statistics.fmean(drifts), statistics.fmean(cosines)


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="docs/measurements/predictors.json")
    parser.add_argument(
        "--progress",
        default="docs/measurements/progress.json",
        help="file with the results from which learning rates are taken",
    )
    parser.add_argument("--programs", nargs="+", default=[*PROGRAMS], choices=[*PROGRAMS])
    parser.add_argument("--nanogpt", help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10**9, help="maximum number of steps of a run, to try the program")
    arguments = parser.parse_args()
    known, book = read(Path(arguments.progress)), Book(arguments.json)
    ran = {(row["program"], row["rate"]) for row in book.rows}
    cases = [
        Case(name, "cosine", rate, NATIVE, 0, shortened(PROGRAMS[name], arguments.steps).steps)
        for name in arguments.programs
        for rate in best_rates(known, PROGRAMS[name], name, "cosine")
        if (name, rate) not in ran
    ]
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        run_in(
            pool,
            taken,
            [(case, arguments.nanogpt) for case in cases],
            book,
            describe=lambda row: f"{row['program']} {row['rate']} {row['taken']}",
        )


if __name__ == "__main__":
    main()
