# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Warm-up by a schedule: the CF rises in stages to its final value, whatever is measured.

Source: Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), section 3.3: sparsity 75, 93.75, 98.4375,
99.6 and 99.9 % in the first epochs, which are CFs 4, 16, 64, 256 and 1000. A baseline that costs nothing to run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Decision, Measurement
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.state_dicts import Count, check_names, from_plain, identified, identify, to_plain
from gravac.controllers.window import Window
from gravac.settings import Settings


@dataclass(frozen=True, slots=True)
class WarmupState:
    """State of a warm-up.

    Attributes:
        candidates: candidates that may be chosen.
        window: current window, of the candidate decided on.
        steps: number of steps observed.
    """

    candidates: tuple[Candidate, ...]
    window: Window
    steps: Count = 0


class Warmup(Settings):
    """Multiplies the CF by ``factor`` every ``every`` steps, from ``first`` until ``cf``, and stays there.

    Each stage runs the candidate nearest to its CF by ratio. It runs dense if that candidate's CF is more than
    ``sqrt(factor)`` times higher than the stage's. Then the stage's CF is outside the user's range, or was dropped
    because it would send no less than dense.

    Attributes:
        cf: compression factor of the last stage; the paper's is 1000.
        first: compression factor of the first stage; the paper's is 4. (``start`` is a method of every controller.)
        factor: ratio between the CFs of two stages; the paper's is 4.
        every: number of steps of a stage. The paper's is one epoch: set the number of steps of your epoch.
        window: steps between records.
        latency: steps from a measurement to its decision; the executor sets the number (``for_latency``).

    Example:
        >>> Warmup().stages
        (4.0, 16.0, 64.0, 256.0, 1000.0)
    """

    name: ClassVar[str] = "warmup"
    keeps_all: ClassVar[bool] = False
    sixteen_bit: ClassVar[bool] = False

    cf: float = Field(default=1000.0, ge=1, allow_inf_nan=False)
    first: float = Field(default=4.0, ge=1, allow_inf_nan=False)
    factor: float = Field(default=4.0, gt=1, allow_inf_nan=False)
    every: int = Field(default=1000, ge=1)
    window: int = Field(default=20, ge=1)
    latency: int = Field(default=LATENCY, ge=2)

    @property
    def stages(self) -> tuple[float, ...]:
        """The CF of each stage, ascending; that of the last stage is ``cf``."""
        return geometric((min(self.first, self.cf), self.cf), self.factor)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the stages' CFs in the range, with higher ones clamped to its upper bound; empty if all are lower."""
        low, high = cf_range
        target_cfs = sorted({min(cf, high) for cf in self.stages if cf >= low})
        return snap(target_cfs, supported)

    def for_latency(self, latency: int) -> "Warmup":
        """Return the same schedule for decisions that take effect ``latency`` steps after the measurement."""
        return self(latency=latency)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[WarmupState, Decision]:
        """Start with the first stage."""
        candidates = tuple(forecast.candidate for forecast in forecasts)
        first = self._candidate_at(0, candidates)
        return WarmupState(candidates, Window(first)), Decision(first, reason=self._reason(0, first))

    def observe(self, state: WarmupState, measurement: Measurement) -> tuple[WarmupState, Decision]:
        """Count the step; choose the candidate of the step in which the decision takes effect."""
        steps = state.steps + 1
        window = state.window.add(measurement)
        candidate = self._candidate_at(steps + self.latency - 1, state.candidates)
        if candidate == window.candidate and window.steps < self.window:
            return WarmupState(state.candidates, window, steps), Decision(candidate)
        summary = window.summary(self._phase(steps - 1)) if window.steps else None
        decision = Decision(candidate, (), self._reason(steps + self.latency - 1, candidate), summary)
        return WarmupState(state.candidates, window.following(candidate), steps), decision

    def dump(self, state: WarmupState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"running": identify([state.window.candidate])[0], **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` unless ``dumped`` is a state that ``dump`` returned."""
        check_names(WarmupState, dumped, ("running",), Window)
        running = identified([dumped["running"]], "controller_state/running")
        window = {**dumped["window"], "candidate": running[0]}
        from_plain(WarmupState, {**dumped, "candidates": running, "window": window})

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[WarmupState, Decision]:
        """Return the state that ``dump`` wrote, and the decision in force.

        The schedule continues at the dumped step. The window continues if its candidate still runs.
        """
        steps, candidates = dumped["steps"], tuple(forecast.candidate for forecast in forecasts)
        candidate = self._candidate_at(steps + self.latency - 1 if steps else 0, candidates)
        return WarmupState(candidates, Window.resume(candidate, dumped), steps), Decision(candidate)

    def _stage(self, step: int) -> int:
        """Return the number of the stage that a step belongs to, counted from 0."""
        return min(step // self.every, len(self.stages) - 1)

    def _candidate_at(self, step: int, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that runs in a step."""
        dense, *others = candidates
        target_cf = self.stages[self._stage(step)]
        if not others or target_cf <= dense.cf:
            return dense
        nearest = min(others, key=lambda candidate: abs(math.log(candidate.cf / target_cf)))
        return nearest if nearest.cf <= target_cf * math.sqrt(self.factor) else dense

    def _phase(self, step: int) -> str:
        """Return the name of the phase that a step belongs to."""
        return "warm-up" if self._stage(step) < len(self.stages) - 1 else "warmed up"

    def _reason(self, step: int, candidate: Candidate) -> str:
        """Return the stage and the candidate as text, with the stage's CF if the candidate's differs."""
        stage, stages = self._stage(step), self.stages
        instead = "" if math.isclose(candidate.cf, stages[stage], rel_tol=1e-6) else f" for {stages[stage]:g}x"
        return f"{self._phase(step)}: stage {stage + 1} of {len(stages)}, {candidate}{instead}"
