# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinates chosen by chunks of consecutive ones, the same on all ranks, and their values in a row.

Copying whole chunks costs a fraction of copying as many single coordinates.
"""

from typing import NamedTuple

import torch

from gravac import kernels
from gravac.compressors.base import Fold, Sparse


def chunk_energies(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Sum of squares of each chunk of flat x: x's dtype, ``[ceil(elements / chunk)]``. By a kernel where those run."""
    if x.dtype == torch.float32 and kernels.usable(x.device.type):
        from gravac.kernels import chunks  # needs triton

        return chunks.chunk_energies(x, chunk)
    whole = x.numel() // chunk * chunk
    norms: torch.Tensor = torch.linalg.vector_norm(x[:whole].view(-1, chunk), dim=1)
    if whole < x.numel():
        norms = torch.cat([norms, torch.linalg.vector_norm(x[whole:]).reshape(1)])
    return norms.square_()


def folds(gradient: torch.Tensor) -> bool:
    """Whether ``folded_energies`` can take a gradient, flat."""
    return gradient.dtype != torch.float64 and gradient.is_contiguous() and kernels.usable(gradient.device.type)


def folded_energies(gradient: torch.Tensor, chunk: int, fold: Fold) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum that a fold asks for, which it leaves there, flat, and the sum of squares of each of its chunks."""
    from gravac.kernels import chunks  # needs triton

    if fold.left is None:
        fold.left = torch.empty_like(gradient, dtype=torch.float32)
    energies = chunks.chunk_energies(gradient, chunk, residual=fold.residual, folded=fold.left)
    fold.energy = energies.sum()
    return fold.left, energies


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


def first_coordinates(rows: torch.Tensor, last: torch.Tensor, k: int, chunk: int, per: int) -> torch.Tensor:
    """The k coordinates that ``whole_but_one`` takes of each of several tensors of whole chunks, one after another.

    Args:
        rows: chunk numbers of each tensor, int64, ``[count, m]``, ascending: as many as hold k coordinates.
        last: position among them of the one that is needed in part: int64, ``[count, 1]``.
        k: coordinates wanted of each.
        chunk: coordinates per chunk.
        per: chunks of a tensor.

    Returns:
        Positions in the tensors laid side by side: int64, flat, ``[count * k]``.
    """
    count, m = rows.shape
    if k < m * chunk:  # the one that is needed in part comes last
        others = torch.arange(m - 1, device=rows.device)
        rows = rows.gather(1, torch.cat([others + (others >= last), last], 1))
    rows = rows + torch.arange(0, count * per, per, device=rows.device).unsqueeze(1)
    within = torch.arange(chunk, device=rows.device)
    return (rows.unsqueeze(2) * chunk + within).flatten(1)[:, :k].reshape(-1)


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
