# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Flat tensors that are not stored element by element, such as selected coordinates with their values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected coordinates of a flat tensor: ``indices`` (int64, ascending) and their ``values``."""

    indices: torch.Tensor
    values: torch.Tensor


class Addend(Protocol):
    """A flat tensor that is not stored element by element, but can be added to a stored tensor."""

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``."""


def try_overwrite(numbers: Addend, *denses: torch.Tensor) -> bool:
    """Overwrite flat tensors with consecutive sections of ``numbers``; return False, without a change, if impossible.

    An ``Addend`` may have a method ``overwrite``, which writes the numbers without adding them to zeros, and returns
    True if it could write them.
    """
    overwrite: Callable[..., bool] | None = getattr(numbers, "overwrite", None)
    return overwrite is not None and overwrite(*denses)


def as_dense(numbers: "torch.Tensor | Addend", like: torch.Tensor) -> torch.Tensor:
    """Return a tensor or an ``Addend`` as a flat tensor with all elements stored, of the size and dtype of ``like``."""
    if isinstance(numbers, torch.Tensor):
        return numbers.reshape(-1)
    dense = torch.empty_like(like).reshape(-1)
    return dense if try_overwrite(numbers, dense) else numbers.add_to(dense.zero_())


@dataclass(frozen=True, slots=True)
class Sparse:
    """A flat tensor that is zero except at some coordinates: the sum of ``parts``, added in order.

    Each part is ``(indices, values)``, without a repeated index inside a part, so that adding the parts one after
    another gives the same bits everywhere. If ``values`` is ``[m]``, an index is a coordinate. If ``values`` is
    ``[m, block]``, an index is the number of a block of ``block`` consecutive coordinates.
    """

    parts: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``."""
        for indices, values in self.parts:
            converted_values = values.to(dense.dtype)
            # with an alpha, ``index_add_`` adds row by row, eight times slower
            blocks(dense, values).index_add_(0, indices, converted_values if alpha == 1 else converted_values * alpha)
        return dense


def blocks(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View a flat tensor as a matrix with rows as long as those of the matrix ``like``; leave out a last partial row.

    If ``like`` is 1-D, the flat tensor is returned unchanged.
    """
    if like.dim() == 1:
        return flat
    size = like.shape[1]
    return flat[: flat.numel() // size * size].view(-1, size)
