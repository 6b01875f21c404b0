# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A machine's speed, and its cost of compression in copies of the tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from gravac.compressors import Compressor
from gravac.compressors.profile import MEASURED_WORLD, Coding, CostPoints, coding_at
from gravac.costmodel.network import check

Costs = Mapping[str, CostPoints]
"""Points (CF, encode, decode at ``MEASURED_WORLD`` ranks) by the compressor's name, ascending by CF; in copies."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: its cost of compression, and the part of an exchange that it can hide.

    Attributes:
        copy_bytes_per_s: bytes of a tensor / seconds that copying the tensor takes.
        overlap: fraction of backward that can hide the exchange, 0 to 1.
        costs: coding costs of this machine, see ``Costs``; the cost of a missing compressor is unknown. ``None``: the
            costs of each compressor's profile, which were measured on a CPU.
        per_rank: whether decoding after an all-gather takes time in proportion to the number of ranks, except for a
            fixed part (``Coding.fixed``); if not, costs are the same at any number of ranks.
        start_s: seconds that each round of collectives of a compressed bucket takes in addition: waking threads, calls,
            cold caches.
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
        """Return the cost of coding a tensor on this machine, in copies of it; ``None`` if it was not measured."""
        if self.costs is None or not compressor.compresses:
            return compressor.profile(cf).coding
        return coding_at(self.costs.get(compressor.name, ()), cf)

    def copies(self, compressor: Compressor, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """Return the cost of encoding and decoding a tensor, in copies of it.

        Args:
            compressor: compressor of the tensor.
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
