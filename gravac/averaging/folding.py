# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a group hands to its compressors: gradients with what is fed back to them, and whether they are finite.

If the host must not look, a compressor that can (``Compressor.folds``) takes bare gradients, and folds and judges them
in the pass in which it codes them. Of all others zeros are coded if some gradient is not finite.
"""

from collections.abc import Callable, Sequence

import torch

from gravac.averaging.batch import Batch
from gravac.averaging.feedback import Feedback
from gravac.averaging.norms import energies_of
from gravac.compressors.base import Fold
from gravac.compressors.dtypes import working
from gravac.compressors.squares import all_finite, energy
from gravac.exchange.executor import Verdict, both


def fold_in(
    batches: Sequence[Batch],
    feedback: Feedback,
    judge: Callable[[torch.Tensor], Verdict],
    known: Verdict,
    by_compressors: bool,
) -> Verdict:
    """Add to gradients what is fed back to them, or leave that to their compressors.

    1. Leave bare gradients to compressors that fold, if any may.
    2. Lay side by side gradients that nothing is added to or kept of, and sum their squares.
    3. Sum the squares of all other gradients.
    4. Judge by these sums whether the gradients are finite, and add what is fed back to those of 3.

    Args:
        batches: all tensors of the group, as they are coded; each batch is given its x, flat.
        feedback: what is fed back.
        judge: looks at a 0-d bool tensor if the host may; see ``Executor``.
        known: whether all that the gradients were made with is finite, as far as the caller knows.
        by_compressors: whether compressors may fold: nobody needs a verdict before gradients are coded.

    Returns:
        Whether ``known`` holds and all gradients are finite but those that are left to compressors (``Batch.fold``).
    """
    sizes: list[torch.Tensor] = []
    for batch in batches:
        if by_compressors and _left_to_compressor(batch, feedback):
            continue
        if batch.choice.strength > 0 or any(feedback.has(name) for name in batch.names):
            sizes += energies_of(batch.flats)
        else:
            joined = batch.join(batch.flats)
            batch.x = joined.to(working(joined.dtype))
            batch.energy = energy(batch.x)
            sizes.append(batch.energy)
    finite = both(known, judge(all_finite(sizes)) if sizes else True)
    spoilt = not finite if isinstance(finite, bool) else ~finite
    for batch in batches:
        if spoilt is True:
            flat = batch.pieces[0].flat
            batch.x = flat.new_zeros(sum(batch.lengths), dtype=working(flat.dtype))
            batch.energy, batch.fold, batch.settles = None, None, False
        elif batch.fold is None:
            if batch.energy is None:
                _fold(batch, feedback)
            if isinstance(spoilt, torch.Tensor):
                batch.x.masked_fill_(spoilt, 0.0)  # perhaps the gradient itself, which the mean will overwrite anyway
    return finite


def _left_to_compressor(batch: Batch, feedback: Feedback) -> bool:
    """Leave bare gradients to their compressor; False if it cannot fold them, or not all of them alike."""
    names, flats, choice = batch.names, batch.flats, batch.choice
    if flats[0].dtype == torch.float64 or any(name in feedback.held for name in names):
        return False
    if not all(choice.compressor.folds(flat, choice.cf) for flat in flats):
        return False
    residuals = [feedback.residual[name] for name in names if name in feedback.residual]
    if len(names) == 1:
        left = feedback.buffer(names[0], flats[0]) if choice.strength > 0 else None
        batch.x, batch.fold = flats[0], Fold(residuals[0] if residuals else None, left)
        batch.settles = left is not None or bool(residuals)
    elif batch.rows and len(residuals) in (0, len(names)):
        x = flats[0].new_empty(sum(batch.lengths), dtype=working(flats[0].dtype))
        batch.x, batch.fold = x, Fold(left=x, gradients=flats, residuals=residuals)
        batch.settles = True
    elif not batch.rows and not residuals:
        batch.x, batch.fold = batch.join(flats), Fold()
    return batch.fold is not None


def _fold(batch: Batch, feedback: Feedback) -> None:
    """Add to finite gradients what is fed back to them."""
    batch.settles = True
    if batch.rows:
        batch.x = feedback.fold_rows(batch.names, batch.flats).view(-1)
    else:
        keep = batch.choice.strength > 0
        batch.x = batch.join([feedback.fold(piece.name, piece.flat, keep) for piece in batch.pieces])
