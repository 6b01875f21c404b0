# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""SIDCo: the threshold from a law fitted to the magnitudes, in stages for high CFs.

Source: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed Training
Systems", MLSys 2021 (arXiv 2101.10761), sections 3.1 to 3.3. Published, the number of stages follows the ratio achieved
in earlier steps; here it follows the ratio achieved at once, which needs no memory: stages are added while the share
kept is off by more than ``TOLERANCE``. Zeros, which no such law has, are left out of the fit.
"""

import math
from typing import ClassVar, Literal

import torch

from gravac.compressors.profile import CostPoints
from gravac.compressors.threshold import ThresholdK

FIRST = 0.25
"""Share that each stage but the last keeps (the paper's delta_1)."""

TOLERANCE = 0.2
"""How far the share kept may be off before more stages are tried (the paper's epsilon)."""

STAGES = 8
"""Number of stages tried at most."""


class SIDCo(ThresholdK):
    """Top-k by a threshold that is a quantile of a law fitted to the magnitudes.

    Attributes:
        law: what is fitted to the magnitudes in the first stage: ``"exponential"``, ``"gpareto"`` (generalized Pareto)
            or ``"gamma"``. Later stages fit the excess over the stage's threshold: exponential, or generalized Pareto
            for the others.
    """

    name: ClassVar[str] = "sidco"
    coding_costs: ClassVar[CostPoints] = ((10, 121.19, 7.50), (100, 70.23, 3.27), (1000, 106.92, 1.70))

    law: Literal["exponential", "gpareto", "gamma"] = "exponential"

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """The threshold that closest to k of flat ``magnitudes`` reach, of those by each number of stages tried."""
        magnitudes = magnitudes[magnitudes > 0]
        if magnitudes.numel() <= k:
            return 0.0
        share = k / magnitudes.numel()
        best, closest = 0.0, math.inf
        for stages in range(max(1, math.floor(math.log(share) / math.log(FIRST))), STAGES + 1):
            threshold = self._staged(magnitudes, share, stages)
            count = int((magnitudes >= threshold).sum())
            off = abs(math.log(max(count, 0.5) / k))
            if off < closest:
                best, closest = threshold, off
            if abs(count / k - 1) <= TOLERANCE or FIRST**stages < share:
                break
        return best

    def _staged(self, magnitudes: torch.Tensor, share: float, stages: int) -> float:
        threshold, left, survivors = 0.0, share, magnitudes
        for stage in range(stages):
            last = stage == stages - 1
            part = left if last else FIRST
            excess = survivors - threshold
            threshold += self._quantile(excess, min(part, 1.0), first=stage == 0)
            if last:
                break
            left /= FIRST
            survivors = survivors[survivors >= threshold]
            if survivors.numel() < 2 or left >= 1:
                break
        return threshold

    def _quantile(self, excess: torch.Tensor, share: float, first: bool) -> float:
        """What ``share`` of a fitted law exceeds (the paper's corollaries 1.1 to 1.3)."""
        mean = float(excess.mean(dtype=torch.float64))
        if mean <= 0:
            return 0.0
        if self.law == "exponential":
            return -mean * math.log(share)
        if self.law == "gamma" and first:
            logs = float(excess.clamp(min=torch.finfo(excess.dtype).tiny).log().mean(dtype=torch.float64))
            s = max(math.log(mean) - logs, 1e-6)
            shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
            return max(0.0, -mean / shape * (math.log(share) + math.lgamma(shape)))
        variance = float((excess / mean).var(correction=0)) * mean * mean
        if variance <= 0:
            return mean
        ratio = mean * mean / variance
        shape, scale = 0.5 * (1 - ratio), 0.5 * mean * (ratio + 1)
        if abs(shape) < 1e-6:
            return -scale * math.log(share)
        return scale / shape * (math.exp(-shape * math.log(share)) - 1)


sidco = SIDCo()
"""SIDCo with the exponential law, corrected to exactly k."""
