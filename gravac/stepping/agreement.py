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
from gravac.exchange.executor import Number, Verdict
from gravac.stepping.clock import StepCosts

LEFT = "left"
"""Name of the slot for squared norms of what is still kept although it is to be sent: when its sum is zero on all
ranks, all drop it. 0 where the host looks by itself."""

FIRST = ("seconds", "error", "energy")
"""Names, as in ``Measurement``, of the slots that come before those of shadow CFs."""

LAST = {
    "waited": "waited_seconds",
    "coded": "coded_seconds",
    "learning_rate": "learning_rate",
    "exchanged": "exchanged_seconds",
    "drift": "drift",
}
"""Names, as in ``Measurement``, of the slots that come after those of shadow CFs, each with the name of the field of
``StepRecord`` that tells what was agreed."""

TIMES = ("seconds", "waited", "coded", "exchanged")
"""Names of the slots that a round of several steps is measured in as a whole, and told of by the step."""

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
        """The name of every slot, in order: ``FIRST``, the error at each shadow CF, ``LAST``, ``LEFT``."""
        return (*FIRST, *map(_error_at, self.shadow), *LAST, LEFT)

    def vector(self, numbers: Mapping[str, Number]) -> list[Number]:
        """The vector of a number for every slot, in order."""
        return [numbers[slot] for slot in self.slots]

    def numbers(self, vector: Sequence[float]) -> dict[str, float]:
        """The inverse of ``vector``.

        Raises:
            ValueError: the vector is not as long as the layout.
        """
        if len(vector) != len(self.slots):
            raise ValueError(f"vector: {len(vector)} numbers, and the layout has slots {', '.join(self.slots)}")
        return dict(zip(self.slots, vector, strict=True))


@dataclass(frozen=True, slots=True)
class StepReport:
    """One rank's numbers of one step, on their way to the others.

    Attributes:
        step: counted from 0.
        candidate: what ran.
        shadow: CFs evaluated.
        numbers: this rank's, by the names of ``Layout(shadow).slots``; what only the device knows as scalars (0-d
            tensors). The learning rate is nan when no optimizer was given, the error when a gradient was not finite.
    """

    step: int
    candidate: Candidate
    shadow: tuple[float, ...]
    numbers: Mapping[str, Number]

    @classmethod
    def of(
        cls,
        step: int,
        candidate: Candidate,
        shadow: Sequence[float],
        costs: StepCosts,
        stats: StepStats,
        learning_rate: float = math.nan,
        left: Number = 0.0,
        spread: Number = math.nan,
    ) -> "StepReport":
        """A step's numbers from its clock and its stats; of ``spread`` see ``Door.end``."""
        errors = stats.shadow or [0.0] * len(shadow)
        numbers: dict[str, Number] = {
            "seconds": costs.seconds,
            "error": _where(stats.finite, stats.error),
            "energy": stats.energy,
            LEFT: left,
            **dict(zip(map(_error_at, shadow), errors, strict=True)),
            "waited": costs.waited,
            "coded": costs.compress,
            "learning_rate": learning_rate,
            "exchanged": costs.exchange,
            "drift": spread,
        }
        return cls(step, candidate, tuple(shadow), numbers)

    def vector(self) -> list[Number]:
        """The numbers in the order of ``Layout(shadow).slots``, to be summed over ranks in float64."""
        return Layout(self.shadow).vector(self.numbers)

    def left(self, total: Sequence[float]) -> float:
        """The sum of what is still kept although it is to be sent, see ``LEFT``."""
        return Layout(self.shadow).numbers(total)[LEFT]

    def agreed(
        self, total: Sequence[float], world: int, samples: float, norms: tuple[tuple[str, float], ...] = ()
    ) -> Measurement:
        """The measurement that all ranks share.

        Args:
            total: sum of the vectors over ranks.
            world: number of ranks.
            samples: number of samples processed in a step, over all ranks.
            norms: norms of single tensors in the step, where there was a survey.
        """
        sums = Layout(self.shadow).numbers(total)
        numbers = {slot: sums[slot] if slot in SUMS else sums[slot] / world for slot in (*FIRST, *LAST)}
        numbers |= {slot: numbers[slot] / self.candidate.every for slot in TIMES}
        # what a rank tells is its norm over the mean's, so that the mean over ranks is the inverse of what is asked for
        numbers["drift"] = 1 / numbers["drift"] if numbers["drift"] else math.nan
        return Measurement(
            step=self.step,
            candidate=self.candidate,
            samples=samples,
            shadow=tuple((cf, sums[_error_at(cf)]) for cf in self.shadow),
            norms=norms,
            **numbers,
        )


def gain(error: float, energy: float) -> float | None:
    """``1 - error / energy``; 1 when there was nothing to send, ``None`` when not finite."""
    if not math.isfinite(error + energy):
        return None  # of a refused step the error is nan, and the energy may be 0
    if energy == 0:
        return 1.0
    share = 1 - error / energy
    return share if math.isfinite(share) else None


def _where(finite: Verdict, number: Number) -> Number:
    """A number where all was finite, otherwise nan."""
    if isinstance(finite, bool):
        return number if finite else math.nan
    return torch.where(finite, number, math.nan)


def _error_at(cf: float) -> str:
    return f"error at {cf!r}"
