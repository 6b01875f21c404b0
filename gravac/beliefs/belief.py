# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A belief about the statistical efficiency of a step: how much progress it makes, and how sure that is."""

import math
from statistics import NormalDist
from typing import NamedTuple

SURE = 0.8
"""Probability with which a step is to make at least the progress that a decision goes by: one-sided."""

_QUANTILE = NormalDist().inv_cdf(SURE)


class Belief(NamedTuple):
    """An efficiency that is not known: its logarithm is taken to be normally distributed.

    Attributes:
        efficiency: median of the efficiency, the progress of a step over that of a step with dense gradient averaging.
        deviation: standard deviation of its natural logarithm; 0 if it is certain.

    Example:
        >>> round(Belief(0.9, 0.1).lower, 3), Belief(0.9).lower
        (0.827, 0.9)
    """

    efficiency: float
    deviation: float = 0.0

    @property
    def lower(self) -> float:
        """The efficiency that a step has at least, with probability ``SURE``."""
        return lower_bound(self.efficiency, self.deviation)

    def times(self, other: "Belief") -> "Belief":
        """Return the belief about the product of two efficiencies that do not depend on each other.

        Example:
            >>> Belief(0.5, 0.3).times(Belief(0.8, 0.4))
            Belief(efficiency=0.4, deviation=0.5)
        """
        return Belief(self.efficiency * other.efficiency, math.hypot(self.deviation, other.deviation))

    def power(self, exponent: float) -> "Belief":
        """Return the belief about a power of the efficiency."""
        return Belief(math.pow(self.efficiency, exponent), self.deviation * abs(exponent))


def lower_bound(efficiency: float, deviation: float) -> float:
    """Return the efficiency that a step has at least, with probability ``SURE``.

    Args:
        efficiency: its median.
        deviation: standard deviation of its natural logarithm.
    """
    return efficiency * math.exp(-_QUANTILE * deviation) if deviation else efficiency
