# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random-k: all ranks send the same k coordinates, drawn anew at each step; no indices are sent.

Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (definition 2.1). ``randomk`` is contractive, with gain
1/CF in expectation, and biased: error feedback sends the rest later.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy, k_for
from gravac.compressors.chunks import ChunkSelection, gather, scatter, select_k
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import dtype_of, magnitudes_in, unit_roundoff
from gravac.compressors.profile import CostPoints


class RandomK(Compressor):
    """Random-k: random coordinates without replacement, exchanged by all-reduce.

    Attributes:
        values: number format of the values on the wire: ``"float32"``, ``"float16"`` or ``"bfloat16"``; ``None``, the
            default: the gradient's own.
        block: number of consecutive coordinates that are drawn together, 1 or more; default: 1. 64 and more are many
            times faster.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "randomk"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.5  # on two tasks better than 1: record feedback.json of commit 43b3fe07
    coding_costs: ClassVar[CostPoints] = ((10, 10.12, 5.56), (100, 3.13, 4.17), (1000, 2.09, 2.25))

    values: Literal["float32", "float16", "bfloat16"] | None = None
    block: Annotated[int, Field(ge=1)] = 1

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements that can be sent in the number format ``values``."""
        return magnitudes_in(dtype_of(self.values, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic: one all-reduce of the values of k coordinates, in bytes."""
        return (Traffic(AllReduce, k_for(torch.Size(shape).numel(), cf) * dtype_of(self.values, dtype).itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x at k randomly drawn coordinates, by one all-reduce of their values."""
        k = k_for(x.numel(), cf)
        selection = self._draw(x.numel(), k, ctx.draws(), x.device)
        wire_dtype, block = dtype_of(self.values, ctx.dtype), self._block(x.numel())
        values = gather(x, selection, block, k).mul_(1.0 / ctx.world).to(wire_dtype)
        mean_values = yield AllReduce(values)
        return Reduced(
            mean=scatter(mean_values.to(x.dtype), selection, block, x.numel()),
            sent=scatter(values.to(x.dtype).mul_(ctx.world), selection, block, x.numel()),
            cf=x.numel() / max(1, k),
        )

    def _draw(self, elements: int, k: int, draws: Draws, device: torch.device) -> ChunkSelection:
        """Draw blocks of consecutive coordinates at random, and return k of their coordinates.

        If k is no multiple of the block's size, only a part of one block is returned.
        """
        block = self._block(elements)
        block_indices = draws.sample(-(-elements // block), -(-k // block), device)
        partial_block = draws.integer_below(max(1, len(block_indices)), 0)
        partial_position = torch.full((1,), partial_block, dtype=torch.int64, device=device)
        return select_k(block_indices, partial_position, k, block, elements, draws.integer_below(block, 1))

    def _block(self, elements: int) -> int:
        """Return how many consecutive coordinates are drawn together: ``block``, or all elements if there are fewer."""
        return min(self.block, max(1, elements))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, expected over the draws: ``(1 - k/elements) ‖x‖²``, 0-d."""
        return [energy(x) * (1 - k_for(x.numel(), cf) / max(1, x.numel())) for cf in cfs]

    @property
    def rounding(self) -> float:
        """Unit roundoff of the wire's number format, in which values are summed."""
        return unit_roundoff(dtype_of(self.values, torch.float32))


randomk = RandomK()
"""Random-k with its default settings; ``randomk(values="bfloat16")`` returns a random-k that sends bfloat16 values."""
