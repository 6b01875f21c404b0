# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Statistical efficiency of each method, as believed before a run has measured anything, and how uncertain that is.

``shipped.json`` holds the numbers, ``tables`` reads them, ``points`` interpolates between measured points, and
``belief`` is one efficiency with its uncertainty. They reach controllers through ``gravac.candidate.Forecast`` alone.
``posterior`` is what a run's own measurements make of them.
"""

from gravac.beliefs.belief import SURE, Belief
from gravac.beliefs.points import EfficiencyPoints, efficiency_at, power_at
from gravac.beliefs.posterior import MeasuredRatio, posterior
from gravac.beliefs.tables import (
    Beliefs,
    CompressorBeliefs,
    MethodKind,
    beliefs_in_force,
    read_beliefs,
    shipped_beliefs,
    use_beliefs,
)

__all__ = [
    "SURE",
    "Belief",
    "Beliefs",
    "CompressorBeliefs",
    "EfficiencyPoints",
    "MeasuredRatio",
    "MethodKind",
    "beliefs_in_force",
    "efficiency_at",
    "posterior",
    "power_at",
    "read_beliefs",
    "shipped_beliefs",
    "use_beliefs",
]
