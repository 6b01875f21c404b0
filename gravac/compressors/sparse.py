# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Flat tensors that are not laid out in memory: selected coordinates, and what can be added to one that is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Selection:
    """Some coordinates of a flat tensor: ``indices`` (int64, ascending) and the ``values`` there."""

    indices: torch.Tensor
    values: torch.Tensor


class Addend(Protocol):
    """A flat tensor that is not laid out in memory, but can be added to one that is."""

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat), in place; returns it."""


def overwritten(numbers: Addend, *denses: torch.Tensor) -> bool:
    """Put numbers into flat tensors, one after another, where they can be at once (``overwrite``); tell whether."""
    overwrite: Callable[..., bool] | None = getattr(numbers, "overwrite", None)
    return overwrite is not None and overwrite(*denses)


def laid_out(numbers: "torch.Tensor | Addend", like: torch.Tensor) -> torch.Tensor:
    """A flat tensor in memory, of the size and dtype of ``like``; itself, if it is one."""
    if isinstance(numbers, torch.Tensor):
        return numbers.reshape(-1)
    dense = torch.empty_like(like).reshape(-1)
    return dense if overwritten(numbers, dense) else numbers.add_to(dense.zero_())


@dataclass(frozen=True, slots=True)
class Sparse:
    """A flat tensor that is zero but for some coordinates: the sum of ``parts``, added in order.

    Each part is ``(indices, values)``, without a repeated index inside a part, so that adding part after part gives
    the same bits everywhere. Where ``values`` is ``[m, block]``, an index counts blocks of that many coordinates.
    """

    parts: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat), in place; returns it."""
        for indices, values in self.parts:
            added = values.to(dense.dtype)
            # index_add_'s own alpha would make it add row by row, eight times slower
            blocks(dense, values).index_add_(0, indices, added if alpha == 1 else added * alpha)
        return dense


def blocks(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A flat tensor as rows as long as those of ``like``, less what is left over at its end; itself, if 1-D."""
    if like.dim() == 1:
        return flat
    size = like.shape[1]
    return flat[: flat.numel() // size * size].view(-1, size)
