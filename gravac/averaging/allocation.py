# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which tensor gets which CF when the model may send so many bytes: those that lose most per byte get more of them.

Every tensor has a curve: what it loses at each CF, and what it sends there. Least loss in total for a budget of bytes
is a knapsack; steps along the curves' lower convex hulls, by falling loss per byte, solve it but for the last one.
L-GreCo (Alimohammadi et al., MLSys 2024, arXiv 2210.17357) poses it the other way: least bytes for a given loss.

Pure: the same curves give the same CFs on every rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Point(NamedTuple):
    """One CF of a tensor (``None`` for dense), ``Σ‖g_ef - sent‖²`` over the ranks there, and bytes a rank sends."""

    cf: float | None
    error: float
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Curve:
    """What one tensor loses and sends.

    Attributes:
        energy: squared norm of what is to be sent, ``Σ‖g_ef‖²`` over the ranks.
        points: what is lost and sent at each CF, dense first.
    """

    energy: float
    points: tuple[Point, ...]

    def at(self, cf: float) -> Point | None:
        """The point of a CF; ``None`` when it was not surveyed."""
        return next((point for point in self.points if point.cf == cf), None)

    def gain(self, cf: float) -> float | None:
        """``1 - error / energy`` at a CF; 1 when there was nothing to send, ``None`` when it was not surveyed."""
        point = self.at(cf)
        if point is None:
            return None
        return 1 - point.error / self.energy if self.energy else 1.0


def allocate(curves: Mapping[str, Curve], cf: float) -> dict[str, float | None]:
    """Each tensor's CF, for the bytes that all at one CF would send.

    Args:
        curves: each tensor's curve, by name.
        cf: compression factor of all tensors; those whose curve does not know it are left out, and keep it.

    Returns:
        CFs by name, ``None`` for dense; ``cf`` for all where nothing better is found.
    """
    uniform = {name: point for name, curve in curves.items() if (point := curve.at(cf)) is not None}
    chosen = spend({name: curves[name] for name in uniform}, sum(point.wire_bytes for point in uniform.values()))
    better = math.fsum(p.error for p in chosen.values()) < math.fsum(p.error for p in uniform.values())
    return {name: point.cf for name, point in (chosen if better else uniform).items()}


def spend(curves: Mapping[str, Curve], budget: int) -> dict[str, Point]:
    """A point of each curve, of little total error and no more than ``budget`` wire bytes together.

    Raises:
        ValueError: even the fewest bytes that the tensors can send are more than ``budget``.
    """
    hulls = {name: hull(curves[name].points) for name in sorted(curves)}
    chosen = {name: points[0] for name, points in hulls.items()}
    left = budget - sum(point.wire_bytes for point in chosen.values())
    if left < 0:
        raise ValueError(f"budget: {budget} bytes, and the fewest that {len(curves)} tensors send are {budget - left}")
    steps = [(_slope(*step), name, step) for name, points in hulls.items() for step in pairwise(points)]
    for _, name, (before, after) in sorted(steps, key=lambda step: step[0]):
        if chosen[name] is not before:
            continue
        if after.wire_bytes > before.wire_bytes + left:  # then what fits, also above the hull, and no further step
            fitting = (point for point in curves[name].points if point.wire_bytes <= before.wire_bytes + left)
            after = min(fitting, key=lambda point: (point.error, point.wire_bytes))
        chosen[name] = after
        left -= after.wire_bytes - before.wire_bytes
    return chosen


def hull(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull of error over bytes, from the fewest bytes to the least error: error falls, ever slower."""
    corners: list[Point] = []
    for point in sorted(points, key=lambda point: (point.wire_bytes, point.error)):
        if corners and point.error >= corners[-1].error:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) > _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _slope(before: Point, after: Point) -> float:
    """Error per byte from one point to the next; negative."""
    return (after.error - before.error) / (after.wire_bytes - before.wire_bytes)
