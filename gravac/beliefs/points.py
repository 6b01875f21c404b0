# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How a value is read off between points that were measured."""

import itertools
import math

EfficiencyPoints = tuple[tuple[float, float], ...]
"""Points (x, efficiency), ascending by x, which is a CF, a rank, a gain, or a number of steps."""


def efficiency_at(points: EfficiencyPoints, x: float) -> float:
    """The efficiency at a CF (or rank): between and beyond points a power of x; at most 1.

    Before the first point it is what is there, and so it is everywhere of a single one.

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
    """The power that an efficiency is raised to where ranks exchange every so many steps: linear in their logarithm.

    Before the first point it is what is there; beyond the last it goes on as it came.

    Example:
        >>> [round(power_at(((20, 1.0), (50, 2.0)), every), 2) for every in (1, 20, 50, 125)]
        [1.0, 1.0, 2.0, 3.0]
    """
    if len(points) == 1 or every <= points[0][0]:
        return points[0][1]
    low, high = _around(points, every)
    return low[1] + (high[1] - low[1]) * math.log(every / low[0]) / math.log(high[0] / low[0])


def _around(points: EfficiencyPoints, x: float) -> EfficiencyPoints:
    """The points before and after x; beyond the last, the last two."""
    return next((pair for pair in itertools.pairwise(points) if x <= pair[1][0]), points[-2:])
