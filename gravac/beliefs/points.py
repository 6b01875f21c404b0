# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Interpolation of statistical efficiencies between measured points."""

import itertools
import math

EfficiencyPoints = tuple[tuple[float, float], ...]
"""Points ``(x, efficiency)``, ascending by x. What x is depends on the table: a compression factor (CF), the rank of a
low-rank compressor, a gain, a number of steps, or a number of ranks. Tables for ``power_at`` have the same type, with
points ``(number of steps, exponent)``."""


def efficiency_at(points: EfficiencyPoints, x: float) -> float:
    """Return the efficiency at x, interpolated between points.

    The interpolation is linear in log efficiency and log x. Beyond the last point, the line through the last two points
    continues, up to an efficiency of 1. Below the first point, and if there is only one point, the result is the first
    point's efficiency.

    Args:
        points: points ``(x, efficiency)``, at least one, ascending by x.
        x: the same quantity as the first numbers of ``points``: a CF, the rank of a low-rank compressor, a number of
            steps, or a number of ranks; above 0.

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

    The base of the power is the compressor's efficiency with an exchange in each step. The interpolation is linear in
    log ``every``. Beyond the last point, the line through the last two points continues. Below the first point, and if
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
    lower_point, higher_point = _neighboring_points(points, every)
    return lower_point[1] + (higher_point[1] - lower_point[1]) * math.log(every / lower_point[0]) / math.log(
        higher_point[0] / lower_point[0]
    )


def _neighboring_points(points: EfficiencyPoints, x: float) -> EfficiencyPoints:
    """Return the two neighboring points with x between them; if x is beyond the last point, the last two points."""
    return next((point_pair for point_pair in itertools.pairwise(points) if x <= point_pair[1][0]), points[-2:])
