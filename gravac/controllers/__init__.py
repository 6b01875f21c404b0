# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers choose the next CF: pure functions of measurements. No torch, no clock, no I/O.

A controller that is imported here comes with gravac: users know it by its name. ``as`` makes the import public.
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

_CLASSES: list[Any] = [imported for imported in tuple(globals().values()) if isinstance(imported, type)]

BUILT_IN: dict[str, Any] = {
    imported.name: imported for imported in _CLASSES if hasattr(imported, "observe") and imported is not Controller
}
"""Controller classes of this package, by name: those that are imported above."""


def _fault(loaded: object) -> str:
    """Return what is wrong with an object that an entry point loaded; empty if it is a controller class."""
    is_controller = isinstance(loaded, type) and hasattr(loaded, "observe")
    return "" if is_controller else "is no controller; name a class, not an object of it"


CONTROLLERS: Registry[Any] = Registry("controller", "gravac.controllers", BUILT_IN, _fault)
"""Controller classes by name: those of this package, and those of installed packages."""
