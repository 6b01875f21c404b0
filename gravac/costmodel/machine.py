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
    "topk": ((10, 10.75, 9.18), (100, 5.9, 3.46), (1000, 4.19, 1.65)),
    "topkc": ((10, 2.81, 3.84), (100, 2.74, 2.07), (1000, 2.67, 1.65)),
    "randomk": ((10, 20.1, 5.33), (100, 3.52, 3.53), (1000, 1.95, 1.7)),
    "scaled_randomk": ((10, 17.72, 2.62), (100, 2.64, 1.91), (1000, 1.41, 0.82)),
    "artopk": ((10, 8.52, 7.38), (100, 5.68, 3.82), (1000, 4.02, 1.72)),
    "dgc": ((10, 26.25, 13.49), (100, 15.27, 12.22), (1000, 11.24, 7.96)),
    "redsync": ((10, 116.8, 8.86), (100, 111.1, 3.83), (1000, 69.74, 1.53)),
    "sidco": ((10, 116.22, 9.48), (100, 140.84, 2.86), (1000, 162.91, 1.46)),
    "hard_threshold": ((10, 20.38, 8.97), (100, 14.35, 2.72), (1000, 13.37, 1.57)),
    "powersgd": ((10, 17.63, 70.06), (100, 5.73, 33.45), (1000, 3.25, 29.72)),
    "quantize": ((4, 8.32, 5.52), (8, 13.93, 7.79), (10.667, 16.83, 9.55), (16, 13.9, 6.78), (32, 6.23, 5.26)),
    "thc": ((8, 1.39, 23.29),),
    "qsgd": ((8, 74.93, 78.47),),
    "terngrad": ((16, 71, 36.52),),
    "natural": ((4, 103.85, 109.47),),
    "intsgd": ((4, 20.31, 62.23),),
    "signsgd": ((32, 7.9, 63.57),),
    "majority": ((32, 3.98, 8.09),),
    "ladder": (
        (2, 1.21, 0.86),  # to CF 28 as 16 bit and quantize
        (3.94, 8.32, 5.52),
        (7.76, 13.93, 7.79),
        (10.24, 16.83, 9.55),
        (15.06, 13.9, 6.78),
        (28.44, 6.23, 5.26),
        (113.78, 1.85, 5.39),
        (910.22, 1.6, 2.07),
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
    """

    copy_bytes_per_s: float
    overlap: float = 0.9
    costs: Costs = field(default_factory=lambda: COSTS)
    per_rank: bool = True

    def __post_init__(self) -> None:
        check("copy_bytes_per_s", self.copy_bytes_per_s, self.copy_bytes_per_s > 0, "bytes per second, above 0")
        check("overlap", self.overlap, 0 <= self.overlap <= 1, "a share, 0 to 1")

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
