# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What sparsifiers share that estimate a threshold: those that reach it are sent, corrected to k unless told otherwise.

As published, such rules send more or fewer than k coordinates. Every rank must send equally many bytes, so a count that
is not corrected travels in ``2k`` slots: survivors beyond them are cut, free ones hold zeros.

Corrected to k, what is sent are the k largest, whatever the threshold, which only makes them faster to find. So on a
GPU ``torch.topk`` finds them, and the host waits for nothing. As published, a rule has it wait there for each number
that it looks at, and four times more.
"""

from collections.abc import Sequence

import torch

from gravac.compressors.base import Context, energy, k_for
from gravac.compressors.selection import largest_reaching, reaching
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK

SLOTS = 2
"""Slots that travel per coordinate asked for, where the count of coordinates is not corrected to k."""


class ThresholdK(TopK):
    """Top-k by an estimated threshold; a subclass says how it is estimated.

    Attributes:
        exact_count: whether coordinates are taken or left until exactly k are sent; False is the rule as published.
    """

    exact_count: bool = True

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """Whether the CF asked for is achieved: only where exactly k are kept."""
        return self.keeps_k

    @property
    def keeps_k(self) -> bool:
        """Whether exactly k are kept, and travel."""
        return self.exact_count

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what it encodes: only where a rule is followed as published."""
        return not self.keeps_k

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """A magnitude that about k of ``magnitudes`` (flat, at least one not zero) reach; 0 < k < their number."""
        raise NotImplementedError

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """The coordinates of flat x that reach the threshold; exactly k, or at most ``SLOTS`` times k."""
        searched = x.device.type == "cpu" or not self.keeps_k
        if not searched or not 0 < k < x.numel() or not bool(x.any()):
            return super().select(x, k)
        # a threshold of 0 means all that is not zero
        threshold = max(self.threshold(x.abs(), k), torch.finfo(x.dtype).tiny)
        indices = largest_reaching(x, k, threshold) if self.keeps_k else reaching(x, threshold)[: SLOTS * k]
        return Selection(indices, x[indices])

    def slots(self, elements: int, cf: float) -> int:
        """How many values travel with their indices: k, or ``SLOTS`` times k where the count is not corrected."""
        k = k_for(elements, cf)
        return k if self.keeps_k else min(elements, SLOTS * k)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of flat x: as for top-k where the count is corrected; otherwise by selecting for each CF."""
        if self.keeps_k:
            return super().errors(x, cfs, ctx)
        whole = energy(x)
        return [(whole - energy(self.select(x, k_for(x.numel(), cf)).values)).clamp_(min=0) for cf in cfs]
