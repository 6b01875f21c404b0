# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many steps, relative to one of dense gradient averaging."""

from gravac.candidate import Candidate
from gravac.compressors.profile import EfficiencyPoints, efficiency_at

DENSE: EfficiencyPoints = ((1.0, 0.96), (2.0, 0.96), (5.0, 0.93), (10.0, 0.88), (20.0, 0.80), (50.0, 0.62))
"""Efficiency by number of steps from one exchange to the next, of dense exchanges."""


def efficiency(candidate: Candidate, every: int) -> float:
    """Return the efficiency of a candidate that is exchanged every so many steps.

    What a compressor loses of a gradient in every step it loses of a pseudo-gradient once in a round, so the part that
    it costs is spread over the round's steps.
    """
    lost = (1 - candidate.efficiency) / every
    return round(efficiency_at(DENSE, every) * (1 - lost), 4)
