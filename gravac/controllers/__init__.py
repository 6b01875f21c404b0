# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which CF next: pure functions of measurements. No torch, no clock, no I/O."""

from typing import Any

from gravac.controllers.base import Controller, Decision, Measurement, Summary
from gravac.controllers.gravac import GraVAC
from gravac.controllers.static import Static

CONTROLLERS: dict[str, Any] = {"gravac": GraVAC, "static": Static}
"""Every controller's class by its name."""

__all__ = ["CONTROLLERS", "Controller", "Decision", "GraVAC", "Measurement", "Static", "Summary"]
