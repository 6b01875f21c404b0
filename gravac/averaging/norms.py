# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Squared norms: of gradients, of what compression loses, and whether they are finite."""

from collections.abc import Iterable, Sequence

import torch

from gravac.compressors.base import energy
from gravac.compressors.sparse import Addend, Sparse, blocks


def all_finite(energies: Iterable[torch.Tensor]) -> torch.Tensor:
    """Tell whether all squared norms are finite, ``[]`` bool: one element that is not makes its tensor's norm so."""
    every = [*energies]
    return every[0] < torch.inf if len(every) == 1 else (torch.stack(every) < torch.inf).all()


def all_fit(flats: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all numbers of some flat tensors are finite, ``[]`` bool: the largest magnitudes tell."""
    flats = [flat for flat in flats if flat.numel()]
    if not flats:
        return torch.ones((), dtype=torch.bool)
    by_dtype = [[flat for flat in flats if flat.dtype == dtype] for dtype in dict.fromkeys(one.dtype for one in flats)]
    largest = [norm.double() for some in by_dtype for norm in torch._foreach_norm(some, torch.inf)]
    return (torch.stack(largest) < torch.inf).all()


def energy_of(flat: torch.Tensor) -> torch.Tensor:
    """``‖flat‖²`` of a flat tensor, 0-d; of 16-bit tensors in float32."""
    if flat.element_size() >= 4:
        return energy(flat)
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
    return norm.square()


def energies_of(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same, 0-d, of each of several flat tensors of one dtype; of many by one launch."""
    if len(flats) == 1:
        return [energy_of(flats[0])]
    dtype = torch.float32 if flats[0].element_size() < 4 else None
    norms = torch._foreach_norm([*flats], 2, dtype)
    return [*torch._foreach_mul(norms, norms)]


def lost(x: torch.Tensor, size: torch.Tensor, sent: torch.Tensor | Addend) -> torch.Tensor:
    """``‖x - sent‖²``, 0-d, of flat x; ``size`` is ``‖x‖²``, 0-d."""
    if isinstance(sent, torch.Tensor):
        return energy(x - sent)
    if not isinstance(sent, Sparse):
        return energy(sent.add_to(x.clone(), alpha=-1.0))
    left = size
    for indices, values in sent.parts:
        before = blocks(x, values).index_select(0, indices).view(-1)
        left = left - energy(before) + energy(before.sub_(values.view(-1)))
    return left.clamp(min=0)


def summed(numbers: Sequence[torch.Tensor]) -> torch.Tensor | float:
    """The sum of scalars (0-d tensors), in float64."""
    if len(numbers) == 1:
        return numbers[0].double()
    return torch.stack([*numbers]).double().sum() if numbers else 0.0
