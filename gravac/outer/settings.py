# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of outer steps: when ranks exchange, how much each of them does, and what is kept where."""

from typing import Any, Literal

from pydantic import Field, field_validator

from gravac.settings import Settings


class Exchanging(Settings):
    """When ranks exchange; explained at :class:`gravac.OuterOptimizer`."""

    every: tuple[int, int] = (1, 100)
    fragments: int = Field(default=1, ge=1)
    delay: int = Field(default=0, ge=0)
    mixing: float | None = Field(default=None, ge=0, lt=1)

    @field_validator("every", mode="before")
    @classmethod
    def _range(cls, value: Any) -> tuple[int, int]:
        both = (value, value) if isinstance(value, int) else value
        try:
            low, high = both
            right = all(type(bound) is int and bound >= 1 for bound in (low, high)) and low <= high
        except (TypeError, ValueError):
            right = False
        if not right:
            raise ValueError("give a number of steps, such as 10, or the lowest and the highest, such as (1, 100)")
        return low, high


class OuterSettings(Exchanging):
    """All settings of outer steps, explained there too."""

    by_speed: bool = False
    samples: int | None = Field(default=None, ge=1)
    anchor_dtype: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False

    def plain(self) -> dict[str, str | int | float | bool]:
        """Return the settings that the run's record tells, by name, as plain values; none that was not set."""
        told = ((name, str(value) if isinstance(value, tuple) else value) for name, value in self)
        return {f"outer.{name}": value for name, value in told if value is not None}
