# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base of sparsifiers that estimate a threshold: coordinates that reach it are sent, by default corrected to k.

Published rules of this kind send more or fewer than k coordinates. Every rank must send equally many bytes, so
selections that are not corrected are sent in ``2k`` slots. Coordinates beyond the slots are left out, and free slots
have zeros.

If the count is corrected, the k largest coordinates are sent whatever the threshold, which only makes the search
faster. On a GPU, ``torch.topk`` finds them, and the host never waits. A published rule makes the host wait for each
number that the rule reads, and four times more.
"""

from collections.abc import Sequence

import torch

from gravac.compressors.base import Context, energy, k_for
from gravac.compressors.selection import largest_reaching, reaching
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK

SLOTS = 2
"""Slots that are sent per requested coordinate if the count of coordinates is not corrected to k."""


class ThresholdK(TopK):
    """Top-k by an estimated threshold; base class of the estimates.

    Attributes:
        exact_count: whether coordinates are added or removed until exactly k are sent; False is the published rule.
    """

    exact_count: bool = True

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """True if the requested CF is achieved, since exactly k coordinates are sent."""
        return self.keeps_k

    @property
    def keeps_k(self) -> bool:
        """True if exactly k coordinates are selected and sent."""
        return self.exact_count

    @property
    def host_waits(self) -> bool:
        """True if on a GPU the host waits while encoding: for the published rule only."""
        return not self.keeps_k

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """Estimate a magnitude that about k of ``magnitudes`` reach.

        Args:
            magnitudes: flat, at least one not zero.
            k: requested number of magnitudes that reach the threshold; above 0, and below their total number.
        """
        raise NotImplementedError

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """Return the coordinates of flat x that reach the threshold: exactly k, or at most ``SLOTS`` times k."""
        estimates = x.device.type == "cpu" or not self.keeps_k
        if not estimates or not 0 < k < x.numel() or not bool(x.any()):
            return super().select(x, k)
        # a threshold of 0 selects all numbers that are not zero
        threshold = max(self.threshold(x.abs(), k), torch.finfo(x.dtype).tiny)
        indices = largest_reaching(x, k, threshold) if self.keeps_k else reaching(x, threshold)[: SLOTS * k]
        return Selection(indices, x[indices])

    def slots(self, elements: int, cf: float) -> int:
        """Return the number of values that are sent with their indices: k, or ``SLOTS`` times k if not corrected."""
        k = k_for(elements, cf)
        return k if self.keeps_k else min(elements, SLOTS * k)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared errors of flat x: those of top-k if the count is corrected, else by a selection per CF."""
        if self.keeps_k:
            return super().errors(x, cfs, ctx)
        total = energy(x)
        return [(total - energy(self.select(x, k_for(x.numel(), cf)).values)).clamp_(min=0) for cf in cfs]
