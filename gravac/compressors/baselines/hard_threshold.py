# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hard threshold: all coordinates of at least a constant magnitude are sent.

Source: Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021 (arXiv 2108.00951).
If the whole run, and not each step, has a budget, hard threshold is the sparsifier with the smallest total error. The
squared error of each coordinate is below threshold². Contractive, since coding never adds error, but without a
guaranteed gain: if no coordinate reaches the threshold, nothing is sent until the residual has grown.

The number of coordinates that reach the threshold differs between ranks and steps, but every rank must send equally
many bytes. The CF therefore fixes the number k of slots that are sent, with zeros in free slots. If more than k
coordinates reach the threshold, the k largest are sent. Choose the CF for the steps that send most;
``StepRecord.achieved_cf`` has the CF of the coordinates sent. On a GPU the host waits three times per tensor, to learn
the number of coordinates.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from gravac.compressors.profile import CostPoints
from gravac.compressors.selection import largest, reaching
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK


class HardThreshold(TopK):
    """Hard threshold: every rank sends all ``|g_ef| >= threshold``, at most as many as the CF allows.

    Attributes:
        threshold: magnitude from which coordinates are sent (the paper's λ), in the gradients' unit; above 0, default:
            0.005. With a GradScaler, multiply the threshold by its scale. The paper uses 1 / (2 √k) for k coordinates
            of the model per step: 0.005 is for 10,000.
        values: number format of the values on the wire: ``"float32"``, ``"float16"`` or ``"bfloat16"``; ``None``, the
            default: the gradient's own.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "hard_threshold"
    exact_cf: ClassVar[bool] = False
    coding_costs: ClassVar[CostPoints] = ((10, 17.82, 8.01), (100, 16.52, 3.20), (1000, 11.95, 1.61))

    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.005

    @property
    def magnitudes(self) -> tuple[float, float]:
        """``(1, 1)``: since the threshold is absolute, the sent tensor does not scale with the gradient."""
        return 1.0, 1.0

    @property
    def host_waits(self) -> bool:
        """True: the host waits for a GPU while it encodes, to learn how many coordinates reach the threshold."""
        return True

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """Return the coordinates of flat x that reach the threshold; at most the k largest of them."""
        indices = reaching(x, self.threshold)
        indices = indices[largest(x[indices], k)]
        return Selection(indices, x[indices])


hard_threshold = HardThreshold()
"""Hard threshold at magnitude 0.005; ``hard_threshold(threshold=0.01)`` makes another."""
