# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many, relative to one of dense gradient averaging."""

from gravac.candidate import Candidate
from gravac.compressors.profile import EfficiencyPoints, efficiency_at

DENSE: EfficiencyPoints = ((1, 0.9), (2, 1.0), (5, 1.0), (10, 0.98), (20, 0.88), (50, 0.75))
"""Efficiency by number of steps from one exchange to the next, of dense exchanges, with plain SGD of rate 0.7 outside:
geometric means over two tasks, two ranks, one seed (``docs/measurements/outer_efficiency.json``)."""


BEHIND: EfficiencyPoints = ((1, 1.0), (3, 0.95), (6, 0.9), (10, 0.82))
"""Efficiency by one more than the number of steps behind which an exchange travels, relative to waiting for it."""


def efficiency(candidate: Candidate, every: int, delay: int = 0) -> float:
    """Return the efficiency of a candidate that is exchanged every so many steps, and taken up so many later.

    What a compressor costs in every step it costs in each of a round's, too: so it was measured for one and two bits.
    """
    return round(efficiency_at(DENSE, every) * efficiency_at(BEHIND, 1 + delay) * candidate.efficiency, 4)
