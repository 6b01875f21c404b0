# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers choose the next CF: pure functions of measurements. No torch, no clock, no I/O."""

from typing import Any

from gravac.controllers.accordion import Accordion
from gravac.controllers.base import Controller, Decision, Measurement, Summary
from gravac.controllers.goodput import Goodput
from gravac.controllers.gravac import GraVAC
from gravac.controllers.static import Static
from gravac.controllers.warmup import Warmup
from gravac.entry_points import Registry

BUILT_IN: dict[str, Any] = {kind.name: kind for kind in (Accordion, Goodput, GraVAC, Static, Warmup)}
"""Controller classes of this package, by name."""


def _fault(loaded: object) -> str:
    """Return what is wrong with an object that an entry point loaded; empty if it is a controller class."""
    is_controller = isinstance(loaded, type) and hasattr(loaded, "observe")
    return "" if is_controller else "is no controller; name a class, not an object of it"


CONTROLLERS: Registry[Any] = Registry("controller", "gravac.controllers", BUILT_IN, _fault)
"""Controller classes by name: those of this package, and those of installed packages."""

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
