# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Batches of tensors that one call of a compressor encodes together: small tensors on a CPU, any tensors on a GPU.

While backward runs, a CPU's caches hold other data, so a call takes about ten times as long as in a loop of its own.
For the many small tensors of a transformer, the calls take longer than the encoding itself. On a GPU a kernel launch
costs more than the computation for one tensor.

Which tensors form a batch depends on numbers that all ranks know, and changes only the rounding of the result. A batch
is one long tensor (``Profile.pad_multiple`` says whether this is allowed, and how tensors are padded). A batch has no
state: residuals are kept by the tensors' names. ``gravac.engine.coalescing`` limits the size of batches when it forms
groups.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from gravac.averaging.plan import Choice, Piece
from gravac.compressors.base import Context, Rounds
from gravac.compressors.sparse import Addend

MAX_JOINED_ELEMENTS = 1 << 17
"""Largest number of elements of a tensor that is joined with other tensors on a CPU.

A larger tensor gets a call of its own, since copying the tensor would take longer than the call.
"""


@dataclass(slots=True, eq=False)
class Batch:
    """Tensors that a compressor encodes and decodes together, in a compressed step.

    Attributes:
        pieces: the tensors; at least one.
        choice: compressor of the tensors, and its settings.
        merge_key: batches whose keys are equal may be merged; a tensor has the same key on all ranks.
        pad_multiple: if several tensors are joined to one long tensor, each is padded with zeros to a multiple of this
            number of elements; 0: the batch has a single tensor.
        x: numbers to be sent: gradients plus residuals, flat, ``[sum of lengths]``, float32 (float64 for float64
            gradients); set by ``folding.fold_in``.
        energy: ``‖x‖²``, 0-d; ``None`` if not computed yet.
        changes_residuals: whether the tensors' residuals may change in this step.
    """

    pieces: list[Piece]
    choice: Choice
    merge_key: Hashable = None
    pad_multiple: int = 0
    x: torch.Tensor = field(init=False)
    energy: torch.Tensor | None = field(default=None, init=False)
    changes_residuals: bool = field(default=False, init=False)

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
        unpadded_lengths = [piece.flat.numel() for piece in self.pieces]
        if len(unpadded_lengths) == 1:
            return unpadded_lengths
        return [-(-unpadded_length // self.pad_multiple) * self.pad_multiple for unpadded_length in unpadded_lengths]

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Concatenate flat tensors, one for each of ``pieces``, padded as in x; return a single tensor unchanged."""
        if len(tensors) == 1:
            return tensors[0]
        padding_lengths = [length - tensor.numel() for length, tensor in zip(self.lengths, tensors, strict=True)]
        zeros = tensors[0].new_zeros(max(padding_lengths)) if any(padding_lengths) else None
        padded_parts: list[torch.Tensor] = []
        for tensor, padding_length in zip(tensors, padding_lengths, strict=True):
            padded_parts += [tensor] if zeros is None or not padding_length else [tensor, zeros[:padding_length]]
        return torch.cat(padded_parts)

    def rounds(self, context: Context) -> Rounds:
        """Return the compressor's generator, which yields the collectives that average x over the ranks.

        Args:
            context: facts about the tensor, for the compressor.
        """
        return self.choice.compressor.rounds(self.x, self.choice.cf, context)

    def write(self, mean: torch.Tensor | Addend, scratch: torch.Tensor) -> None:
        """Overwrite the batch's gradients with their means over the ranks.

        Args:
            mean: mean of x over the ranks, flat, of x's length: a tensor, or an ``Addend``. An ``Addend`` adds the mean
                to a tensor without storing all elements of the mean.
            scratch: memory for intermediate results, of x's length; overwritten if the batch has several tensors.
        """
        flats = self.flats
        if len(flats) == 1:
            _overwrite(flats[0], mean)
            return
        if not isinstance(mean, torch.Tensor):
            mean = mean.write_to(scratch)
        means = torch.split(mean, self.lengths)
        torch._foreach_copy_(
            flats, [padded_mean[: flat.numel()] for padded_mean, flat in zip(means, flats, strict=True)]
        )


def merge_batches(batches: Iterable[Batch]) -> list[Batch]:
    """Merge the batches that have equal keys; return the merged batches, in the order in which their keys first occur.

    Args:
        batches: batches of one tensor each, in the same order on all ranks. The first batch of each key is changed: it
            gets the tensors of the other batches of that key.
    """
    batch_by_key: dict[Hashable, Batch] = {}
    for batch in batches:
        first_batch = batch_by_key.setdefault(batch.merge_key, batch)
        if first_batch is not batch:
            first_batch.pieces += batch.pieces
    return list(batch_by_key.values())


def _overwrite(flat: torch.Tensor, mean: torch.Tensor | Addend) -> None:
    """Overwrite a flat gradient, of any dtype, with its mean."""
    if isinstance(mean, torch.Tensor):
        flat.copy_(mean)
    elif flat.element_size() >= 4:
        mean.write_to(flat)
    else:
        flat.copy_(mean.write_to(torch.empty_like(flat, dtype=torch.float32)))
