# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many, relative to one of dense gradient averaging."""

import math

from gravac.candidate import Candidate
from gravac.compressors.profile import EfficiencyPoints, efficiency_at

DENSE: EfficiencyPoints = ((1, 0.91), (2, 1.0), (5, 0.99), (10, 0.96), (20, 0.82), (50, 0.74), (100, 0.6))
"""Efficiency by number of steps from one exchange to the next, of dense exchanges, with plain SGD of rate 0.7 outside:
geometric means over three tasks, two ranks, one seed (``docs/measurements/outer_efficiency.json``)."""

BEHIND: EfficiencyPoints = ((1, 1.0), (3, 0.98), (6, 0.94), (11, 0.89), (26, 0.8))
"""Efficiency by one more than the number of steps behind which an exchange travels, relative to waiting for it: the
same of ``docs/measurements/outer_delays.json``."""

ALIKE = 20
"""Number of steps between two exchanges up to which a compressor costs what it costs in every step; beyond, few rounds
are left for what it held back to be sent in, and it costs more."""

DEARER = 0.8
"""Power of the number of steps over ``ALIKE`` with which the logarithm of a compressor's efficiency grows beyond."""


def efficiency(candidate: Candidate, every: int, delay: int = 0) -> float:
    """Return the efficiency of a candidate that is exchanged every so many steps, and taken up so many later.

    Example:
        >>> bits = Candidate("quantize", 16.0, 15.0, efficiency=0.96)
        >>> efficiency(bits, 10), efficiency(bits, 10, delay=5), efficiency(bits, 50)
        (0.9216, 0.8663, 0.6797)
    """
    power = max(1.0, (every / ALIKE) ** DEARER)
    apart = efficiency_at(DENSE, every) * efficiency_at(BEHIND, 1 + delay)
    return round(apart * math.pow(candidate.efficiency, power), 4)
