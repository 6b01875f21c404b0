# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What sparsifiers share that estimate a threshold: those that reach it are sent, corrected to k unless told otherwise.

As published, such rules send more or fewer than k coordinates. Every rank must send equally many bytes, so a count that
is not corrected travels in ``2k`` slots: survivors beyond them are cut, free ones hold zeros.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch

from gravac.collectives import AllGather, Traffic
from gravac.compressors import multilevel
from gravac.compressors.base import Context, Reduced, Rounds, Selection, Sparse, energy, k_for
from gravac.compressors.dtypes import dtype_of
from gravac.compressors.selection import largest, largest_reaching, reaching
from gravac.compressors.topk import TopK, index_dtype, pack_indices, unpack_indices

SLOTS = 2
"""Slots that travel per coordinate asked for, where the count of coordinates is not corrected to k."""


class ThresholdK(TopK):
    """Top-k by an estimated threshold; a subclass says how it is estimated.

    Attributes:
        exact_count: whether coordinates are taken or left until exactly k are sent; False is the rule as published.
    """

    name: ClassVar[str]

    exact_count: bool = True

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """Whether the CF asked for is achieved: only where exactly k are kept."""
        return self.keeps_k

    @property
    def keeps_k(self) -> bool:
        """Whether exactly k are kept, and travel."""
        return self.exact_count

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """A magnitude that about k of ``magnitudes`` (flat, at least one not zero) reach; 0 < k < their number."""
        raise NotImplementedError

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """The coordinates of flat x that reach the threshold; exactly k, or at most ``SLOTS`` times k."""
        indices = self._reaching(x, k)
        return Selection(indices, x[indices])

    def _reaching(self, x: torch.Tensor, k: int) -> torch.Tensor:
        if not 0 < k < x.numel():
            return largest(x, k)
        magnitudes = x.abs()
        if not bool(magnitudes.any()):
            return largest(x, k)
        # a threshold of 0 means all that is not zero
        threshold = max(self.threshold(magnitudes, k), torch.finfo(x.dtype).tiny)
        return largest_reaching(x, k, threshold) if self.keeps_k else reaching(x, threshold)[: SLOTS * k]

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Values and indices of all slots, in bytes."""
        elements = torch.Size(shape).numel()
        bytes_each = dtype_of(self.values, dtype).itemsize + index_dtype(elements).itemsize
        return (Traffic(AllGather, self._slots(elements, cf) * bytes_each),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather, of k or ``SLOTS`` times k slots."""
        return (yield from self.send(multilevel.at(self.select, x, cf, ctx), x, cf, ctx))

    def send(self, chosen: Selection, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Exchange a selection of flat x, by one all-gather."""
        return (yield from in_slots(chosen, self._slots(x.numel(), cf), x, self.values, ctx))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of flat x: as for top-k where the count is corrected; otherwise by selecting for each CF."""
        if self.keeps_k:
            return super().errors(x, cfs, ctx)
        whole = energy(x)
        return [(whole - energy(self.select(x, k_for(x.numel(), cf)).values)).clamp_(min=0) for cf in cfs]

    def _slots(self, elements: int, cf: float) -> int:
        k = k_for(elements, cf)
        return k if self.keeps_k else min(elements, SLOTS * k)


def in_slots(chosen: Selection, slots: int, x: torch.Tensor, values: str | None, ctx: Context) -> Rounds:
    """Exchange a selection of x in a fixed number of slots on every rank, by one all-gather; free slots hold zeros.

    Args:
        chosen: what to send: at most ``slots`` coordinates.
        slots: number of slots, the same on every rank; at most ``x.numel()``.
        x: what was selected from: flat, ``(elements,)``.
        values: number format of the values on the wire; ``None``: the gradient's own.
        ctx: the tensor's context.
    """
    mine = chosen.values.to(dtype_of(values, ctx.dtype))
    free = _unused(chosen.indices, slots)
    gathered, packed = yield AllGather(
        torch.nn.functional.pad(mine, (0, free.numel())),
        pack_indices(torch.cat([chosen.indices, free]), x.numel()),
    )
    shares = gathered.to(x.dtype) / ctx.world
    positions = unpack_indices(packed, x.numel())
    return Reduced(
        mean=Sparse(tuple(zip(positions.unbind(), shares.unbind(), strict=True))),
        sent=Sparse(((chosen.indices, mine.to(x.dtype)),)),
        cf=x.numel() / max(1, mine.numel()),
    )


def _unused(indices: torch.Tensor, slots: int) -> torch.Tensor:
    """The lowest indices that are not in ``indices``, as many as fill it up to ``slots``: int64, ascending."""
    free = torch.ones(slots, dtype=torch.bool, device=indices.device)
    free[indices[indices < slots]] = False
    return free.nonzero().flatten()[: slots - indices.numel()]
