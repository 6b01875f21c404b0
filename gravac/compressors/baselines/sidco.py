# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""SIDCo: top-k by a threshold from a probability distribution that is fitted to the magnitudes.

Source: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed Training
Systems", MLSys 2021 (arXiv 2101.10761), sections 3.1 to 3.3. For high CFs the threshold is found in stages. The first
stage fits a distribution to all magnitudes. Each later stage fits one to the magnitudes above the previous stage's
threshold, and raises the threshold. In the paper, the number of stages depends on the CF achieved in earlier steps.
gravac instead adds stages within a step, as long as the sent fraction is off by more than ``TOLERANCE``. Magnitudes of
0 are left out of the fit, since they have no probability under these distributions.
"""

import math
from typing import ClassVar, Literal

import torch

from gravac.compressors.profile import CostPoints
from gravac.compressors.threshold import ThresholdK

STAGE_FRACTION = 0.25
"""Fraction of a stage's magnitudes that should exceed its threshold, except in the last stage (the paper's delta_1)."""

TOLERANCE = 0.2
"""Largest relative error of the fraction sent; if the error is larger, more stages are tried (the paper's epsilon)."""

MAX_STAGES = 8
"""Maximum number of stages for one threshold."""


class SIDCo(ThresholdK):
    """SIDCo: top-k by a threshold that is a quantile of a distribution fitted to the magnitudes.

    Attributes:
        law: distribution that the first stage fits to the magnitudes: ``"exponential"`` (the default), ``"gpareto"``
            (generalized Pareto) or ``"gamma"``. Later stages fit the amounts by which magnitudes exceed the previous
            stage's threshold: by an exponential distribution if ``law`` is exponential, else by a generalized Pareto.
        exact_count: whether exactly the k largest coordinates are sent (default: True); False: those that reach the
            threshold, as published.
        values: number format of the values on the wire; see ``TopK``.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "sidco"
    coding_costs: ClassVar[CostPoints] = ((10, 121.19, 7.50), (100, 70.23, 3.27), (1000, 106.92, 1.70))

    law: Literal["exponential", "gpareto", "gamma"] = "exponential"

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """Return a threshold that about k magnitudes reach.

        Thresholds are computed with more and more stages. The result is the threshold for which the number of
        magnitudes that reach it comes closest to k.

        Args:
            magnitudes: magnitudes of a tensor, flat.
            k: number of magnitudes that should reach the threshold.
        """
        magnitudes = magnitudes[magnitudes > 0]
        if magnitudes.numel() <= k:
            return 0.0
        fraction = k / magnitudes.numel()
        best_threshold, smallest_count_error = 0.0, math.inf
        for stages in range(max(1, math.floor(math.log(fraction) / math.log(STAGE_FRACTION))), MAX_STAGES + 1):
            threshold = self._staged_threshold(magnitudes, fraction, stages)
            count = int((magnitudes >= threshold).sum())
            count_error = abs(math.log(max(count, 0.5) / k))
            if count_error < smallest_count_error:
                best_threshold, smallest_count_error = threshold, count_error
            if abs(count / k - 1) <= TOLERANCE or STAGE_FRACTION**stages < fraction:
                break
        return best_threshold

    def _staged_threshold(self, magnitudes: torch.Tensor, fraction: float, stages: int) -> float:
        """Return the threshold, computed in ``stages`` stages, that ``fraction`` of flat magnitudes should reach."""
        threshold, remaining_fraction, remaining_magnitudes = 0.0, fraction, magnitudes
        for stage in range(stages):
            is_last = stage == stages - 1
            stage_fraction = remaining_fraction if is_last else STAGE_FRACTION
            excess = remaining_magnitudes - threshold
            threshold += self._quantile(excess, min(stage_fraction, 1.0), is_first_stage=stage == 0)
            if is_last:
                break
            remaining_fraction /= STAGE_FRACTION
            remaining_magnitudes = remaining_magnitudes[remaining_magnitudes >= threshold]
            if remaining_magnitudes.numel() < 2 or remaining_fraction >= 1:
                break
        return threshold

    def _quantile(self, excess: torch.Tensor, fraction: float, is_first_stage: bool) -> float:
        """Return the number that is exceeded with a given probability under a fitted distribution.

        Source: corollaries 1.1 to 1.3 of the paper.

        Args:
            excess: numbers to which the distribution is fitted, flat.
            fraction: the probability, in (0, 1].
            is_first_stage: whether this is the first stage, which fits ``law``. Later stages fit an exponential
                distribution if ``law`` is exponential, otherwise a generalized Pareto.
        """
        mean_excess = float(excess.mean(dtype=torch.float64))
        if mean_excess <= 0:
            return 0.0
        if self.law == "exponential":
            return -mean_excess * math.log(fraction)
        if self.law == "gamma" and is_first_stage:
            mean_log = float(excess.clamp(min=torch.finfo(excess.dtype).tiny).log().mean(dtype=torch.float64))
            s = max(math.log(mean_excess) - mean_log, 1e-6)
            shape_parameter = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
            return max(0.0, -mean_excess / shape_parameter * (math.log(fraction) + math.lgamma(shape_parameter)))
        variance = float((excess / mean_excess).var(correction=0)) * mean_excess * mean_excess
        if variance <= 0:
            return mean_excess
        ratio = mean_excess * mean_excess / variance
        shape_parameter, pareto_scale = 0.5 * (1 - ratio), 0.5 * mean_excess * (ratio + 1)
        if abs(shape_parameter) < 1e-6:
            return -pareto_scale * math.log(fraction)
        return pareto_scale / shape_parameter * (math.exp(-shape_parameter * math.log(fraction)) - 1)


sidco = SIDCo()
"""SIDCo with its default settings: fits an exponential distribution, and sends exactly k coordinates."""
