# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about a step: at most eight float64, summed, so that all decide from the same numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.stats import StepStats
from gravac.candidate import Candidate
from gravac.controllers.base import SHADOWS, Measurement
from gravac.stepping.clock import StepCosts

SIZE = 3 + SHADOWS

FURTHER = ("waited", "coded", "learning_rate", "exchanged")
"""What else travels, as far as shadows leave room, in this order; see ``Measurement``."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One rank's numbers of one step, on their way to the others.

    Attributes:
        step: counted from 0.
        candidate: what ran.
        shadow: CFs evaluated.
        numbers: seconds, error, energy, the error of each shadow CF, then as much of ``FURTHER`` as there is room for;
            as long as ``SIZE``.
    """

    step: int
    candidate: Candidate
    shadow: tuple[float, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(
        cls,
        step: int,
        candidate: Candidate,
        shadow: Sequence[float],
        costs: StepCosts,
        stats: StepStats,
        learning_rate: float = math.nan,
    ) -> "StepReport":
        """A step's numbers from its clock and its stats."""
        error = float(stats.error) if stats.finite else float("nan")
        errors = [float(value) for value in stats.shadow] or [0.0] * len(shadow)
        further = [costs.waited, costs.compress, learning_rate, costs.exchange]
        numbers = [costs.seconds, error, float(stats.energy), *errors, *further][:SIZE]
        return cls(step, candidate, tuple(shadow), tuple(numbers + [0.0] * (SIZE - len(numbers))))

    def vector(self) -> torch.Tensor:
        """``[SIZE]`` float64, to be summed over ranks."""
        return torch.tensor(self.numbers, dtype=torch.float64)

    def agreed(
        self, total: torch.Tensor, world: int, samples: float, norms: tuple[tuple[str, float], ...] = ()
    ) -> Measurement:
        """The measurement that all ranks share.

        Args:
            total: the vectors' sum over ranks.
            world: ranks.
            samples: processed in the step, over all ranks.
            norms: of the step, where there was a survey.
        """
        seconds, error, energy, *errors = total.tolist()
        further = dict(zip(FURTHER, (value / world for value in errors[len(self.shadow) :]), strict=False))
        return Measurement(
            step=self.step,
            candidate=self.candidate,
            seconds=seconds / world,
            samples=samples,
            error=error,
            energy=energy,
            shadow=tuple(zip(self.shadow, errors, strict=False)),
            norms=norms,
            **further,
        )


def gain(error: float, energy: float) -> float | None:
    """``1 - error / energy``; 1 when there was nothing to send, ``None`` when not finite."""
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if abs(share) != float("inf") and share == share else None
