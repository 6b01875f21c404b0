# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Flat tensors that are not stored element by element, such as selected coordinates with their values."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected coordinates of a flat tensor: ``indices`` (int64, ascending) and their ``values``."""

    indices: torch.Tensor
    values: torch.Tensor


class Addend:
    """Base class of flat tensors that are not stored element by element, but can be added to a stored tensor."""

    __slots__ = ()

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``."""
        raise NotImplementedError

    def write_to(self, dense: torch.Tensor) -> torch.Tensor:
        """Overwrite ``dense`` (flat) with this tensor; return ``dense``.

        Override this if overwriting is faster than adding to zeros.
        """
        return self.add_to(dense.zero_())


def as_dense(numbers: "torch.Tensor | Addend", like: torch.Tensor) -> torch.Tensor:
    """Return all elements as a flat tensor: a tensor is only flattened, an ``Addend`` gets the dtype of ``like``.

    Args:
        numbers: tensor or ``Addend``.
        like: tensor with as many elements, of the dtype and on the device that the elements of an ``Addend`` get.
    """
    if isinstance(numbers, torch.Tensor):
        return numbers.reshape(-1)
    return numbers.write_to(torch.empty_like(like).reshape(-1))


@dataclass(frozen=True, slots=True)
class Sparse(Addend):
    """A flat tensor that is zero except at some coordinates: the sum of ``parts``.

    Each part is ``(indices, values)``. If ``values`` is 1-D, an index is a coordinate, and has one value. If ``values``
    is a matrix ``[indices, block]``, an index is the number of a block of ``block`` consecutive coordinates, and has a
    row of values. Parts are added in order. In a part, an index may occur twice only with values of 0. The sum
    therefore has the same bits on every rank.
    """

    parts: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``."""
        for indices, values in self.parts:
            converted_values = values.to(dense.dtype)
            # with its argument alpha, ``index_add_`` adds row by row, which is eight times slower
            blocks(dense, values).index_add_(0, indices, converted_values if alpha == 1 else converted_values * alpha)
        return dense


def blocks(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a view of a flat tensor as a matrix whose rows are as long as the rows of the matrix ``like``.

    Elements that do not fill a last row are left out. If ``like`` is 1-D, the flat tensor is returned unchanged.
    """
    if like.dim() == 1:
        return flat
    row_length = like.shape[1]
    return flat[: flat.numel() // row_length * row_length].view(-1, row_length)
