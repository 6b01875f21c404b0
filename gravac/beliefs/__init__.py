# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is believed to be worth before a run has shown anything: data, with its doubt, and how it is read.

``known.json`` holds the numbers. ``tables`` reads them, ``points`` reads values off between measured points, and
``belief`` is what comes of it: a median, and how far off it may be. A run's candidates get their beliefs in their
``gravac.candidate.Forecast``, and nowhere else.
"""

from gravac.beliefs.belief import SURE, Belief, lower_bound
from gravac.beliefs.points import EfficiencyPoints, efficiency_at, power_at
from gravac.beliefs.tables import Beliefs, Kind, OfCompressor, current, known, using

__all__ = [
    "SURE",
    "Belief",
    "Beliefs",
    "EfficiencyPoints",
    "Kind",
    "OfCompressor",
    "current",
    "efficiency_at",
    "known",
    "lower_bound",
    "power_at",
    "using",
]
