# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What compressing costs on a machine, in copies of the tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from gravac.compressors import Compressor
from gravac.compressors.profile import MEASURED_WORLD, Coding, CostPoints, coding_at
from gravac.costmodel.network import check

Costs = Mapping[str, CostPoints]
"""Points (CF, encode, decode at ``MEASURED_WORLD`` ranks) by compressor's name, ascending by CF; costs in copies."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What compressing costs, and how much of an exchange can hide.

    Attributes:
        copy_bytes_per_s: bytes of a tensor over the seconds that copying it takes.
        overlap: share of backward behind which the exchange can hide, 0 to 1.
        costs: coding costs of its own, see ``Costs``; compressors that are not in them are not known then. ``None``:
            what each compressor's profile says, which was measured on a CPU.
        per_rank: whether the decode of an all-gather grows with the ranks, less what it costs at the highest CF
            measured (at most a copy and a half); otherwise costs are as given at any number of ranks.
        start_s: what a round of collectives of a compressed bucket takes beside that: waking, calls, caches; seconds.
    """

    copy_bytes_per_s: float
    overlap: float = 0.9
    costs: Costs | None = None
    per_rank: bool = True
    start_s: float = 0.0

    def __post_init__(self) -> None:
        check("copy_bytes_per_s", self.copy_bytes_per_s, self.copy_bytes_per_s > 0, "bytes per second, above 0")
        check("overlap", self.overlap, 0 <= self.overlap <= 1, "a share, 0 to 1")
        check("start_s", self.start_s, self.start_s >= 0, "seconds, 0 or more")

    def coding(self, compressor: Compressor, cf: float) -> Coding | None:
        """What coding a tensor costs here, in copies of it; ``None`` where that was not measured."""
        if self.costs is None or not compressor.compresses:
            return compressor.profile(cf).coding
        return coding_at(self.costs.get(compressor.name, ()), cf)

    def copies(self, compressor: Compressor, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """What encoding and decoding a tensor costs, in copies of it.

        Args:
            compressor: what the tensor is compressed by.
            cf: compression factor.
            world: number of ranks.
            gathered: whether every rank decodes what all ranks have sent.

        Raises:
            ValueError: no cost of that compressor is known.
        """
        coding = self.coding(compressor, cf)
        if coding is None:
            remedy = "set coding_costs on its class, as gravac bench compressors measures them"
            if self.costs is not None:
                remedy = f"this machine's costs are of {', '.join(sorted(self.costs))}; give Machine(costs=...) its own"
            raise ValueError(f"compressor: no measured cost of {compressor.name!r}; {remedy}")
        return coding.copies(world, gathered and self.per_rank)
