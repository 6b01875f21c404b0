# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers choose how the next steps run. They are pure functions of measurements: no torch, no clock, no I/O.

A policy may name each controller class that this file imports. ``import X as X`` tells type checkers that the package
exports ``X``.
"""

from typing import Any

from gravac.controllers.accordion import Accordion as Accordion
from gravac.controllers.base import Controller as Controller
from gravac.controllers.base import Decision as Decision
from gravac.controllers.base import Measurement as Measurement
from gravac.controllers.base import Summary as Summary
from gravac.controllers.goodput import Goodput as Goodput
from gravac.controllers.gravac import GraVAC as GraVAC
from gravac.controllers.static import Static as Static
from gravac.controllers.warmup import Warmup as Warmup
from gravac.entry_points import Registry

_IMPORTED_CLASSES: list[Any] = [imported for imported in tuple(globals().values()) if isinstance(imported, type)]

BUILT_IN: dict[str, Any] = {
    imported.name: imported
    for imported in _IMPORTED_CLASSES
    if hasattr(imported, "observe") and imported is not Controller
}
"""Controller classes that this file imports, by name."""


def _find_fault(plugin: object) -> str:
    """Return a text that says what is wrong with the object of an entry point; empty for a controller class."""
    is_controller = isinstance(plugin, type) and hasattr(plugin, "observe")
    return (
        "" if is_controller else "is not a controller class; let the entry point name a class with the method observe"
    )


CONTROLLERS: Registry[Any] = Registry("controller", "gravac.controllers", BUILT_IN, _find_fault)
"""Controller classes by name: those of this package, and those that installed packages declare as entry points."""
