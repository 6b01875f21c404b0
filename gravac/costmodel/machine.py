# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A machine's speed of copies, and the cost of compression on it, in copies of the compressed tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from gravac.compressors import Compressor
from gravac.compressors.profile import MEASURED_WORLD, Coding, CostPoints, coding_at
from gravac.costmodel.network import check

Costs = Mapping[str, CostPoints]
"""Costs of compression by the compressor's name: points ``(CF, encode, decode)``, ascending by compression factor (CF).

A cost is a time / the time of copying the tensor; decode is measured at ``MEASURED_WORLD`` ranks.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of a machine: its speed of compression, and how much of the exchange it can hide behind backward.

    Attributes:
        copy_bytes_per_s: bytes of a tensor / seconds that copying the tensor takes.
        overlap: fraction of the time of backward that can hide the exchange, 0 to 1.
        costs: costs of encode and decode on this machine, see ``Costs``; a compressor that is missing has no known
            cost. ``None``: the costs of each compressor's profile, which were measured on a CPU.
        per_rank: whether decoding after an all-gather takes time in proportion to the number of ranks, except for a
            fixed part (``Coding.fixed``); if not, costs are the same at any number of ranks.
        start_s: seconds that each round of collectives of a compressed bucket takes besides coding and exchange: for
            waking threads, for calls, and for cold caches.
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
        """Return the cost of encode and of decode, in copies of the tensor; ``None`` if it was not measured."""
        if self.costs is None or not compressor.compresses:
            return compressor.profile(cf).coding
        return coding_at(self.costs.get(compressor.name, ()), cf)

    def copies(self, compressor: Compressor, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """Return the total cost of encode and decode of a tensor: their time / the time of copying the tensor.

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
                names = ", ".join(sorted(self.costs)) or "no compressor"
                remedy = f"the machine has costs of {names}; add those of {compressor.name!r} to Machine(costs=...)"
            raise ValueError(f"compressor: no measured cost of {compressor.name!r}; {remedy}")
        return coding.copies(world, gathered and self.per_rank)
