# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""RedSync: a threshold between the mean and the largest magnitude, found by lowering or by bisection.

Source: Fang et al., "RedSync: Reducing Synchronization Bandwidth for Distributed Deep Learning Training System", JPDC
2019 (arXiv 1808.04357), section 5.2: trimmed top-k and threshold binary search. Contractive, as top-k is, where the
count is corrected; otherwise only in that it never adds error.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from gravac.compressors.profile import CostPoints
from gravac.compressors.threshold import SLOTS, ThresholdK

ROUNDS = 20
"""How often the threshold's range is bisected at most."""


class RedSync(ThresholdK):
    """Top-k by the threshold ``mean + ratio * (max - mean)`` of the magnitudes.

    Attributes:
        search: how the ratio is found. ``"trimmed"``: it falls in steps until k survive; the largest are taken.
            ``"bisection"``: its range is halved until between k and 2k survive, all of which are sent when
            ``exact_count`` is False.
        step: how much the ratio falls at a time, in (0, 1).

    ``"trimmed"`` keeps exactly k by its own rule: ``exact_count`` changes nothing there.
    """

    name: ClassVar[str] = "redsync"
    coding_costs: ClassVar[CostPoints] = ((10, 137.80, 8.27), (100, 127.05, 3.08), (1000, 28.16, 1.53))

    search: Literal["trimmed", "bisection"] = "trimmed"
    step: Annotated[float, Field(gt=0, lt=1)] = 0.2

    @property
    def keeps_k(self) -> bool:
        """Whether exactly k are kept, and travel; so they are, too, where the rule itself trims."""
        return self.exact_count or self.search == "trimmed"

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """The threshold found by ``search`` for ``magnitudes`` (flat), which about k of them reach."""
        mean, most = float(magnitudes.mean(dtype=torch.float64)), float(magnitudes.max())

        def tried(ratio: float) -> tuple[float, int]:
            threshold = mean + ratio * (most - mean)
            return threshold, int((magnitudes >= threshold).sum())

        if self.search == "trimmed":
            ratio = 1 - self.step
            while ratio > 0:
                threshold, count = tried(ratio)
                if count >= k:
                    return threshold
                ratio -= self.step
            return 0.0
        low, high = 0.0, 1.0
        for _ in range(ROUNDS):
            ratio = (low + high) / 2
            threshold, count = tried(ratio)
            if k <= count <= SLOTS * k:
                break
            low, high = (low, ratio) if count < k else (ratio, high)
        return threshold


redsync = RedSync()
"""RedSync by trimmed top-k; ``redsync(search="bisection", exact_count=False)`` is the other published rule."""
