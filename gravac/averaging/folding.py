# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a group hands to its compressors: gradients with what is fed back to them, and whether they are finite.

Where the host must not look, a compressor that can (``Compressor.folds``) takes bare gradients, and folds and judges
them in the pass in which it codes them. Of the rest zeros are coded where some gradient is not finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.feedback import Feedback
from gravac.averaging.fused_tensors import FusedTensors, Part
from gravac.averaging.norms import all_finite, energies_of
from gravac.averaging.plan import Choice
from gravac.compressors.base import Fold, energy
from gravac.compressors.dtypes import working
from gravac.exchange.executor import Verdict, both


@dataclass(frozen=True, slots=True)
class Folding:
    """How tensors become parts.

    Attributes:
        feedback: what is fed back.
        judge: looks at a 0-d bool tensor where the host may; see ``Executor``.
        strength_at: share of what is not sent that is kept, of a choice.
        evaluates: whether something is found out about gradients before they are coded, which takes them folded.
    """

    feedback: Feedback
    judge: Callable[[torch.Tensor], Verdict]
    strength_at: Callable[[Choice], float]
    evaluates: bool

    def parts(self, fused: Sequence[FusedTensors], known: Verdict = True) -> tuple[list[Part], Callable[[], Verdict]]:
        """Fold what is fed back into gradients, or leave that to their compressors.

        1. What compressors fold is laid side by side, no more.
        2. So is what nothing is added to or kept of, and its squared norm found.
        3. All but the first are judged, by their squared norms, and folded.

        Args:
            fused: the tensors.
            known: whether all that travels with them is finite, as far as whoever hands them over knows.

        Returns:
            The parts, in order; and what tells whether all gradients were finite, once compressors have coded theirs.
        """
        begun = [self._bare(tensors) or self._plain(tensors) for tensors in fused]
        sizes: list[torch.Tensor] = []
        for tensors, part in zip(fused, begun, strict=True):
            if part is None:
                sizes += energies_of(tensors.flats)
            elif part.energy is not None:
                sizes.append(part.energy)
        finite = both(known, self.judge(all_finite(sizes)) if sizes else True)
        spoilt = not finite if isinstance(finite, bool) else ~finite
        parts = [self._part(tensors, part, spoilt) for tensors, part in zip(fused, begun, strict=True)]

        def verdict() -> Verdict:
            found = [part.fold.energy for part in parts if part.fold is not None and part.fold.energy is not None]
            if not found:
                return finite
            return both(finite, self.judge(all_finite(found)))

        return parts, verdict

    def _bare(self, tensors: FusedTensors) -> Part | None:
        """Tensors as they are, which their compressor folds; ``None`` where it cannot."""
        first, several, choice = tensors.pieces[0], len(tensors.pieces) > 1, tensors.choice
        if self.evaluates or not all(self.feedback.foldable(piece.name, piece.flat) for piece in tensors.pieces):
            return None
        if not all(choice.compressor.folds(flat, choice.cf) for flat in tensors.flats):
            return None
        if tensors.rows:
            rows = self.feedback.to_fold_rows(tensors.names, tensors.flats)
            if rows is None or rows.left is None:
                return None
            return Part(tensors, rows.left, folded=[*rows.left.view(len(tensors.pieces), -1)], fold=rows)
        if several and any(self.feedback.has(piece.name) for piece in tensors.pieces):
            return None
        if several:
            return Part(tensors, tensors.join([piece.flat for piece in tensors.pieces]), fold=Fold())
        fold = self.feedback.to_fold(first.name, first.flat, self.strength_at(choice) > 0)
        kept = fold.left is not None or fold.residual is not None
        return Part(tensors, first.flat, folded=[first.flat] if kept else (), fold=fold)

    def _plain(self, tensors: FusedTensors) -> Part | None:
        """Tensors with nothing to add to their gradients or to keep of them, as they are; ``None`` for others."""
        if self.strength_at(tensors.choice) > 0 or any(self.feedback.has(piece.name) for piece in tensors.pieces):
            return None
        joined = tensors.join([piece.flat for piece in tensors.pieces])
        x = joined.to(working(joined.dtype))
        return Part(tensors, x, energy(x))

    def _part(self, tensors: FusedTensors, begun: Part | None, spoilt: Verdict) -> Part:
        """Tensors with what is fed back to them; zeros, where some gradient is not finite."""
        if spoilt is True:
            flat = tensors.pieces[0].flat
            return Part(tensors, flat.new_zeros(tensors.length, dtype=working(flat.dtype)))
        if begun is not None:
            if begun.fold is None:
                _cleared(begun.x, spoilt)  # perhaps the gradient itself, which is overwritten with the mean anyway
            return begun
        if tensors.rows:
            x = _cleared(self.feedback.fold_rows(tensors.names, tensors.flats), spoilt)
            return Part(tensors, x.view(-1), folded=[*x])
        keep = self.strength_at(tensors.choice) > 0
        folded = [_cleared(self.feedback.fold(piece.name, piece.flat, keep), spoilt) for piece in tensors.pieces]
        return Part(tensors, tensors.join(folded), folded=folded)


def _cleared(x: torch.Tensor, spoilt: Verdict) -> torch.Tensor:
    """Make zeros of a tensor where the device finds that some gradient is not finite; returns it."""
    return x if isinstance(spoilt, bool) else x.masked_fill_(spoilt, 0.0)
