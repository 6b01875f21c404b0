# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the GraVAC paper as printed, defects included: for comparison with the repaired one.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, Algorithm 1; the numbers of lines are the paper's. Two deviations that
no implementation escapes: it is fed with gains that all ranks agree on, and in force two steps later (as printed it
branches on this step's model-wide gain, which nobody knows when the first bucket leaves); and its CFs are those of the
candidate list, which also bounds a θ_min and a θ_s that as printed grow, or shrink, without bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gravac.candidate import Candidate
from gravac.controllers.base import Decision, Measurement
from gravac.controllers.plain import Count, Factor, Finite
from gravac.controllers.window import Window


class LiteralSettings(Protocol):
    """Settings of ``GraVAC`` that the printed algorithm has; see there."""

    @property
    def window(self) -> int:
        """Steps between decisions."""

    @property
    def epsilon(self) -> float:
        """Gain from which on a CF may run (ε)."""

    @property
    def omega(self) -> float:
        """Relative difference under which two numbers count as the same (ω)."""

    @property
    def ewma(self) -> float:
        """Weight of a new gain in the moving average."""

    @property
    def step(self) -> str:
        """How the CF step θ_s grows: ``"exponential"`` or ``"geometric"``."""


@dataclass(frozen=True, slots=True)
class LiteralState:
    """The algorithm's variables.

    Attributes:
        candidates: candidates to choose from: dense first, then ascending by CF.
        running: position of the candidate that runs.
        theta_min: θ_min, the lowest CF in use.
        theta_s: θ_s, the ratio of the CF that is tried to θ_min.
        delta_min: EWMA of the gain at θ_min; ``None`` before the first.
        delta_c: EWMA of the gain at θ_s θ_min; ``None`` before the first.
        throughput: ``(cf, T_compress)`` of each CF that ran, its latest sample.
        steps: number of iterations so far.
        window: window under way; the records need it, the algorithm does not.
    """

    candidates: tuple[Candidate, ...]
    running: Count
    theta_min: Factor
    theta_s: Factor
    window: Window
    delta_min: Finite | None = None
    delta_c: Finite | None = None
    throughput: tuple[tuple[Factor, Finite], ...] = ()
    steps: Count = 0

    def at(self, cf: float) -> int:
        """Return the position of the candidate nearest to a CF."""
        positions = range(1, len(self.candidates))
        return min(positions, key=lambda p: abs(math.log(self.candidates[p].cf / cf)), default=0)

    @property
    def floor(self) -> int:
        """Position of the candidate at θ_min."""
        return self.at(self.theta_min)

    @property
    def candidate(self) -> int:
        """Position of the candidate at θ_s θ_min."""
        return self.at(self.theta_s * self.theta_min)


def start(candidates: Sequence[Candidate]) -> tuple[LiteralState, Decision]:
    """Run dense until the first gains are known."""
    lowest = candidates[1].cf if len(candidates) > 1 else 1.0
    state = LiteralState(tuple(candidates), 0, lowest, 2.0, Window(candidates[0]))
    return state, replace(decide(state), reason="Algorithm 1 as printed")


def decide(state: LiteralState) -> Decision:
    """Return what runs, with both levels evaluated beside it, in every step (lines 6 to 9)."""
    levels = sorted({state.candidates[p].cf for p in (state.floor, state.candidate) if p})
    return Decision(state.candidates[state.running], tuple(levels))


def observe(settings: LiteralSettings, state: LiteralState, measured: Measurement) -> tuple[LiteralState, Decision]:
    """Run one iteration: gains, UpdateStep, the three-way branch, CheckGraVAC."""
    state = _update(settings, replace(state, steps=state.steps + 1, window=state.window.add(measured)), measured)
    running, reason = _branch(settings, state)
    summary = None
    if state.steps % settings.window == 0:
        summary = state.window.summary("literal")
        state = _check(settings, state)
        reason += f"; window: θ_min {state.theta_min:g}, θ_s {state.theta_s:g}"
    if running == state.running and summary is None:
        return state, decide(state)
    state = replace(state, running=running, window=Window(state.candidates[running], settling=0))
    return state, replace(decide(state), reason=reason, summary=summary)


def _update(settings: LiteralSettings, state: LiteralState, measured: Measurement) -> LiteralState:
    """Lines 7, 9 and UpdateStep (28 to 30): EWMA of the gains; the latest throughput of what ran."""
    if not (math.isfinite(measured.error + measured.energy) and measured.energy > 0):
        return state
    gains = {cf: 1 - error / measured.energy for cf, error in measured.shadow if math.isfinite(error)}
    delta_min = _smooth(settings.ewma, state.delta_min, gains.get(state.candidates[state.floor].cf))
    delta_c = _smooth(settings.ewma, state.delta_c, gains.get(state.candidates[state.candidate].cf))
    state = replace(state, delta_min=delta_min, delta_c=delta_c)
    delta = {state.candidate: delta_c, state.floor: delta_min, 0: 1.0}
    ran = next((p for p, c in enumerate(state.candidates) if c == measured.candidate), 0)
    gain = delta.get(ran)
    if gain is None or not (measured.seconds > 0):
        return state
    throughput = {**dict(state.throughput), measured.candidate.cf: measured.samples / measured.seconds * gain}
    return replace(state, throughput=tuple(sorted(throughput.items())))


def _smooth(weight: float, before: float | None, gain: float | None) -> float | None:
    if gain is None:
        return before
    return gain if before is None else (1 - weight) * before + weight * gain


def _branch(settings: LiteralSettings, state: LiteralState) -> tuple[int, str]:
    """Choose what runs by which gain reaches ε (lines 11 to 25)."""
    if state.delta_c is not None and state.delta_c >= settings.epsilon:
        return state.candidate, f"δ_c {state.delta_c:.3g} reaches ε {settings.epsilon:g}: candidate"
    if state.delta_min is not None and state.delta_min >= settings.epsilon:
        return state.floor, f"δ_min {state.delta_min:.3g} reaches ε {settings.epsilon:g}: θ_min"
    return 0, f"no gain reaches ε {settings.epsilon:g}: dense"


def _check(settings: LiteralSettings, state: LiteralState) -> LiteralState:
    """CheckGraVAC, lines 31 to 41, in the printed order."""
    if len(state.candidates) == 1:
        return state
    lowest, highest = state.candidates[1].cf, state.candidates[-1].cf
    delta_min, delta_c = state.delta_min, state.delta_c
    theta_s = state.theta_s**2 if settings.step == "exponential" else 2 * state.theta_s
    theta_min = state.theta_min
    if delta_min and delta_c is not None and abs(delta_min - delta_c) / delta_min <= settings.omega:
        theta_min = min(theta_s * theta_min, highest)
    ordered = sorted(state.throughput, key=lambda pair: pair[1])
    if len(ordered) > 1 and ordered[-2][1] > 0:
        (ideal, second), (_, best) = ordered[-2:]
        if (best - second) / second <= settings.omega:
            theta_s = ideal / theta_min
    theta_s = max(min(theta_s, highest / theta_min), lowest / theta_min)
    return replace(state, theta_min=theta_min, theta_s=theta_s)
