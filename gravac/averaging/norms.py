# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Squared norms of gradients and of compression errors, and a check whether tensors are finite."""

from collections.abc import Sequence

import torch

from gravac.compressors.sparse import Addend, Sparse, blocks
from gravac.compressors.squares import energy, recompute_if_inexact


def all_elements_finite(flats: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all numbers of flat tensors, of any dtypes, are finite, as a 0-d bool tensor."""
    flats = [flat for flat in flats if flat.numel()]
    if not flats:
        return torch.ones((), dtype=torch.bool, device="cpu")
    dtypes = dict.fromkeys(flat.dtype for flat in flats)
    flats_by_dtype = [[flat for flat in flats if flat.dtype == dtype] for dtype in dtypes]
    largest_magnitudes = [
        norm.double()
        for same_dtype_flats in flats_by_dtype
        for norm in torch._foreach_norm(same_dtype_flats, torch.inf)
    ]
    return (torch.stack(largest_magnitudes) < torch.inf).all()


def energies_of(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sum of squares of each flat tensor as a list of 0-d tensors, by one kernel launch on a GPU.

    Args:
        flats: flat tensors, all of one dtype; at least one.
    """
    if len(flats) == 1:
        return [energy(flats[0])]
    if not flats[0].is_cpu:
        norms = torch._foreach_norm([*flats], 2, torch.float64)
        return [*torch._foreach_mul(norms, norms)]
    norms = torch._foreach_norm([*flats], 2, torch.float32 if flats[0].element_size() < 4 else None)
    return [
        recompute_if_inexact(squared_norm, flat)
        for squared_norm, flat in zip(torch._foreach_mul(norms, norms), flats, strict=True)
    ]


def unsent_energy(x: torch.Tensor, x_energy: torch.Tensor, sent: torch.Tensor | Addend) -> torch.Tensor:
    """Return ``‖x - sent‖²``, the squared compression error, as a 0-d tensor, float64.

    Args:
        x: gradient plus residual, flat.
        x_energy: ``‖x‖²``, 0-d.
        sent: numbers that were sent, flat, of x's length: a tensor, or an ``Addend``, which can be added to a tensor.
    """
    if isinstance(sent, torch.Tensor):
        return energy(x - sent)
    if not isinstance(sent, Sparse):
        return energy(sent.add_to(x.clone(), alpha=-1.0))
    remaining_energy = x_energy
    for indices, values in sent.parts:
        x_at_indices = blocks(x, values).index_select(0, indices).view(-1)
        remaining_energy = remaining_energy - energy(x_at_indices) + energy(x_at_indices.sub_(values.view(-1)))
    return remaining_energy.clamp(min=0)
