# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What compressing costs on a machine, in copies of the tensor."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gravac.costmodel.network import check

Costs = Mapping[str, Sequence[tuple[float, float, float]]]
"""By compressor: (CF, encode, decode at ``MEASURED_WORLD`` ranks), ascending by CF, in copies of the tensor."""


MEASURED_WORLD = 2
"""Ranks at which ``COSTS`` was measured."""


SIXTEEN_BIT_COPIES = 2.02
"""Copies that converting to 16 bit and back costs; docs/measurements/compressors.json, ``torch fp16``."""


COSTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "topk": ((10, 9.42, 7.17), (100, 5.60, 2.73), (1000, 3.68, 1.52)),
    "topkc": ((10, 2.77, 3.53), (100, 2.58, 1.96), (1000, 2.28, 1.81)),
    "randomk": ((10, 19.84, 5.45), (100, 4.08, 3.95), (1000, 2.48, 2.21)),
    "scaled_randomk": ((10, 18.84, 3.34), (100, 3.02, 2.06), (1000, 1.40, 0.90)),
    "artopk": ((10, 9.65, 7.61), (100, 5.94, 3.77), (1000, 4.31, 1.82)),
    "dgc": ((10, 26.37, 17.67), (100, 17.14, 13.57), (1000, 15.33, 4.35)),
    "redsync": ((10, 137.80, 8.27), (100, 127.05, 3.08), (1000, 28.16, 1.53)),
    "sidco": ((10, 121.19, 7.50), (100, 70.23, 3.27), (1000, 106.92, 1.70)),
    "hard_threshold": ((10, 17.82, 8.01), (100, 16.52, 3.20), (1000, 11.95, 1.61)),
    "powersgd": ((10, 17.34, 39.37), (100, 4.25, 7.70), (1000, 3.11, 4.73)),
    "quantize": ((4, 7.79, 5.02), (8, 11.45, 6.93), (10.667, 15.23, 8.31), (16, 9.64, 5.94), (32, 6.00, 5.07)),
    "thc": ((8, 1.44, 27.52),),
    "qsgd": ((8, 50.55, 25.11),),
    "terngrad": ((16, 46.03, 17.82),),
    "natural": ((4, 73.30, 88.18),),
    "intsgd": ((4, 12.46, 42.31),),
    "signsgd": ((32, 8.14, 18.17),),
    "majority": ((32, 4.09, 19.48),),
    "ladder": (
        (2, 1.3, 0.8),  # to CF 28 as 16 bit and quantize
        (3.94, 7.79, 5.02),
        (7.76, 11.45, 6.93),
        (10.24, 15.23, 8.31),
        (15.06, 9.64, 5.94),
        (28.44, 6.00, 5.07),
        (113.78, 1.88, 5.66),
        (910.22, 1.77, 2.14),
    ),
}
"""Measured on a CPU: docs/measurements/compressors.json. What a GPU takes in copies of its own may differ much."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What compressing costs, and how much of an exchange can hide.

    Attributes:
        copy_bytes_per_s: bytes of a tensor over the seconds that copying it takes.
        overlap: share of backward behind which the exchange can hide, 0 to 1.
        costs: see ``Costs``; between CFs interpolated in log CF, beyond them the nearest.
        per_rank: whether the decode of an all-gather grows with the ranks, less what it costs at the highest CF
            measured (at most a copy and a half); otherwise costs are as given at any number of ranks.
        start_s: what a round of collectives of a compressed bucket takes beside that: waking, calls, caches; seconds.
    """

    copy_bytes_per_s: float
    overlap: float = 0.9
    costs: Costs = field(default_factory=lambda: COSTS)
    per_rank: bool = True
    start_s: float = 0.0

    def __post_init__(self) -> None:
        check("copy_bytes_per_s", self.copy_bytes_per_s, self.copy_bytes_per_s > 0, "bytes per second, above 0")
        check("overlap", self.overlap, 0 <= self.overlap <= 1, "a share, 0 to 1")
        check("start_s", self.start_s, self.start_s >= 0, "seconds, 0 or more")

    def copies(self, compressor: str, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """What encoding and decoding a tensor costs, in copies of it.

        Args:
            compressor: its name.
            cf: compression factor.
            world: ranks.
            gathered: whether every rank decodes what all ranks have sent.

        Raises:
            ValueError: there is no cost of that compressor.
        """
        rows = self.costs.get(compressor)
        if not rows:
            known = ", ".join(sorted(self.costs))
            raise ValueError(
                f"compressor: no measured cost of {compressor!r}; measured are {known}; give Machine(costs=...) its own"
            )
        at = np.log([row[0] for row in rows])
        encode = float(np.interp(math.log(cf), at, [row[1] for row in rows]))
        decode = float(np.interp(math.log(cf), at, [row[2] for row in rows]))
        if not gathered or not self.per_rank:
            return encode + decode
        fixed = min(1.5, rows[-1][2], decode)
        return encode + fixed + (decode - fixed) * world / MEASURED_WORLD
