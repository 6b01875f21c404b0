# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""AR-Topk: one rank's top-k coordinates for all ranks, so that values can be summed by all-reduce.

Source: Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE Big
Data 2023 (arXiv 2312.02493), section 3. STAR takes ranks in turn; VAR the rank whose top-k holds most energy.
Contractive: what a rank sends is its own values, only the choice is another's. No bound better than that.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from gravac.collectives import AllGather, AllReduce, Broadcast, Traffic
from gravac.compressors import multilevel
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, k_for
from gravac.compressors.dtypes import dtype_of, magnitudes_in, narrow, unit_roundoff
from gravac.compressors.profile import CostPoints
from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import norm
from gravac.compressors.topk import index_dtype, pack_indices, topk, unpack_indices


class ARTopK(Compressor):
    """One rank selects coordinates and broadcasts their indices; all ranks' values there are summed by all-reduce.

    Attributes:
        choose: whose coordinates are taken. ``"star"``: ranks in turn, by step. ``"var"``: for each tensor those of the
            rank whose k values have most energy, which one more exchange of a number per tensor tells, and for which
            the host waits on a GPU, once a tensor.
        values: number format of the values on the wire; ``None`` is the gradient's own.
    """

    name: ClassVar[str] = "artopk"
    contractive: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 9.65, 7.61), (100, 5.94, 3.77), (1000, 4.31, 1.82))

    choose: Literal["star", "var"] = "star"
    values: Literal["float32", "float16", "bfloat16"] | None = None

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what it encodes: to learn whose coordinates are taken, by ``"var"``."""
        return self.choose == "var"

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Least and largest magnitude of a gradient that the number format of the values can hold."""
        return magnitudes_in(dtype_of(self.values, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """One rank's indices and all ranks' values, in bytes; with ``"var"``, four more for an energy."""
        elements = torch.Size(shape).numel()
        k = k_for(elements, cf)
        asked = (Traffic(AllGather, torch.float32.itemsize),) if self.choose == "var" else ()
        return (
            *asked,
            Traffic(Broadcast, k * index_dtype(elements).itemsize),
            Traffic(AllReduce, k * dtype_of(self.values, dtype).itemsize),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x, ``(elements,)``, at the coordinates that one rank chooses.

        1. Select this rank's k largest coordinates.
        2. All-gather the energy of each rank's selection (``"var"`` only), and make the rank with most energy the root;
           with ``"star"``, the root is the next rank in turn.
        3. Broadcast the root's indices.
        4. All-reduce the values that every rank has at these indices.
        """
        own = multilevel.at(topk.select, x, cf, ctx)
        root = ctx.step % ctx.world
        if self.choose == "var":
            (held,) = yield AllGather(norm(own.values).float().reshape(1))
            root = int(held.argmax())
        packed = yield Broadcast(pack_indices(own.indices, x.numel()), root)
        chosen = unpack_indices(packed, x.numel())
        mine = narrow(x[chosen] / ctx.world, dtype_of(self.values, ctx.dtype))
        total = yield AllReduce(mine)
        return Reduced(
            mean=Sparse(((chosen, total.to(x.dtype)),)),
            sent=Sparse(((chosen, mine.to(x.dtype) * ctx.world),)),
            cf=x.numel() / max(1, mine.numel()),
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of flat x if this rank's choice were taken, as in ``TopK``: optimistic where ranks differ."""
        return topk.errors(x, cfs, ctx)

    @property
    def rounding(self) -> float:
        """Unit roundoff of the wire's number format, in which values are summed."""
        return unit_roundoff(dtype_of(self.values, torch.float32))


artopk = ARTopK()
"""One rank's top-k in turn; ``artopk(choose="var")`` picks the rank with most energy."""
