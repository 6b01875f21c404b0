# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""RedSync: top-k by a threshold between the mean and the largest magnitude, lowered in steps or found by bisection.

Source: Fang et al., "RedSync: Reducing Synchronization Bandwidth for Distributed Deep Learning Training System", JPDC
2019 (arXiv 1808.04357), section 5.2: trimmed top-k and threshold binary search. Contractive. If exactly k coordinates
are sent, the gain is at least 1/CF, as with top-k; otherwise no gain is guaranteed.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from gravac.compressors.profile import CostPoints
from gravac.compressors.threshold import SLOTS_PER_COORDINATE, ThresholdK

MAX_BISECTIONS = 20
"""Maximum number of times that the range of the threshold is halved."""


class RedSync(ThresholdK):
    """RedSync: top-k by the threshold ``mean + ratio * (max - mean)`` of the magnitudes.

    Attributes:
        search: how the ratio, from 0 to 1, is found. ``"trimmed"``, the default: the ratio is lowered by ``step``
            until at least k magnitudes reach the threshold; the k largest are sent. ``"bisection"``: the range of the
            ratio is halved until k to 2k magnitudes reach the threshold; if ``exact_count`` is False, all of these are
            sent.
        step: decrease of the ratio each time, for ``"trimmed"``; in (0, 1), default: 0.2.
        exact_count: whether exactly the k largest coordinates are sent (default: True); False: those that reach the
            threshold, as published.
        values: number format of the values on the wire; see ``TopK``.

    ``"trimmed"`` always sends exactly k coordinates, so that ``exact_count`` has no effect.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "redsync"
    coding_costs: ClassVar[CostPoints] = ((10, 41.06, 5.79), (100, 85.06, 2.84), (1000, 24.31, 1.74))

    search: Literal["trimmed", "bisection"] = "trimmed"
    step: Annotated[float, Field(gt=0, lt=1)] = 0.2

    @property
    def keeps_k(self) -> bool:
        """True if exactly k coordinates are selected and sent; always true for ``"trimmed"``."""
        return self.exact_count or self.search == "trimmed"

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """Return a threshold that about k of flat ``magnitudes`` reach; the setting ``search`` says how it is found."""
        mean_magnitude, max_magnitude = float(magnitudes.mean(dtype=torch.float64)), float(magnitudes.max())

        def threshold_and_count(ratio: float) -> tuple[float, int]:
            threshold = mean_magnitude + ratio * (max_magnitude - mean_magnitude)
            return threshold, int((magnitudes >= threshold).sum())

        if self.search == "trimmed":
            ratio = 1 - self.step
            while ratio > 0:
                threshold, count = threshold_and_count(ratio)
                if count >= k:
                    return threshold
                ratio -= self.step
            return 0.0
        low_ratio, high_ratio = 0.0, 1.0
        for _ in range(MAX_BISECTIONS):
            ratio = (low_ratio + high_ratio) / 2
            threshold, count = threshold_and_count(ratio)
            if k <= count <= SLOTS_PER_COORDINATE * k:
                break
            low_ratio, high_ratio = (low_ratio, ratio) if count < k else (ratio, high_ratio)
        return threshold


redsync = RedSync()
"""RedSync with trimmed top-k; ``redsync(search="bisection", exact_count=False)`` is the paper's threshold search."""
