# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers choose how the next steps run. They are pure functions of measurements: no torch, no clock, no I/O.

A policy may name each controller class that this file imports. ``import X as X`` tells type checkers that the package
exports ``X``.
"""

from collections.abc import Mapping
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

_IMPORTED_CLASSES: list[Any] = [imported for imported in tuple(globals().values()) if isinstance(imported, type)]

CONTROLLERS: Mapping[str, Any] = {
    imported.name: imported
    for imported in _IMPORTED_CLASSES
    if hasattr(imported, "observe") and imported is not Controller
}
"""Controller classes that this file imports, by name."""
