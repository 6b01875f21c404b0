# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of single tensors, in the few steps for which that was asked.

All ranks know from the same plan that a survey is due, and of which tensors, so that all hand over a vector of the same
length. It is summed beside the agreement on its step, and nobody waits for it before the end of the next one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gravac.average import Tally


@dataclass(frozen=True, slots=True)
class Survey:
    """One rank's numbers of the tensors of one step, on their way to the others.

    Attributes:
        summed: names of the tensors whose gradients were added up, ascending.
        numbers: of each, ``‖Σg‖²``.
    """

    summed: tuple[str, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, tally: Tally, loss_scale: float) -> "Survey | None":
        """A step's numbers, when its plan asked for any.

        Args:
            tally: of the step.
            loss_scale: that its gradients were multiplied with.
        """
        if not tally.sums:
            return None
        summed = tuple(sorted(tally.sums))
        return cls(summed, tuple(float(tally.sums[name]) / loss_scale**2 for name in summed))

    def vector(self) -> torch.Tensor:
        """``[len(numbers)]`` float64, to be summed over ranks."""
        return torch.tensor(self.numbers, dtype=torch.float64)

    def norms(self, total: torch.Tensor, world: int) -> tuple[tuple[str, float], ...]:
        """``Measurement.norms``, from the vectors' sum over ranks."""
        return tuple((name, math.sqrt(one / world)) for name, one in zip(self.summed, total.tolist(), strict=True))

    def plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"summed": list(self.summed), "numbers": list(self.numbers)}

    @classmethod
    def restore(cls, plain: Mapping[str, Any]) -> "Survey":
        """The inverse of ``plain``."""
        return cls(tuple(plain["summed"]), tuple(plain["numbers"]))
