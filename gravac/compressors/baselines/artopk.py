# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""AR-Topk: all ranks send one rank's top-k coordinates, so that an all-reduce can sum their values.

Source: Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE Big
Data 2023 (arXiv 2312.02493), section 3. The paper's STAR lets ranks select the coordinates by turns; its VAR uses the
coordinates of the rank whose top-k has most energy. Contractive, since each rank sends its own values, unchanged, at
the selected coordinates.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from gravac.collectives import AllGather, AllReduce, Broadcast, Traffic
from gravac.compressors import multilevel
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, k_for
from gravac.compressors.dtypes import convert_clamped, dtype_of, magnitudes_in, unit_roundoff
from gravac.compressors.profile import CostPoints
from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import norm
from gravac.compressors.topk import index_dtype, pack_indices, topk, unpack_indices


class ARTopK(Compressor):
    """AR-Topk: one rank selects coordinates and broadcasts their indices; an all-reduce sums all ranks' values.

    Attributes:
        choose: which rank selects coordinates. ``"star"``, the default: the ranks by turns, one rank in each step.
            ``"var"``: for each tensor, the rank whose k values have most energy. To find this rank, every rank sends
            one more number per tensor, and on a GPU the host waits for these numbers.
        values: number format of the values on the wire: ``"float32"``, ``"float16"`` or ``"bfloat16"``; ``None``, the
            default: the gradient's own.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "artopk"
    contractive: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 7.95, 7.19), (100, 4.33, 3.41), (1000, 3.24, 1.79))

    choose: Literal["star", "var"] = "star"
    values: Literal["float32", "float16", "bfloat16"] | None = None

    @property
    def host_waits(self) -> bool:
        """True if the host waits for a GPU during encoding: with ``"var"``, to learn which rank selects."""
        return self.choose == "var"

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements that can be sent in the number format ``values``."""
        return magnitudes_in(dtype_of(self.values, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic in bytes: a broadcast of indices, and an all-reduce of values.

        If ``choose`` is ``"var"``, an all-gather of one number per rank precedes the broadcast.
        """
        elements = torch.Size(shape).numel()
        k = k_for(elements, cf)
        norm_traffic = (Traffic(AllGather, torch.float32.itemsize),) if self.choose == "var" else ()
        return (
            *norm_traffic,
            Traffic(Broadcast, k * index_dtype(elements).itemsize),
            Traffic(AllReduce, k * dtype_of(self.values, dtype).itemsize),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x, ``(elements,)``, at the coordinates that one rank selects.

        1. Select this rank's k largest coordinates.
        2. Determine the root. With ``"var"``, all-gather the norm of each rank's selected values; the root is the rank
           with the largest norm. With ``"star"``, the root is the rank after the last step's root.
        3. Broadcast the root's indices.
        4. All-reduce every rank's values at these indices.
        """
        local_selection = multilevel.select_at(topk.select, x, cf, ctx)
        root = ctx.step % ctx.world
        if self.choose == "var":
            (norms,) = yield AllGather(norm(local_selection.values).float().reshape(1))
            root = int(norms.argmax())
        packed_indices = yield Broadcast(pack_indices(local_selection.indices, x.numel()), root)
        indices = unpack_indices(packed_indices, x.numel())
        values = convert_clamped(x[indices] / ctx.world, dtype_of(self.values, ctx.dtype))
        value_sums = yield AllReduce(values)
        return Reduced(
            mean=Sparse(((indices, value_sums.to(x.dtype)),)),
            sent=Sparse(((indices, values.to(x.dtype) * ctx.world),)),
            cf=x.numel() / max(1, values.numel()),
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, 0-d, as if this rank selected the coordinates.

        The errors are too low if another rank selects.
        """
        return topk.errors(x, cfs, ctx)

    @property
    def rounding(self) -> float:
        """Unit roundoff of the wire's number format, in which values are summed."""
        return unit_roundoff(dtype_of(self.values, torch.float32))


artopk = ARTopK()
"""AR-Topk in which ranks select by turns; with ``artopk(choose="var")``, the rank with most energy selects."""
