# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of a training step from compute, compression and network; ``step.py`` has the formula."""

from gravac.costmodel.machine import Costs, Machine
from gravac.costmodel.network import Network, collective_seconds
from gravac.costmodel.step import Format, Load, Prediction, break_even, crossing, load, predict

__all__ = [
    "Costs",
    "Format",
    "Load",
    "Machine",
    "Network",
    "Prediction",
    "break_even",
    "collective_seconds",
    "crossing",
    "load",
    "predict",
]
