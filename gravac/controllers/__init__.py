# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which CF next: pure functions of measurements. No torch, no clock, no I/O."""

from typing import Any

from gravac.controllers.accordion import Accordion
from gravac.controllers.base import Controller, Decision, Measurement, Summary
from gravac.controllers.goodput import Goodput
from gravac.controllers.gravac import GraVAC
from gravac.controllers.static import Static
from gravac.controllers.warmup import Warmup

CONTROLLERS: dict[str, Any] = {
    "accordion": Accordion,
    "goodput": Goodput,
    "gravac": GraVAC,
    "static": Static,
    "warmup": Warmup,
}
"""Every controller's class by its name."""

__all__ = [
    "CONTROLLERS",
    "Accordion",
    "Controller",
    "Decision",
    "Goodput",
    "GraVAC",
    "Measurement",
    "Static",
    "Summary",
    "Warmup",
]
