# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about a step: at most eight float64, summed, so that all decide from the same numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gravac.average import Tally
from gravac.candidate import Candidate
from gravac.clock import Booked
from gravac.controllers.base import SHADOWS, Measurement

SIZE = 3 + SHADOWS

TIMES = 2
"""Further seconds, which travel where shadows leave them room."""


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's numbers of one step, on their way to the others.

    Attributes:
        step: counted from 0.
        candidate: what ran.
        shadow: CFs evaluated.
        numbers: seconds, error, energy, the error of each shadow CF, and last, where there is room, the seconds
            waited and coded; as long as ``SIZE``.
    """

    step: int
    candidate: Candidate
    shadow: tuple[float, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, step: int, candidate: Candidate, shadow: Sequence[float], booked: Booked, tally: Tally) -> "Report":
        """A step's numbers from its clock and its tally."""
        error = float(tally.error) if tally.finite else float("nan")
        errors = [float(value) for value in tally.shadow] or [0.0] * len(shadow)
        numbers = [booked.seconds, error, float(tally.energy), *errors]
        room = SIZE - len(numbers)
        times = [0.0] * (room - TIMES) + [booked.waited, booked.compress] if room >= TIMES else [0.0] * room
        return cls(step, candidate, tuple(shadow), (*numbers, *times))

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
        timed = len(errors) - len(self.shadow) >= TIMES
        waited, coded = errors[-TIMES:] if timed else (math.nan, math.nan)
        return Measurement(
            step=self.step,
            candidate=self.candidate,
            seconds=seconds / world,
            samples=samples,
            error=error,
            energy=energy,
            shadow=tuple(zip(self.shadow, errors, strict=False)),
            waited=waited / world,
            coded=coded / world,
        )


def gain(error: float, energy: float) -> float | None:
    """``1 - error / energy``; 1 when there was nothing to send, ``None`` when not finite."""
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if abs(share) != float("inf") and share == share else None
