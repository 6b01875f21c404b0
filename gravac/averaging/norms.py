# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Squared norms of gradients and of what compression loses; whether means are finite."""

from collections.abc import Sequence

import torch

from gravac.compressors.sparse import Addend, Sparse, blocks
from gravac.compressors.squares import checked, energy


def all_fit(flats: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all numbers of some flat tensors are finite, ``[]`` bool: the largest magnitudes tell."""
    flats = [flat for flat in flats if flat.numel()]
    if not flats:
        return torch.ones((), dtype=torch.bool)
    by_dtype = [[flat for flat in flats if flat.dtype == dtype] for dtype in dict.fromkeys(one.dtype for one in flats)]
    largest = [norm.double() for some in by_dtype for norm in torch._foreach_norm(some, torch.inf)]
    return (torch.stack(largest) < torch.inf).all()


def energies_of(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return ``energy``, 0-d, of each of several flat tensors of one dtype; of many by one launch."""
    if len(flats) == 1:
        return [energy(flats[0])]
    if not flats[0].is_cpu:
        norms = torch._foreach_norm([*flats], 2, torch.float64)
        return [*torch._foreach_mul(norms, norms)]
    norms = torch._foreach_norm([*flats], 2, torch.float32 if flats[0].element_size() < 4 else None)
    return [checked(size, flat) for size, flat in zip(torch._foreach_mul(norms, norms), flats, strict=True)]


def lost(x: torch.Tensor, size: torch.Tensor, sent: torch.Tensor | Addend) -> torch.Tensor:
    """``‖x - sent‖²``, 0-d, float64, of flat x; ``size`` is ``‖x‖²``, 0-d."""
    if isinstance(sent, torch.Tensor):
        return energy(x - sent)
    if not isinstance(sent, Sparse):
        return energy(sent.add_to(x.clone(), alpha=-1.0))
    left = size
    for indices, values in sent.parts:
        before = blocks(x, values).index_select(0, indices).view(-1)
        left = left - energy(before) + energy(before.sub_(values.view(-1)))
    return left.clamp(min=0)
