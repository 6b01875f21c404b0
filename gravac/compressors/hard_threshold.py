# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hard threshold: every coordinate of at least a constant magnitude is sent, as many as there are.

Source: Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021 (arXiv 2108.00951).
For a budget of the whole run, and not of each step, it is the sparsifier of least total error. Its error is bounded
absolutely, by threshold² for each coordinate. Contractive only in that it never adds error: when no coordinate reaches
the threshold, nothing is sent until the residual has grown.

How many reach it differs between ranks and steps, and every rank must send equally many bytes. So the CF is the least:
its k slots travel, of which free ones hold zeros, and when more than k reach the threshold the k largest go. Choose it
for the steps that send most; ``achieved_cf`` tells what was used. On a GPU the host waits three times a tensor, to
learn how many they are.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from gravac.compressors.profile import CostPoints
from gravac.compressors.selection import largest, reaching
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK


class HardThreshold(TopK):
    """Every rank sends all ``|g_ef| >= threshold``, at most as many as the CF allows.

    Attributes:
        threshold: the paper's λ, in the gradient's unit, as it is exchanged: with a GradScaler, times its scale. Its
            experiments take 1 / (2 √k), where k coordinates of the model are to be sent a step: 0.005 is for 10,000.
    """

    name: ClassVar[str] = "hard_threshold"
    exact_cf: ClassVar[bool] = False
    coding_costs: ClassVar[CostPoints] = ((10, 17.82, 8.01), (100, 16.52, 3.20), (1000, 11.95, 1.61))

    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.005

    @property
    def magnitudes(self) -> tuple[float, float]:
        """``(1, 1)``: as the threshold is absolute, what is sent does not scale with the gradient."""
        return 1.0, 1.0

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what it encodes: to learn how many coordinates reach the threshold."""
        return True

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """The coordinates of flat x that reach the threshold; the k largest of them, when they are more."""
        indices = reaching(x, self.threshold)
        indices = indices[largest(x[indices], k)]
        return Selection(indices, x[indices])


hard_threshold = HardThreshold()
"""Hard threshold at magnitude 0.005; ``hard_threshold(threshold=0.01)`` makes another."""
