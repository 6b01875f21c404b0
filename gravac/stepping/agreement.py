# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about a step: named float64, summed, so that all decide from the same numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.stats import StepStats
from gravac.candidate import Candidate
from gravac.controllers.base import Measurement
from gravac.stepping.clock import StepCosts

FIRST = ("seconds", "error", "energy")
"""Names, as in ``Measurement``, of the slots that come before those of shadow CFs."""

LAST = {
    "waited": "waited_seconds",
    "coded": "coded_seconds",
    "learning_rate": "learning_rate",
    "exchanged": "exchanged_seconds",
}
"""Names, as in ``Measurement``, of the slots that come after those of shadow CFs, each with the name of the field of
``StepRecord`` that tells what was agreed."""

SUMS = ("error", "energy")
"""Names of the slots that hold sums over ranks, as every shadow's error does; the others hold means."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which slot of the vector holds what.

    All ranks know it without talking: it follows from the shadow CFs of the step's plan alone.

    Attributes:
        shadow: CFs evaluated in the step.
    """

    shadow: tuple[float, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """The name of every slot, in order: ``FIRST``, the error at each shadow CF, ``LAST``."""
        return (*FIRST, *map(_error_at, self.shadow), *LAST)

    def vector(self, numbers: Mapping[str, float]) -> torch.Tensor:
        """The vector ``[len(slots)]``, float64, of a number for every slot."""
        return torch.tensor([numbers[slot] for slot in self.slots], dtype=torch.float64)

    def numbers(self, vector: torch.Tensor) -> dict[str, float]:
        """The inverse of ``vector``.

        Raises:
            ValueError: the vector is not as long as the layout.
        """
        if vector.shape != (len(self.slots),):
            raise ValueError(f"vector: {list(vector.shape)} numbers, and the layout has slots {', '.join(self.slots)}")
        return dict(zip(self.slots, vector.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class StepReport:
    """One rank's numbers of one step, on their way to the others.

    Attributes:
        step: counted from 0.
        candidate: what ran.
        shadow: CFs evaluated.
        numbers: this rank's, by the names of ``Layout(shadow).slots``. The learning rate is nan when no optimizer was
            given, the error when a gradient was not finite.
    """

    step: int
    candidate: Candidate
    shadow: tuple[float, ...]
    numbers: Mapping[str, float]

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
        errors = [float(error) for error in stats.shadow] or [0.0] * len(shadow)
        numbers = {
            "seconds": costs.seconds,
            "error": float(stats.error) if stats.finite else math.nan,
            "energy": float(stats.energy),
            **dict(zip(map(_error_at, shadow), errors, strict=True)),
            "waited": costs.waited,
            "coded": costs.compress,
            "learning_rate": learning_rate,
            "exchanged": costs.exchange,
        }
        return cls(step, candidate, tuple(shadow), numbers)

    def vector(self) -> torch.Tensor:
        """The numbers as a vector, ``[len(Layout(shadow).slots)]``, float64, to be summed over ranks."""
        return Layout(self.shadow).vector(self.numbers)

    def agreed(
        self, total: torch.Tensor, world: int, samples: float, norms: tuple[tuple[str, float], ...] = ()
    ) -> Measurement:
        """The measurement that all ranks share.

        Args:
            total: sum of the vectors over ranks.
            world: number of ranks.
            samples: number of samples processed in the step, over all ranks.
            norms: norms of single tensors in the step, where there was a survey.
        """
        sums = Layout(self.shadow).numbers(total)
        return Measurement(
            step=self.step,
            candidate=self.candidate,
            samples=samples,
            shadow=tuple((cf, sums[_error_at(cf)]) for cf in self.shadow),
            norms=norms,
            **{slot: sums[slot] if slot in SUMS else sums[slot] / world for slot in (*FIRST, *LAST)},
        )


def gain(error: float, energy: float) -> float | None:
    """``1 - error / energy``; 1 when there was nothing to send, ``None`` when not finite."""
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if math.isfinite(share) else None


def _error_at(cf: float) -> str:
    return f"error at {cf!r}"
