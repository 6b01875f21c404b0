# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of outer steps: when ranks exchange, how much each of them does, and what is kept where."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from gravac.settings import Settings

MIXING = 0.5
"""Share of its own weights that a rank keeps where it takes up what travelled behind steps: Streaming DiLoCo's."""


class Exchanging(Settings):
    """When ranks exchange; explained at :class:`gravac.OuterOptimizer`."""

    every: tuple[int, int] = (1, 100)
    fragments: int = Field(default=1, ge=1)
    delay: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    mixing: float | None = Field(default=MIXING, ge=0, lt=1)

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

    @property
    def behind(self) -> int | Literal["auto"]:
        """``delay``; exchanges of every step are waited for where that is to be chosen."""
        return 0 if self.every == (1, 1) and self.delay == "auto" else self.delay


class OuterSettings(Exchanging):
    """All settings of outer steps, explained there too."""

    by_speed: bool = False
    samples: int | None = Field(default=None, ge=1)
    anchor_dtype: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False
    local_buffers: tuple[str, ...] = ()

    def plain(self) -> dict[str, str | int | float | bool]:
        """Return the settings that the run's record tells, by name, as plain values; none that was not set."""
        told = ((name, str(value) if isinstance(value, tuple) else value) for name, value in self if value != ())
        return {f"outer.{name}": value for name, value in told if value is not None}
