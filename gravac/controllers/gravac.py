# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""GraVAC, repaired: try one CF per window, keep the CF at which compression throughput saturates.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, Algorithm 1 and section III-C. ``docs/explanation/controllers.md``
lists the repairs and their reasons; Algorithm 1 as printed is ``GraVAC(paper_literal=True)``.

The phases, and what ends each:

- warm-up: the lowest CF runs; its gain calibrates ε. Then explore.
- explore: candidates run in ascending order, a window each. A candidate whose gain is below ε is refused, and so are
  the higher ones. A candidate whose shadow gain is below ε is refused without running. Two throughputs within ω end
  the search. Then exploit.
- exploit: the chosen CF runs. If its gain falls below ε, θ_min runs, then dense. If its gain leaves its band, explore
  again.

16 bit, if it is a candidate, has gain 1: it is tried right after the lowest CF, and is the dense to fall back to.

While the search rests at dense, or has settled on dense, DDP exchanges by itself if it may: in native steps, of which
only times are known. When the rest is over, gains are evaluated in steps with the hook again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers import gravac_literal as literal
from gravac.controllers.base import SHADOWS, WATCH, Decision, Measurement, Summary
from gravac.controllers.gravac_literal import LiteralState
from gravac.controllers.gravac_state import EXPLOIT, EXPLORE, WARM_UP, GravacEntry, GravacState
from gravac.controllers.native import LONGEST, fits_float16
from gravac.controllers.schedule import exponential, geometric, snap
from gravac.controllers.state_dicts import (
    check_names,
    check_positions,
    identified,
    identify,
    state_from_plain,
    to_plain,
)
from gravac.controllers.window import Window
from gravac.settings import Settings, SettingsError

AnyState = GravacState | LiteralState
"""State of the repaired algorithm, or of the printed one."""


class GraVAC(Settings):
    """The paper's controller, repaired.

    Attributes:
        window: number of steps that a candidate runs before it is judged. The paper's: 500 and 2000.
        epsilon: gain below which a CF is refused. With ``calibrated``, relative to the gain of the lowest CF: the
            default, a half, lets top-k reach about four times the lowest CF, at which the measured gain has halved.
            The paper's: 0.7 and 0.9, absolute.
        epsilon_mode: ``"calibrated"``, or ``"absolute"`` as in the paper, which does not transfer between models.
        omega: relative difference under which two gains, or two throughputs, count as the same.
        step: candidates at 1, 2, 4, 16, 256 (``"exponential"``) or 1, 2, 4, 8 ... (``"geometric"``) times the lowest.
        warmup: number of steps before the first window.
        shadow_every: number of steps from one evaluation of CFs that do not run to the next; a step with such an
            evaluation does not time its own CF.
        band: relative change of gain, since a CF was chosen, that starts a new search.
        change: relative change of the chosen candidate's throughput, in two consecutive windows, that starts a new
            search: the link or the machine changed.
        fall: relative fall of the learning rate, since a CF was chosen, that starts a new search, because gains change
            then. The rate is known if ``attach`` was given the optimizer.
        dwell: number of windows between two searches, and of a rest at dense; doubles every time.
        expire: number of windows after which a measured throughput is no longer compared with others.
        paper_literal: whether to run Algorithm 1 as printed instead.
        ewma: weight of a new gain in the smoothed gains of Algorithm 1; the paper's N/100 is 0.32 for its 32 workers.
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
    def native(self) -> bool:
        """True if DDP may exchange by itself: not in Algorithm 1 as printed."""
        return not self.paper_literal

    @property
    def sixteen_bit(self) -> bool:
        """True if dense in 16 bit may be a candidate: not in Algorithm 1 as printed."""
        return not self.paper_literal

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the paper's CFs, or the nearest CFs that the compressor supports."""
        target_cfs = exponential(cf_range) if self.step == "exponential" else geometric(cf_range)
        return snap(target_cfs, supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[AnyState, Decision]:
        """Start the warm-up at the lowest CF; run dense for good if there is no other candidate."""
        candidates = _in_hook(forecasts)
        if self.paper_literal:
            return literal.start(candidates)
        state = GravacState(candidates, EXPLOIT, 0, Window(candidates[0]), floor=0, dwell=self.dwell)
        state = replace(state, native=_native_cfs(forecasts))
        position = state.lowest if state.compresses else state.home
        running = candidates[position]
        reason = f"warm-up at {running}" if state.compresses else f"no candidate sends less than {running}: it stays"
        phase: Literal["warm-up", "exploit"] = WARM_UP if state.compresses else EXPLOIT
        state = self._native_if_allowed(replace(state, phase=phase, position=position, floor=position))
        state = replace(state, window=Window(state.runs))
        return state, self._decision(state, _with_native_note(state, reason))

    def observe(self, state: AnyState, measurement: Measurement) -> tuple[AnyState, Decision]:
        """Add one step to the window; at the end of a window, change between the phases of the module's text."""
        if isinstance(state, LiteralState):
            return literal.observe(self, state, measurement)
        if state.phase == WARM_UP and state.steps < self.warmup:
            counted = replace(state.count(measurement), window=Window(state.running))
            return counted, self._decision(counted)
        state = replace(state.count(measurement), window=state.window.add(measurement))
        if state.window.steps < self.window:
            return state, self._decision(state)
        previous, previous_runs = state.running, state.runs
        summary = state.window.summary(state.phase)
        state, reason = self._judge(replace(state, windows=state.windows + state.window.steps // self.window))
        state = self._native_if_allowed(state)
        if 2 * state.dense_steps > state.steps and state.compresses and state.steps > 5 * self.window:
            reason += f"; note: {state.dense_steps / state.steps:.0%} of all steps ran dense, so ε may be too high"
        if state.running != previous:
            state = replace(state, speed=None, off=0)
        reason = reason if state.runs == previous_runs else _with_native_note(state, reason)
        state = replace(state, window=state.window.following(state.runs))
        return state, self._decision(state, reason, summary)

    def _native_if_allowed(self, state: GravacState) -> GravacState:
        """Return the state in which DDP exchanges by itself if dense runs and no other CF is to be evaluated.

        During a rest at dense, the lowest CF is evaluated in the window in which the rest at dense ends.
        """
        fits = state.running.cf == 1 or fits_float16(state.energy)
        allowed = state.phase == EXPLOIT and state.running.dense and state.running.cf in state.native and fits
        rests = not (state.compresses and state.resting) or state.windows + 1 < state.rest_until
        return replace(state, by_itself=allowed and rests)

    def _decision(self, state: GravacState, reason: str = "", summary: Summary | None = None) -> Decision:
        """Return the decision for the state's candidate, with the CFs to evaluate beside it."""
        return Decision(state.runs, self._shadow(state), reason, summary, watch=self._watch(state))

    def _watch(self, state: GravacState) -> int:
        """Return the number of steps of the next native stretch: to the end of the rest at dense, or one window."""
        if not state.by_itself:
            return WATCH
        if not state.compresses:
            return LONGEST
        if not state.resting:
            return self.window
        return max(1, min(LONGEST, (state.rest_until - 1 - state.windows) * self.window - state.window.steps))

    def dump(self, state: AnyState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"algorithm": self._algorithm, "candidates": identify(state.candidates), **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` unless ``dumped`` is a state that ``dump`` returned."""
        if dumped.get("algorithm") not in ("literal", "repaired"):
            raise SettingsError(
                f"controller_state/algorithm: {dumped.get('algorithm')!r}, literal or repaired expected"
            )
        kind: Any = LiteralState if dumped["algorithm"] == "literal" else GravacState
        check_names(kind, dumped, ("algorithm", "candidates"), Window)
        candidates = identified(dumped["candidates"])
        state: AnyState = state_from_plain(kind, dumped, candidates[0], candidates=candidates)
        if isinstance(state, LiteralState):
            check_positions({"running": [state.running]}, len(candidates))
            return
        entries = [entry.position for entry in state.entries]
        positions = {"position": [state.position], "floor": [state.floor], "queue": state.queue, "entries": entries}
        check_positions(positions, len(candidates))

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[AnyState, Decision]:
        """Return the state that ``dump`` wrote, and the decision in force.

        If the candidates, or the algorithm, differ from those at the dump, the search starts again.
        """
        candidates = _in_hook(forecasts)
        if dumped["candidates"] != identify(candidates) or dumped["algorithm"] != self._algorithm:
            fresh, decision = self.start(forecasts)
            return fresh, replace(decision, reason=f"not what the checkpoint was made with: {decision.reason}")
        if self.paper_literal:
            printed = state_from_plain(LiteralState, dumped, candidates[dumped["running"]], candidates=candidates)
            return printed, literal.decide(printed)
        state = state_from_plain(GravacState, dumped, candidates[dumped["position"]], candidates=candidates)
        state = replace(state, native=_native_cfs(forecasts))
        state = state if state.running.cf in state.native else replace(state, by_itself=False)
        state = replace(state, window=replace(state.window, candidate=state.runs))
        return state, self._decision(state)

    @property
    def _algorithm(self) -> str:
        """Name of the algorithm in dumped states."""
        return "literal" if self.paper_literal else "repaired"

    def _shadow(self, state: GravacState) -> tuple[float, ...]:
        """Return the CFs to evaluate without sending: those still to be tried, or the lowest CF at dense."""
        if (
            state.by_itself
            or (state.steps + 1) % self.shadow_every
            or (state.phase == WARM_UP and state.steps <= self.warmup)
        ):
            return ()
        if state.resting:
            ready = state.compresses and state.windows + 1 >= state.rest_until
            return (state.candidates[state.floor].cf,) if ready else ()
        untried = state.others if state.phase == WARM_UP else state.queue
        return tuple(state.candidates[position].cf for position in untried if position > state.lowest)[:SHADOWS]

    def _judge(self, state: GravacState) -> tuple[GravacState, str]:
        """Judge the window that ended; return the state, and the reason as text."""
        if state.phase == EXPLOIT:
            return self._judge_chosen(state)
        if state.position == state.lowest:
            return self._judge_lowest(state)
        return self._judge_candidate(state)

    def _judge_lowest(self, state: GravacState) -> tuple[GravacState, str]:
        """Calibrate ε by the gain of the lowest CF, which ran, and try the next candidate."""
        gain, lowest = state.window.gain, state.running
        threshold = self.epsilon * max(gain, 0.0) if self.epsilon_mode == "calibrated" else self.epsilon
        state = replace(state, phase=EXPLORE, threshold=threshold, floor=state.lowest, queue=state.others, entries=())
        if gain < threshold:
            down = state.rest(self.dwell)
            reason = f"gain {gain:.3g} at {lowest}, the lowest, is below ε {threshold:.3g}"
            return down, f"{reason}: switched to {down.running}"
        reason = f"gain {gain:.3g} at {lowest}"
        if self.epsilon_mode == "calibrated":
            reason += f" sets ε to {threshold:.3g} ({self.epsilon:g} of it)"
        return self._try_or_settle(self._enter(state), reason)

    def _judge_candidate(self, state: GravacState) -> tuple[GravacState, str]:
        """Accept or refuse the candidate that ran in the window, by its gain."""
        gain, candidate = state.window.gain, state.running
        if gain < state.threshold:
            reason = f"gain {gain:.3g} at {candidate} is below ε {state.threshold:.3g}"
            return self._settle(state, f"{reason}: refused, with all higher CFs")
        floor_gain = next((entry.gain for entry in state.entries if entry.position == state.floor), None)
        state = self._enter(state)
        reason = f"gain {gain:.3g} at {candidate} is at least ε {state.threshold:.3g}"
        if not candidate.dense and floor_gain and abs(floor_gain - gain) / floor_gain <= self.omega:
            reason += f", and within ω of that at {state.candidates[state.floor]}: θ_min rises to it"
            state = replace(state, floor=state.position)
        return self._try_or_settle(state, reason)

    def _enter(self, state: GravacState) -> GravacState:
        """Enter the window's measurement in place of the candidate's earlier entry; drop expired entries."""
        t_compression = state.window.summary(state.phase).t_compression or 0.0
        entry = GravacEntry(state.position, state.window.gain, t_compression, state.windows)
        others = [
            other
            for other in state.entries
            if state.windows - other.window < self.expire and other.position != state.position
        ]
        return replace(state, entries=(*others, entry))

    def _try_or_settle(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """Settle if throughput saturates; otherwise try the next candidate, unless its shadow gain is below ε."""
        if not state.queue or self._saturated(state) is not None:
            return self._settle(state, reason)
        following = state.queue[0]
        candidate = state.candidates[following]
        shadow = state.window.shadow_gain(candidate.cf)
        if shadow is not None and shadow < state.threshold:
            reason += f"; shadow gain {shadow:.3g} at {candidate} is below ε"
            return self._settle(state, f"{reason}: refused without a run, with all higher CFs")
        return replace(state, position=following, queue=state.queue[1:]), f"{reason}; try {candidate}"

    def _saturated(self, state: GravacState) -> tuple[GravacEntry, GravacEntry] | None:
        """Return the two entries of best throughput if they are within ω, lower CF first; ``None`` otherwise."""
        best = sorted(state.entries, key=lambda entry: entry.t_compression)[-2:]
        if len(best) < 2 or not best[0].t_compression:
            return None
        if (best[1].t_compression - best[0].t_compression) / best[0].t_compression > self.omega:
            return None
        low, high = sorted(best, key=lambda entry: entry.position)
        return low, high

    def _settle(self, state: GravacState, reason: str) -> tuple[GravacState, str]:
        """Choose among the entries and end the search."""
        pair = self._saturated(state)
        if pair is not None:
            selected = pair[0]
            lower, higher = (state.candidates[entry.position] for entry in pair)
            reason += f"; compression throughput saturates between {lower} and {higher}: the lower"
        else:
            selected = max(state.entries, key=lambda entry: (entry.t_compression, -entry.position))
            candidate = state.candidates[selected.position]
            reason += f"; best compression throughput {selected.t_compression:.3g} samples/s at {candidate}"
        floor = max(state.lowest, min(state.floor, selected.position))
        until = state.windows + state.dwell
        settled = replace(state, phase=EXPLOIT, position=selected.position, floor=floor, reference=selected.gain)
        return replace(settled, queue=(), speed=None, off=0, rate=None, rest_until=until), reason

    def _judge_chosen(self, state: GravacState) -> tuple[GravacState, str]:
        """Judge a window of the chosen candidate: hold it, scale down, return from dense, or search again."""
        if not state.compresses:
            return state, f"no candidate sends less than {state.running}"
        if state.resting:
            return self._judge_dense(state)
        gain, candidate = state.window.gain, state.running
        if gain < state.threshold:
            reason = f"gain {gain:.3g} at {candidate} fell below ε {state.threshold:.3g}"
            if state.position > state.floor:
                down = replace(state, position=state.floor, reference=None)
                return down, f"{reason}: down to {down.running}"
            down = state.rest(self.dwell)
            return down, f"{reason}: {down.running}"
        state, change = self._detect_change(state)
        if change:
            return self._search_again(state, change, state.dwell)
        rested = state.windows >= state.rest_until
        gain_moved = state.reference is None or abs(gain - state.reference) > self.band * abs(state.reference)
        if rested and (gain_moved or candidate.dense):
            if state.reference is None:
                reason = "after scaling down"
            elif candidate.dense:
                reason = f"the gain of {candidate} tells nothing"
            else:
                reason = f"gain {gain:.3g} left its band around {state.reference:.3g}"
            return self._search_again(state, reason, 2 * state.dwell)
        return state, f"gain {gain:.3g} at {candidate} holds"

    def _search_again(self, state: GravacState, reason: str, dwell: int) -> tuple[GravacState, str]:
        """Search again from the lowest CF; earlier measurements are no longer compared."""
        lowest = state.lowest
        searching = replace(state, phase=EXPLORE, position=lowest, floor=lowest, queue=state.others, dwell=dwell)
        return searching, f"{reason}: search again from {searching.running}"

    def _detect_change(self, state: GravacState) -> tuple[GravacState, str]:
        """Compare throughput and learning rate with those at the choice of the candidate.

        Returns:
            The state, and the reason for a new search as text; empty if neither changed enough.
        """
        speed, rate = state.window.t_system, state.learning_rate
        if state.speed is None or speed is None:
            return replace(state, speed=speed, off=0, rate=state.rate or rate), ""
        off = state.off + 1 if abs(speed - state.speed) > self.change * state.speed else 0
        state = replace(state, off=off)
        if off > 1:
            return state, f"{speed:.4g} samples/s at {state.running}, not the {state.speed:.4g} it was"
        if rate is not None and state.rate and rate < (1 - self.fall) * state.rate:
            return state, f"the learning rate fell from {state.rate:.3g} to {rate:.3g}"
        return replace(state, rate=state.rate or rate), ""

    def _judge_dense(self, state: GravacState) -> tuple[GravacState, str]:
        """Leave dense if the rest is over and the lowest CF's shadow gain, which is optimistic, reaches ε."""
        lowest = state.candidates[state.floor]
        shadow = state.window.shadow_gain(lowest.cf)
        if shadow is None or state.windows < state.rest_until:
            return state, f"dense until window {state.rest_until}"
        if shadow < state.threshold:
            if state.running.cf in state.native:
                state = state.rest(self.dwell)
            return state, f"dense: shadow gain {shadow:.3g} at {lowest} is below ε {state.threshold:.3g}"
        until = state.windows + state.dwell
        compressing = replace(state, phase=EXPLOIT, position=state.floor, reference=None, rest_until=until)
        return compressing, f"shadow gain {shadow:.3g} at {lowest} reaches ε: back to it"


def _in_hook(forecasts: Sequence[Forecast]) -> tuple[Candidate, ...]:
    """Return the candidates in mode ``hook``, without duplicates: native candidates become the same in the hook."""
    candidates = (forecast.candidate for forecast in forecasts)
    return tuple(
        dict.fromkeys(candidate.in_hook if candidate.mode == "native" else candidate for candidate in candidates)
    )


def _native_cfs(forecasts: Sequence[Forecast]) -> tuple[float, ...]:
    """Return the CFs of native candidates, ascending."""
    return tuple(forecast.candidate.cf for forecast in forecasts if forecast.candidate.mode == "native")


def _with_native_note(state: GravacState, reason: str) -> str:
    """Return a reason, with a note if DDP exchanges by itself."""
    return f"{reason}; DDP exchanges by itself: {state.runs}" if state.by_itself else reason
