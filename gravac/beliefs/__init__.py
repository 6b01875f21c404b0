# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Beliefs: the statistical efficiencies that gravac assumes of compression methods before a run measures them.

Statistical efficiency is the progress of a step / the progress of a step with dense gradient averaging. A belief
(module ``belief``) is a median of an efficiency, and its uncertainty. ``shipped.json`` holds the numbers, ``tables``
reads them, and ``points`` interpolates between measured points. Controllers get beliefs only through
``gravac.candidate.Forecast``.
"""

from gravac.beliefs.belief import SURE, Belief
from gravac.beliefs.points import EfficiencyPoints, efficiency_at, power_at
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
    "MethodKind",
    "beliefs_in_force",
    "efficiency_at",
    "power_at",
    "read_beliefs",
    "shipped_beliefs",
    "use_beliefs",
]
