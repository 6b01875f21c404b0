# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a compressed step is worth: the share of a dense step's progress that it makes, by compressor and CF.

Steps that dense training needs to a target, over those that the compressor needs, each with its own error feedback;
from ``docs/measurements/tta.json``, and where that has no run, from the losses in ``docs/measurements/worth.json``. It
is what is expected before training, of small models; gain, measured while training, does not compare compressors.
"""

import itertools
import math
from collections.abc import Sequence

POINTS: dict[str, tuple[tuple[float, float], ...]] = {
    "dense": ((1, 1.0), (2, 1.0)),
    "quantize": ((4, 1.0), (8, 0.98), (32 / 3, 0.97), (16, 0.95), (32, 0.89)),
    "thc": ((8, 0.95),),
    "topk": ((1, 1.0), (2, 0.95), (10, 0.67), (100, 0.34)),
    "topkc": ((1, 1.0), (2, 0.75), (10, 0.39), (100, 0.17)),
    "powersgd": ((1, 1.0), (4, 0.75), (16, 0.55), (100, 0.25)),
    "randomk": ((1, 1.0), (10, 0.17)),
}
"""(CF, worth) by name, ascending. Between and beyond them worth is a power of CF."""

UNKNOWN = ((1.0, 1.0), (10.0, 0.4))
"""Of a compressor that was not measured."""


def expected(name: str, cf: float) -> float:
    """Worth of a step of a compressor at a CF, in (0, 1].

    Example:
        >>> round(expected("topk", 10), 2), round(expected("topk", 1000), 2)
        (0.67, 0.17)
    """
    points = POINTS.get(name, UNKNOWN)
    if len(points) == 1 or cf <= points[0][0]:
        return points[0][1]
    pairs = itertools.pairwise(points)
    low, high = next((pair for pair in pairs if cf <= pair[1][0]), points[-2:])
    return min(1.0, _power(low, high, cf))


def _power(low: Sequence[float], high: Sequence[float], cf: float) -> float:
    slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return float(low[1] * (cf / low[0]) ** slope)
