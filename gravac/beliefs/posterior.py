# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Updates beliefs by a run's measurements: those of the measured method, and less so those of methods of its kind."""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gravac.beliefs.belief import Belief

KINSHIP = 0.7
"""Correlation, over programs, of the log efficiencies of two methods of one kind. In the measurements that the shipped
beliefs come from, this correlation is 0.56 to 0.98, with a median of 0.77. Between methods of different kinds it is
-0.5 to 0.8, with a median of 0.1; here 0 is assumed."""

PRIOR_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Factors on the standard deviations of beliefs; all are tried. The factor that makes a run's measurements most likely
is used, so that measurements which contradict a belief outweigh the belief."""


class MeasuredRatio(NamedTuple):
    """Efficiency of a method relative to that of another, as a run measured it.

    Attributes:
        position: position of the method in the list of beliefs.
        reference: position of the method that it was compared with.
        ratio: progress of a step / progress of a step of the reference; above 0.
        error: standard error of ``ratio``.
    """

    position: int
    reference: int
    ratio: float
    error: float


def posterior(
    beliefs: tuple[Belief, ...], kinds: tuple[Hashable, ...], ratios: tuple[MeasuredRatio, ...]
) -> tuple[Belief, ...]:
    """Return the beliefs after a run's measurements.

    The logarithms of the efficiencies are jointly normal: with the deviations of the beliefs, and with the correlation
    ``KINSHIP`` within a kind. All sums run in a fixed order, so that all ranks compute the same bits.

    Args:
        beliefs: beliefs about all methods before the measurements.
        kinds: kind of each method. Only the beliefs about methods of a measured kind change.
        ratios: the measurements.

    Example:
        >>> outer, compressed = Belief(0.99, 0.1), Belief(0.9, 0.1)
        >>> measured = MeasuredRatio(position=1, reference=0, ratio=0.6, error=0.06)
        >>> for belief in posterior((Belief(1.0), outer, outer, compressed), (0, 1, 1, 2), (measured,)):
        ...     print(round(belief.efficiency, 2), round(belief.deviation, 2))
        1.0 0.0
        0.61 0.1
        0.7 0.43
        0.9 0.1
    """
    if not ratios:
        return beliefs
    factor = max(PRIOR_FACTORS, key=lambda factor: _updated(beliefs, kinds, ratios, factor)[0])
    _, means, deviations = _updated(beliefs, kinds, ratios, factor)
    measured_kinds = {kinds[position] for measured in ratios for position in (measured.position, measured.reference)}
    return tuple(
        Belief(math.exp(mean), deviation) if kind in measured_kinds else belief
        for belief, kind, mean, deviation in zip(beliefs, kinds, means, deviations, strict=True)
    )


def _updated(
    beliefs: Sequence[Belief], kinds: Sequence[Hashable], ratios: Sequence[MeasuredRatio], factor: float
) -> tuple[float, list[float], list[float]]:
    """Return the log likelihood of the measurements, and means and deviations of log efficiency after them.

    Args:
        beliefs: beliefs before the measurements.
        kinds: kind of each method.
        ratios: the measurements.
        factor: factor on the standard deviations of ``beliefs``.
    """
    positions = range(len(beliefs))
    means = [math.log(belief.efficiency) for belief in beliefs]
    deviations = [factor * belief.deviation for belief in beliefs]
    covariance = [
        [
            deviations[i] * deviations[j] * (1.0 if i == j else KINSHIP if kinds[i] == kinds[j] else 0.0)
            for j in positions
        ]
        for i in positions
    ]
    likelihood = 0.0
    for position, reference, ratio, error in ratios:
        with_ratio = [row[position] - row[reference] for row in covariance]
        variance = with_ratio[position] - with_ratio[reference] + (error / ratio) ** 2
        if not variance > 0:
            continue
        innovation = math.log(ratio) - (means[position] - means[reference])
        likelihood -= 0.5 * (math.log(variance) + innovation**2 / variance)
        for i in positions:
            means[i] += with_ratio[i] / variance * innovation
            covariance[i] = [
                entry - with_ratio[i] * other / variance for entry, other in zip(covariance[i], with_ratio, strict=True)
            ]
    return likelihood, means, [math.sqrt(max(0.0, covariance[i][i])) for i in positions]
