# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hard threshold: sends all coordinates whose magnitude reaches a constant threshold.

Source: Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021 (arXiv 2108.00951).
Among sparsifiers that send equally many coordinates in a whole run, hard threshold has the smallest total error. The
squared error of a coordinate is below threshold² if all that reach the threshold are sent. Contractive, but no gain is
guaranteed: if no coordinate reaches the threshold, nothing is sent until the residual has grown.

The number of coordinates that reach the threshold differs between ranks and steps, but every rank must send equally
many bytes. The CF therefore determines the number k of slots, each for a value and its index; free slots contain zeros.
If more than k coordinates reach the threshold, the k largest are sent. Choose the CF for the steps that send most;
``StepRecord.achieved_cf`` has the CF of the coordinates sent. On a GPU the host waits three times per tensor, to learn
the number of coordinates.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from gravac.compressors.profile import CostPoints
from gravac.compressors.selection import indices_reaching, largest
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK


class HardThreshold(TopK):
    """Hard threshold: every rank sends the coordinates that reach the threshold, up to the number that the CF allows.

    Attributes:
        threshold: lowest magnitude of gradient plus residual that is sent (the paper's λ), in the gradients' unit;
            above 0, default: 0.005. With a GradScaler, multiply the threshold by the loss scale. To send k coordinates
            of the whole model per step, the paper uses 1 / (2 √k); 0.005 is the value for k = 10,000.
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
        """``(1, 1)``: since the threshold is absolute, ``sent`` is never proportional to the gradient."""
        return 1.0, 1.0

    @property
    def host_waits(self) -> bool:
        """True: during encoding the host waits for a GPU, to learn how many coordinates reach the threshold."""
        return True

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """Return the coordinates of flat x that reach the threshold; if more than k do, the k largest."""
        indices = indices_reaching(x, self.threshold)
        indices = indices[largest(x[indices], k)]
        return Selection(indices, x[indices])


hard_threshold = HardThreshold()
"""Hard threshold of 0.005; ``hard_threshold(threshold=0.01)`` sends only magnitudes of 0.01 and more."""
