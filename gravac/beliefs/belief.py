# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Type of a belief about the statistical efficiency of a step: a median, and its uncertainty."""

import math
from statistics import NormalDist
from typing import NamedTuple

SURE = 0.8
"""Probability with which an efficiency exceeds the lower bound of its belief; controllers decide by that bound."""

_SURE_QUANTILE = NormalDist().inv_cdf(SURE)


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
        """Lower bound of the efficiency: the efficiency is higher with probability ``SURE`` (80 %)."""
        return self.efficiency * math.exp(-_SURE_QUANTILE * self.deviation) if self.deviation else self.efficiency

    @property
    def upper_bound(self) -> float:
        """Upper bound of the efficiency: the efficiency is lower with probability ``SURE`` (80 %)."""
        return self.efficiency * math.exp(_SURE_QUANTILE * self.deviation) if self.deviation else self.efficiency

    @property
    def band(self) -> tuple[float, float, float]:
        """The efficiency's median, lower bound and upper bound, in this order.

        Example:
            >>> Belief(0.9).band
            (0.9, 0.9, 0.9)
        """
        return self.efficiency, self.lower_bound, self.upper_bound

    def times(self, other: "Belief") -> "Belief":
        """Return the belief about the product of two independent efficiencies: this belief's and ``other``'s.

        Example:
            >>> Belief(0.5, 0.3).times(Belief(0.8, 0.4))
            Belief(efficiency=0.4, deviation=0.5)
        """
        return Belief(self.efficiency * other.efficiency, math.hypot(self.deviation, other.deviation))

    def power(self, exponent: float) -> "Belief":
        """Return the belief about this belief's efficiency, raised to ``exponent``."""
        return Belief(math.pow(self.efficiency, exponent), self.deviation * abs(exponent))
