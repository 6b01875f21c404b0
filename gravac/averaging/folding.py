# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Folding: before a group's gradients are compressed, check whether they are finite, and add their residuals.

If the host must not read tensors, as on a GPU, some compressors do both while they encode: those for which
``Compressor.folds`` returns True. They get gradients without residuals. All other compressors get zeros if any gradient
is not finite.
"""

from collections.abc import Callable, Sequence

import torch

from gravac.averaging.batch import Batch
from gravac.averaging.feedback import Feedback
from gravac.averaging.norms import energies_of
from gravac.compressors.base import Fold
from gravac.compressors.dtypes import working
from gravac.compressors.squares import all_finite, energy
from gravac.exchange.executor import Verdict, both_true


def fold_in(
    batches: Sequence[Batch],
    feedback: Feedback,
    judge: Callable[[torch.Tensor], Verdict],
    inputs_finite: Verdict,
    compressors_add_residuals: bool,
) -> Verdict:
    """Check whether gradients are finite, and add residuals to them, or let the compressors do both.

    1. If ``compressors_add_residuals``, skip each batch whose compressor adds residuals itself.
    2. Take each other batch that has no residuals and keeps none: concatenate its gradients, and sum their squares.
    3. Sum the squares of the remaining gradients.
    4. Check by these sums whether all gradients are finite, and add residuals to the gradients of step 3.

    Args:
        batches: all tensors of the group, in batches; each batch's x (flat) is set, and zero if any gradient is not
            finite.
        feedback: the residuals of this rank.
        judge: function that converts a 0-d bool tensor to a bool, or returns the tensor itself if the host must not
            read it.
        inputs_finite: whether all inputs from which the gradients were computed are finite; True if the caller does not
            know.
        compressors_add_residuals: whether compressors may add residuals and check gradients; False if the caller needs
            the sums of gradients and residuals beforehand.

    Returns:
        Whether ``inputs_finite`` is true and all gradients are finite: a bool, or a 0-d bool tensor. Gradients that are
        left to compressors (``Batch.fold``) are not checked.
    """
    energies: list[torch.Tensor] = []
    for batch in batches:
        if compressors_add_residuals and _leave_to_compressor(batch, feedback):
            continue
        if batch.choice.strength > 0 or any(feedback.has_residual(name) for name in batch.names):
            energies += energies_of(batch.flats)
        else:
            joined_gradients = batch.join(batch.flats)
            batch.x = joined_gradients.to(working(joined_gradients.dtype))
            batch.energy = energy(batch.x)
            energies.append(batch.energy)
    finite = both_true(inputs_finite, judge(all_finite(energies)) if energies else True)
    not_finite = not finite if isinstance(finite, bool) else ~finite
    for batch in batches:
        if not_finite is True:
            flat = batch.pieces[0].flat
            batch.x = flat.new_zeros(sum(batch.lengths), dtype=working(flat.dtype))
            batch.energy, batch.fold, batch.changes_residuals = None, None, False
        elif batch.fold is None:
            if batch.energy is None:
                _fold(batch, feedback)
            if isinstance(not_finite, torch.Tensor):
                # x may be the gradient itself, which the mean will overwrite anyway
                batch.x.masked_fill_(not_finite, 0.0)
    return finite


def _leave_to_compressor(batch: Batch, feedback: Feedback) -> bool:
    """If the compressor of a batch can add residuals, set ``batch.x`` and ``batch.fold`` for that, and return True."""
    names, flats, choice = batch.names, batch.flats, batch.choice
    if flats[0].dtype == torch.float64 or any(name in feedback.releasing for name in names):
        return False
    if not all(choice.compressor.folds(flat, choice.cf) for flat in flats):
        return False
    residuals = [feedback.residual[name] for name in names if name in feedback.residual]
    if len(names) == 1:
        unsent_buffer = feedback.buffer(names[0], flats[0]) if choice.strength > 0 else None
        batch.x, batch.fold = flats[0], Fold(residuals[0] if residuals else None, unsent_buffer)
        batch.changes_residuals = unsent_buffer is not None or bool(residuals)
    elif batch.is_matrix and len(residuals) in (0, len(names)):
        x = flats[0].new_empty(sum(batch.lengths), dtype=working(flats[0].dtype))
        batch.x, batch.fold = x, Fold(unsent=x, gradients=flats, residuals=residuals)
        batch.changes_residuals = True
    elif not batch.is_matrix and not residuals:
        batch.x, batch.fold = batch.join(flats), Fold()
    return batch.fold is not None


def _fold(batch: Batch, feedback: Feedback) -> None:
    """Set ``batch.x`` to the sums of the batch's gradients, which are finite, and their residuals."""
    batch.changes_residuals = True
    if batch.is_matrix:
        batch.x = feedback.fold_rows(batch.names, batch.flats).view(-1)
    else:
        keeps_unsent = batch.choice.strength > 0
        batch.x = batch.join([feedback.fold(piece.name, piece.flat, keeps_unsent) for piece in batch.pieces])
