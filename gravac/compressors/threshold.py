# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base class of sparsifiers that estimate a threshold and send the coordinates that reach it, by default exactly k.

By default (``exact_count``) the k largest coordinates are sent. On a CPU the threshold only makes their search faster;
on a GPU, ``torch.topk`` finds them without a threshold, and the host never waits.

Without ``exact_count``, more or fewer than k coordinates reach the threshold, as in the published rules. Every rank
must send equally many bytes. Each tensor is therefore sent in ``2k`` slots, each for a value and its index. If more
coordinates reach the threshold, the rest is left out; if fewer do, the free slots contain zeros. On a GPU the host then
waits for every number that the published rule reads, and four more times per tensor.
"""

from collections.abc import Sequence

import torch

from gravac.compressors.base import Context, energy, k_for
from gravac.compressors.selection import indices_reaching, largest_reaching
from gravac.compressors.sparse import Selection
from gravac.compressors.topk import TopK

SLOTS_PER_COORDINATE = 2
"""Slots per requested coordinate if not exactly k coordinates are sent; a slot has a value and its index."""


class ThresholdK(TopK):
    """Base class of top-k by an estimated threshold; subclasses implement ``threshold``.

    Attributes:
        exact_count: whether exactly the k largest coordinates are sent (default: True); False: those that reach the
            threshold, as published.
        values: number format of the values on the wire; see ``TopK``.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    exact_count: bool = True

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """True if the achieved CF is the requested CF, since exactly k coordinates are sent."""
        return self.keeps_k

    @property
    def keeps_k(self) -> bool:
        """True if exactly k coordinates are selected and sent."""
        return self.exact_count

    @property
    def host_waits(self) -> bool:
        """True if the host waits for a GPU during encoding: if not exactly k coordinates are sent."""
        return not self.keeps_k

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """Estimate a magnitude that about k of ``magnitudes`` reach.

        Args:
            magnitudes: flat, at least one not zero.
            k: number of magnitudes that should reach the result; above 0, and below the number of magnitudes.
        """
        raise NotImplementedError

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """Return the coordinates of flat x to send.

        If ``keeps_k``: the k largest, found by the threshold on a CPU. Otherwise the coordinates that reach the
        threshold, at most 2k of them.
        """
        uses_threshold = x.device.type == "cpu" or not self.keeps_k
        if not uses_threshold or not 0 < k < x.numel() or not bool(x.any()):
            return super().select(x, k)
        # a threshold of 0 selects all numbers that are not zero
        threshold = max(self.threshold(x.abs(), k), torch.finfo(x.dtype).tiny)
        indices = (
            largest_reaching(x, k, threshold)
            if self.keeps_k
            else indices_reaching(x, threshold)[: SLOTS_PER_COORDINATE * k]
        )
        return Selection(indices, x[indices])

    def slots(self, elements: int, cf: float) -> int:
        """Return k or 2k, the number of slots that every rank sends for a tensor; a slot has a value and its index."""
        k = k_for(elements, cf)
        return k if self.keeps_k else min(elements, SLOTS_PER_COORDINATE * k)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, 0-d, if this rank sends the coordinates that it selects."""
        if self.keeps_k:
            return super().errors(x, cfs, ctx)
        x_energy = energy(x)
        return [(x_energy - energy(self.select(x, k_for(x.numel(), cf)).values)).clamp_(min=0) for cf in cfs]
