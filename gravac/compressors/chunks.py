# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinates chosen by chunks of consecutive ones, the same on all ranks, and their values in a row.

Copying whole chunks costs a fraction of copying as many single coordinates.
"""

from typing import NamedTuple

import torch

from gravac.compressors.base import Sparse


def chunk_energies(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Sum of squares of each chunk of flat x: x's dtype, ``[ceil(elements / chunk)]``."""
    whole = x.numel() // chunk * chunk
    norms: torch.Tensor = torch.linalg.vector_norm(x[:whole].view(-1, chunk), dim=1)
    if whole < x.numel():
        norms = torch.cat([norms, torch.linalg.vector_norm(x[whole:]).reshape(1)])
    return norms.square_()


class Chosen(NamedTuple):
    """Coordinates that travel, the same on all ranks.

    Attributes:
        rows: numbers of the whole chunks: int64, flat, ascending.
        elements: single coordinates, from the chunk that is sent in part and from one at the end that is not whole:
            int64, flat.
    """

    rows: torch.Tensor
    elements: torch.Tensor


def whole_but_one(rows: torch.Tensor, last: int, k: int, chunk: int, elements: int, start: int = 0) -> Chosen:
    """K coordinates, or fewer where the tensor's end is among them: every chunk whole, but for one.

    Args:
        rows: chunk numbers, int64, ascending: as many as hold k coordinates.
        last: position in ``rows`` of the one that is needed in part.
        k: coordinates wanted.
        chunk: coordinates per chunk.
        elements: number of coordinates of the tensor.
        start: first coordinate taken of the chunk that is needed in part; its end is followed by its beginning.
    """
    part = k - (len(rows) - 1) * chunk
    singles = []
    if 0 < part < chunk:
        some = torch.arange(start, start + part, device=rows.device).remainder_(chunk) + rows[last] * chunk
        singles.append(some[some < elements])
        rows = torch.cat([rows[:last], rows[last + 1 :]])
    if len(rows) and (int(rows[-1]) + 1) * chunk > elements:
        singles.append(torch.arange(int(rows[-1]) * chunk, elements, device=rows.device))
        rows = rows[:-1]
    return Chosen(rows, torch.cat(singles) if singles else rows[:0])


def gather(x: torch.Tensor, chosen: Chosen, chunk: int, k: int) -> torch.Tensor:
    """The values of flat x at the chosen coordinates, chunks first, filled up with zeros: flat, ``[k]``, dtype of x."""
    whole = x[: x.numel() // chunk * chunk].view(-1, chunk)
    values, rows = x.new_zeros(k), len(chosen.rows) * chunk
    torch.index_select(whole, 0, chosen.rows, out=values[:rows].view(-1, chunk))
    values[rows : rows + len(chosen.elements)] = x[chosen.elements]
    return values


def scatter(values: torch.Tensor, chosen: Chosen, chunk: int) -> Sparse:
    """The inverse of ``gather``: a flat tensor that has ``values``, ``[k]``, where chosen, and zeros elsewhere."""
    whole = len(chosen.rows) * chunk
    singles = values[whole : whole + len(chosen.elements)]
    parts = [(chosen.rows, values[:whole].view(-1, chunk)), (chosen.elements, singles)]
    return Sparse(tuple(part for part in parts if len(part[0])))
