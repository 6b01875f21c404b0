# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Folding: before a group's gradients are compressed, check whether they are finite, and add their residuals.

Compressors get zeros if any gradient is not finite.
"""

from collections.abc import Sequence

import torch

from gravac.averaging.batch import Batch
from gravac.averaging.norms import energies_of
from gravac.averaging.residuals import Residuals
from gravac.compressors.dtypes import working
from gravac.compressors.squares import all_finite, energy
from gravac.exchange.reading import Finite, Reads, both


def fold_in(batches: Sequence[Batch], residuals: Residuals, reads: Reads, inputs_finite: Finite) -> Finite:
    """Check whether gradients are finite, and add residuals to them.

    1. Take each batch that has no residuals and keeps none: concatenate its gradients, and sum their squares.
    2. Sum the squares of the remaining gradients.
    3. Check by these sums whether all gradients are finite, and add residuals to the gradients of step 2.

    Args:
        batches: all tensors of the group, in batches; each batch's x (flat) is set, and zero if any gradient is not
            finite.
        residuals: the residuals of this rank.
        reads: when the host may read whether gradients are finite.
        inputs_finite: whether all inputs from which the gradients were computed are finite.

    Returns:
        Whether all inputs and all gradients are finite.
    """
    energies: list[torch.Tensor] = []
    for batch in batches:
        if batch.choice.strength > 0 or any(name in residuals.by_name for name in batch.names):
            energies += energies_of(batch.flats)
        else:
            joined_gradients = batch.join(batch.flats)
            batch.x = joined_gradients.to(working(joined_gradients.dtype))
            batch.energy = energy(batch.x)
            energies.append(batch.energy)
    finite = both(inputs_finite, all_finite(energies) if energies else None)
    known_finite = reads.known(finite)
    for batch in batches:
        if known_finite is False:
            flat = batch.pieces[0].flat
            batch.x = flat.new_zeros(sum(batch.lengths), dtype=working(flat.dtype))
            batch.energy = None
            continue
        if batch.energy is None:
            batch.changes_residuals, keeps_unsent = True, batch.choice.strength > 0
            batch.x = batch.join([residuals.added_to(piece.name, piece.flat, keeps_unsent) for piece in batch.pieces])
        if known_finite is None and finite is not None:
            # x may be the gradient itself, which the mean will overwrite anyway
            batch.x.masked_fill_(~finite, 0.0)
    return finite
