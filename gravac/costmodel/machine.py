# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Constants of a machine for the model of step times: its speed of copying tensors, and the costs of compression."""

from collections.abc import Mapping
from dataclasses import dataclass

from gravac.compressors import Compressor
from gravac.compressors.profile import MEASURED_WORLD, Coding, CostPoints, coding_at
from gravac.costmodel.network import check

Costs = Mapping[str, CostPoints]
"""Costs of compression by compressor name: points ``(CF, encode, decode)``, ascending by compression factor (CF).

``encode`` is the time of encode / the time of copying the tensor; ``decode`` likewise. Decode is measured at
``MEASURED_WORLD`` (2) ranks.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of a machine: its speed of compression, and how much of the exchange backward can hide.

    Attributes:
        copy_bytes_per_s: bytes of a tensor / seconds that copying the tensor takes.
        overlap: fraction of backward's time during which an exchange can be in flight, 0 to 1.
        costs: costs of encode and decode on this machine, see ``Costs``; a compressor that is missing has no known
            cost. ``None``: the costs in each compressor's profile, which were measured on a CPU.
        per_rank: whether the time of decode after an all-gather grows in proportion to the number of ranks, except for
            a fixed part (``Coding.fixed``). ``False``: decode takes the same time at any number of ranks.
        start_s: overhead in seconds, besides coding and exchange, of each round of collectives of a compressed bucket:
            waking threads, calls, and cold caches. A compressor needs several rounds if a collective depends on the
            result of the one before.
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
        """Return the costs of encode and decode; ``None`` if not measured.

        A cost is the time of encode or decode, divided by the time of copying the tensor.
        """
        if self.costs is None or not compressor.compresses:
            return compressor.profile(cf).coding
        return coding_at(self.costs.get(compressor.name, ()), cf)

    def copies(self, compressor: Compressor, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """Return the total cost of encode and decode of a tensor: their time / the time of copying the tensor.

        Args:
            compressor: compressor of the tensor.
            cf: compression factor.
            world: number of ranks.
            gathered: whether every rank decodes the data of all ranks, as after an all-gather.

        Raises:
            ValueError: no cost of that compressor is known.
        """
        coding = self.coding(compressor, cf)
        if coding is None:
            remedy = "measure them with gravac bench compressors, and set coding_costs in the compressor's class"
            if self.costs is not None:
                names = ", ".join(sorted(self.costs)) or "no compressor"
                remedy = f"the machine has costs of {names}; add those of {compressor.name!r} to Machine(costs=...)"
            raise ValueError(f"compressor: {compressor.name!r} has no measured costs of encode and decode; {remedy}")
        return coding.copies(world, gathered and self.per_rank)
