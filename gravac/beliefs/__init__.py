# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Beliefs about each method's statistical efficiency before a run has measured anything, with their uncertainty.

``shipped.json`` holds the numbers, ``tables`` reads them, ``points`` interpolates between measured points, and
``belief`` is an efficiency with its uncertainty. Controllers get beliefs only through ``gravac.candidate.Forecast``.
``posterior`` corrects them by a run's own measurements.
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
