# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Warmup: a controller that raises the compression factor (CF) in stages, by a schedule that ignores measurements.

Source: Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), section 3.3: sparsity 75, 93.75, 98.4375,
99.6 and 99.9 % in the first epochs, which are CFs 4, 16, 64, 256 and 1000. The controller is a baseline to compare
others with.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Decision, Measurement
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.state_dicts import Count, candidates_of, check_names, from_plain, identify, to_plain
from gravac.controllers.window import Window
from gravac.settings import Settings


@dataclass(frozen=True, slots=True)
class WarmupState:
    """State of the controller ``Warmup``.

    Attributes:
        candidates: candidates that may be chosen: dense first, then ascending by wire ratio.
        window: statistics of the steps since gain and throughput were last recorded. Only steps of the candidate of the
            newest decision count.
        steps: number of steps observed.
    """

    candidates: tuple[Candidate, ...]
    window: Window
    steps: Count = 0


class Warmup(Settings):
    """Multiplies the compression factor (CF) by ``factor`` every ``every`` steps, from ``first`` up to ``cf``.

    Each stage has a target CF, and runs the candidate whose CF is nearest by ratio. If that CF is more than
    ``sqrt(factor)`` times higher than the target, the stage runs dense. The reason for such a difference: the target is
    outside the user's range, or its candidate was dropped because it would send no fewer bytes than dense.

    Attributes:
        cf: compression factor of the last stage; 1000 in the paper.
        first: compression factor of the first stage; 4 in the paper.
        factor: ratio between the CFs of two successive stages; 4 in the paper.
        every: number of steps of a stage. In the paper a stage is an epoch: set the number of steps of your epoch.
        window: number of steps from one record of gain and throughput to the next.
        latency: number of steps from a measured step to the step in which the decision takes effect; gravac sets it
            (``for_latency``).

    Example:
        >>> Warmup().stages
        (4.0, 16.0, 64.0, 256.0, 1000.0)
    """

    name: ClassVar[str] = "warmup"
    keeps_all: ClassVar[bool] = False
    chooses_sixteen_bit: ClassVar[bool] = False

    cf: float = Field(default=1000.0, ge=1, allow_inf_nan=False)
    first: float = Field(default=4.0, ge=1, allow_inf_nan=False)
    factor: float = Field(default=4.0, gt=1, allow_inf_nan=False)
    every: int = Field(default=1000, ge=1)
    window: int = Field(default=20, ge=1)
    latency: int = Field(default=LATENCY, ge=2)

    @property
    def stages(self) -> tuple[float, ...]:
        """The target CF of each stage, ascending; the last is ``cf``."""
        return geometric((min(self.first, self.cf), self.cf), self.factor)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the supported CFs that are nearest to the target CFs of the stages, ascending.

        A target CF above ``cf_range`` counts as the highest CF of the range. A target CF below the range is left out.
        """
        lowest_cf, highest_cf = cf_range
        target_cfs = sorted({min(cf, highest_cf) for cf in self.stages if cf >= lowest_cf})
        return snap(target_cfs, supported)

    def for_latency(self, latency: int) -> "Warmup":
        """Return the same controller for decisions that take effect ``latency`` steps after the measured step."""
        return self(latency=latency)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[WarmupState, Decision]:
        """Return the state before the first step, and the decision for that step: the first stage's candidate."""
        candidates = tuple(forecast.candidate for forecast in forecasts)
        first_candidate = self._candidate_at(0, candidates)
        return WarmupState(candidates, Window(first_candidate)), Decision(
            first_candidate, reason=self._reason(0, first_candidate)
        )

    def observe(self, state: WarmupState, measurement: Measurement) -> tuple[WarmupState, Decision]:
        """Return the state after a measured step, and the decision for the step ``latency`` steps after it.

        The decision's candidate is the one that the schedule has for that step.
        """
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
        """Raise ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned."""
        check_names(WarmupState, dumped, ("running",), Window)
        running_candidates = candidates_of([dumped["running"]], "controller_state/running")
        window = {**dumped["window"], "candidate": running_candidates[0]}
        from_plain(WarmupState, {**dumped, "candidates": running_candidates, "window": window})

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[WarmupState, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        The schedule continues at the dumped number of steps, with the candidates of ``forecasts``. If the schedule
        chooses the same candidate as before, the window of steps continues; otherwise a new window begins.
        """
        steps, candidates = dumped["steps"], tuple(forecast.candidate for forecast in forecasts)
        candidate = self._candidate_at(steps + self.latency - 1 if steps else 0, candidates)
        return WarmupState(candidates, Window.resume(candidate, dumped), steps), Decision(candidate)

    def _stage_number(self, step: int) -> int:
        """Return the number of the stage that a step belongs to, counted from 0."""
        return min(step // self.every, len(self.stages) - 1)

    def _candidate_at(self, step: int, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that the schedule runs in a step.

        Args:
            step: number of the step, counted from 0.
            candidates: candidates that may be chosen: dense first.
        """
        dense_candidate, *compressed_candidates = candidates
        target_cf = self.stages[self._stage_number(step)]
        if not compressed_candidates or target_cf <= dense_candidate.cf:
            return dense_candidate
        nearest_candidate = min(compressed_candidates, key=lambda candidate: abs(math.log(candidate.cf / target_cf)))
        return nearest_candidate if nearest_candidate.cf <= target_cf * math.sqrt(self.factor) else dense_candidate

    def _phase(self, step: int) -> str:
        """Return the phase at a step (counted from 0): ``"warm-up"``, or ``"warmed up"`` in the last stage."""
        return "warm-up" if self._stage_number(step) < len(self.stages) - 1 else "warmed up"

    def _reason(self, step: int, candidate: Candidate) -> str:
        """Return the reason, as text, for running a candidate in a step (counted from 0).

        The text names the stage, and also the stage's target CF if the candidate's CF differs from it.
        """
        stage_number, target_cfs = self._stage_number(step), self.stages
        target_text = (
            ""
            if math.isclose(candidate.cf, target_cfs[stage_number], rel_tol=1e-6)
            else f" in place of CF {target_cfs[stage_number]:g}"
        )
        return f"{self._phase(step)}: stage {stage_number + 1} of {len(target_cfs)}, {candidate}{target_text}"
