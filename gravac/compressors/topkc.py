# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunked top-k: all ranks send the same chunks, those with most energy over all ranks; no index travels.

Source: Han et al., "Beyond Throughput and Compression Ratios", HotNets 2024 (arXiv 2407.01378), section 3.1. Chunks are
consecutive coordinates; large ones tend to lie near each other. Contractive on the ranks' stacked vector with at least
``floor(k/chunk) * chunk / elements``; for one rank alone there is no such bound.
"""

import math
from collections.abc import Generator, Hashable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllReduce, Collective, Traffic
from gravac.compressors.base import Compressor, Context, Fold, Reduced, Rounds, energy, k_for
from gravac.compressors.chunks import (
    AtChunks,
    Chosen,
    FoldedChunks,
    chunk_energies,
    fold_chunks,
    folds,
    gather,
    in_order,
    positions,
    scatter,
    whole_but_one,
)
from gravac.compressors.dtypes import dtype_of, magnitudes_in, narrow, unit_roundoff
from gravac.compressors.profile import CostPoints, Profile
from gravac.compressors.quantize import Quantize
from gravac.compressors.selection import largest
from gravac.compressors.sparse import Sparse, laid_out

NORMS = torch.bfloat16
"""Format of the chunks' energies on the wire: half the bytes of float32, and its range."""


class TopKC(Compressor):
    """Chunks with the largest summed energy, exchanged by all-reduce.

    Attributes:
        chunk: coordinates per chunk. ``None``: 64, or as many more as it takes for the chunks' energies to travel in
            no more bytes than the values do.
        values: number format of the values on the wire, or a quantizer; ``None``: the gradient's own.
    """

    name: ClassVar[str] = "topkc"
    contractive: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 2.77, 3.53), (100, 2.58, 1.96), (1000, 2.28, 1.81))

    chunk: Annotated[int, Field(ge=1)] | None = None
    values: Literal["float32", "float16", "bfloat16"] | Quantize | None = "bfloat16"

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """What is known at a CF: the efficiency is that of the chunks times that of how their values are sent."""
        own = replace(super().profile(cf), coding_bytes=5 + math.ceil(32 / cf))
        if not isinstance(self.values, Quantize):
            return own
        return replace(own, efficiency=own.efficiency * self.values.profile(self.values.finest).efficiency)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Those whose chunks' energies, squares, have room in bfloat16, and their values in their number format.

        Beyond, all chunks count as having equal energy, so that the choice among them is arbitrary; it is the same on
        all ranks, and the values that are sent are right.
        """
        if isinstance(self.values, Quantize):
            least, largest = self.values.magnitudes
        else:
            least, largest = magnitudes_in(dtype_of(self.values, torch.float32))
        return max(2.0**-56, least), min(2.0**56, largest)

    def method_at(self, cf: float) -> str:
        """The CF of the selection and, where the values are quantized, their number of bits."""
        if not isinstance(self.values, Quantize):
            return super().method_at(cf)
        return f"{self.name} {round(cf, 1):g}x of {self.values.method_at(self.values.finest)}"

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """An energy per chunk, then the values kept, in bytes."""
        elements = torch.Size(shape).numel()
        k = k_for(elements, cf)
        energies = Traffic(AllReduce, -(-elements // self.chunk_at(cf)) * NORMS.itemsize)
        if isinstance(self.values, Quantize):
            return (energies, *self.values.traffic((k,), self.values.finest, dtype, world))
        return (energies, Traffic(AllReduce, k * dtype_of(self.values, dtype).itemsize))

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x at the chunks that all ranks choose.

        1. All-reduce the energy of every chunk.
        2. Choose the chunks with most energy, the same on all ranks; one is sent in part, so that k values travel.
        3. All-reduce the values there; where they are quantized, by the quantizer's own rounds.
        """
        if ctx.fold is not None:
            return (yield from self._folded(x, cf, ctx, ctx.fold))
        chunk = self.chunk_at(cf)
        k = k_for(x.numel(), cf)
        total = yield AllReduce((chunk_energies(x, chunk) / ctx.world).to(NORMS))
        chosen = choose(total, k, chunk, x.numel())
        mine = gather(x, chosen, chunk, k)
        if isinstance(self.values, Quantize):
            part = yield from self.values.rounds(mine, self.values.finest, ctx.part(k))
            mean, sent = laid_out(part.mean, mine), laid_out(part.sent, mine)
        else:
            mean, sent = yield from _averaged(mine, dtype_of(self.values, ctx.dtype), ctx.world)
        n = x.numel()
        return Reduced(scatter(mean, chosen, chunk, n), scatter(sent, chosen, chunk, n), n / max(1, k))

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """Tensors of whole chunks go together, if they are equally large; not where values are rotated by name."""
        elements = torch.Size(ctx.shape).numel()
        rotates = isinstance(self.values, Quantize) and self.values.rotate
        return None if elements % self.chunk_at(cf) or not elements or rotates else self.name

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average the rows of x, each at its own chunks, in the steps of ``rounds``.

        Energies and values are those that each row would send by itself, one row after another.
        """
        (count, elements), ctx, chunk = x.shape, contexts[0], self.chunk_at(cf)
        k, flat = k_for(elements, cf), x.view(-1)
        if ctx.fold is not None:
            return (yield from self._folded(flat, cf, ctx, ctx.fold))
        total = yield AllReduce((chunk_energies(flat, chunk) / ctx.world).to(NORMS))
        places = positions(in_order(total.view(count, -1), k, chunk), k, chunk, elements // chunk)
        mine = flat.index_select(0, places)
        if isinstance(self.values, Quantize):
            # each row's values filled up with zeros to whole blocks, so that none has numbers of two rows
            rows = torch.nn.functional.pad(mine.view(count, k), (0, -k % self.values.block))
            part = yield from self.values.rounds(rows.view(-1), self.values.finest, ctx.part(rows.numel()))
            mean, sent = (laid_out(one, rows).view_as(rows)[:, :k].reshape(-1) for one in (part.mean, part.sent))
        else:
            mean, sent = yield from _averaged(mine, dtype_of(self.values, ctx.dtype), ctx.world)
        return Reduced(Sparse(((places, mean),)), Sparse(((places, sent),)), elements / k)

    def _folded(self, x: torch.Tensor, cf: float, ctx: Context, fold: Fold) -> Rounds:
        """Average bare gradients, one or several, in the steps of ``rounds``, by kernels that fold as well.

        What is sent is taken off what the fold leaves, and the energies become those of what is left.
        """
        chunk = self.chunk_at(cf)
        folded, wire = fold_chunks(x, chunk, fold, ctx.world)
        elements = folded.x.numel() // folded.count
        k = k_for(elements, cf)
        order = in_order((yield AllReduce(wire)).view(folded.count, -1), k, chunk)
        if isinstance(self.values, Quantize):
            mean, error = yield from self._requantized(folded, order, k, ctx)
        else:
            mean = yield AllReduce(folded.take(order, k, dtype_of(self.values, ctx.dtype), ctx.world))
            error = folded.energy
        return Reduced(AtChunks(mean, order, k, chunk), Sparse(()), elements / k, error=error)

    def _requantized(
        self, folded: FoldedChunks, order: torch.Tensor, k: int, ctx: Context
    ) -> Generator[Collective, Any, tuple[torch.Tensor, torch.Tensor]]:
        """Quantize the values of chosen chunks, rows filled up to whole blocks: their mean, and the squared error."""
        assert isinstance(self.values, Quantize)
        mine = folded.take(order, k, torch.float32, multiple=self.values.block if folded.count > 1 else 1)
        flat, cf = mine.view(-1), self.values.finest
        within = Fold(left=flat) if self.values.folds(flat, cf) else None
        part = yield from self.values.rounds(flat, cf, replace(ctx.part(mine.numel()), fold=within))
        lost = flat.sub_(part.sent) if isinstance(part.sent, torch.Tensor) else part.sent.add_to(flat, -1.0)
        AtChunks(lost.view_as(mine), order, k, folded.chunk).add_to(folded.x)
        error = folded.energy + energy(lost.view_as(mine)[:, :k].reshape(-1))  # what codes make of padding is not lost
        return laid_out(part.mean, mine).view_as(mine), error

    def folds(self, gradient: torch.Tensor, cf: float) -> bool:
        """Whether kernels can take it, flat."""
        return folds(gradient)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of flat x with the chunks that are best on this rank: optimistic where ranks differ."""
        return [self._error(x, cf, ctx) for cf in cfs]

    def _error(self, x: torch.Tensor, cf: float, ctx: Context) -> torch.Tensor:
        chunk = self.chunk_at(cf)
        k = k_for(x.numel(), cf)
        chosen = choose(chunk_energies(x, chunk).to(NORMS), k, chunk, x.numel())
        mine = gather(x, chosen, chunk, k)
        lost = (energy(x) - energy(mine)).clamp_(min=0)
        if isinstance(self.values, Quantize):
            lost += self.values.errors(mine, [self.values.finest], ctx.part(k))[0]
        return lost

    def chunk_at(self, cf: float) -> int:
        """Number of coordinates per chunk at a CF."""
        if self.chunk is not None:
            return self.chunk
        if isinstance(self.values, Quantize):
            bits = 32 / self.values.finest
        else:
            bits = 8 * dtype_of(self.values, torch.float32).itemsize
        return max(64, 1 << math.ceil(math.log2(8 * NORMS.itemsize * cf / bits)))

    @property
    def rounding(self) -> float:
        """Unit roundoff of the values' number format on the wire, in which they are summed."""
        if isinstance(self.values, Quantize):
            return self.values.rounding
        return unit_roundoff(dtype_of(self.values, torch.float32))


def _averaged(
    mine: torch.Tensor, wire: torch.dtype, world: int
) -> Generator[Collective, Any, tuple[torch.Tensor, torch.Tensor]]:
    """All-reduce values, flat, overwritten, in a number format of the wire: their mean, and what was sent."""
    travels = narrow(mine.div_(world), wire)
    mean = (yield AllReduce(travels)).to(mine.dtype)
    return mean, travels.to(mine.dtype).mul_(world)


def choose(energies: torch.Tensor, k: int, chunk: int, elements: int) -> Chosen:
    """The k coordinates of the chunks with most energy (``energies``, flat); of the weakest chunk, the first ones."""
    rows = largest(energies, -(-k // chunk))
    weakest = energies.index_select(0, rows).argmin(0, keepdim=True) if k else rows
    return whole_but_one(rows, weakest, k, chunk, elements)


topkc = TopKC()
"""Chunked top-k with its default settings; ``topkc(values=quantize(4))`` quantizes what is sent."""
