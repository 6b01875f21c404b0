# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many, relative to one of dense gradient averaging."""

import math

from gravac.candidate import Candidate
from gravac.compressors.profile import EfficiencyPoints, efficiency_at, power_at

DENSE: EfficiencyPoints = ((1, 0.91), (2, 1.0), (5, 0.99), (10, 0.96), (20, 0.84), (50, 0.77), (100, 0.72))
"""Efficiency by number of steps from one exchange to the next, of dense exchanges, with ``OuterSGD``:
geometric means over three tasks, two ranks, one seed (``docs/measurements/outer_efficiency.json``)."""

BEHIND: EfficiencyPoints = ((1, 1.0), (3, 0.98), (6, 0.94), (11, 0.89), (26, 0.78))
"""Efficiency by one more than the number of steps behind which an exchange travels, relative to waiting for it: put
by ``docs/measurements/outer_delays.json``, which has but a bound of one task at the last."""


def efficiency(candidate: Candidate, every: int, delay: int = 0) -> float:
    """Return the efficiency of a candidate that is exchanged every so many steps, and taken up so many later.

    Example:
        >>> bits = Candidate("quantize", 16.0, 15.0, efficiency=0.96, apart=((50, 1.0), (100, 2.2)))
        >>> efficiency(bits, 10), efficiency(bits, 10, delay=5), efficiency(bits, 100)
        (0.9216, 0.8663, 0.6582)
    """
    return round(_dense(every, delay) * math.pow(candidate.efficiency, _power(candidate, every)), 4)


def in_each_step(candidate: Candidate) -> float:
    """Return what the efficiency of a candidate of outer steps is where each step is exchanged.

    Example:
        >>> from dataclasses import replace
        >>> bits = Candidate("quantize", 16.0, 15.0, 0.96, every=100, apart=((50, 1.0), (100, 2.2)))
        >>> round(in_each_step(replace(bits, efficiency=efficiency(bits, 100))), 3)
        0.96
    """
    share = min(1.0, max(0.0, candidate.efficiency / _dense(candidate.every, candidate.delay)))
    return math.pow(share, 1 / _power(candidate, candidate.every))


def _dense(every: int, delay: int) -> float:
    return efficiency_at(DENSE, every) * efficiency_at(BEHIND, 1 + delay)


def _power(candidate: Candidate, every: int) -> float:
    return power_at(candidate.apart, every) if candidate.apart else 1.0
