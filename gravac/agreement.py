# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about a step: at most eight float64, summed, so that all decide from the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gravac.average import Tally
from gravac.candidate import Candidate
from gravac.controllers.base import SHADOWS, Measurement

SIZE = 3 + SHADOWS


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's numbers of one step, on their way to the others.

    Attributes:
        step: counted from 0.
        candidate: what ran.
        shadow: CFs evaluated.
        numbers: seconds, error, energy, and the error of each shadow CF; as long as ``SIZE``.
    """

    step: int
    candidate: Candidate
    shadow: tuple[float, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, step: int, candidate: Candidate, shadow: Sequence[float], seconds: float, tally: Tally) -> "Report":
        """A step's numbers from its tally; ``seconds`` is the end-to-end step time."""
        error = float(tally.error) if tally.finite else float("nan")
        errors = [float(value) for value in tally.shadow] or [0.0] * len(shadow)
        numbers = [seconds, error, float(tally.energy), *errors]
        return cls(step, candidate, tuple(shadow), tuple(numbers + [0.0] * (SIZE - len(numbers))))

    def vector(self) -> torch.Tensor:
        """``[SIZE]`` float64, to be summed over ranks."""
        return torch.tensor(self.numbers, dtype=torch.float64)

    def agreed(self, total: torch.Tensor, world: int, samples: float) -> Measurement:
        """The measurement that all ranks share.

        Args:
            total: the vectors' sum over ranks.
            world: ranks.
            samples: processed in the step, over all ranks.
        """
        seconds, error, energy, *errors = total.tolist()
        return Measurement(
            step=self.step,
            candidate=self.candidate,
            seconds=seconds / world,
            samples=samples,
            error=error,
            energy=energy,
            shadow=tuple(zip(self.shadow, errors, strict=False)),
        )


def gain(error: float, energy: float) -> float | None:
    """``1 - error / energy``; 1 when there was nothing to send, ``None`` when not finite."""
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if abs(share) != float("inf") and share == share else None
