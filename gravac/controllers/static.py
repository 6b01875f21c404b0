# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Static: a controller that runs one candidate for the whole run, as a baseline to compare other controllers with."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import DENSE, Candidate, Forecast, Span
from gravac.controllers.base import Decision, Measurement
from gravac.controllers.schedule import snap
from gravac.controllers.state_dicts import check_names
from gravac.controllers.window import Window
from gravac.settings import Settings

StaticState = Window
"""Type of the controller's state: statistics of the steps since the last record (a window)."""


class Static(Settings):
    """Runs one compression factor (CF) for the whole run, and records gain and throughput every ``window`` steps.

    Attributes:
        cf: compression factor. 1 is dense float32; 2 is dense in 16 bit if ``dense`` is a 16-bit format.
        window: number of steps from one record of gain and throughput to the next.
    """

    name: ClassVar[str] = "static"
    keeps_all: ClassVar[bool] = True
    chooses_sixteen_bit: ClassVar[bool] = False

    cf: float = Field(ge=1, allow_inf_nan=False)
    window: int = Field(default=20, ge=1)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return a tuple of one CF: ``cf``, or the supported CF nearest to ``cf``.

        The tuple is empty if that CF is outside ``cf_range``, except that CF 1 and CF 2 (dense) are always allowed.
        """
        cfs = (self.cf,) if isinstance(supported, Span) else snap((self.cf,), supported)
        return tuple(cf for cf in cfs if cf in (1.0, 2.0) or cf_range[0] <= cf <= cf_range[1])

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        """Return the state before the first step, and the decision for that step.

        Dense runs if ``cf`` is 1 or the CF of the dense candidate. Otherwise the candidate after dense runs.
        """
        dense_candidate, *other_candidates = (forecast.candidate for forecast in forecasts)
        candidate = (
            dense_candidate if self.cf in (1.0, dense_candidate.cf) or not other_candidates else other_candidates[0]
        )
        return Window(candidate), Decision(candidate, reason=f"static: {candidate} for the whole run")

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        """Return the state after a measurement, and the decision to keep the candidate.

        Every ``window`` steps, the decision has a summary of gain and throughput.
        """
        window = state.add(measurement)
        if window.steps < self.window:
            return window, Decision(state.candidate)
        decision = Decision(state.candidate, reason=f"static: keep {state.candidate}", summary=window.summary("static"))
        return window.following(state.candidate), decision

    def dump(self, state: StaticState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"window": state.dump()}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned."""
        check_names(None, dumped, (), Window)
        Window.restore(Candidate("hook", DENSE, 1.0), dumped["window"])

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision to run ``cf``, whatever ran before."""
        candidate = self.start(forecasts)[0].candidate
        return Window.restore(candidate, dumped["window"]), Decision(candidate)
