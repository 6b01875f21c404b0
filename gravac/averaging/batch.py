# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tensors that are coded as one, so that one call serves many: small ones on a processor, all off it.

Between two pieces of backward a processor's caches are cold, and a call costs some ten times what it does in a loop: a
transformer's many small tensors, one by one, take longer to call for than to code. On a GPU a launch costs more than
what it computes of one tensor. Which tensors go together depends on what all ranks know, and changes nothing of what is
sent but roundings. Either they are one long tensor (``Profile.pad_multiple`` says whether, and padded how), or, off the
processor, the rows of a matrix, of equal length (``Compressor.batch_key``). Nothing is remembered of a batch: what a
tensor leaves out is kept by the tensor's name. How much goes together is bounded where groups are made
(``gravac.engine.coalescing``).
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from gravac.averaging.plan import Choice, Piece
from gravac.compressors.base import Context, Fold, Rounds
from gravac.compressors.sparse import Addend, overwritten

LARGEST = 1 << 17
"""Elements above which a tensor stays by itself on a processor: laying it out would cost more than the calls do."""


def goes_alone(x: torch.Tensor) -> bool:
    """True if a tensor of any shape lies where each is best averaged by itself: on a processor, while in a cache."""
    return x.is_cpu


@dataclass(slots=True, eq=False)
class Batch:
    """Tensors coded as one, on their way through a compressed step.

    Attributes:
        pieces: the tensors; at least one.
        choice: what the tensors are sent by.
        key: what the tensors of all batches that may be merged have in common.
        multiple: number of elements to a multiple of which each of several tensors is padded with zeros, so that they
            are one long tensor; 0: several are rows of a matrix.
        rows: whether these are several tensors, and rows of a matrix.
        x: what is to be sent: gradients with what is fed back, flat, ``[sum of lengths]``, in the working dtype. Of
            what a compressor folds: bare gradients, or of rows memory for the sums, until ``unfold``.
        energy: ``‖x‖²``, 0-d, if that is known without another look at x.
        fold: what the compressor folds itself; ``None``: x has all that is fed back.
        settles: whether something is kept, or may have been, of what is not sent.
    """

    pieces: list[Piece]
    choice: Choice
    key: Hashable = None
    multiple: int = 0
    rows: bool = field(default=False, init=False)
    x: torch.Tensor = field(init=False)
    energy: torch.Tensor | None = field(default=None, init=False)
    fold: Fold | None = field(default=None, init=False)
    settles: bool = field(default=False, init=False)

    @property
    def names(self) -> list[str]:
        """Names of the tensors."""
        return [piece.name for piece in self.pieces]

    @property
    def flats(self) -> list[torch.Tensor]:
        """Gradients of the tensors, each flat."""
        return [piece.flat for piece in self.pieces]

    @property
    def lengths(self) -> list[int]:
        """Number of elements of each tensor in x, padding included."""
        sizes = [piece.flat.numel() for piece in self.pieces]
        if len(sizes) == 1 or not self.multiple:
            return sizes
        return [-(-size // self.multiple) * self.multiple for size in sizes]

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Lay flat tensors, one for each piece, side by side as x is; a single tensor is returned itself."""
        if len(tensors) == 1:
            return tensors[0]
        gaps = [length - tensor.numel() for length, tensor in zip(self.lengths, tensors, strict=True)]
        zeros = tensors[0].new_zeros(max(gaps)) if any(gaps) else None
        padded: list[torch.Tensor] = []
        for tensor, gap in zip(tensors, gaps, strict=True):
            padded += [tensor] if zeros is None or not gap else [tensor, zeros[:gap]]
        return torch.cat(padded)

    def rounds(self, contexts: Sequence[Context]) -> Rounds:
        """Return the compressor's rounds; contexts are those of the rows, or the single one of all else."""
        compressor, cf = self.choice.compressor, self.choice.cf
        if self.rows:
            return compressor.rounds_together(self.x.view(len(contexts), -1), cf, contexts)
        return compressor.rounds(self.x, cf, contexts[0])

    def unfold(self) -> None:
        """Once a compressor that folds has ended its rounds, take over x and its energy from the fold."""
        if self.fold is not None:
            self.energy = self.fold.energy
            self.x = self.x if self.fold.left is None else self.fold.left

    def write(self, mean: torch.Tensor | Addend, spare: torch.Tensor) -> None:
        """Overwrite the gradients with their mean.

        Args:
            mean: mean of x over the ranks, flat, as long as x.
            spare: a tensor as long, which is overwritten if there are several tensors.
        """
        flats = self.flats
        if len(flats) == 1:
            _overwrite(flats[0], mean)
            return
        if not isinstance(mean, torch.Tensor):
            if self.rows and overwritten(mean, *flats):
                return
            mean = spare if overwritten(mean, spare) else mean.add_to(spare.zero_())
        means = torch.split(mean, self.lengths)
        torch._foreach_copy_(flats, [padded[: flat.numel()] for padded, flat in zip(means, flats, strict=True)])


def merged(batches: Iterable[Batch]) -> list[Batch]:
    """Merge batches of one key, in order: the same on all ranks if the batches are.

    Args:
        batches: batches of one tensor each; the first of each key is given the tensors of the others.
    """
    by_key: dict[Hashable, Batch] = {}
    for batch in batches:
        first = by_key.setdefault(batch.key, batch)
        if first is not batch:
            first.pieces += batch.pieces
            first.rows = not first.multiple
    return list(by_key.values())


def _overwrite(flat: torch.Tensor, mean: torch.Tensor | Addend) -> None:
    if isinstance(mean, torch.Tensor):
        flat.copy_(mean)
    elif overwritten(mean, flat):
        return
    elif flat.element_size() >= 4:
        mean.add_to(flat.zero_())
    else:
        flat.copy_(mean.add_to(torch.zeros_like(flat, dtype=torch.float32)))
