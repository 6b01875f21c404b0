# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Selects chunks of consecutive coordinates, the same on all ranks; gathers and scatters the values of these chunks.

Copying whole chunks takes a fraction of the time that copying as many single coordinates takes.
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
from gravac.compressors.squares import MAX_SENT_ENERGY


def chunk_energies(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return the sum of squares of each chunk of ``chunk`` elements of flat x: x's dtype, ``[number of chunks]``.

    On a GPU a Triton kernel computes the sums. Energies above ``MAX_SENT_ENERGY`` (of norms above 9e18) become that
    limit, and energies of float32 norms below 1e-22 may become 0.
    """
    if x.dtype == torch.float32 and kernels.usable(x.device.type):
        energies: torch.Tensor = _import_kernels().energies([x], chunk)[0]
        return energies.clamp_(max=MAX_SENT_ENERGY).float()
    full_length = x.numel() // chunk * chunk
    norms: torch.Tensor = torch.linalg.vector_norm(x[:full_length].view(-1, chunk), dim=1)
    if full_length < x.numel():
        norms = torch.cat([norms, torch.linalg.vector_norm(x[full_length:]).reshape(1)])
    return norms.square_().clamp_(max=MAX_SENT_ENERGY)


def folds(gradient: torch.Tensor) -> bool:
    """True if ``fold_chunks``, which needs Triton kernels, accepts this flat gradient."""
    kernels_usable = gradient.dtype != torch.float64 and kernels.usable(gradient.device.type)
    return kernels_usable and gradient.is_contiguous() and gradient.numel() > 0


@dataclass(slots=True)
class FoldedChunks:
    """Gradients plus residuals of several tensors, concatenated; ``take`` returns and removes the values to send.

    Attributes:
        x: gradients plus residuals: float32, flat, one tensor after another. ``take`` subtracts the values that it
            returns.
        energies: sum of squares of each chunk of x: float64, flat, in the order of the chunks. ``take`` updates them.
        chunk: elements per chunk.
        tensor_count: number of tensors, all of the same length.
    """

    x: torch.Tensor
    energies: torch.Tensor
    chunk: int
    tensor_count: int

    def take(
        self, chunk_indices: torch.Tensor, k: int, dtype: torch.dtype, world: int = 1, multiple: int = 1
    ) -> torch.Tensor:
        """Return the first k values of each tensor's selected chunks, to be sent, and subtract these values from x.

        Args:
            chunk_indices: indices of each tensor's selected chunks, in the order in which they are sent: int64, a row
                per tensor; see ``sending_order``.
            k: number of values per tensor.
            dtype: number format of the result.
            world: number of ranks, by which values are divided.
            multiple: each tensor's k values are padded with zeros up to a multiple of this number.

        Returns:
            The values divided by ``world``, in ``dtype``: ``[tensors, k rounded up to the multiple]``.
        """
        values: torch.Tensor = _import_kernels().take(
            self.x, self.energies, chunk_indices, k, self.chunk, dtype, world, multiple
        )
        return values

    @property
    def energy(self) -> torch.Tensor:
        """Sum of squares of x, 0-d."""
        return self.energies.sum()


def fold_chunks(gradient: torch.Tensor, chunk: int, fold: Fold, world: int) -> tuple[FoldedChunks, torch.Tensor]:
    """Write gradient plus residual of each tensor into ``fold.unsent``; compute the energy of each chunk of these sums.

    Args:
        gradient: flat gradient of a single tensor; not read if ``fold.gradients`` has the gradients of a batch.
        chunk: elements per chunk.
        fold: the residuals. This function sets ``fold.energy``, and allocates ``fold.unsent`` if that is ``None``.
        world: number of ranks.

    Returns:
        The sums with the energies of their chunks. And the energies to send, divided by ``world``: bfloat16, flat, one
        per chunk, one tensor after another.
    """
    gradients: Sequence[torch.Tensor] = fold.gradients or (gradient,)
    residuals = fold.residuals if fold.residual is None else (fold.residual,)
    if fold.unsent is None:
        fold.unsent = torch.empty_like(gradient, dtype=torch.float32)
    energies, wire_energies = _import_kernels().energies(
        gradients, chunk, residuals=residuals, sums_out=fold.unsent, world=world
    )
    folded_chunks = FoldedChunks(fold.unsent, energies, chunk, len(gradients))
    fold.energy = folded_chunks.energy
    return folded_chunks, wire_energies


@dataclass(frozen=True, slots=True)
class SparseChunks:
    """Several flat tensors, each zero except in selected chunks; a kernel writes or adds the chunks' values.

    All tensors have the same length, and are treated as one concatenated tensor.

    Attributes:
        values: matrix with a row per tensor: the values of the tensor's selected chunks, one chunk after another. Only
            the first k values of a row are used; the rest is padding.
        chunk_indices: indices of each tensor's selected chunks, in the order of the values: int64, a row per tensor;
            see ``sending_order``.
        k: number of values per tensor.
        chunk: elements per chunk.
    """

    values: torch.Tensor
    chunk_indices: torch.Tensor
    k: int
    chunk: int

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the concatenated tensors to ``dense`` (flat), in place; return ``dense``."""
        _overwrite_or_add([*dense.view(len(self.chunk_indices), -1)], self, alpha)
        return dense

    def overwrite(self, *denses: torch.Tensor) -> bool:
        """Overwrite flat tensors with the concatenated tensors; return False, and change nothing, if no kernel can.

        Args:
            denses: flat tensors to overwrite: as many as are concatenated here, or a single tensor for all of them.
        """
        if not all(map(folds, denses)):
            return False
        tensors = [*denses[0].view(len(self.chunk_indices), -1)] if len(denses) == 1 else denses
        _overwrite_or_add(tensors, self)
        return True


def sending_order(energies: torch.Tensor, k: int, chunk: int) -> torch.Tensor:
    """Return the indices of each tensor's chunks with most energy, in the order in which the chunks are sent.

    Args:
        energies: sums of squares of each tensor's chunks, finite, of shape ``[tensors, chunks per tensor]``.
        k: number of coordinates that are sent per tensor; above 0.
        chunk: coordinates per chunk.

    Returns:
        Indices of ``ceil(k / chunk)`` chunks for each tensor: int64, ``[tensors, ceil(k / chunk)]``, ascending. If k is
        no multiple of ``chunk``, one of these chunks is sent in part: the chunk with least energy, whose index is last.
    """
    selected_count = -(-k // chunk)
    if k == selected_count * chunk or selected_count == 1:
        return largest(energies, selected_count)
    if not energies.is_cpu and selected_count < energies.shape[1]:
        # energies are not negative, so that abs() is not needed
        strongest_chunks = energies.topk(selected_count).indices
        return torch.cat([strongest_chunks[:, :-1].sort(1).values, strongest_chunks[:, -1:]], 1)
    chunk_indices = largest(energies, selected_count)
    weakest_position = energies.gather(1, chunk_indices).argmin(1, keepdim=True)
    other_positions = torch.arange(selected_count - 1, device=chunk_indices.device)
    return chunk_indices.gather(
        1, torch.cat([other_positions + (other_positions >= weakest_position), weakest_position], 1)
    )


def positions_in_chunks(chunk_indices: torch.Tensor, k: int, chunk: int, chunk_count: int) -> torch.Tensor:
    """Return the positions of the first k coordinates in the selected chunks of several concatenated tensors.

    All tensors have the same length, a multiple of ``chunk``.

    Args:
        chunk_indices: indices of each tensor's selected chunks, in the order in which they are sent: int64, a row per
            tensor.
        k: number of coordinates per tensor.
        chunk: coordinates per chunk.
        chunk_count: chunks per tensor.

    Returns:
        Positions in the concatenated tensors, k for each tensor: int64, flat.
    """
    chunk_indices = chunk_indices + torch.arange(
        0, len(chunk_indices) * chunk_count, chunk_count, device=chunk_indices.device
    ).unsqueeze(1)
    chunk_offsets = torch.arange(chunk, device=chunk_indices.device)
    return (chunk_indices.unsqueeze(2) * chunk + chunk_offsets).flatten(1)[:, :k].reshape(-1)


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
    chunk_offsets = torch.arange(chunk, device=chunk_indices.device)
    single_coordinates = chunk_indices[:0]
    if 0 < partial_length < chunk:
        single_coordinates = chunk_indices.index_select(0, partial_position) * chunk + (
            chunk_offsets[:partial_length] + partial_start
        ).remainder_(chunk)
        other_positions = torch.arange(len(chunk_indices) - 1, device=chunk_indices.device)
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


def _import_kernels() -> ModuleType:
    from gravac.compressors.kernels import chunks  # needs triton

    return chunks


def _overwrite_or_add(denses: Sequence[torch.Tensor], sparse: SparseChunks, alpha: float | None = None) -> None:
    """Overwrite flat tensors with ``sparse``, or add ``alpha`` times ``sparse``, by a kernel."""
    from gravac.compressors.kernels.chunk_decode import decode  # needs triton

    decode(denses, sparse.values, sparse.chunk_indices, sparse.k, sparse.chunk, alpha)
