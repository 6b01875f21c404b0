# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Corrects beliefs about the efficiency of compression methods by a run's own measurements.

A measurement of a method changes the belief about that method. It also changes, to a lesser degree, the beliefs about
methods of the same kind (``MethodKind``).
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gravac.beliefs.belief import Belief

SAME_KIND_CORRELATION = 0.7
"""Correlation of the log efficiencies of two methods of the same kind, over different training programs. In the
measurements that the shipped beliefs come from, this correlation is 0.56 to 0.98, with a median of 0.77. Between
methods of different kinds the correlation is -0.5 to 0.8, with a median of 0.1; ``posterior`` assumes 0."""

DEVIATION_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Factors by which ``posterior`` may multiply the standard deviations of all beliefs. ``posterior`` uses the factor
with which the run's measurements are most likely. Therefore measurements outweigh the beliefs that they contradict."""


class MeasuredRatio(NamedTuple):
    """Ratio of the efficiencies of two methods, measured by a run.

    Attributes:
        position: index of the measured method in the argument ``beliefs`` of ``posterior``, from 0.
        reference: index, in the same list, of the method that the measured method was compared with.
        ratio: progress of a step of the measured method / progress of a step of the reference; above 0.
        error: standard error of ``ratio``.
    """

    position: int
    reference: int
    ratio: float
    error: float


def posterior(
    beliefs: tuple[Belief, ...], kinds: tuple[Hashable, ...], ratios: tuple[MeasuredRatio, ...]
) -> tuple[Belief, ...]:
    """Return the beliefs about all methods after a run's measurements.

    The model: the logarithms of the efficiencies are jointly normal, with the standard deviations of the beliefs, and
    with the correlation ``SAME_KIND_CORRELATION`` between methods of one kind. All sums run in a fixed order, so that
    all ranks compute the same bits.

    Args:
        beliefs: beliefs about all methods before the measurements.
        kinds: kind of each method, in the order of ``beliefs``. A belief changes only if ``ratios`` has a method of the
            same kind, as measured method or as reference.
        ratios: ratios of efficiencies that the run measured; empty: no belief changes.

    Returns:
        The corrected beliefs, in the order of ``beliefs``.

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
    best_factor = max(DEVIATION_FACTORS, key=lambda factor: _condition(beliefs, kinds, ratios, factor)[0])
    _, log_means, log_deviations = _condition(beliefs, kinds, ratios, best_factor)
    measured_kinds = {kinds[position] for measured in ratios for position in (measured.position, measured.reference)}
    return tuple(
        Belief(math.exp(log_mean), log_deviation) if kind in measured_kinds else belief
        for belief, kind, log_mean, log_deviation in zip(beliefs, kinds, log_means, log_deviations, strict=True)
    )


def _condition(
    beliefs: Sequence[Belief], kinds: Sequence[Hashable], ratios: Sequence[MeasuredRatio], deviation_factor: float
) -> tuple[float, list[float], list[float]]:
    """Condition the normal model of ``posterior`` on the measured ratios.

    Args:
        beliefs: beliefs before the measurements.
        kinds: kind of each method, in the order of ``beliefs``.
        ratios: ratios of efficiencies that the run measured.
        deviation_factor: factor by which the standard deviations of ``beliefs`` are multiplied first.

    Returns:
        The log likelihood of the ratios, up to a constant; the means of the methods' log efficiencies after the
        measurements; and their standard deviations. Both lists have the order of ``beliefs``.
    """
    method_positions = range(len(beliefs))
    log_means = [math.log(belief.efficiency) for belief in beliefs]
    log_deviations = [deviation_factor * belief.deviation for belief in beliefs]
    covariance = [
        [
            log_deviations[i]
            * log_deviations[j]
            * (1.0 if i == j else SAME_KIND_CORRELATION if kinds[i] == kinds[j] else 0.0)
            for j in method_positions
        ]
        for i in method_positions
    ]
    log_likelihood = 0.0
    for position, reference, ratio, error in ratios:
        covariance_with_ratio = [row[position] - row[reference] for row in covariance]
        variance = covariance_with_ratio[position] - covariance_with_ratio[reference] + (error / ratio) ** 2
        if not variance > 0:
            continue
        innovation = math.log(ratio) - (log_means[position] - log_means[reference])
        log_likelihood -= 0.5 * (math.log(variance) + innovation**2 / variance)
        for i in method_positions:
            log_means[i] += covariance_with_ratio[i] / variance * innovation
            covariance[i] = [
                covariance[i][j] - covariance_with_ratio[i] * covariance_with_ratio[j] / variance
                for j in method_positions
            ]
    return log_likelihood, log_means, [math.sqrt(max(0.0, covariance[i][i])) for i in method_positions]
