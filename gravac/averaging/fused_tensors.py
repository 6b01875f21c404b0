# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Small tensors side by side, so that one call serves many.

Between two pieces of backward a processor's caches are cold, and a call costs some ten times what it does in a loop: a
transformer's many small tensors, one by one, take longer to call for than to code. Which tensors go together depends on
what all ranks know, and changes nothing of what is sent: a compressor says by ``pad_multiple`` whether, and padded how.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.plan import Choice, Piece
from gravac.compressors.base import Addend

LARGEST = 1 << 17
"""Elements above which a tensor stays by itself: laying it out would cost more than the calls do."""


@dataclass(frozen=True, slots=True)
class FusedTensors:
    """Tensors that a compressor takes as one.

    Attributes:
        pieces: the tensors; at least one.
        choice: what they are sent by.
        multiple: number of elements of which each is padded to a multiple, where there are several.
    """

    pieces: tuple[Piece, ...]
    choice: Choice
    multiple: int = 1

    @property
    def elements(self) -> int:
        """Number of elements of all its tensors, without padding."""
        return sum(piece.flat.numel() for piece in self.pieces)

    @property
    def length(self) -> int:
        """Number of elements of what ``join`` gives, padding included."""
        return self.elements if len(self.pieces) == 1 else sum(self._padded(piece) for piece in self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that a compressor is told: the tensor's, or ``(length,)`` of several."""
        return self.pieces[0].shape if len(self.pieces) == 1 else (self.length,)

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Flat tensors, one for each piece, as one; a single one is returned itself."""
        if len(tensors) == 1:
            return tensors[0]
        parts = []
        for tensor, piece in zip(tensors, self.pieces, strict=True):
            missing = self._padded(piece) - tensor.numel()
            parts += [tensor, tensor.new_zeros(missing)] if missing else [tensor]
        return torch.cat(parts)

    def write(self, mean: torch.Tensor | Addend, spare: torch.Tensor) -> None:
        """Put a mean, as long as what ``join`` gave, into the pieces.

        Args:
            mean: the joined tensors' mean, flat, ``[length]``.
            spare: a tensor as long, which is overwritten where there are several pieces.
        """
        if len(self.pieces) == 1:
            _write(self.pieces[0].flat, mean)
            return
        if not isinstance(mean, torch.Tensor):
            mean = mean.add_to(spare.zero_())
        parts = torch.split(mean, [self._padded(piece) for piece in self.pieces])
        flats = [piece.flat for piece in self.pieces]
        torch._foreach_copy_(flats, [part[: flat.numel()] for part, flat in zip(parts, flats, strict=True)])

    def _padded(self, piece: Piece) -> int:
        return -(-piece.flat.numel() // self.multiple) * self.multiple


@dataclass(slots=True)
class Part:
    """Tensors coded as one, on their way through a compressed step.

    Attributes:
        tensors: the tensors.
        x: what is to be sent of them: gradients with what is fed back, flat, ``[length]``, in the working dtype.
        energy: ``‖x‖²``, where it is known without another look at x.
        folded: each tensor's own part of x, where something is or may be kept of it; as many as tensors, or none.
    """

    tensors: FusedTensors
    x: torch.Tensor
    energy: torch.Tensor | None = None
    folded: Sequence[torch.Tensor] = ()


def fuse_small(
    pieces: Sequence[Piece], choice_of: Callable[[Piece], Choice], multiple_of: Callable[[Piece], int]
) -> list[FusedTensors]:
    """Group pieces by what may go together: the same on all ranks if the arguments are.

    Args:
        pieces: the tensors, in the order that all ranks have them in.
        choice_of: tells what a piece is sent by.
        multiple_of: tells what a piece must be padded to beside others of its CF, for which it is the same; 0 where it
            must be by itself.
    """
    found: dict[object, FusedTensors] = {}
    for piece in pieces:
        choice = choice_of(piece)
        multiple = multiple_of(piece) if piece.flat.numel() <= LARGEST else 0
        key = (choice.compresses, choice.cf, piece.flat.dtype) if multiple else piece.name
        already = found[key].pieces if key in found else ()
        found[key] = FusedTensors((*already, piece), choice, max(multiple, 1))
    return list(found.values())


def _write(flat: torch.Tensor, mean: torch.Tensor | Addend) -> None:
    if isinstance(mean, torch.Tensor):
        flat.copy_(mean)
    elif flat.element_size() >= 4:
        mean.add_to(flat.zero_())
    else:
        flat.copy_(mean.add_to(torch.zeros_like(flat, dtype=torch.float32)))
