# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the GraVAC paper as printed, with its defects, to compare with the repaired algorithm.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, Algorithm 1. Line numbers in this file are those of the paper. Two
deviations are unavoidable:

- The algorithm gets gains that all ranks agree on, and its decision takes effect two steps later. The printed algorithm
  decides by the gain of the current step over the whole model, which no rank knows when the first bucket is sent.
- The algorithm chooses its compression factors (CFs) from the list of candidates. The CFs of that list also limit θ_min
  (lowest CF in use) and θ_s θ_min (CF that is tried). The printed algorithm has no such limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gravac.candidate import Candidate
from gravac.controllers.base import Decision, Measurement
from gravac.controllers.state_dicts import Count, Factor, Finite
from gravac.controllers.window import Window


class LiteralSettings(Protocol):
    """Settings of the class ``GraVAC`` that Algorithm 1 as printed uses."""

    @property
    def window(self) -> int:
        """Number of steps between updates of θ_min (lowest CF in use) and θ_s (ratio of the CF tried to θ_min)."""

    @property
    def epsilon(self) -> float:
        """Smallest gain at which a CF may run (ε)."""

    @property
    def omega(self) -> float:
        """Relative difference up to which two gains, or two throughputs, count as the same (ω)."""

    @property
    def ewma(self) -> float:
        """Weight of a new gain in the exponential moving average of gains, 0 to 1."""

    @property
    def step(self) -> str:
        """Growth of θ_s, the ratio of the CF that is tried to the lowest CF in use, at each update.

        ``"exponential"``: θ_s is squared; ``"geometric"``: θ_s is doubled.
        """


@dataclass(frozen=True, slots=True)
class LiteralState:
    """Variables of Algorithm 1 as printed.

    Attributes:
        candidates: candidates to choose from: dense first, then ascending by CF.
        running: index, in ``candidates``, of the candidate that runs.
        theta_min: θ_min, the lowest CF in use.
        theta_s: θ_s, the ratio of the CF that is tried to θ_min.
        delta_min: exponential moving average of the gain at θ_min; ``None`` before the first gain.
        delta_c: exponential moving average of the gain at θ_s θ_min, the CF that is tried; ``None`` before the first
            gain.
        throughput: ``(cf, samples per second times gain)`` of each CF that ran, in its newest step; ascending by CF.
        steps: number of steps observed; each is an iteration of the algorithm.
        window: statistics of the steps since gain and throughput were last recorded; no decision uses them.
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

    def position_nearest_to(self, cf: float) -> int:
        """Return the index of the compressed candidate of the CF nearest to ``cf`` by ratio; 0 if only dense exists."""
        positions = range(1, len(self.candidates))
        return min(positions, key=lambda position: abs(math.log(self.candidates[position].cf / cf)), default=0)

    @property
    def floor_position(self) -> int:
        """Index, in ``candidates``, of the candidate at θ_min, the lowest CF in use."""
        return self.position_nearest_to(self.theta_min)

    @property
    def tried_position(self) -> int:
        """Index, in ``candidates``, of the candidate at θ_s θ_min, the CF that is tried."""
        return self.position_nearest_to(self.theta_s * self.theta_min)


def start(candidates: Sequence[Candidate]) -> tuple[LiteralState, Decision]:
    """Return the state before the first step, and the decision for that step: dense, until gains are known."""
    lowest_cf = candidates[1].cf if len(candidates) > 1 else 1.0
    state = LiteralState(
        candidates=tuple(candidates), running=0, theta_min=lowest_cf, theta_s=2.0, window=Window(candidates[0])
    )
    return state, replace(
        decide(state), reason=f"start at {candidates[0]}, as Algorithm 1 of the GraVAC paper does until gains are known"
    )


def decide(state: LiteralState) -> Decision:
    """Return the decision to run ``state.running`` (lines 6 to 9 of Algorithm 1).

    The decision also lists two shadow CFs, whose gain ranks compute without sending: the lowest CF in use (θ_min), and
    the CF that is tried (θ_s θ_min).
    """
    shadow_cfs = sorted(
        {state.candidates[position].cf for position in (state.floor_position, state.tried_position) if position}
    )
    return Decision(state.candidates[state.running], tuple(shadow_cfs))


def observe(settings: LiteralSettings, state: LiteralState, measured: Measurement) -> tuple[LiteralState, Decision]:
    """Run an iteration of Algorithm 1 with the measurement of a step; return the state, and a decision.

    An iteration updates gains and throughputs (UpdateStep), and chooses the candidate by ε, the smallest gain allowed.
    Every ``window`` steps it also updates θ_min, the lowest CF in use, and θ_s, the ratio of the CF that is tried to
    θ_min (CheckGraVAC).
    """
    state = _update(settings, replace(state, steps=state.steps + 1, window=state.window.add(measured)), measured)
    running, reason = _branch(settings, state)
    summary = None
    if state.steps % settings.window == 0:
        summary = state.window.summary("literal")
        previous_theta_min = state.theta_min
        state = _check(settings, state)
        change_text = "stays at" if state.theta_min == previous_theta_min else f"changes from {previous_theta_min:g} to"
        reason += (
            f"; in the next window θ_min {change_text} {state.theta_min:g}, and the CF {state.theta_s:g} times as high "
            f"is tried: {state.theta_s * state.theta_min:g}"
        )
    if running == state.running and summary is None:
        return state, decide(state)
    state = replace(state, running=running, window=Window(state.candidates[running], settling=0))
    return state, replace(decide(state), reason=reason, summary=summary)


def _update(settings: LiteralSettings, state: LiteralState, measured: Measurement) -> LiteralState:
    """Return the state with updated averages of gains, and with the throughput of the CF that ran.

    In Algorithm 1, these are lines 7 and 9, and UpdateStep (lines 28 to 30).
    """
    if not (math.isfinite(measured.error + measured.energy) and measured.energy > 0):
        return state
    gain_by_cf = {cf: 1 - error / measured.energy for cf, error in measured.shadow if math.isfinite(error)}
    delta_min = _smooth(settings.ewma, state.delta_min, gain_by_cf.get(state.candidates[state.floor_position].cf))
    delta_c = _smooth(settings.ewma, state.delta_c, gain_by_cf.get(state.candidates[state.tried_position].cf))
    state = replace(state, delta_min=delta_min, delta_c=delta_c)
    gain_by_position = {state.tried_position: delta_c, state.floor_position: delta_min, 0: 1.0}
    position = next((i for i, candidate in enumerate(state.candidates) if candidate == measured.candidate), 0)
    gain = gain_by_position.get(position)
    if gain is None or not (measured.seconds > 0):
        return state
    throughput_by_cf = {**dict(state.throughput), measured.candidate.cf: measured.samples / measured.seconds * gain}
    return replace(state, throughput=tuple(sorted(throughput_by_cf.items())))


def _smooth(weight: float, average: float | None, gain: float | None) -> float | None:
    """Return the exponential moving average of gains, updated by a new gain.

    Args:
        weight: weight of the new gain, 0 to 1.
        average: average so far; ``None``: no gain so far.
        gain: the new gain; ``None``: no new gain, so the average stays.
    """
    if gain is None:
        return average
    return gain if average is None else (1 - weight) * average + weight * gain


def _branch(settings: LiteralSettings, state: LiteralState) -> tuple[int, str]:
    """Return the index of the candidate to run, and the reason as text (lines 11 to 25 of Algorithm 1).

    The candidate at θ_s θ_min, the CF that is tried, runs if its average gain is at least ε. Otherwise the candidate at
    θ_min, the lowest CF in use, runs if its average gain is at least ε. Otherwise dense runs.
    """
    if state.delta_c is not None and state.delta_c >= settings.epsilon:
        return (
            state.tried_position,
            f"gain {state.delta_c:.3g} at the CF that is tried reaches ε {settings.epsilon:.3g}: run "
            f"{state.candidates[state.tried_position]}",
        )
    if state.delta_min is not None and state.delta_min >= settings.epsilon:
        return (
            state.floor_position,
            f"gain {state.delta_min:.3g} at {state.candidates[state.floor_position]}, the lowest CF in use (θ_min), is "
            f"at least ε {settings.epsilon:.3g}: run {state.candidates[state.floor_position]}",
        )
    return 0, f"no gain reaches ε {settings.epsilon:.3g}: run {state.candidates[0]}"


def _check(settings: LiteralSettings, state: LiteralState) -> LiteralState:
    """Return the state with updated θ_min and θ_s: CheckGraVAC (Algorithm 1, lines 31 to 41), in the printed order.

    θ_min is the lowest CF in use, and θ_s the ratio of the CF that is tried to θ_min. First θ_s grows by one step. If
    the gains at θ_min and at the CF that is tried differ by at most ω, θ_min is multiplied by the new θ_s. If the two
    best throughputs differ by at most ω, θ_s is set so that the CF of the second best throughput is tried next.
    """
    if len(state.candidates) == 1:
        return state
    lowest_cf, highest_cf = state.candidates[1].cf, state.candidates[-1].cf
    delta_min, delta_c = state.delta_min, state.delta_c
    theta_s = state.theta_s**2 if settings.step == "exponential" else 2 * state.theta_s
    theta_min = state.theta_min
    if delta_min and delta_c is not None and abs(delta_min - delta_c) / delta_min <= settings.omega:
        theta_min = min(theta_s * theta_min, highest_cf)
    by_throughput = sorted(state.throughput, key=lambda cf_and_throughput: cf_and_throughput[1])
    if len(by_throughput) > 1 and by_throughput[-2][1] > 0:
        (ideal_cf, second_throughput), (_, best_throughput) = by_throughput[-2:]
        if (best_throughput - second_throughput) / second_throughput <= settings.omega:
            theta_s = ideal_cf / theta_min
    theta_s = max(min(theta_s, highest_cf / theta_min), lowest_cf / theta_min)
    return replace(state, theta_min=theta_min, theta_s=theta_s)
