# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Top-k: every rank sends its k largest coordinates, values and indices.

Source: Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with error feedback,
Stich et al., "Sparsified SGD with Memory", NeurIPS 2018. Contractive, with a gain of at least 1/CF.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch

from gravac.collectives import AllGather, Traffic
from gravac.compressors import multilevel
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy, k_for
from gravac.compressors.dtypes import dtype_of, magnitudes_in
from gravac.compressors.profile import CostPoints, Profile
from gravac.compressors.selection import energies_of_largest, select_largest
from gravac.compressors.sparse import Selection, Sparse


class TopK(Compressor):
    """Exact top-k, selected per tensor, exchanged by all-gather.

    Attributes:
        values: number format of the values on the wire: ``"float32"``, ``"float16"`` or ``"bfloat16"``; ``None``, the
            default: the gradient's own. The ranks' values are summed in float32, for float64 gradients in float64.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "topk"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 7.41, 6.71), (100, 4.56, 3.14), (1000, 3.62, 1.63))

    values: Literal["float32", "float16", "bfloat16"] | None = None

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs at a CF; coding needs memory for the magnitudes, and all ranks' values and indices."""
        return replace(
            super().profile(cf, world=world, shapes=shapes),
            coding_bytes_per_element=9 + math.ceil((16 + 24 * world) / cf),
        )

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements that can be sent in the number format ``values``."""
        return magnitudes_in(dtype_of(self.values, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: one all-gather of a value and an index for each slot (``slots``)."""
        elements = torch.Size(shape).numel()
        slot_bytes = dtype_of(self.values, dtype).itemsize + index_dtype(elements).itemsize
        return (Traffic(AllGather, self.slots(elements, cf) * slot_bytes),)

    def slots(self, elements: int, cf: float) -> int:
        """Return k, the number of slots that every rank sends for a tensor; a slot has a value and its index."""
        return k_for(elements, cf)

    def select(self, x: torch.Tensor, k: int) -> Selection:
        """Return the k coordinates of flat x with the largest magnitude."""
        return select_largest(x, k)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of values and indices, summed rank by rank and divided by the world size."""
        return (yield from self.send(multilevel.select_at(self.select, x, cf, ctx), x, cf, ctx))

    def send(self, selection: Selection, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average the coordinates of flat x that each rank selected, by one all-gather of values and indices.

        Every rank sends the same number of slots, each a value and its index (see ``slots``), and may select fewer
        coordinates. Its other slots have the value 0, at indices that are not selected.
        """
        selected_values = values = selection.values.to(dtype_of(self.values, ctx.dtype))
        indices, slots = selection.indices, self.slots(x.numel(), cf)
        if selected_values.numel() < slots:
            free_indices = _unused_indices(indices, slots)
            values, indices = (
                torch.nn.functional.pad(selected_values, (0, free_indices.numel())),
                torch.cat([indices, free_indices]),
            )
        gathered_values, packed_indices = yield AllGather(values, pack_indices(indices, x.numel()))
        mean_terms = gathered_values.to(x.dtype) / ctx.world
        positions = unpack_indices(packed_indices, x.numel())
        return Reduced(
            mean=Sparse(tuple(zip(positions.unbind(), mean_terms.unbind(), strict=True))),
            sent=Sparse(((selection.indices, selected_values.to(x.dtype)),)),
            cf=x.numel() / max(1, selected_values.numel()),
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, 0-d; x is searched only once, at the lowest CF."""
        x_energy = energy(x)
        widest_selection = multilevel.select_at(self.select, x, cfs[0], ctx)
        sent_energies = energies_of_largest(widest_selection.values, [k_for(x.numel(), cf) for cf in cfs])
        return [(x_energy - sent_energy).clamp_(min=0) for sent_energy in sent_energies]


def index_dtype(elements: int) -> torch.dtype:
    """Return the smallest integer dtype for sending the indices of ``elements`` elements: uint8, int16 or int32."""
    if elements <= 1 << 8:
        return torch.uint8
    return torch.int16 if elements <= 1 << 16 else torch.int32


def pack_indices(indices: torch.Tensor, elements: int) -> torch.Tensor:
    """Convert indices to ``index_dtype(elements)``, in their shape; in int16 an index is stored minus 2**15."""
    dtype = index_dtype(elements)
    return (indices - (1 << 15)).to(dtype) if dtype == torch.int16 else indices.to(dtype)


def unpack_indices(packed: torch.Tensor, elements: int) -> torch.Tensor:
    """Convert the result of ``pack_indices`` back to indices: int64, in the shape of ``packed``."""
    indices = packed.to(torch.int64)
    return indices + (1 << 15) if index_dtype(elements) == torch.int16 else indices


def _unused_indices(indices: torch.Tensor, slots: int) -> torch.Tensor:
    """Return the lowest ``slots - len(indices)`` indices that are not in ``indices``: int64, flat, ascending."""
    is_unused = torch.ones(slots, dtype=torch.bool, device=indices.device)
    is_unused[indices[indices < slots]] = False
    return is_unused.nonzero().flatten()[: slots - indices.numel()]


topk = TopK()
"""Exact top-k with its default settings; ``topk(values="float16")`` returns a top-k that sends values in float16."""
