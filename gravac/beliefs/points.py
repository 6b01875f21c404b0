# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Interpolation of statistical efficiencies between measured points."""

import itertools
import math

EfficiencyPoints = tuple[tuple[float, float], ...]
"""Points ``(x, efficiency)``, ascending by x: a compression factor (CF), a low-rank compressor's rank, a gain, or a
number of steps. ``power_at`` takes points ``(number of steps, exponent)`` of this type."""


def efficiency_at(points: EfficiencyPoints, x: float) -> float:
    """Return the efficiency at x, interpolated between points.

    The interpolation is linear in log efficiency and log x, and extrapolates beyond the last point; its result is at
    most 1. Below the first point, and if there is only one point, the result is the first point's efficiency.

    Args:
        points: points ``(x, efficiency)``, at least one, ascending by x.
        x: a CF, a low-rank compressor's rank, or a number of steps, as in the points; above 0.

    Example:
        >>> round(efficiency_at(((1, 1.0), (10, 0.72), (100, 0.3)), 30), 2)
        0.47
    """
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    lower_point, higher_point = _neighboring_points(points, x)
    slope = math.log(higher_point[1] / lower_point[1]) / math.log(higher_point[0] / lower_point[0])
    return float(min(1.0, lower_point[1] * (x / lower_point[0]) ** slope))


def power_at(points: EfficiencyPoints, every: float) -> float:
    """Return the exponent to which a compressor's efficiency is raised if ranks exchange once in ``every`` steps.

    The interpolation is linear in log ``every``, and extrapolates beyond the last point. Below the first point, and if
    there is only one point, the result is the first point's exponent.

    Args:
        points: points ``(steps between two exchanges, exponent)``, at least one, ascending by steps; see
            ``CompressorBeliefs.apart``.
        every: number of steps from one exchange to the next.

    Example:
        >>> points = ((20, 1.0), (50, 2.0))
        >>> power_at(points, every=1), power_at(points, every=50), round(power_at(points, every=125), 2)
        (1.0, 2.0, 3.0)
    """
    if len(points) == 1 or every <= points[0][0]:
        return points[0][1]
    low, high = _neighboring_points(points, every)
    return low[1] + (high[1] - low[1]) * math.log(every / low[0]) / math.log(high[0] / low[0])


def _neighboring_points(points: EfficiencyPoints, x: float) -> EfficiencyPoints:
    """Return the two points on either side of x; beyond the last point, the last two."""
    return next((pair for pair in itertools.pairwise(points) if x <= pair[1][0]), points[-2:])
