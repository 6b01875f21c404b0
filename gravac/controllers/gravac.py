# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""GraVAC, repaired: tries one compression factor (CF) per window, and keeps the CF of best compression throughput.

Compression throughput is samples per second times gain (share of the energy sent). A window is a number of steps of one
candidate, after which the controller decides.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, Algorithm 1 and section III-C. ``docs/explanation/controllers.md``
lists the repairs and their reasons; Algorithm 1 as printed is ``GraVAC(paper_literal=True)``.

The phases, and what ends each:

- warm-up: the lowest CF runs, for ``warmup`` steps and then for a window. The gain in the window sets ε, the smallest
  gain allowed.
- explore: candidates run in ascending order, for a window each. If the gain of a candidate is below ε, the candidate
  and all higher CFs are refused. A candidate is also refused before it runs, if its shadow gain (computed without
  sending) is below ε. The search ends if a CF is refused, if no CF is left, or if throughput saturates: the two best
  throughputs differ by at most a share ω. If throughput saturates, the lower CF of these two is chosen, otherwise the
  CF of best throughput.
- exploit: the chosen CF runs. If its gain falls below ε, θ_min runs (the lowest CF in use); if the gain of θ_min falls
  below ε, dense runs. If the gain leaves a band around its value when the CF was chosen, explore again.

Dense in 16 bit has gain 1. If it is a candidate, it is tried right after the lowest CF, and runs in place of dense
float32.

While dense runs, DDP may exchange by itself, in native steps, of which only times are known. If dense runs for lack of
gain, steps with gravac's hook evaluate the gain of θ_min after some windows, so that compression can begin again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers import gravac_literal as literal
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, SHADOWS, Decision, Measurement, Summary
from gravac.controllers.gravac_literal import LiteralState
from gravac.controllers.gravac_state import EXPLOIT, EXPLORE, WARM_UP, GravacEntry, GravacState
from gravac.controllers.native import LONGEST_STRETCH_STEPS, fits_float16
from gravac.controllers.schedule import exponential, geometric, snap
from gravac.controllers.state_dicts import (
    candidates_of,
    check_names,
    check_positions,
    identify,
    state_from_plain,
    to_plain,
)
from gravac.controllers.window import Window
from gravac.settings import STATE_REMEDY, Settings, SettingsError

AnyState = GravacState | LiteralState
"""State of the repaired algorithm, or of Algorithm 1 as printed."""


class GraVAC(Settings):
    """The GraVAC paper's controller, repaired: chooses the compression factor (CF) of highest compression throughput.

    Compression throughput is samples per second times gain. The *gain* of a step is ``1 - error / energy``, the share
    of the gradient's energy that the step sends.

    Attributes:
        window: number of steps that a candidate runs before the controller decides on it; 500 and 2000 in the paper.
        epsilon: smallest gain at which a CF is allowed. With ``epsilon_mode="calibrated"``, a fraction of the gain of
            the lowest CF; the default lets top-k reach about four times the lowest CF. With ``"absolute"``, the gain
            itself; 0.7 and 0.9 in the paper.
        epsilon_mode: ``"calibrated"``, or ``"absolute"`` as in the paper; an absolute ``epsilon`` does not transfer
            between models.
        omega: relative difference up to which two gains, or two throughputs, count as the same.
        step: spacing of the CFs to try: 1, 2, 4, 16, 256 (``"exponential"``) or 1, 2, 4, 8 ... (``"geometric"``) times
            the lowest CF.
        warmup: number of steps before the first window.
        shadow_every: number of steps between two steps in which the ranks also compute the gain of shadow CFs, which do
            not run. The time of such a step is not used.
        band: relative change of the gain, since a CF was chosen, that starts a new search.
        change: relative change of the chosen candidate's samples per second, in two consecutive windows, that starts a
            new search: the link or the machine changed.
        fall: relative fall of the learning rate, since a CF was chosen, that starts a new search, because gains change
            then. The rate is known if ``attach`` was given the optimizer.
        dwell: smallest number of windows from one search to the next. The number doubles with each search that a
            changed gain starts. Dense runs for at least this many windows if no gain reaches ``epsilon``; the number
            then doubles, too.
        expire: age, in windows, from which a measured throughput is no longer compared with others.
        paper_literal: whether to run Algorithm 1 as printed instead.
        ewma: weight of a new gain in the moving average of gains, used only by Algorithm 1 as printed. The paper has
            N/100: 0.32 for its N = 32 workers.
    """

    name: ClassVar[str] = "gravac"
    keeps_all: ClassVar[bool] = False

    window: int = Field(default=20, ge=1)
    epsilon: float = Field(default=0.5, gt=0, le=1)
    epsilon_mode: Literal["calibrated", "absolute"] = "calibrated"
    omega: float = Field(default=0.01, ge=0, lt=1)
    step: Literal["exponential", "geometric"] = "exponential"
    warmup: int = Field(default=10, ge=0)
    shadow_every: int = Field(default=10, ge=2)
    band: float = Field(default=0.3, gt=0)
    change: float = Field(default=0.3, gt=0)
    fall: float = Field(default=0.4, gt=0, lt=1)
    dwell: int = Field(default=10, ge=1)
    expire: int = Field(default=50, ge=1)
    paper_literal: bool = False
    ewma: float = Field(default=0.32, gt=0, le=1)

    @property
    def chooses_native(self) -> bool:
        """True if native candidates (DDP exchanges by itself) may be chosen; false for Algorithm 1 as printed."""
        return not self.paper_literal

    @property
    def chooses_sixteen_bit(self) -> bool:
        """True if dense in 16 bit may be a candidate; false for Algorithm 1 as printed."""
        return not self.paper_literal

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the CFs to try, spaced by the setting ``step``; ascending.

        If the compressor supports only a list of CFs, the nearest of these are returned.
        """
        target_cfs = exponential(cf_range) if self.step == "exponential" else geometric(cf_range)
        return snap(target_cfs, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[AnyState, Decision]:
        """Return the state before the first step, and the decision for that step.

        The warm-up starts at the lowest CF. If no candidate compresses, dense runs for the whole run. Algorithm 1 as
        printed also starts with dense.
        """
        candidates = _hook_candidates(forecasts)
        if self.paper_literal:
            return literal.start(candidates)
        state = GravacState(candidates, EXPLOIT, 0, Window(candidates[0]), floor=0, dwell=self.dwell)
        state = replace(state, native=_native_cfs(forecasts))
        position = state.lowest_position if state.compresses else state.fallback_position
        candidate = candidates[position]
        reason = (
            f"start at {candidate}, the lowest CF, to measure its gain after a warm-up of {self.warmup} steps"
            if state.compresses
            else f"no candidate sends fewer bytes than {candidate}: keep {candidate}"
        )
        phase: Literal["warm-up", "exploit"] = WARM_UP if state.compresses else EXPLOIT
        state = self._native_if_allowed(replace(state, phase=phase, position=position, floor=position))
        state = replace(state, window=Window(state.runs))
        return state, self._decision(state, _with_native_note(state, reason))

    def observe(self, state: AnyState, measurement: Measurement) -> tuple[AnyState, Decision]:
        """Return the state after a measurement, and a decision.

        The candidate changes only at the end of a window, except in Algorithm 1 as printed.
        """
        if isinstance(state, LiteralState):
            return literal.observe(self, state, measurement)
        if state.phase == WARM_UP and state.steps < self.warmup:
            warm_up_state = replace(state.count_steps(measurement), window=Window(state.running))
            return warm_up_state, self._decision(warm_up_state)
        state = replace(state.count_steps(measurement), window=state.window.add(measurement))
        if state.window.steps < self.window:
            return state, self._decision(state)
        previous_candidate, previous_runs = state.running, state.runs
        summary = state.window.summary(state.phase)
        state, reason = self._evaluate_window(replace(state, windows=state.windows + state.window.steps // self.window))
        state = self._native_if_allowed(state)
        if 2 * state.dense_steps > state.steps and state.compresses and state.steps > 5 * self.window:
            reason += (
                f"; note: {state.dense_steps / state.steps:.0%} of all steps ran dense, so ε (the setting epsilon) "
                "may be too high"
            )
        if state.running != previous_candidate:
            state = replace(state, speed=None, off=0)
        reason = reason if state.runs == previous_runs else _with_native_note(state, reason)
        state = replace(state, window=state.window.following(state.runs))
        return state, self._decision(state, reason, summary)

    def _native_if_allowed(self, state: GravacState) -> GravacState:
        """Return the state with ``by_itself`` set: whether DDP exchanges by itself in the next steps.

        DDP does so if dense was chosen, and no gain of another CF must be measured. If dense runs for lack of gain, the
        gain of θ_min (the lowest CF in use) must be measured in the last window before compression may begin again. In
        float16, gradients must also be far from overflow.
        """
        fits_wire_dtype = state.running.cf == 1 or fits_float16(state.energy)
        may_run_native = (
            state.phase == EXPLOIT and state.running.dense and state.running.cf in state.native and fits_wire_dtype
        )
        needs_no_shadow = not (state.compresses and state.rests_at_dense) or state.windows + 1 < state.rest_until
        return replace(state, by_itself=may_run_native and needs_no_shadow)

    def _decision(self, state: GravacState, reason: str = "", summary: Summary | None = None) -> Decision:
        """Return the decision to run the state's candidate, with the shadow CFs: those to evaluate without sending.

        Args:
            state: state of the search.
            reason: reason of the decision, as text; empty in the middle of a window.
            summary: gain and throughput of the window that has ended; ``None`` in the middle of a window.
        """
        return Decision(state.runs, self._shadow(state), reason, summary, watch=self._next_stretch_steps(state))

    def _next_stretch_steps(self, state: GravacState) -> int:
        """Return how many native steps (DDP exchanges by itself) gravac times together next; see ``Decision.watch``."""
        if not state.by_itself:
            return DEFAULT_STRETCH_STEPS
        if not state.compresses:
            return LONGEST_STRETCH_STEPS
        if not state.rests_at_dense:
            return self.window
        return max(
            1, min(LONGEST_STRETCH_STEPS, (state.rest_until - 1 - state.windows) * self.window - state.window.steps)
        )

    def dump(self, state: AnyState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"algorithm": self._algorithm, "candidates": identify(state.candidates), **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned."""
        if dumped.get("algorithm") not in ("literal", "repaired"):
            raise SettingsError(
                f"controller_state/algorithm: {dumped.get('algorithm')!r} is neither 'literal' nor 'repaired'; "
                f"{STATE_REMEDY}"
            )
        state_class: Any = LiteralState if dumped["algorithm"] == "literal" else GravacState
        check_names(state_class, dumped, ("algorithm", "candidates"), Window)
        candidates = candidates_of(dumped["candidates"])
        state: AnyState = state_from_plain(state_class, dumped, candidates[0], candidates=candidates)
        if isinstance(state, LiteralState):
            check_positions({"running": [state.running]}, len(candidates))
            return
        entry_positions = [entry.position for entry in state.entries]
        positions_by_field = {
            "position": [state.position],
            "floor": [state.floor],
            "queue": state.queue,
            "entries": entry_positions,
        }
        check_positions(positions_by_field, len(candidates))

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[AnyState, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        If the candidates, or the setting ``paper_literal``, differ from those at the dump, the search starts again.
        """
        candidates = _hook_candidates(forecasts)
        if dumped["candidates"] != identify(candidates) or dumped["algorithm"] != self._algorithm:
            fresh_state, decision = self.start(forecasts)
            has_other_candidates = dumped["candidates"] != identify(candidates)
            difference_text = "other candidates" if has_other_candidates else "another value of paper_literal"
            return fresh_state, replace(
                decision,
                reason=f"the checkpoint has {difference_text}, so the search starts again: {decision.reason}",
            )
        if self.paper_literal:
            literal_state = state_from_plain(LiteralState, dumped, candidates[dumped["running"]], candidates=candidates)
            return literal_state, literal.decide(literal_state)
        state = state_from_plain(GravacState, dumped, candidates[dumped["position"]], candidates=candidates)
        state = replace(state, native=_native_cfs(forecasts))
        state = state if state.running.cf in state.native else replace(state, by_itself=False)
        state = replace(state, window=replace(state.window, candidate=state.runs))
        return state, self._decision(state)

    @property
    def _algorithm(self) -> str:
        """Name of the algorithm in dumped states: ``"literal"`` (as printed) or ``"repaired"``."""
        return "literal" if self.paper_literal else "repaired"

    def _shadow(self, state: GravacState) -> tuple[float, ...]:
        """Return the shadow CFs of the next decision: CFs whose gain the ranks compute without sending; ascending.

        Only one in ``shadow_every`` steps has shadow CFs; for the others, the result is empty. The shadow CFs are:

        - in the window of the warm-up, and in a search: the CFs still to be tried, at most ``SHADOWS`` of them;
        - while dense runs because no gain was high enough: θ_min (the lowest CF in use), but none before the last
          window of the time for which dense must stay (``GravacState.rest_until``);
        - while the chosen candidate runs, and in native steps: none.
        """
        if (
            state.by_itself
            or (state.steps + 1) % self.shadow_every
            or (state.phase == WARM_UP and state.steps <= self.warmup)
        ):
            return ()
        if state.rests_at_dense:
            rest_ends = state.compresses and state.windows + 1 >= state.rest_until
            return (state.candidates[state.floor].cf,) if rest_ends else ()
        untried_positions = state.positions_after_lowest if state.phase == WARM_UP else state.queue
        return tuple(
            state.candidates[position].cf for position in untried_positions if position > state.lowest_position
        )[:SHADOWS]

    def _evaluate_window(self, state: GravacState) -> tuple[GravacState, str]:
        """Evaluate the window that has ended, by the rules of the phase; return the state, and the reason as text."""
        if state.phase == EXPLOIT:
            return self._evaluate_chosen(state)
        if state.position == state.lowest_position:
            return self._evaluate_lowest(state)
        return self._evaluate_candidate(state)

    def _evaluate_lowest(self, state: GravacState) -> tuple[GravacState, str]:
        """Set ε, the smallest gain allowed, after a window of the lowest CF, and choose the next candidate.

        If the gain of the lowest CF is below ε, dense runs. Otherwise the next candidate is tried.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        gain, lowest_candidate = state.window.gain, state.running
        threshold = self.epsilon * max(gain, 0.0) if self.epsilon_mode == "calibrated" else self.epsilon
        state = replace(
            state,
            phase=EXPLORE,
            threshold=threshold,
            floor=state.lowest_position,
            queue=state.positions_after_lowest,
            entries=(),
        )
        if gain < threshold:
            dense_state = state.rest_at_dense(self.dwell)
            reason = f"gain {gain:.3g} at {lowest_candidate}, the lowest CF that compresses, is below ε {threshold:.3g}"
            return dense_state, f"{reason}: switched to {dense_state.running}"
        reason = f"gain {gain:.3g} at {lowest_candidate}, the lowest CF that compresses,"
        if self.epsilon_mode == "absolute":
            reason += f" is at least ε {threshold:.3g}"
        else:
            reason += f" sets ε, the lowest gain allowed, to {threshold:.3g} ({self.epsilon:g} of that gain)"
        return self._try_or_end_search(self._enter_measurement(state), reason)

    def _evaluate_candidate(self, state: GravacState) -> tuple[GravacState, str]:
        """Accept or refuse the candidate that was tried, by its gain, and choose the next candidate.

        A candidate whose gain is below ε, the smallest gain allowed, ends the search.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        gain, candidate = state.window.gain, state.running
        if gain < state.threshold:
            reason = f"gain {gain:.3g} at {candidate} is below ε {state.threshold:.3g}"
            return self._end_search(state, f"{reason}: refused, with all higher CFs")
        floor_gain = next((entry.gain for entry in state.entries if entry.position == state.floor), None)
        state = self._enter_measurement(state)
        reason = f"gain {gain:.3g} at {candidate} is at least ε {state.threshold:.3g}"
        if not candidate.dense and floor_gain and abs(floor_gain - gain) / floor_gain <= self.omega:
            reason += (
                f", and within {100 * self.omega:g} % (ω) of the gain {floor_gain:.3g} at "
                f"{state.candidates[state.floor]}: θ_min, the lowest CF in use, rises to that of {candidate}"
            )
            state = replace(state, floor=state.position)
        return self._try_or_end_search(state, reason)

    def _enter_measurement(self, state: GravacState) -> GravacState:
        """Return the state with the window's measurement of the running candidate added to ``entries``.

        Measurements that are ``expire`` windows old are dropped.
        """
        t_compression = state.window.summary(state.phase).t_compression or 0.0
        entry = GravacEntry(state.position, state.window.gain, t_compression, state.windows)
        other_entries = [
            earlier_entry
            for earlier_entry in state.entries
            if state.windows - earlier_entry.window < self.expire and earlier_entry.position != state.position
        ]
        return replace(state, entries=(*other_entries, entry))

    def _try_or_end_search(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """Choose the next candidate to try, or end the search.

        The search ends if no candidate is left, or if the two best throughputs are about equal. It also ends if the
        next candidate's shadow gain (evaluated without sending) is below ε, the smallest gain allowed.

        Args:
            state: state of the search.
            reason: text with which the returned reason begins.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        if not state.queue or self._saturated_pair(state) is not None:
            return self._end_search(state, reason)
        next_position = state.queue[0]
        candidate = state.candidates[next_position]
        shadow_gain = state.window.shadow_gain(candidate.cf)
        if shadow_gain is not None and shadow_gain < state.threshold:
            refusal_text = f"computed without sending, is below ε: {candidate} and all higher CFs are not tried"
            return self._end_search(state, f"{reason}; gain {shadow_gain:.3g} at {candidate}, {refusal_text}")
        purpose_text = ", to compare its compression throughput" if candidate.dense else ""
        return replace(state, position=next_position, queue=state.queue[1:]), f"{reason}; try {candidate}{purpose_text}"

    def _saturated_pair(self, state: GravacState) -> tuple[GravacEntry, GravacEntry] | None:
        """Return the two measurements of highest throughput if these differ by at most the share ``omega``.

        Throughput means compression throughput: samples per second times gain.

        Returns:
            The measurement of the lower CF, and that of the higher CF. ``None`` if the throughputs differ by more, or
            if fewer than two candidates have a throughput above 0.
        """
        best_two_entries = sorted(state.entries, key=lambda entry: entry.t_compression)[-2:]
        if len(best_two_entries) < 2 or not best_two_entries[0].t_compression:
            return None
        second_throughput, best_throughput = (entry.t_compression for entry in best_two_entries)
        if (best_throughput - second_throughput) / second_throughput > self.omega:
            return None
        lower_entry, higher_entry = sorted(best_two_entries, key=lambda entry: entry.position)
        return lower_entry, higher_entry

    def _end_search(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """End the search, and choose the measured candidate of highest compression throughput.

        If the two highest throughputs are about equal, the candidate of the lower CF is chosen.

        Args:
            state: state of the search.
            reason: text with which the returned reason begins.

        Returns:
            The state in which the chosen candidate runs, and the reason as text.
        """
        saturated_pair = self._saturated_pair(state)
        if saturated_pair is not None:
            selected_entry = saturated_pair[0]
            lower_candidate, higher_candidate = (state.candidates[entry.position] for entry in saturated_pair)
            reason += (
                f"; the two best compression throughputs differ by at most {100 * self.omega:g} % (ω), "
                f"{saturated_pair[0].t_compression:.4g} samples/s at {lower_candidate} and "
                f"{saturated_pair[1].t_compression:.4g} samples/s at {higher_candidate}: run "
                f"{lower_candidate}, the lower CF"
            )
        else:
            selected_entry = max(state.entries, key=lambda entry: (entry.t_compression, -entry.position))
            candidate = state.candidates[selected_entry.position]
            throughput = selected_entry.t_compression
            reason += f"; run {candidate}, the best compression throughput: {throughput:.4g} samples/s"
            other_entries = [entry for entry in state.entries if entry.position != selected_entry.position]
            if other_entries:
                second_entry = max(other_entries, key=lambda entry: entry.t_compression)
                second_candidate = state.candidates[second_entry.position]
                reason += f" (second best: {second_entry.t_compression:.4g} samples/s at {second_candidate})"
        floor = max(state.lowest_position, min(state.floor, selected_entry.position))
        if floor < state.floor:
            reason += f"; θ_min falls back to the CF of {state.candidates[floor]}"
        rest_until = state.windows + state.dwell
        chosen_state = replace(
            state, phase=EXPLOIT, position=selected_entry.position, floor=floor, reference=selected_entry.gain
        )
        return replace(chosen_state, queue=(), speed=None, off=0, rate=None, rest_until=rest_until), reason

    def _evaluate_chosen(self, state: GravacState) -> tuple[GravacState, str]:
        """Evaluate a window of the chosen candidate: keep it, lower the CF, leave dense, or search again.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        if not state.compresses:
            return state, f"no candidate sends fewer bytes than {state.running}"
        if state.rests_at_dense:
            return self._evaluate_dense(state)
        gain, candidate = state.window.gain, state.running
        if gain < state.threshold:
            reason = f"gain {gain:.3g} at {candidate} fell below ε {state.threshold:.3g}"
            if state.position > state.floor:
                floor_state = replace(state, position=state.floor, reference=None)
                return floor_state, f"{reason}: down to {floor_state.running}"
            dense_state = state.rest_at_dense(self.dwell)
            return dense_state, f"{reason}: switched to {dense_state.running}"
        state, change_text = self._detect_change(state)
        if change_text:
            return self._search_again(state, change_text, state.dwell)
        may_search = state.windows >= state.rest_until
        gain_has_moved = state.reference is None or abs(gain - state.reference) > self.band * abs(state.reference)
        if may_search and (gain_has_moved or candidate.dense):
            if state.reference is None:
                reason = (
                    f"{candidate} runs because a gain at a higher CF was below ε {state.threshold:.3g}; no search "
                    f"has chosen {candidate} yet"
                )
            elif candidate.dense:
                reason = f"the gain of {candidate} is always 1 and says nothing about higher CFs"
            else:
                reason = (
                    f"gain {gain:.3g} differs by more than {100 * self.band:.3g} % from {state.reference:.3g}, the "
                    f"gain when {candidate} was chosen"
                )
            return self._search_again(state, reason, 2 * state.dwell)
        return state, f"keep {candidate}: gain {gain:.3g} is at least ε {state.threshold:.3g}"

    def _search_again(self, state: GravacState, reason: str, dwell: int) -> tuple[GravacState, str]:
        """Start a new search at the lowest CF; return the state, and the reason as text.

        Args:
            state: state at the end of a window.
            reason: reason for the search, as text.
            dwell: smallest number of windows from the end of this search to the start of the next.
        """
        lowest_position = state.lowest_position
        search_state = replace(
            state,
            phase=EXPLORE,
            position=lowest_position,
            floor=lowest_position,
            queue=state.positions_after_lowest,
            dwell=dwell,
        )
        return search_state, f"{reason}: try the CFs again, from {search_state.running} upwards"

    def _detect_change(self, state: GravacState) -> tuple[GravacState, str]:
        """Compare samples per second and learning rate with their values in the chosen candidate's first window.

        Returns:
            The state, and the reason for a new search as text. The reason is empty if neither the samples per second
            nor the learning rate changed enough.
        """
        current_t_system, current_rate = state.window.t_system, state.learning_rate
        if state.speed is None or current_t_system is None:
            return replace(state, speed=current_t_system, off=0, rate=state.rate or current_rate), ""
        off_count = state.off + 1 if abs(current_t_system - state.speed) > self.change * state.speed else 0
        state = replace(state, off=off_count)
        if off_count > 1:
            return state, (
                f"{current_t_system:.4g} samples/s at {state.running} instead of {state.speed:.4g} samples/s in its "
                "first window"
            )
        if current_rate is not None and state.rate and current_rate < (1 - self.fall) * state.rate:
            return state, f"the learning rate fell from {state.rate:.3g} to {current_rate:.3g}"
        return replace(state, rate=state.rate or current_rate), ""

    def _evaluate_dense(self, state: GravacState) -> tuple[GravacState, str]:
        """Evaluate a window in which dense ran for lack of gain: keep dense, or compress again.

        From window ``GravacState.rest_until`` on, θ_min (the lowest CF in use) runs again if its gain is at least ε,
        the smallest gain allowed. That gain is a shadow gain, computed without sending. It may be higher than the gain
        of steps that run at θ_min.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        floor_candidate = state.candidates[state.floor]
        shadow_gain = state.window.shadow_gain(floor_candidate.cf)
        if state.windows < state.rest_until:
            return state, (
                f"keep {state.running} at least until window {state.rest_until} (now: window {state.windows}), since a "
                f"gain was below ε {state.threshold:.3g}"
            )
        if shadow_gain is None:
            return state, f"keep {state.running}: the gain at {floor_candidate} was not computed in this window"
        if shadow_gain < state.threshold:
            if state.running.cf in state.native:
                state = state.rest_at_dense(self.dwell)
            return (
                state,
                f"keep {state.running}: gain {shadow_gain:.3g} at {floor_candidate}, computed without sending, is "
                f"below ε {state.threshold:.3g}",
            )
        rest_until = state.windows + state.dwell
        compressing_state = replace(state, phase=EXPLOIT, position=state.floor, reference=None, rest_until=rest_until)
        return (
            compressing_state,
            f"gain {shadow_gain:.3g} at {floor_candidate}, computed without sending, reaches ε "
            f"{state.threshold:.3g}: back to {floor_candidate}",
        )


def _hook_candidates(forecasts: Sequence[Forecast]) -> tuple[Candidate, ...]:
    """Return the candidates in mode ``hook``, without duplicates, in the order of the forecasts.

    Each native candidate is replaced by the hook candidate of the same compressor and CF.
    """
    candidates = (forecast.candidate for forecast in forecasts)
    return tuple(
        dict.fromkeys(candidate.in_hook if candidate.mode == "native" else candidate for candidate in candidates)
    )


def _native_cfs(forecasts: Sequence[Forecast]) -> tuple[float, ...]:
    """Return the CFs of the native candidates (DDP exchanges by itself), in the order of the forecasts."""
    return tuple(forecast.candidate.cf for forecast in forecasts if forecast.candidate.mode == "native")


def _with_native_note(state: GravacState, reason: str) -> str:
    """Return the reason of a decision, with a note appended if DDP exchanges by itself in the next steps."""
    return f"{reason}; DDP itself makes the dense exchange from now on: {state.runs}" if state.by_itself else reason
