# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Selects chunks of consecutive coordinates, the same on all ranks; gathers and scatters the values of these chunks.

Copying whole chunks takes a fraction of the time that copying as many single coordinates takes.
"""

from typing import NamedTuple

import torch

from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import MAX_SENT_ENERGY


def chunk_energies(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return the sum of squares of each chunk of ``chunk`` elements of flat x: x's dtype, ``[number of chunks]``.

    Energies above ``MAX_SENT_ENERGY`` (of norms above 9e18) become that limit, and energies of float32 norms below
    1e-22 may become 0.
    """
    full_length = x.numel() // chunk * chunk
    norms: torch.Tensor = torch.linalg.vector_norm(x[:full_length].view(-1, chunk), dim=1)
    if full_length < x.numel():
        norms = torch.cat([norms, torch.linalg.vector_norm(x[full_length:]).reshape(1)])
    return norms.square_().clamp_(max=MAX_SENT_ENERGY)


class ChunkSelection(NamedTuple):
    """Coordinates of a tensor that are sent, the same on all ranks: whole chunks, and single coordinates.

    The number of whole chunks and the number of single coordinates do not depend on the gradients.

    Attributes:
        whole_chunks: indices of the whole chunks: int64, flat, ascending.
        single_coordinates: single coordinates: int64, flat. These are the coordinates of the chunk that is sent in
            part. If the tensor's length is no multiple of the chunk length, all coordinates of the last selected chunk
            are single too. Coordinates beyond the tensor's end stand for zeros.
    """

    whole_chunks: torch.Tensor
    single_coordinates: torch.Tensor


def select_k(
    chunk_indices: torch.Tensor,
    partial_position: torch.Tensor,
    k: int,
    chunk: int,
    elements: int,
    partial_start: int = 0,
) -> ChunkSelection:
    """Select k coordinates from given chunks: all coordinates of each chunk except one, and a part of that chunk.

    If the tensor's end cuts off one of these chunks, fewer than k of the selected coordinates are inside the tensor.

    Args:
        chunk_indices: indices of ``ceil(k / chunk)`` chunks: int64, flat, ascending.
        partial_position: position in ``chunk_indices`` of the chunk of which only a part is selected: int64, ``[1]``.
        k: number of coordinates.
        chunk: coordinates per chunk.
        elements: number of coordinates of the tensor.
        partial_start: position in the partial chunk of the first coordinate that is selected there. If the selection
            reaches the chunk's end, it continues at the chunk's beginning.
    """
    partial_length = k - (len(chunk_indices) - 1) * chunk
    if partial_length == chunk and elements % chunk == 0:
        return ChunkSelection(chunk_indices, chunk_indices[:0])
    chunk_offsets = torch.arange(chunk, dtype=torch.int64, device=chunk_indices.device)
    single_coordinates = chunk_indices[:0]
    if 0 < partial_length < chunk:
        single_coordinates = chunk_indices.index_select(0, partial_position) * chunk + (
            chunk_offsets[:partial_length] + partial_start
        ).remainder_(chunk)
        other_positions = torch.arange(len(chunk_indices) - 1, dtype=torch.int64, device=chunk_indices.device)
        chunk_indices = chunk_indices.index_select(
            0, other_positions.add_((other_positions >= partial_position).long())
        )
    if elements % chunk and len(chunk_indices):
        single_coordinates = torch.cat([chunk_indices[-1:] * chunk + chunk_offsets, single_coordinates])
        chunk_indices = chunk_indices[:-1]
    return ChunkSelection(chunk_indices, single_coordinates)


def gather(x: torch.Tensor, selection: ChunkSelection, chunk: int, k: int) -> torch.Tensor:
    """Return the k values of flat x at the selected coordinates, whole chunks first: flat, ``[k]``, dtype of x."""
    full_chunks = x[: x.numel() // chunk * chunk].view(-1, chunk)
    values, elements_in_chunks = x.new_empty(k), len(selection.whole_chunks) * chunk
    torch.index_select(full_chunks, 0, selection.whole_chunks, out=values[:elements_in_chunks].view(-1, chunk))
    if elements_in_chunks < k:
        is_inside, positions = _mask_inside(selection.single_coordinates, x.numel())
        torch.mul(x.index_select(0, positions), is_inside, out=values[elements_in_chunks:])
    return values


def scatter(values: torch.Tensor, selection: ChunkSelection, chunk: int, elements: int) -> Sparse:
    """Return a sparse tensor, ``[elements]``, with flat ``values`` at selected coordinates, and zeros elsewhere."""
    elements_in_chunks = len(selection.whole_chunks) * chunk
    summands = [(selection.whole_chunks, values[:elements_in_chunks].view(-1, chunk))] if elements_in_chunks else []
    if elements_in_chunks < values.numel():
        is_inside, positions = _mask_inside(selection.single_coordinates, elements)
        summands.append((positions, torch.where(is_inside, values[elements_in_chunks:], 0)))
    return Sparse(tuple(summands))


def _mask_inside(positions: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a mask that is True at positions below ``elements``, and the positions clamped to ``elements - 1``."""
    return positions < elements, positions.clamp(max=elements - 1)
