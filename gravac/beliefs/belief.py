# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Belief about the statistical efficiency of a step: a median, and how uncertain it is."""

import math
from statistics import NormalDist
from typing import NamedTuple

SURE = 0.8
"""Probability that an efficiency is at least its lower bound; controllers decide by the lower bound."""

_QUANTILE = NormalDist().inv_cdf(SURE)


class Belief(NamedTuple):
    """Belief about a statistical efficiency: a log-normal distribution.

    Attributes:
        efficiency: median of the efficiency: progress of a step / progress of a step with dense gradient averaging.
        deviation: standard deviation of the efficiency's natural logarithm; 0 if the efficiency is certain.

    Example:
        >>> round(Belief(0.9, 0.1).lower_bound, 3), Belief(0.9).lower_bound
        (0.827, 0.9)
    """

    efficiency: float
    deviation: float = 0.0

    @property
    def lower_bound(self) -> float:
        """Efficiency that is exceeded with probability ``SURE`` (80 %)."""
        return self.efficiency * math.exp(-_QUANTILE * self.deviation) if self.deviation else self.efficiency

    @property
    def upper_bound(self) -> float:
        """Efficiency that is not exceeded with probability ``SURE``."""
        return self.efficiency * math.exp(_QUANTILE * self.deviation) if self.deviation else self.efficiency

    @property
    def band(self) -> tuple[float, float, float]:
        """The median, the lower and the upper bound.

        Example:
            >>> Belief(0.9).band
            (0.9, 0.9, 0.9)
        """
        return self.efficiency, self.lower_bound, self.upper_bound

    def times(self, other: "Belief") -> "Belief":
        """Return the belief about the product of two independent efficiencies.

        Example:
            >>> Belief(0.5, 0.3).times(Belief(0.8, 0.4))
            Belief(efficiency=0.4, deviation=0.5)
        """
        return Belief(self.efficiency * other.efficiency, math.hypot(self.deviation, other.deviation))

    def power(self, exponent: float) -> "Belief":
        """Return the belief about a power of the efficiency."""
        return Belief(math.pow(self.efficiency, exponent), self.deviation * abs(exponent))
