# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a compressed step is worth: the share of a dense step's progress that it makes, by compressor and CF.

Steps that dense training needs to a target over those that the compressor needs, each with its own error feedback:
geometric means over the three tasks of an older state of ``docs/measurements/tta.json``, of 468 runs
(``docs/results.md`` says what today's would be, and which order that would change); where that had no run (PowerSGD by
CF, low CFs, 3 bits), put between by the losses in ``docs/measurements/worth.json``. It is what is expected before
training, from small models. Gain, which is measured while training, ranks compressors about as well, and is no measure
of progress: 0.07 of the energy (top-k at 100x) makes a third of a dense step's.
"""

import itertools
import math
from collections.abc import Sequence

POINTS: dict[str, tuple[tuple[float, float], ...]] = {
    "dense": ((1, 1.0), (2, 1.0)),
    "quantize": ((4, 1.0), (8, 0.99), (32 / 3, 0.98), (16, 0.96), (32, 0.81)),
    "thc": ((8, 0.95),),
    "topk": ((1, 1.0), (2, 0.95), (10, 0.72), (100, 0.3)),
    "topkc": ((1, 1.0), (2, 0.75), (10, 0.38), (100, 0.16)),
    "powersgd": ((1, 1.0), (4, 0.75), (16, 0.55), (100, 0.25)),
    "randomk": ((1, 1.0), (10, 0.33)),
}
"""(CF, worth) by name, ascending. Between and beyond them worth is a power of CF.

Random-k's is of two tasks, with half its error fed back: ``docs/measurements/feedback.json``.
"""

BY_RANK = ((1.0, 0.2), (2.0, 0.36), (4.0, 0.57), (8.0, 0.77), (16.0, 0.87), (32.0, 0.95))
"""(Rank, worth) of low-rank compression, geometric means over the tasks. The CF says less: rank 4 is 25x or 100x,
as the shapes are."""

BY_GAIN: dict[str, tuple[tuple[float, float], ...]] = {
    "quantize": ((0.39, 0.73), (0.5, 0.8), (0.64, 0.92), (0.78, 0.95), (0.88, 0.97), (0.99, 0.99), (1.0, 1.0)),
}
"""(Gain, worth) by name, ascending, where one curve fits all tasks. Quantizers' do; sparsifiers' do not: of chunks at
10x a gain of 0.29 was worth 0.40 on ``charlm``, one of 0.47 under 0.26 on ``denoise``."""

UNKNOWN = ((1.0, 1.0), (10.0, 0.4))
"""Of a compressor that was not measured."""


def expected(name: str, cf: float) -> float:
    """Worth of a step of a compressor at a CF, in (0, 1].

    Example:
        >>> round(expected("topk", 10), 2), round(expected("topk", 100), 2)
        (0.72, 0.3)
    """
    return _at(POINTS.get(name, UNKNOWN), cf)


def by_rank(rank: int) -> float:
    """Worth of a step of low-rank compression, in (0, 1].

    Example:
        >>> round(by_rank(4), 2), by_rank(1000)
        (0.57, 1.0)
    """
    return _at(BY_RANK, rank)


def _at(points: Sequence[tuple[float, float]], x: float) -> float:
    """Between and beyond points a power of x; at most 1, and before the first point what is there."""
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    low, high = next((pair for pair in itertools.pairwise(points) if x <= pair[1][0]), points[-2:])
    slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return float(min(1.0, low[1] * (x / low[0]) ** slope))
