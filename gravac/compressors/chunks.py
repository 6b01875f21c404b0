# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinates chosen by chunks of consecutive ones, the same on all ranks, and their values in a row.

Copying whole chunks costs a fraction of copying as many single coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch

from gravac.compressors import kernels
from gravac.compressors.base import Fold
from gravac.compressors.selection import largest
from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import MOST


def chunk_energies(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Sum of squares of each chunk of flat x: x's dtype, ``[ceil(elements / chunk)]``. By a kernel where those run.

    Energies above ``MOST`` (of norms above 9e18) become that, and those of float32 norms below 1e-22 may become 0.
    """
    if x.dtype == torch.float32 and kernels.usable(x.device.type):
        energies: torch.Tensor = _the_kernels().energies([x], chunk)[0]
        return energies.clamp_(max=MOST).float()
    whole = x.numel() // chunk * chunk
    norms: torch.Tensor = torch.linalg.vector_norm(x[:whole].view(-1, chunk), dim=1)
    if whole < x.numel():
        norms = torch.cat([norms, torch.linalg.vector_norm(x[whole:]).reshape(1)])
    return norms.square_().clamp_(max=MOST)


def folds(gradient: torch.Tensor) -> bool:
    """Whether ``fold_chunks`` can take a gradient, flat."""
    usable = gradient.dtype != torch.float64 and kernels.usable(gradient.device.type)
    return usable and gradient.is_contiguous() and gradient.numel() > 0


@dataclass(slots=True)
class FoldedChunks:
    """Tensors side by side, folded by a kernel, whose chosen chunks are to be taken out.

    Attributes:
        x: the sums that the fold asked for: float32, ``[count * elements]``; lessened by what is taken.
        energies: sums of squares of their chunks: float64, ``[count * chunks]``, of what is left.
        chunk: numbers per chunk.
        count: number of tensors.
    """

    x: torch.Tensor
    energies: torch.Tensor
    chunk: int
    count: int

    def take(self, order: torch.Tensor, k: int, dtype: torch.dtype, world: int = 1, multiple: int = 1) -> torch.Tensor:
        """Take k values of each, of chunks in an ``order``, as they travel: ``[count, k]``, or some zeros more."""
        by = _the_kernels()
        values: torch.Tensor = by.take(self.x, self.energies, order, k, self.chunk, dtype, world, multiple)
        return values

    @property
    def energy(self) -> torch.Tensor:
        """Sum of squares of all that is left, 0-d."""
        return self.energies.sum()


def fold_chunks(gradient: torch.Tensor, chunk: int, fold: Fold, world: int) -> tuple[FoldedChunks, torch.Tensor]:
    """Fold what a fold asks for, which is left there; of the chunks' energies, what travels: bfloat16, flat."""
    gradients: Sequence[torch.Tensor] = fold.gradients or (gradient,)
    residuals = fold.residuals if fold.residual is None else (fold.residual,)
    if fold.left is None:
        fold.left = torch.empty_like(gradient, dtype=torch.float32)
    energies, wire = _the_kernels().energies(gradients, chunk, residuals=residuals, folded=fold.left, world=world)
    folded = FoldedChunks(fold.left, energies, chunk, len(gradients))
    fold.energy = folded.energy
    return folded, wire


@dataclass(frozen=True, slots=True)
class AtChunks:
    """Tensors side by side, zero but for chunks, put there by a kernel.

    Attributes:
        values: ``[count, width]``, of which each tensor has the first k.
        order: chunk numbers of each, in the order of the values: int64, ``[count, m]``; see ``in_order``.
        k: numbers of each tensor.
        chunk: numbers per chunk.
    """

    values: torch.Tensor
    order: torch.Tensor
    k: int
    chunk: int

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat, side by side), in place; returns it."""
        _decode([*dense.view(len(self.order), -1)], self, alpha)
        return dense

    def overwrite(self, *denses: torch.Tensor) -> bool:
        """Put this into tensors, side by side or each for itself; tell whether they lie so that it could be."""
        if not all(map(folds, denses)):
            return False
        each = [*denses[0].view(len(self.order), -1)] if len(denses) == 1 else denses
        _decode(each, self)
        return True


def in_order(energies: torch.Tensor, k: int, chunk: int) -> torch.Tensor:
    """Chunks of most energy of several tensors, in the order in which they travel: of the last, perhaps a part alone.

    Args:
        energies: sums of squares of each one's chunks, of shape ``[count, chunks]``, finite.
        k: coordinates wanted of each: above 0.
        chunk: coordinates per chunk.

    Returns:
        int64, ``[count, ceil(k / chunk)]``: ascending; where k is no whole number of chunks, the weakest comes last.
    """
    m = -(-k // chunk)
    if k == m * chunk or m == 1:
        return largest(energies, m)
    if not energies.is_cpu and m < energies.shape[1]:
        found = energies.topk(m).indices  # no energy is negative
        return torch.cat([found[:, :-1].sort(1).values, found[:, -1:]], 1)
    rows = largest(energies, m)
    last = energies.gather(1, rows).argmin(1, keepdim=True)
    others = torch.arange(m - 1, device=rows.device)
    return rows.gather(1, torch.cat([others + (others >= last), last], 1))


def positions(order: torch.Tensor, k: int, chunk: int, per: int) -> torch.Tensor:
    """The first k coordinates of chunks of each of several tensors of whole chunks, one after another.

    Args:
        order: chunk numbers of each tensor, int64, ``[count, m]``, in the order in which they travel.
        k: coordinates wanted of each.
        chunk: coordinates per chunk.
        per: chunks of a tensor.

    Returns:
        Positions in the tensors laid side by side: int64, flat, ``[count * k]``.
    """
    order = order + torch.arange(0, len(order) * per, per, device=order.device).unsqueeze(1)
    within = torch.arange(chunk, device=order.device)
    return (order.unsqueeze(2) * chunk + within).flatten(1)[:, :k].reshape(-1)


class Chosen(NamedTuple):
    """Coordinates that travel, the same on all ranks; how many there are of each kind does not depend on data.

    Attributes:
        rows: numbers of the whole chunks: int64, flat, ascending.
        elements: single coordinates, of the chunk that is sent in part, and of the last one where that may be the
            tensor's end: int64, flat. Those beyond the end hold zeros.
    """

    rows: torch.Tensor
    elements: torch.Tensor


def whole_but_one(rows: torch.Tensor, last: torch.Tensor, k: int, chunk: int, elements: int, start: int = 0) -> Chosen:
    """K coordinates, or fewer where the tensor's end is among them: every chunk whole, but for one.

    Args:
        rows: chunk numbers, int64, ascending: as many as hold k coordinates.
        last: position in ``rows`` of the one that is needed in part: int64, ``[1]``.
        k: coordinates wanted.
        chunk: coordinates per chunk.
        elements: number of coordinates of the tensor.
        start: first coordinate taken of the chunk that is needed in part; its end is followed by its beginning.
    """
    part = k - (len(rows) - 1) * chunk
    if part == chunk and elements % chunk == 0:
        return Chosen(rows, rows[:0])
    within = torch.arange(chunk, device=rows.device)
    singles = rows[:0]
    if 0 < part < chunk:
        singles = rows.index_select(0, last) * chunk + (within[:part] + start).remainder_(chunk)
        others = torch.arange(len(rows) - 1, device=rows.device)
        rows = rows.index_select(0, others.add_((others >= last).long()))
    if elements % chunk and len(rows):
        singles = torch.cat([rows[-1:] * chunk + within, singles])
        rows = rows[:-1]
    return Chosen(rows, singles)


def gather(x: torch.Tensor, chosen: Chosen, chunk: int, k: int) -> torch.Tensor:
    """The values of flat x at the chosen coordinates, chunks first: flat, ``[k]``, dtype of x."""
    whole = x[: x.numel() // chunk * chunk].view(-1, chunk)
    values, rows = x.new_empty(k), len(chosen.rows) * chunk
    torch.index_select(whole, 0, chosen.rows, out=values[:rows].view(-1, chunk))
    if rows < k:
        inside, positions = _inside(chosen.elements, x.numel())
        torch.mul(x.index_select(0, positions), inside, out=values[rows:])
    return values


def scatter(values: torch.Tensor, chosen: Chosen, chunk: int, elements: int) -> Sparse:
    """The inverse of ``gather``: a flat tensor, ``[elements]``, of ``values`` where chosen, and zeros elsewhere."""
    whole = len(chosen.rows) * chunk
    parts = [(chosen.rows, values[:whole].view(-1, chunk))] if whole else []
    if whole < values.numel():
        inside, positions = _inside(chosen.elements, elements)
        parts.append((positions, torch.where(inside, values[whole:], 0)))
    return Sparse(tuple(parts))


def _inside(positions: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which positions lie before the tensor's end; and those, with the last coordinate in place of the others."""
    return positions < elements, positions.clamp(max=elements - 1)


def _the_kernels() -> ModuleType:
    from gravac.compressors.kernels import chunks  # needs triton

    return chunks


def _decode(denses: Sequence[torch.Tensor], at: AtChunks, alpha: float | None = None) -> None:
    from gravac.compressors.kernels.chunk_decode import decode  # needs triton

    decode(denses, at.values, at.order, at.k, at.chunk, alpha)
