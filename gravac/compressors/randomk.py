# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random-k: all ranks send the same k coordinates, drawn anew each step; no index travels.

Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (definition 2.1). Contractive; gain 1/CF in
expectation; not scaled up, so biased: error feedback brings the rest later.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from gravac.candidate import Span
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, Sparse, energy, kept
from gravac.compressors.dtypes import dtype_of, unit_roundoff


class RandomK(Compressor):
    """Random coordinates without replacement, exchanged by all-reduce.

    Attributes:
        values: number format of the values on the wire; ``None`` is the gradient's own.
    """

    name: ClassVar[str] = "randomk"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0

    values: Literal["float32", "float16", "bfloat16"] | None = None

    def candidates(self, cf_range: tuple[float, float], shapes: Sequence[tuple[int, ...]]) -> Span | tuple[float, ...]:
        """Any CF."""
        return Span(*cf_range)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype) -> tuple[Traffic, ...]:
        """As many values as are kept."""
        return (Traffic(AllReduce, kept(torch.Size(shape).numel(), cf) * dtype_of(self.values, dtype).itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """One all-reduce of the drawn values."""
        chosen = draw(x.numel(), kept(x.numel(), cf), ctx.generator()).to(x.device)
        mine = (x[chosen] / ctx.world).to(dtype_of(self.values, ctx.dtype))
        total = yield AllReduce(mine)
        return Reduced(
            mean=Sparse(((chosen, total.to(x.dtype)),)),
            sent=Sparse(((chosen, mine.to(x.dtype) * ctx.world),)),
            cf=x.numel() / max(1, mine.numel()),
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """In expectation over the draw: ``(1 - 1/CF) ‖x‖²``."""
        return [energy(x) * (1 - kept(x.numel(), cf) / max(1, x.numel())) for cf in cfs]

    @property
    def rounding(self) -> float:
        """Sums in the wire's format."""
        return unit_roundoff(dtype_of(self.values, torch.float32))


def draw(elements: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Some of ``elements`` (k), uniformly, without replacement: int64, ``[k]``, ascending.

    Few of many are drawn with replacement until k differ, and the surplus is taken out at random: every set of k is
    as likely as any other, at the cost of k and not of ``elements``.
    """
    if k * 3 > elements:
        return torch.randperm(elements, generator=generator)[:k].sort().values
    chosen = torch.empty(0, dtype=torch.int64)
    while chosen.numel() < k:
        more = torch.randint(elements, (k - chosen.numel() + k // 8 + 8,), generator=generator)
        chosen = torch.unique(torch.cat([chosen, more]))
    surplus = torch.randperm(chosen.numel(), generator=generator)[: chosen.numel() - k]
    keep = torch.ones(chosen.numel(), dtype=torch.bool)
    keep[surplus] = False
    return chosen[keep]


randomk = RandomK()
"""Random-k with its default settings; ``randomk(values="bfloat16")`` makes another."""
