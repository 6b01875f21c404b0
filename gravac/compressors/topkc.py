# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunked top-k: all ranks send the same chunks, those with most energy over all ranks; no indices are sent.

Source: Han et al., "Beyond Throughput and Compression Ratios", HotNets 2024 (arXiv 2407.01378), section 3.1. Chunks are
consecutive coordinates; large coordinates tend to be neighbours. Contractive if errors are summed over the ranks, with
a gain of at least ``floor(k/chunk) * chunk / elements``. The gain of a single rank may be lower.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllReduce, Collective, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy, k_for
from gravac.compressors.chunks import ChunkSelection, chunk_energies, gather, scatter, select_k
from gravac.compressors.dtypes import convert_clamped, dtype_of, magnitudes_in, unit_roundoff
from gravac.compressors.profile import CostPoints, Profile
from gravac.compressors.quantize import Quantize
from gravac.compressors.selection import largest
from gravac.compressors.sparse import as_dense

ENERGY_DTYPE = torch.bfloat16
"""Number format of the chunks' energies on the wire: half the bytes of float32, and its range."""


class TopKC(Compressor):
    """Chunked top-k: the chunks with the largest summed energy, exchanged by all-reduce.

    Attributes:
        chunk: coordinates per chunk, 1 or more. ``None``, the default: 64, or more if otherwise the chunks' energies
            would take more bytes than the values.
        values: number format of the values on the wire: ``"bfloat16"`` (the default), ``"float16"`` or ``"float32"``;
            or a quantizer, such as ``quantize(4)``. ``None``: the gradient's own number format.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "topkc"
    contractive: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 2.76, 3.27), (100, 2.66, 2.18), (1000, 2.33, 1.86))

    chunk: Annotated[int, Field(ge=1)] | None = None
    values: Literal["float32", "float16", "bfloat16"] | Quantize | None = "bfloat16"

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs and efficiency at a CF.

        If values are quantized, the efficiency is multiplied by the quantizer's efficiency.
        """
        profile = replace(super().profile(cf), coding_bytes_per_element=5 + math.ceil(32 / cf))
        if not isinstance(self.values, Quantize):
            return profile
        return replace(profile, efficiency=profile.efficiency * self.values.profile(self.values.lowest_cf).efficiency)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements for which values and chunk energies can be sent.

        Values are sent in the format ``values``, energies in bfloat16. Outside this range, all chunks may seem to have
        equal energy, so that the selection is arbitrary. The selection is still the same on all ranks.
        """
        if isinstance(self.values, Quantize):
            smallest_magnitude, largest_magnitude = self.values.magnitudes
        else:
            smallest_magnitude, largest_magnitude = magnitudes_in(dtype_of(self.values, torch.float32))
        return max(2.0**-56, smallest_magnitude), min(2.0**56, largest_magnitude)

    def method_at(self, cf: float) -> str:
        """Return the name with the CF of the selection, such as ``"topkc 50x"``, for messages and tables.

        If values are quantized, the name includes their bits, such as ``"topkc 50x of 4 bits"``.
        """
        if not isinstance(self.values, Quantize):
            return super().method_at(cf)
        return f"{self.name} {round(cf, 1):g}x of {self.values.method_at(self.values.lowest_cf)}"

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-reduce of the chunks' energies, then one of the values.

        If values are quantized, the quantizer's collectives replace the second all-reduce.
        """
        elements = torch.Size(shape).numel()
        k = k_for(elements, cf)
        energy_traffic = Traffic(AllReduce, -(-elements // self.chunk_at(cf)) * ENERGY_DTYPE.itemsize)
        if isinstance(self.values, Quantize):
            return (energy_traffic, *self.values.traffic((k,), self.values.lowest_cf, dtype, world))
        return (energy_traffic, Traffic(AllReduce, k * dtype_of(self.values, dtype).itemsize))

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average the values of flat x in the chunks that have most energy over all ranks.

        1. All-reduce the energy of every chunk.
        2. Select the chunks with most energy, the same on all ranks. If k is no multiple of the chunk's size, one
           chunk is sent in part, so that exactly k values are sent.
        3. All-reduce the values of these chunks. If values are quantized, the quantizer's collectives average them.
        """
        chunk = self.chunk_at(cf)
        k = k_for(x.numel(), cf)
        mean_energies = yield AllReduce((chunk_energies(x, chunk) / ctx.world).to(ENERGY_DTYPE))
        selection = select_chunks(mean_energies, k, chunk, x.numel())
        values = gather(x, selection, chunk, k)
        if isinstance(self.values, Quantize):
            quantized = yield from self.values.rounds(values, self.values.lowest_cf, ctx.excerpt(k))
            mean, sent = as_dense(quantized.mean, values), as_dense(quantized.sent, values)
        else:
            mean, sent = yield from _average_values(values, dtype_of(self.values, ctx.dtype), ctx.world)
        elements = x.numel()
        return Reduced(
            scatter(mean, selection, chunk, elements), scatter(sent, selection, chunk, elements), elements / max(1, k)
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, 0-d, as if this rank's energies alone selected the chunks.

        The errors are therefore too low if the ranks' gradients differ.
        """
        return [self._error(x, cf, ctx) for cf in cfs]

    def _error(self, x: torch.Tensor, cf: float, ctx: Context) -> torch.Tensor:
        chunk = self.chunk_at(cf)
        k = k_for(x.numel(), cf)
        selection = select_chunks(chunk_energies(x, chunk).to(ENERGY_DTYPE), k, chunk, x.numel())
        values = gather(x, selection, chunk, k)
        error = (energy(x) - energy(values)).clamp_(min=0)
        if isinstance(self.values, Quantize):
            error += self.values.errors(values, [self.values.lowest_cf], ctx.excerpt(k))[0]
        return error

    def chunk_at(self, cf: float) -> int:
        """Return the number of coordinates per chunk at a CF."""
        if self.chunk is not None:
            return self.chunk
        if isinstance(self.values, Quantize):
            bits = 32 / self.values.lowest_cf
        else:
            bits = 8 * dtype_of(self.values, torch.float32).itemsize
        return max(64, 1 << math.ceil(math.log2(8 * ENERGY_DTYPE.itemsize * cf / bits)))

    @property
    def rounding(self) -> float:
        """Unit roundoff of the wire's number format, in which values are summed."""
        if isinstance(self.values, Quantize):
            return self.values.rounding
        return unit_roundoff(dtype_of(self.values, torch.float32))


def _average_values(
    values: torch.Tensor, wire_dtype: torch.dtype, world: int
) -> Generator[Collective, Any, tuple[torch.Tensor, torch.Tensor]]:
    """All-reduce flat values in the format ``wire_dtype``; return their mean, and the values that this rank sent.

    The argument ``values`` is overwritten.
    """
    payload = convert_clamped(values.div_(world), wire_dtype)
    mean = (yield AllReduce(payload)).to(values.dtype)
    return mean, payload.to(values.dtype).mul_(world)


def select_chunks(energies: torch.Tensor, k: int, chunk: int, elements: int) -> ChunkSelection:
    """Select k coordinates in the chunks with most energy.

    If k is no multiple of ``chunk``, only the first coordinates of the selected chunk with least energy are selected.

    Args:
        energies: sum of squares of each chunk, flat, the same on all ranks.
        k: number of coordinates.
        chunk: coordinates per chunk.
        elements: number of coordinates of the tensor.
    """
    chunk_indices = largest(energies, -(-k // chunk))
    weakest_position = energies.index_select(0, chunk_indices).argmin(0, keepdim=True) if k else chunk_indices
    return select_k(chunk_indices, weakest_position, k, chunk, elements)


topkc = TopKC()
"""Chunked top-k with its default settings; ``topkc(values=quantize(4))`` quantizes the sent values."""
