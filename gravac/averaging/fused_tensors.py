# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tensors side by side, so that one call serves many: small ones on a processor, all off it.

Between two pieces of backward a processor's caches are cold, and a call costs some ten times what it does in a loop: a
transformer's many small tensors, one by one, take longer to call for than to code. On a GPU a launch costs more than
what it computes of one tensor. Which go together depends on what all ranks know, and changes nothing of what is sent
but roundings. Either they are one long tensor (``Profile.pad_multiple`` says whether, and padded how), or, off the
processor, the rows of a matrix, one each, of equal length (``Compressor.batch_key``). Nothing is remembered of either:
what a tensor leaves lies under its name. How much goes together is bounded where groups are made
(``gravac.engine.coalescing``).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.plan import Choice, Piece
from gravac.compressors.base import Context, Fold, Rounds
from gravac.compressors.sparse import Addend, overwritten

LARGEST = 1 << 17
"""Elements above which a tensor stays by itself on a processor: laying it out would cost more than the calls do."""


def goes_alone(x: torch.Tensor) -> bool:
    """Tell whether a tensor lies where each is best averaged by itself: on a processor, while it is in a cache."""
    return x.is_cpu


@dataclass(frozen=True, slots=True)
class FusedTensors:
    """Tensors that a compressor takes as one.

    Attributes:
        pieces: the tensors; at least one.
        choice: what they are sent by.
        multiple: number of elements of which each is padded to a multiple, where there are several.
        rows: whether several are rows of a matrix, rather than one long tensor.
    """

    pieces: tuple[Piece, ...]
    choice: Choice
    multiple: int = 1
    rows: bool = False

    @property
    def names(self) -> list[str]:
        """Names of its tensors."""
        return [piece.name for piece in self.pieces]

    @property
    def flats(self) -> list[torch.Tensor]:
        """Gradients of its tensors, each flat."""
        return [piece.flat for piece in self.pieces]

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
        gaps = [self._padded(piece) - tensor.numel() for tensor, piece in zip(tensors, self.pieces, strict=True)]
        zeros = tensors[0].new_zeros(max(gaps)) if any(gaps) else None
        parts = []
        for tensor, gap in zip(tensors, gaps, strict=True):
            parts += [tensor] if zeros is None or not gap else [tensor, zeros[:gap]]
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
            if self.rows and overwritten(mean, *self.flats):
                return
            mean = spare if overwritten(mean, spare) else mean.add_to(spare.zero_())
        parts, flats = torch.split(mean, [self._padded(piece) for piece in self.pieces]), self.flats
        torch._foreach_copy_(flats, [part[: flat.numel()] for part, flat in zip(parts, flats, strict=True)])

    def _padded(self, piece: Piece) -> int:
        return _padded(piece.flat.numel(), self.multiple)


@dataclass(slots=True)
class Part:
    """Tensors coded as one, on their way through a compressed step.

    Attributes:
        tensors: the tensors.
        x: what is to be sent of them: gradients with what is fed back, flat, ``[length]``, in the working dtype.
        energy: ``‖x‖²``, where it is known without another look at x.
        folded: each tensor's own part of x, where something is or may be kept of it; as many as tensors, or none.
        fold: what the compressor folds itself: x is then bare, in the gradients' own dtype, until ``unfold``; of rows,
            memory for what is folded.
    """

    tensors: FusedTensors
    x: torch.Tensor
    energy: torch.Tensor | None = None
    folded: Sequence[torch.Tensor] = ()
    fold: Fold | None = None

    def rounds(self, contexts: Sequence[Context]) -> Rounds:
        """Return its compressor's rounds; contexts are those of the rows, or the one of all else."""
        choice = self.tensors.choice
        if self.tensors.rows:
            return choice.compressor.rounds_together(self.x.view(len(contexts), -1), choice.cf, contexts)
        return choice.compressor.rounds(self.x, choice.cf, contexts[0])

    def unfold(self) -> None:
        """Take over what the compressor has made of what it folded, once its rounds are over."""
        if self.fold is None:
            return
        self.energy = self.fold.energy
        if self.fold.left is not None:
            self.x = self.fold.left
        if self.folded and not self.tensors.rows:
            self.folded = [self.x]


def grouped(
    pieces: Sequence[Piece],
    choice_of: Callable[[Piece], Choice],
    multiple_of: Callable[[Piece], int],
    key_of: Callable[[Piece], Hashable | None],
    of_any_size: bool = False,
) -> list[FusedTensors]:
    """Group pieces by what may go together: the same on all ranks if the arguments are.

    Args:
        pieces: the tensors, in the order that all ranks have them in.
        choice_of: tells what a piece is sent by.
        multiple_of: tells what a piece must be padded to beside others of its CF, for which it is the same; 0 where
            they cannot be one long tensor.
        key_of: tells what pieces must have in common to be rows of a matrix, beside CF, size and dtype; ``None``: they
            cannot. Asked off the processor only.
        of_any_size: whether not only small ones are made one long tensor.
    """
    found: dict[Hashable, FusedTensors] = {}
    for piece in pieces:
        choice, size = choice_of(piece), piece.flat.numel()
        multiple = multiple_of(piece) if of_any_size or size <= LARGEST else 0
        key: Hashable | None = None
        if not multiple and not goes_alone(piece.flat) and (own := key_of(piece)) is not None:
            key = (size, own)
        together: Hashable = (choice.compresses, choice.cf, piece.flat.dtype, key) if multiple or key else piece.name
        before = found[together].pieces if together in found else ()
        found[together] = FusedTensors((*before, piece), choice, max(multiple, 1), bool(key and before))
    return list(found.values())


def _padded(elements: int, multiple: int) -> int:
    return -(-elements // multiple) * multiple


def _write(flat: torch.Tensor, mean: torch.Tensor | Addend) -> None:
    if isinstance(mean, torch.Tensor):
        flat.copy_(mean)
    elif overwritten(mean, flat):
        return
    elif flat.element_size() >= 4:
        mean.add_to(flat.zero_())
    else:
        flat.copy_(mean.add_to(torch.zeros_like(flat, dtype=torch.float32)))
