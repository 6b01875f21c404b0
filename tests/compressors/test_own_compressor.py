# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A compressor of a user's own is passed as it is, and its own costs and efficiency count."""

from collections.abc import Sequence
from typing import ClassVar

import torch

from gravac import AdaptiveCompressor
from gravac.averaging.average import Averager
from gravac.collectives import AllReduce, Traffic
from gravac.compressors import Compressor, Context, Reduced, Rounds, Sparse
from gravac.compressors.base import energy, k_for
from gravac.engine.admission import admit
from gravac.exchange.link_probe import LinkProbe


class Comb(Compressor):
    """Sends every ``cf``-th element, from another element on in each step."""

    name: ClassVar[str] = "comb"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.5
    coding_costs: ClassVar = ((10, 2.0, 1.5), (1000, 1.0, 0.5))
    efficiency_points: ClassVar = ((1, 1.0), (10, 0.9), (1000, 0.3))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        return (Traffic(AllReduce, k_for(torch.Size(shape).numel(), cf) * max(4, dtype.itemsize)),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        n, k = x.numel(), k_for(x.numel(), cf)
        chosen = (torch.arange(k, device=x.device) * n // max(1, k) + 7919 * ctx.step) % max(1, n)
        mine = x[chosen]
        total = yield AllReduce(mine)
        return Reduced(mean=Sparse(((chosen, total / ctx.world),)), sent=Sparse(((chosen, mine),)), cf=n / max(1, k))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        return [energy(x) * (1 - k_for(x.numel(), cf) / max(1, x.numel())) for cf in cfs]


def test_goodput_starts_with_it_where_the_link_says() -> None:
    """Candidates know its efficiency, and coding and exchange by its own costs: on a slow link it is the start."""
    with AdaptiveCompressor(Comb(), (4, 1000), controller="goodput") as compressor:
        policy = compressor.policy
    averager = Averager(policy.base, policy.dense_format, None, 1024)
    averager.world = 2
    link = LinkProbe(latency=5e-5, bandwidth=1e8, copy_bytes_per_s=1e10)
    forecasts = admit(policy, averager, [((1024, 1024), torch.float32)], link).forecasts
    (ours,) = (known for known in forecasts if known.candidate.compressor == "comb" and known.candidate.cf == 4)
    assert (ours.efficiency, ours.coding_s) == (0.9385, float(f"{3.5 * 4 * 2**20 / 1e10:.3g}"))
    assert ours.exchange_s is not None
    _, first = policy.controller.start(forecasts)
    assert str(first.candidate) == "comb 4x (4x fewer bytes)"
    assert "gravac expects" in first.reason
