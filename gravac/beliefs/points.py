# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Interpolation between measured points."""

import itertools
import math

EfficiencyPoints = tuple[tuple[float, float], ...]
"""Points (x, efficiency), ascending by x, which is a CF, a rank, a gain, or a number of steps."""


def efficiency_at(points: EfficiencyPoints, x: float) -> float:
    """Return the efficiency at a CF, a rank, or a number of steps, at most 1.

    Interpolated linearly in log efficiency and log x, and extrapolated beyond the last point. Below the first point,
    and if there is one point only, the result is the first point's efficiency.

    Example:
        >>> round(efficiency_at(((1, 1.0), (10, 0.72), (100, 0.3)), 30), 2)
        0.47
    """
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    low, high = _around(points, x)
    slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return float(min(1.0, low[1] * (x / low[0]) ** slope))


def power_at(points: EfficiencyPoints, every: float) -> float:
    """Return the exponent of the efficiency if ranks exchange once in ``every`` steps (``CompressorBeliefs.apart``).

    Interpolated linearly in log ``every``, and extrapolated beyond the last point; below the first point, the first
    point's exponent.

    Example:
        >>> points = ((20, 1.0), (50, 2.0))
        >>> power_at(points, every=1), power_at(points, every=50), round(power_at(points, every=125), 2)
        (1.0, 2.0, 3.0)
    """
    if len(points) == 1 or every <= points[0][0]:
        return points[0][1]
    low, high = _around(points, every)
    return low[1] + (high[1] - low[1]) * math.log(every / low[0]) / math.log(high[0] / low[0])


def _around(points: EfficiencyPoints, x: float) -> EfficiencyPoints:
    """Return the two points on either side of x; beyond the last point, the last two."""
    return next((pair for pair in itertools.pairwise(points) if x <= pair[1][0]), points[-2:])
