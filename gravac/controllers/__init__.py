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
from gravac.entry_points import Known

BUILT_IN: dict[str, Any] = {kind.name: kind for kind in (Accordion, Goodput, GraVAC, Static, Warmup)}
"""Those of this package."""


def _wrong(found: object) -> str:
    is_controller = isinstance(found, type) and hasattr(found, "observe")
    return "" if is_controller else "is no controller; name a class, not an object of it"


CONTROLLERS: Known[Any] = Known("controller", "gravac.controllers", BUILT_IN, _wrong)
"""Every controller's class by its name: those of this package, and of packages installed beside it."""

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
