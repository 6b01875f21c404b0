# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""GraVAC, repaired: tries compression factors (CFs), and keeps the candidate of best compression throughput.

Compression throughput is samples per second times gain (share of the energy sent). A window is a number of steps of one
candidate, after which the controller decides.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, Algorithm 1 and section III-C. ``docs/explanation/controllers.md``
lists the repairs and their reasons; Algorithm 1 as printed is ``GraVAC(paper_literal=True)``.

The phases, and what ends each:

- warm-up: the lowest CF runs until its residuals have settled.
- explore: candidates run in ascending order, for a window each. The gain of the lowest CF sets ε, the smallest gain
  allowed. If the gain of a candidate is below ε, the candidate and all higher CFs are refused. A candidate is also
  refused before it runs, if its shadow gain (computed without sending) is below ε. The search ends if a CF is refused,
  if no CF is left, or if throughput saturates: the two best throughputs differ by at most a share ω. Of the candidates
  within ω of the best throughput, the lowest CF is chosen.
- exploit: the chosen candidate runs. If its gain falls below ε, θ_min runs (the lowest CF in use); if the gain of θ_min
  falls below ε, dense runs. If the gain leaves a band around its value when the CF was chosen, explore again.
- look: dense runs, and the gains of CFs are computed without sending.

A gain is at most 1, so samples per second bound compression throughput. By this bound, trials are short or left out:

- Dense has gain 1, so its trial needs times alone. Dense in 16 bit is timed as soon as the lowest CF has a few times,
  unless the exchange is predicted to take too long; dense float32 is timed only where 16 bit was best.
- The window of a CF ends as soon as its samples per second, at the gain of its steps so far and a margin, show that the
  CF cannot win. Such a window sets no ε, and has no compression throughput. Higher CFs are left out if even a step that
  never waits for the exchange is too slow.
- A CF that lost by its times is tried again only after the link or the machine changed, or when the times have expired.

While dense runs, DDP may exchange by itself, in native steps, of which only times are known.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers import gravac_literal as literal
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, SHADOWS, Decision, Measurement, Summary
from gravac.controllers.gravac_evidence import (
    CLEAN_TIMES,
    DENSE_SETTLING,
    SLOW,
    TOO_SLOW,
    Evidence,
    largest_gain,
    measured,
)
from gravac.controllers.gravac_literal import LiteralState
from gravac.controllers.gravac_state import EXPLOIT, EXPLORE, LOOK, WARM_UP, GravacEntry, GravacState, Phase
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
from gravac.controllers.window import SETTLING, Window
from gravac.settings import STATE_REMEDY, Settings, SettingsError

Evaluated = tuple[GravacState, str, bool]
"""State with the next candidate, reason, and whether the window that ended has a compression throughput."""

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
            changed gain starts, and each time that dense is chosen, or runs because no gain reaches ``epsilon``: dense
            then runs for at least this many windows.
        expire: age, in windows, from which a measured throughput or time is no longer compared with others.
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
        state = GravacState(
            candidates,
            EXPLOIT,
            0,
            Window(candidates[0]),
            floor=0,
            dwell=self.dwell * self.window,
            threshold=self.epsilon if self.epsilon_mode == "absolute" else None,
            warm=self.warmup,
        )
        state = replace(state, exchange_s=_exchange_seconds(candidates, forecasts), native=_native_cfs(forecasts))
        position = state.lowest_position if state.compresses else state.fallback_position
        candidate = candidates[position]
        reason = (
            f"start at {candidate}, the lowest CF, to measure its time, and its gain after a warm-up of {self.warmup} "
            "steps"
            if state.compresses
            else f"no candidate sends fewer bytes than {candidate}: keep {candidate}"
        )
        phase: Phase = EXPLOIT if not state.compresses else WARM_UP if self.warmup else EXPLORE
        state = self._native_if_allowed(replace(state, phase=phase, position=position, floor=position))
        state = replace(state, window=Window(state.runs))
        return state, self._decision(state, _with_native_note(state, reason))

    def observe(self, state: AnyState, measurement: Measurement) -> tuple[AnyState, Decision]:
        """Return the state after a measurement, and a decision.

        The candidate changes at the end of a window, or earlier if its times show that it cannot win. Algorithm 1 as
        printed decides in each step.
        """
        if isinstance(state, LiteralState):
            return literal.observe(self, state, measurement)
        previous_candidate, previous_runs, phase = state.running, state.runs, state.phase
        state = _with_late_time(state.count_steps(measurement), measurement)
        state = replace(state, window=state.window.add(measurement))
        evaluated = self._evaluate(state, measurement)
        if evaluated is None:
            if state.phase == WARM_UP and state.steps >= state.warm:
                state = replace(
                    state, phase=EXPLORE, window=replace(Window(state.runs), settling=state.window.settling)
                )
            return state, self._decision(state)
        summary = state.window.summary(phase)
        state, reason, has_throughput = evaluated
        state = self._native_if_allowed(state)
        if 2 * state.dense_steps > state.steps and state.compresses and state.steps > 5 * self.window:
            reason += (
                f"; note: {state.dense_steps / state.steps:.0%} of all steps ran dense, so ε (the setting epsilon) "
                "may be too high"
            )
        if state.running != previous_candidate:
            state = replace(state, speed=None, off=0)
        reason = reason if state.runs == previous_runs else _with_native_note(state, reason)
        window = state.window.following(state.runs)
        if state.phase == EXPLORE and state.running.dense:
            window = replace(window, settling=min(window.settling, DENSE_SETTLING))
        state = replace(state, window=window)
        return state, self._decision(state, reason, summary if has_throughput else replace(summary, t_compression=None))

    def _native_if_allowed(self, state: GravacState) -> GravacState:
        """Return the state with ``by_itself`` set: whether DDP exchanges by itself in the next steps.

        DDP does so if dense runs, except in a search's trial, which the hook's times decide, and in a look at the gain.
        In float16, gradients must also be far from overflow.
        """
        fits_wire_dtype = state.running.cf == 1 or fits_float16(state.energy)
        is_settled = state.phase == EXPLOIT or (state.phase == EXPLORE and state.reference is not None)
        may_run_native = is_settled and state.running.dense and state.running.cf in state.native and fits_wire_dtype
        return replace(state, by_itself=may_run_native)

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
        if state.phase == EXPLORE:
            return DENSE_SETTLING + CLEAN_TIMES
        if not state.compresses:
            return LONGEST_STRETCH_STEPS
        if not state.rests_at_dense:
            return self.window
        return max(self.window, min(LONGEST_STRETCH_STEPS, state.rest_until - state.steps))

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
            "refused": [] if state.refused is None else [state.refused],
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
        state = replace(state, exchange_s=_exchange_seconds(candidates, forecasts), native=_native_cfs(forecasts))
        state = state if state.running.cf in state.native else replace(state, by_itself=False)
        state = replace(state, window=replace(state.window, candidate=state.runs))
        return state, self._decision(state)

    @property
    def _algorithm(self) -> str:
        """Name of the algorithm in dumped states: ``"literal"`` (as printed) or ``"repaired"``."""
        return "literal" if self.paper_literal else "repaired"

    def _shadow(self, state: GravacState) -> tuple[float, ...]:
        """Return the shadow CFs of the next decision: CFs whose gain the ranks compute without sending; ascending.

        In a look, those are the CFs that may win. In a search, some steps have the CFs still to be tried. In other
        steps, there are none.
        """
        if state.phase == LOOK:
            positions = self._evidence(state).promising
        elif state.phase in (WARM_UP, EXPLORE) and not state.by_itself and self._shadow_is_due(state):
            positions = [position for position in state.compressed_positions if position > state.position]
        else:
            positions = []
        return tuple(state.candidates[position].cf for position in positions)[:SHADOWS]

    def _shadow_is_due(self, state: GravacState) -> bool:
        """True in one of ``shadow_every`` steps of a search, and before times may end a window: gains bound others.

        Dense computes them in the first step of its trial, whose time is left out.
        """
        if state.running.dense:
            return any(entry.step == state.steps for entry in state.entries)
        may_end_early = bool(state.entries) and state.window.steps == SETTLING
        return may_end_early or (state.phase == EXPLORE and (state.steps + 1) % self.shadow_every == 0)

    # what a measurement leads to

    def _evaluate(self, state: GravacState, measurement: Measurement) -> Evaluated | None:
        """Evaluate the window if it has ended; return ``None`` if the candidate's window goes on."""
        if measurement.candidate != state.runs:
            return None
        if state.phase == LOOK:
            return self._evaluate_look(state, measurement)
        if state.phase == EXPLOIT:
            return self._evaluate_chosen(state) if state.window.steps >= self.window else None
        if state.running.dense:
            return self._evaluate_dense_trial(state, measurement)
        return self._evaluate_candidate(state)

    def _evaluate_candidate(self, state: GravacState) -> Evaluated | None:
        """Evaluate the window of a CF that is tried: at its end, or as soon as its times say that it cannot win.

        As soon as the CF has a few times, dense is timed, unless its times are known.
        """
        candidate, gain = state.running, state.window.gain
        if len(state.window.seconds) >= CLEAN_TIMES:
            entry = measured(state, complete=False)
            state = state.with_entry(entry)
            evidence = self._evidence(state)
            best, best_throughput = evidence.best
            if best is not None and entry.fastest * largest_gain(entry) < evidence.needed_throughput:
                reason = (
                    f"{candidate} makes at most {entry.fastest:.4g} samples/s, so that it cannot win at a gain of at "
                    f"most {largest_gain(entry):.3g} against {state.candidates[best.position]}, whose compression "
                    "throughput is "
                    f"{best_throughput:.4g} samples/s"
                )
                return *self._try_or_end_search(state, reason), False
            if evidence.dense_is_due:
                dense = state.candidates[state.fallback_position]
                reason = f"{candidate} makes {entry.t_system:.4g} samples/s: time {dense}, whose gain is 1"
                return self._run(state, state.fallback_position), reason, False
        if state.phase == WARM_UP or state.window.steps < self.window:
            return None
        reason = f"gain {gain:.3g} at {candidate}"
        if state.position == state.lowest_position:
            reason += ", the lowest CF that compresses,"
            if self.epsilon_mode == "calibrated":
                state = replace(state, threshold=self.epsilon * max(gain, 0.0))
        threshold = state.threshold
        if threshold is None:
            reason += " has no ε to compare with, since the lowest CF was too slow to run for a window"
        elif gain < threshold:
            if state.position == state.lowest_position:
                state = state.rest_at_dense(self._dwell_steps)
                return state, f"{reason} is below ε {threshold:.3g}: switched to {state.running}", True
            reason += f" is below ε {threshold:.3g}: refused, with all higher CFs"
            return *self._end_search(replace(state, refused=state.position), reason), True
        elif state.position == state.lowest_position and self.epsilon_mode == "calibrated":
            reason += f" sets ε, the lowest gain allowed, to {threshold:.3g} ({self.epsilon:g} of that gain)"
        else:
            reason += f" is at least ε {threshold:.3g}"
        evaluated = self._evidence(state).complete
        floor_gain = next((entry.gain for entry in evaluated if entry.position == state.floor), None)
        state = state.with_entry(measured(state))
        if floor_gain and state.position != state.floor and abs(floor_gain - gain) / floor_gain <= self.omega:
            reason += (
                f", and within {100 * self.omega:g} % (ω) of the gain {floor_gain:.3g} at "
                f"{state.candidates[state.floor]}: θ_min, the lowest CF in use, rises to that of {candidate}"
            )
            state = replace(state, floor=state.position)
        return *self._try_or_end_search(state, reason), True

    def _evaluate_dense_trial(self, state: GravacState, measurement: Measurement) -> Evaluated | None:
        """End a trial of dense when it has a few times, or at the first step if that is far too slow."""
        candidate = state.runs
        limit_s = self._evidence(state).too_slow_s
        # after a step that was fast enough, a slow one is likelier a pause
        times = (*state.window.rough, *state.window.seconds) or (measurement.seconds,)
        is_timed = len(times) >= CLEAN_TIMES
        limit_s *= SLOW / TOO_SLOW if is_timed else 1
        if math.isfinite(times[-1]) and min(times) > limit_s:
            t_system = measurement.samples / min(times)
            entry = GravacEntry(state.position, state.steps, t_system, t_system, gain=1.0, complete=is_timed)
            reason = (
                f"each step of {candidate} took at least {min(times):.3g} s; above {limit_s:.3g} s it is far from the "
                "best compression throughput"
            )
            return *self._try_or_end_search(state.with_entry(entry), reason), False
        if len(state.window.seconds) < (1 if state.by_itself else CLEAN_TIMES):
            return None
        entry = measured(state)
        state = state.with_entry(entry)
        reason = f"{candidate} makes {entry.t_system:.4g} samples/s at gain 1"
        if state.reference is None:
            return *self._try_or_end_search(state, reason), True
        best_dense = self._evidence(state).lowest_near_best(
            [other for other in state.entries if state.candidates[other.position].dense]
        )
        state = replace(state, phase=EXPLOIT, position=best_dense.position)
        return state, f"{reason}: run {state.running}", True

    def _try_or_end_search(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """Choose the next CF to try, or end the search.

        The search ends if no CF is left that may win, or if the two best throughputs are about equal. It also ends if
        the next CF's shadow gain (evaluated without sending) is below ε, the smallest gain allowed.

        Args:
            state: state of the search.
            reason: text with which the returned reason begins.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        evaluated_positions = {
            entry.position for entry in state.entries if entry.complete and entry.step > state.searched
        }
        for position in () if self._evidence(state).saturated_pair else self._evidence(state).promising:
            if position in evaluated_positions:
                continue
            candidate, threshold = state.candidates[position], state.threshold
            shadow_gain = state.window.shadow_gain(candidate.cf)
            if threshold is not None and shadow_gain is not None and shadow_gain < threshold:
                reason += (
                    f"; gain {shadow_gain:.3g} at {candidate}, computed without sending, is below ε {threshold:.3g}: "
                    f"{candidate} and all higher CFs are not tried"
                )
                return self._end_search(replace(state, refused=position), reason)
            return self._run(state, position), f"{reason}; try {candidate}"
        return self._end_search(state, reason)

    def _run(self, state: GravacState, position: int) -> GravacState:
        """Return the state in which a candidate of the search runs; the lowest CF warms up again after dense."""
        warms_up = position == state.lowest_position and state.running.dense and self.warmup > 0
        phase: Phase = WARM_UP if warms_up else EXPLORE
        return replace(state, phase=phase, position=position, warm=state.steps + self.warmup, reference=None)

    def _end_search(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """End the search: of the candidates within ω of the best compression throughput, choose the lowest CF.

        If no candidate has a compression throughput, dense runs.

        Args:
            state: state of the search.
            reason: text with which the returned reason begins.

        Returns:
            The state in which the chosen candidate runs, and the reason as text.
        """
        entries = self._evidence(state).complete
        if not entries:
            state = state.rest_at_dense(self._dwell_steps)
            return state, f"{reason}: switched to {state.running}"
        selected_entry = self._evidence(state).lowest_near_best(entries)
        candidate = state.candidates[selected_entry.position]
        saturated_pair = self._evidence(state).saturated_pair
        if saturated_pair is not None:
            lower_candidate, higher_candidate = (state.candidates[entry.position] for entry in saturated_pair)
            reason += (
                f"; compression throughput saturates: it differs by at most {100 * self.omega:g} % (ω) between "
                f"{lower_candidate} ({saturated_pair[0].t_compression:.4g} samples/s) and {higher_candidate} "
                f"({saturated_pair[1].t_compression:.4g} samples/s)"
            )
        reason += f"; run {candidate}: compression throughput {selected_entry.t_compression:.4g} samples/s"
        other_entries = [entry for entry in entries if entry.position != selected_entry.position]
        if other_entries:
            next_entry = max(other_entries, key=lambda entry: entry.t_compression)
            next_candidate = state.candidates[next_entry.position]
            reason += f" (best of the others: {next_entry.t_compression:.4g} samples/s at {next_candidate})"
        if candidate.dense:
            return state.rest_at_dense(self._dwell_steps, selected_entry.position, reference=1.0), reason
        floor = max(state.lowest_position, min(state.floor, selected_entry.position))
        if floor < state.floor:
            reason += f"; θ_min falls back to the CF of {state.candidates[floor]}"
        chosen_state = replace(
            state, phase=EXPLOIT, position=selected_entry.position, floor=floor, reference=selected_entry.gain
        )
        return replace(chosen_state, speed=None, off=0, rate=None, rest_until=state.steps + state.dwell), reason

    # while the chosen candidate runs

    def _evaluate_chosen(self, state: GravacState) -> Evaluated:
        """Evaluate a window of the chosen candidate: keep it, lower the CF, or evaluate others."""
        if not state.compresses:
            return state, f"no candidate sends fewer bytes than {state.running}", True
        if state.running.dense:
            return *self._evaluate_dense(state), True
        gain, candidate = state.window.gain, state.running
        threshold = state.threshold
        if threshold is not None and gain < threshold:
            reason = f"gain {gain:.3g} at {candidate} fell below ε {threshold:.3g}"
            if state.position > state.floor:
                floor_state = replace(state, position=state.floor, reference=None)
                return floor_state, f"{reason}: down to {floor_state.running}", True
            dense_state = state.rest_at_dense(self._dwell_steps)
            return dense_state, f"{reason}: switched to {dense_state.running}", True
        state, change_text = self._detect_change(state)
        if change_text:
            return *self._search_again(_after_change(state, ()), change_text, state.dwell), True
        if self._rate_fell(state):
            return *self._search_again(state, self._rate_text(state), state.dwell), True
        is_due = state.steps >= state.rest_until
        if is_due and (state.reference is None or abs(gain - state.reference) > self.band * abs(state.reference)):
            if state.reference is None:
                reason = f"{candidate} runs because a gain was below ε; no search has chosen {candidate} yet"
            else:
                reason = (
                    f"gain {gain:.3g} differs by more than {100 * self.band:.3g} % from {state.reference:.3g}, the "
                    f"gain when {candidate} was chosen"
                )
            return *self._search_again(state, reason, 2 * state.dwell), True
        state = state.with_entry(measured(state))
        if is_due and self._evidence(state).dense_is_due:
            dense = state.candidates[state.fallback_position]
            reason = f"{candidate} makes {measured(state).t_system:.4g} samples/s; the time of {dense} is not known"
            state = replace(state, refused=state.lowest_position, dwell=2 * state.dwell)
            return (
                self._run(state, state.fallback_position),
                f"{reason}, or too old: time {dense}, whose gain is 1",
                True,
            )
        epsilon_text = "" if threshold is None else f" is at least ε {threshold:.3g}"
        return state, f"keep {candidate}: gain {gain:.3g}{epsilon_text}", True

    def _evaluate_dense(self, state: GravacState) -> tuple[GravacState, str]:
        """Evaluate a window of dense: keep it, time the other number format, or look at the gains of CFs.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        entry, candidate = measured(state), state.runs
        state, change_text = self._detect_change(state.with_entry(entry))
        if change_text:
            return self._search_again(_after_change(state, (entry,)), change_text, state.dwell)
        is_due, rate_fell = state.steps >= state.rest_until, self._rate_fell(state)
        if (is_due or rate_fell) and self._evidence(state).promising:
            in_16_bit = state.fallback_position if fits_float16(state.energy) else 0
            look_state = replace(state, phase=LOOK, position=in_16_bit, rate=state.learning_rate)
            cause = self._rate_text(state) if rate_fell else f"{candidate} has run for its time"
            return look_state, f"{cause}: compute, in a step of {look_state.running}, the gains of CFs that may win"
        other_position = self._evidence(state).other_dense_due(is_due)
        if other_position is not None:
            if is_due:
                state = state.rest_at_dense(self._dwell_steps, state.position, state.reference)
            other = state.candidates[other_position]
            reason = f"{candidate} makes {entry.t_system:.4g} samples/s: time {other}"
            return replace(state, phase=EXPLORE, position=other_position), reason
        if is_due:
            reason = f"by times younger than {self.expire} windows, no CF can win at any gain against its "
            return state, f"keep {candidate}: {reason}{entry.t_system:.4g} samples/s"
        cause = "a gain was below ε" if state.rests_at_dense else "its compression throughput is best"
        return state, f"keep {candidate} at least until step {state.rest_until}, since {cause}"

    def _evaluate_look(self, state: GravacState, measurement: Measurement) -> Evaluated | None:
        """Try the lowest CF that may win and whose shadow gain reaches ε; otherwise dense rests, twice as long."""
        errors_by_cf = dict(measurement.shadow)
        if not errors_by_cf or not math.isfinite(measurement.error + measurement.energy + sum(errors_by_cf.values())):
            return None
        gains_by_cf = {
            cf: 1 - error / measurement.energy if measurement.energy else 1.0 for cf, error in errors_by_cf.items()
        }
        threshold, evidence = state.threshold, self._evidence(state)
        for position in evidence.promising:
            candidate = state.candidates[position]
            gain = gains_by_cf.get(candidate.cf)
            entry = evidence.entry(position)
            may_win = entry is None or gain is None or entry.fastest * gain >= evidence.needed_throughput
            if gain is not None and may_win and (threshold is None or gain >= threshold):
                epsilon_text = "with an ε not known yet," if threshold is None else f"reaches ε {threshold:.3g},"
                time_text = "its time is not known, or too old" if entry is None else "its time lets it win"
                reason = f"gain {gain:.3g} at {candidate}, computed without sending, {epsilon_text} and {time_text}"
                searching = replace(state, searched=state.steps, refused=None, floor=position)  # lower CFs cannot win
                return self._run(searching, position), f"{reason}: try {candidate}", True
        candidate = state.candidates[evidence.promising[0]]
        gain = gains_by_cf[candidate.cf]
        rested = state.rest_at_dense(self._dwell_steps, reference=state.reference)
        reason = f"keep {rested.running}: gain {gain:.3g} at {candidate}, computed without sending, is"
        if threshold is not None and gain < threshold:
            return rested, f"{reason} below ε {threshold:.3g}", True
        return rested, f"{reason} too low to win by its time", True

    def _search_again(self, state: GravacState, reason: str, dwell: int) -> tuple[GravacState, str]:
        """Start a new search, with the lowest CF that may win; return the state, and the reason as text.

        Args:
            state: state at the end of a window.
            reason: reason for the search, as text.
            dwell: smallest number of steps from the end of this search to the start of the next.
        """
        searching = replace(
            state, searched=state.steps, refused=None, floor=state.lowest_position, dwell=dwell, reference=None
        )
        return self._try_or_end_search(searching, f"{reason}: try the CFs again")

    def _detect_change(self, state: GravacState) -> tuple[GravacState, str]:
        """Compare samples per second with those of the chosen candidate's first window.

        Returns:
            The state, and the reason for a new search as text; empty if samples per second did not change enough.
        """
        current_t_system = state.window.t_system
        state = replace(state, rate=state.rate or state.learning_rate)
        if state.speed is None or current_t_system is None:
            return replace(state, speed=current_t_system, off=0), ""
        off_count = state.off + 1 if abs(current_t_system - state.speed) > self.change * state.speed else 0
        state = replace(state, off=off_count)
        if off_count < 2:
            return state, ""
        return state, (
            f"{current_t_system:.4g} samples/s at {state.runs} instead of {state.speed:.4g} samples/s in its first "
            "window"
        )

    def _rate_fell(self, state: GravacState) -> bool:
        """True if the learning rate fell so much since a candidate was chosen that gains may have changed."""
        learning_rate, first_rate = state.learning_rate, state.rate
        return learning_rate is not None and bool(first_rate) and learning_rate < (1 - self.fall) * (first_rate or 0.0)

    def _rate_text(self, state: GravacState) -> str:
        """Return the reason to evaluate CFs again after the learning rate fell."""
        return f"the learning rate fell from {state.rate:.3g} to {state.learning_rate:.3g}"

    @property
    def _dwell_steps(self) -> int:
        """The setting ``dwell``, in steps."""
        return self.dwell * self.window

    def _evidence(self, state: GravacState) -> Evidence:
        """Return what the measurements in a state say."""
        return Evidence(state, self.omega, self.expire * self.window)


def _after_change(state: GravacState, entries: tuple[GravacEntry, ...]) -> GravacState:
    """Return the state after the link or the machine changed: of what was measured before, only ``entries`` hold."""
    return replace(state, entries=entries, exchange_s=())


def _with_late_time(state: GravacState, measurement: Measurement) -> GravacState:
    """Return the state with the time of a step that began before its dense candidate was given up as too slow.

    A single slow step may be a pause, so the fastest of the steps counts.
    """
    if measurement.candidate == state.runs or not measurement.candidate.dense or not measurement.seconds > 0:
        return state
    for entry in state.entries:
        if state.candidates[entry.position] == measurement.candidate and not entry.complete:
            t_system = max(entry.t_system, measurement.samples / measurement.seconds)
            return state.with_entry(replace(entry, t_system=t_system, fastest=t_system))
    return state


def _exchange_seconds(candidates: Sequence[Candidate], forecasts: Sequence[Forecast]) -> tuple[float | None, ...]:
    """Return the predicted seconds of each candidate's exchange; ``None`` if not known."""
    seconds = {forecast.candidate.in_hook: forecast.exchange_s for forecast in forecasts}
    return tuple(seconds.get(candidate.in_hook) for candidate in candidates)


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
