# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run's own measurements make of beliefs: of the method measured, and with less weight of those of its kind."""

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gravac.beliefs.belief import Belief

KINSHIP = 0.7
"""Correlation over programs of the log efficiencies of two methods of one kind: 0.56 to 0.98, median 0.77, in the
record that the shipped beliefs come from. Between methods of different kinds it is -0.5 to 0.8, median 0.1: taken as
0."""

WIDER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Factors by which all prior deviations may be too small. The one that makes the measurements most likely is taken, so
that a belief which a run contradicts gives way, and does not hold its own against it."""


class MeasuredRatio(NamedTuple):
    """How much progress a step of one method makes, relative to a step of another, as a run measured it.

    Attributes:
        position: place of the method in the list of beliefs.
        reference: place of the method that it was compared with.
        ratio: progress of a step / progress of a step of the reference; above 0.
        error: standard error of ``ratio``.
    """

    position: int
    reference: int
    ratio: float
    error: float


@lru_cache(maxsize=64)
def posterior(
    beliefs: tuple[Belief, ...], kinds: tuple[Hashable, ...], comparisons: tuple[MeasuredRatio, ...]
) -> tuple[Belief, ...]:
    """Return the beliefs after what a run has measured.

    Log efficiencies are taken as jointly normal: with the beliefs' own deviations, and correlated by ``KINSHIP`` within
    a kind. Sums run in one order, so that all ranks get the same bits.

    Args:
        beliefs: beliefs about all methods before.
        kinds: kind of each method; only methods of equal kind tell of each other.
        comparisons: what was measured.

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
    if not comparisons:
        return beliefs
    likelihood, widest = max((_updated(beliefs, kinds, comparisons, wider)[0], -wider) for wider in WIDER)
    del likelihood
    _, means, deviations = _updated(beliefs, kinds, comparisons, -widest)
    measured = {kinds[place] for comparison in comparisons for place in comparison[:2]}
    return tuple(
        Belief(math.exp(mean), deviation) if kind in measured else belief
        for belief, kind, mean, deviation in zip(beliefs, kinds, means, deviations, strict=True)
    )


def _updated(
    beliefs: Sequence[Belief], kinds: Sequence[Hashable], comparisons: Sequence[MeasuredRatio], wider: float
) -> tuple[float, list[float], list[float]]:
    """Return the log likelihood of what was measured, and means and deviations of log efficiency after it.

    Args:
        beliefs: beliefs before.
        kinds: kind of each.
        comparisons: what was measured.
        wider: factor of all prior deviations.
    """
    places = range(len(beliefs))
    means = [math.log(belief.efficiency) for belief in beliefs]
    prior = [wider * belief.deviation for belief in beliefs]
    covariance = [
        [prior[i] * prior[j] * (1.0 if i == j else KINSHIP if kinds[i] == kinds[j] else 0.0) for j in places]
        for i in places
    ]
    likelihood = 0.0
    for position, reference, ratio, error in comparisons:
        noise = (error / ratio) ** 2
        towards = [row[position] - row[reference] for row in covariance]
        variance = towards[position] - towards[reference] + noise
        if not variance > 0:
            continue
        off = math.log(ratio) - (means[position] - means[reference])
        likelihood -= 0.5 * (math.log(variance) + off**2 / variance)
        for i in places:
            means[i] += towards[i] / variance * off
            covariance[i] = [
                entry - towards[i] * along / variance for entry, along in zip(covariance[i], towards, strict=True)
            ]
    return likelihood, means, [math.sqrt(max(0.0, covariance[i][i])) for i in places]
