# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many, relative to one of dense gradient averaging."""

from gravac.candidate import Candidate
from gravac.compressors.profile import EfficiencyPoints, efficiency_at

DENSE: EfficiencyPoints = ((1, 0.98), (2, 1.0), (5, 0.97), (10, 0.94), (20, 0.87), (50, 0.79))
"""Efficiency by number of steps from one exchange to the next, of dense exchanges, with plain SGD of rate 1 outside:
geometric means over two tasks, two ranks, one seed (``docs/measurements/outer_efficiency.json``)."""


def efficiency(candidate: Candidate, every: int) -> float:
    """Return the efficiency of a candidate that is exchanged every so many steps.

    What a compressor costs in every step it is taken to cost once in a round, in equal shares of its steps: that is not
    measured yet.
    """
    lost = (1 - candidate.efficiency) / every
    return round(efficiency_at(DENSE, every) * (1 - lost), 4)
