# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput: steps per second times the progress of a step, maximized by trying candidates that could be better.

GraVAC multiplies throughput by gain, and gain is not progress: on ``charlm`` one bit of every number keeps 0.64 of the
energy and makes 0.91 of a dense step's progress; top-k at 100x keeps 0.07 and makes 0.33
(``docs/evidence/matrices.md``). Goodput forecasts each candidate's *efficiency*, the progress of its step / that of a
dense step, from committed measurements (``gravac.beliefs``), and measures throughput while training. Since a forecast
may be wrong, a step counts with the lower bound of its efficiency, which it exceeds with a probability of 80 %
(``Forecast.lower_bound``).

- Start: among the candidates whose efficiency is near dense's, the search starts at the one that should code and
  exchange fastest. The expectation comes from the link's probe (``gravac.exchange.link_probe``) and, on a GPU, from
  the timing of codecs (``gravac.engine.codec_timing``). If it is not known, the search starts at the highest wire
  ratio, which is fast on any link.
- Trials: measurements bound how fast the other candidates can be (``GoodputState.fastest``). The candidate whose bound
  promises the highest goodput is tried for a few steps, and given up early if it is clearly slower. If dense in the
  hook is best, native is tried before candidates that compress.
- Hold: if no bound promises a gain above ``hysteresis`` (to leave one bit: above the setback of the switch), the best
  candidate is held. A new search starts if its step time changes, since the link changed, or if its exchange takes
  half as long although it was hidden. Others are tried again if their measurements are old, or were never certain
  because the steps of a trial differed.
- Price: besides the first few, all trials cost at most the fraction ``explore`` of the run's time, and less if a step
  waits little for bytes. If a step hardly waits, no candidate that sends less is tried.

The measured gain corrects the efficiency of compressors whose gain tells it (``Forecast.efficiency_at``). With a probe,
a run also measures the progress of its candidates' steps (``gravac.controllers.switchback``), if better decisions are
expected to gain more than the measurement costs. The results correct the beliefs.

Of native steps only times are known. The controller assumes that they wait as long as their exchange was forecast to
take, corrected by how fast the link turned out. They are measured in stretches, each twice as long as the previous one
while nothing changes. Outer steps have a price: afterwards the ranks must agree on one model again
(``Forecast.leaving_s``). They are not tried before the learning rate has warmed up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Forecast, Span
from gravac.controllers.base import WATCH, Decision, Measurement
from gravac.controllers.goodput_reasons import Finding, cost_text, milliseconds, missing_text, step_text, switch_text
from gravac.controllers.goodput_state import BROKEN, FEW_STEPS, HOLD, PROGRESS, SEARCH, GoodputEntry, GoodputState
from gravac.controllers.measuring import NO_TRIALS, next_trials, trials_may_begin
from gravac.controllers.native import longer
from gravac.controllers.progress import Trials
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.state_dicts import (
    check_names,
    check_positions,
    identified,
    identify,
    name_of,
    state_from_plain,
    to_plain,
)
from gravac.controllers.switchback import Switchback
from gravac.controllers.window import Window
from gravac.settings import Settings, SettingsError

GRANT = 25.0
"""Cost of trials, in steps of the best candidate, that is allowed at the start of a run and after a change of the link,
besides the fraction ``explore`` of the run's time."""

CODING_BESIDE_BACKWARD = 2.0
"""Time of coding while backward runs, with cold caches, over the time of coding alone; roughly."""

TRIAL_ROUNDS = 3
"""Smallest number of rounds in a trial of outer steps, until the decision after the first round takes effect."""

FIRST_STEP = 3.0
"""Largest ratio of the first step of a trial to the time that a step may take: a longer first step ends the trial."""

HARMLESS = 0.4
"""Efficiency below which a trial may set training back by more than its own steps: nine steps of rank 1 during the
warm-up cost ``denoise`` 30 to 180 steps, also if their residual was dropped. So such candidates are tried last."""

SETBACK, SETTLED = 15.0, 100
"""Progress, in steps, that leaving one bit for a candidate of higher efficiency may cost; and the number of steps from
which on that cost is spread over the steps so far: the controller assumes that as many steps follow. AdamW's second
moments from one bit's steps are too small for other candidates. On ``charlm`` the loss stays 0.014 to 0.024 nats above
that without a switch for 40 steps, which is the progress of 10 to 20 steps (``docs/evidence/measurements.md``)."""

COARSE = 0.8
"""Efficiency below which the controller assumes that a quantizer leaves second moments as small as one bit does; see
``SETBACK``."""

OUTER_HYSTERESIS = 0.1
"""Relative gain in goodput below which no outer steps are tried or chosen, if trials did not measure their progress.
Their efficiency differs more from task to task (``docs/evidence/outer.md``), and a round is one measurement of many
steps."""

EXPOSED = 0.03
"""Fraction of a step that waits for bytes, below which no candidate that sends less is tried: it could save no more."""

FULL_BUDGET = 0.5
"""Fraction of a step's time that another candidate could save, from which on trials get their whole budget
(``explore``, ``GRANT``). Below it the budget falls in proportion to that fraction. For trials of the hook while native
steps are held it falls with the fraction's square, since on a fast link such trials seldom find a better candidate."""


def trial_price(slowest: float, best: float, every: int = 1) -> float:
    """Return an upper bound of a trial's cost, in seconds: a far too slow trial runs two steps, any other a few.

    Args:
        slowest: upper bound of the time of a step of the trial, in seconds.
        best: time of a step of the best candidate so far, in seconds.
        every: number of steps of a round; a trial of rounds lasts ``TRIAL_ROUNDS``.

    Example:
        >>> trial_price(slowest=0.2, best=0.1)  # four steps, each 0.1 s too long
        0.4
        >>> trial_price(slowest=2.0, best=0.1)  # two steps, each 1.9 s too long
        3.8
    """
    steps, excess = FEW_STEPS + 1, slowest - best
    if every > 1:
        return max(steps, TRIAL_ROUNDS * every) * excess
    return min(steps * excess, max(2 * excess, steps * (FIRST_STEP - 1) * best))


class Goodput(Settings):
    """Maximizes goodput: throughput times the statistical efficiency of a step.

    Attributes:
        window: number of steps from one judgement of the candidate that is held to the next.
        trial: number of steps of a trial; the first three after a switch are not timed.
        near: efficiency, relative to dense, from which on the search may start with a candidate.
        hysteresis: relative gain in goodput below which no candidate is tried and none is changed.
        change: relative change of the step time of the candidate that is held, in two consecutive windows, that starts
            a new search; twice as much in one window does too.
        hopeless: ratio of a trial's step time to the longest time that a step may take; a trial above it ends at once.
        expire: number of windows after which the measured step time of a candidate that does not run counts half, and
            half again after as many more.
        explore: fraction of the run's time that trials may cost.
        probe: whether the run has a probe, so that it can measure progress.
        total_steps: number of steps of the run; ``None``: twice the number of steps made so far.
    """

    name: ClassVar[str] = "goodput"
    keeps_all: ClassVar[bool] = False
    sixteen_bit: ClassVar[bool] = True
    chooses_every: ClassVar[bool] = True
    native: ClassVar[bool] = True
    states_cost: ClassVar[bool] = True

    window: int = Field(default=12, ge=5)
    trial: int = Field(default=8, ge=5)
    near: float = Field(default=0.93, gt=0, le=1)
    hysteresis: float = Field(default=0.03, ge=0, lt=1)
    change: float = Field(default=0.25, gt=0)
    hopeless: float = Field(default=1.3, gt=1)
    expire: int = Field(default=40, ge=1)
    explore: float = Field(default=0.05, ge=0, lt=1)
    probe: bool = False
    total_steps: int | None = Field(default=None, ge=1)

    def with_probe(self, total_steps: int | None) -> Goodput:
        """Return this controller for a run that has a probe; see ``Controller``."""
        return self(probe=True, total_steps=self.total_steps if total_steps is None else total_steps)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return all CFs of a list; for a span the lowest CF, doubled again and again.

        Example:
            >>> Goodput().propose((10, 100), Span(1, 1000))
            (10, 20.0, 40.0, 80.0, 100)
        """
        if isinstance(supported, Span):
            return snap(geometric(cf_range), supported)
        return tuple(cf for cf in sorted(set(supported)) if cf_range[0] <= cf <= cf_range[1])

    def start(self, forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Start the search at the candidate that the module's text describes."""
        position = self._first_position(forecasts)
        first = forecasts[position].candidate
        state = GoodputState(
            forecasts=tuple(forecasts), phase=SEARCH, position=position, best=position, window=Window(first)
        )
        reason = f"start at {first}: the fewest bytes at an efficiency of {forecasts[position].efficiency:.2f}"
        if (step_s := forecasts[position].step_s) is not None:
            reason = f"start at {first}: the best goodput, {1000 * step_s:.3g} ms a step expected"
        elif (added_s := _added_seconds(forecasts[position])) is not None:
            reason = f"start at {first}: efficiency near dense, and it adds least, {1000 * added_s:.3g} ms expected"
        if len(forecasts) == 1:
            reason = "no candidate sends less than dense: dense for good"
        return state, Decision(first, reason=reason)

    def observe(self, state: GoodputState, measurement: Measurement) -> tuple[GoodputState, Decision]:
        """Add one step to the window; at the end of a window, or of a trial, choose the candidate to try or to hold."""
        state = replace(state.count(measurement), window=state.window.add(measurement))
        if state.trials is not None:
            return self._measure_progress(state, state.trials, measurement)
        searching, native = state.phase == SEARCH, state.running.mode == "native"
        cut_short = not native and (self._hopeless(state) if searching else _far_slower(state))
        if state.window.steps < (1 if native else self.trial if searching else self.window) and not cut_short:
            return state, Decision(state.running, watch=state.watch)
        if cut_short:  # earlier steps of the window may have been on a faster link
            state = replace(state, window=state.window.with_newest_times(FEW_STEPS))
        candidate, window = state.running, state.window
        summary = window.summary(state.phase)
        state = replace(state, windows=state.windows + max(1, window.steps // self.window))
        previous_watch, state = state.watch, replace(state, watch=WATCH)
        if window.t_system is None or not 0 < window.t_system < math.inf:
            reason = f"no step of {candidate} could be timed: keep it"
        elif searching:
            state, reason = self._judge_trial(state, window.samples / window.t_system, cut_short)
        else:
            seconds = window.samples / window.t_system
            steady = self._is_steady(state, seconds)
            state, reason = self._judge_window(state, seconds)
            if self.probe and steady and state.running == candidate and state.phase == HOLD:
                trials = next_trials(state, self.total_steps, self.expire)
                if trials is not None:
                    return self._switchback.start(state, trials, reason, summary)
                if not state.learned and trials_may_begin(state, self.total_steps):
                    reason = f"{reason}; {NO_TRIALS}"
            if native and steady and state.running == candidate:
                state = replace(state, watch=longer(previous_watch, seconds, WATCH))
        state = replace(state, window=window.following(state.running))
        return state, Decision(state.running, (), reason, summary, watch=state.watch)

    @property
    def _switchback(self) -> Switchback:
        return Switchback(self.total_steps, self.expire)

    def _measure_progress(
        self, state: GoodputState, trials: Trials, measurement: Measurement
    ) -> tuple[GoodputState, Decision]:
        """Continue switchback trials; when they end, hold the best candidate, or time the steps of another one."""
        state, outcome = self._switchback.observe(state, trials, measurement)
        if isinstance(outcome, Decision):
            return state, outcome
        summary = state.window.summary(PROGRESS)
        state, reason = self._try_or_hold(state, Finding(outcome.reason))
        state = replace(state, window=state.window.following(state.running))
        return state, Decision(state.running, (), reason, summary, progress=outcome.progress)

    def dump(self, state: GoodputState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        candidates = identify(forecast.candidate for forecast in state.forecasts)
        return {"candidates": candidates, **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` unless ``dumped`` is a state that ``dump`` returned."""
        check_names(GoodputState, dumped, ("candidates",), Window)
        candidates = identified(dumped["candidates"])
        forecasts = tuple(Forecast(candidate, wire_ratio=1.0) for candidate in candidates)
        state = state_from_plain(GoodputState, dumped, candidates[0], forecasts=forecasts)
        entries, floors = [entry.position for entry in state.entries], [position for position, _ in state.floors]
        positions = {"position": [state.position], "best": [state.best], "entries": entries, "floors": floors}
        positions["suspect"] = [] if state.suspect is None else [state.suspect]
        pairs = [(learned.candidate, learned.reference) for learned in state.learned]
        if state.trials is not None:
            pairs.append((state.trials.candidate, state.trials.reference))
        positions["learned"] = [position for pair in pairs for position in pair]
        check_positions(positions, len(candidates))
        if any(entry.window > state.windows for entry in state.entries):
            raise SettingsError(f"controller_state/entries: measured after window {state.windows}, the last")

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Return the state that ``dump`` wrote, and the decision in force.

        If the candidates differ from those at the dump, the measurements of candidates in both lists stay; the reason
        names the missing candidates. If the candidate that ran is missing, the best measured candidate is held. If none
        of those in both lists was measured, the search starts again.
        """
        dumped_candidates, current = dumped["candidates"], identify(forecast.candidate for forecast in forecasts)
        if dumped_candidates != current:
            missing = [name_of(identity) for identity in dumped_candidates if identity not in current]
            positions = {
                position: current.index(identity)
                for position, identity in enumerate(dumped_candidates)
                if identity in current
            }
            remapped = _remapped(dumped, positions, forecasts)
            if remapped is None:
                fresh, decision = self.start(forecasts)
                reason = f"{missing_text(missing)}; nothing measured is left: {decision.reason}"
                return fresh, replace(decision, reason=reason)
            running = forecasts[remapped["position"]].candidate
            state = state_from_plain(GoodputState, remapped, running, forecasts=forecasts)
            runs = dumped_candidates[dumped["position"]] in current
            reason = "" if runs else f"; {state.running} is the best of those measured"
            reason = missing_text(missing) + reason if missing else ""
            return state, Decision(state.running, reason=reason, watch=state.watch)
        running = forecasts[dumped["position"]].candidate
        state = state_from_plain(GoodputState, dumped, running, forecasts=forecasts)
        return state, Decision(running, watch=state.watch)

    def _first_position(self, forecasts: Sequence[Forecast], link_changed: bool = False) -> int:
        """Return the position where a search starts; once the link has changed, that of the highest wire ratio.

        If the seconds of whole steps were forecast, the search starts at the best goodput by these.
        """
        positions = range(len(forecasts))
        if not link_changed and forecasts[0].step_s is not None:
            return max(positions, key=lambda position: _expected_goodput(forecasts[position]))
        threshold = self.near * forecasts[0].efficiency
        near_dense = [
            position
            for position, forecast in enumerate(forecasts)
            if forecast.efficiency >= threshold and _may_start(forecast, forecasts[0])
        ]
        added = [
            (seconds, position)
            for position in near_dense
            if (seconds := _added_seconds(forecasts[position])) is not None
        ]
        if link_changed or len(added) < len(near_dense):
            return max(near_dense, key=lambda position: forecasts[position].wire_ratio)
        return min(added)[1]

    def _hopeless(self, state: GoodputState) -> bool:
        """True if a trial can be given up: its best step is clearly too slow, or its first step far too slow.

        The best step counts, because a shared machine stalls a step now and then. If the last steps are far too slow,
        whatever the earlier ones took, the link broke down.
        """
        best = state.entry(state.best)
        seconds = (*state.window.rough, *state.window.seconds)
        if best is None or state.position == state.best or not seconds:
            return False
        allowed = state.least_efficiency(state.position) / state.goodput(best)
        if state.window.steps < FEW_STEPS or len(seconds) == 1:
            return seconds[0] > FIRST_STEP * allowed
        return min(seconds[1:]) > self.hopeless * allowed or _all_exceed(BROKEN * allowed, seconds)

    def _judge_trial(self, state: GoodputState, seconds: float, given_up: bool) -> tuple[GoodputState, str]:
        """Enter a trial's measurement, and choose the next candidate.

        Args:
            state: state of the search, with the trial's window.
            seconds: median time of the trial's steps.
            given_up: whether the trial ended early.

        Returns:
            The state, and the reason as text.
        """
        best, forecast = state.entry(state.best), state.forecast
        if best is not None and state.position != state.best:
            steps = state.window.steps
            lower_bound = state.belief(state.position, forecast.efficiency_at(state.window.gain)).lower_bound
            lost = max(0.0, steps * (seconds - lower_bound / state.goodput(best)))
            best_forecast = state.forecasts[best.position]
            if _ends_outer_steps(best_forecast, forecast):
                lost += state.leaving(best_forecast)
            state = replace(state, spent=state.spent + lost)
        earlier = state.entry(state.position)
        recovered = earlier is not None and state.was_paused(seconds, self.change)
        state = state.cleared()
        if earlier is not None and (recovered or self._link_became_faster(state, earlier, seconds)):
            took = f"{forecast.candidate} took {milliseconds(seconds)} a step"
            reason = f"{took} instead of {milliseconds(earlier.seconds)}: the link became faster"
            state = replace(state.changed(min(seconds, earlier.seconds)), best=state.position)
            return self._search_again(state, reason)
        expired = earlier is None or state.windows - earlier.window >= self.expire
        weight = 1.0 if earlier is None or expired else 1 / (earlier.times + 1)
        too_slow_for_link = given_up and best is not None and seconds > BROKEN * state.slowest(state.position)
        state = state.enter(seconds, weight)
        took = f"{forecast.candidate} took {milliseconds(seconds)} a step{cost_text(state, state.position)}"
        if too_slow_for_link and state.sends_less(state.position, than=state.best):  # the best candidate is even slower
            return self._try_or_hold(state.slower(seconds), Finding(f"{took}: the link became slower"))
        if too_slow_for_link:
            state = replace(state, phase=HOLD, position=state.best)
            return state, f"{took}: given up early, since the link may have become slower; time {state.running} again"
        finding = Finding(f"{took}: given up early") if given_up else Finding(took, repeated=True)
        return self._try_or_hold(state, finding)

    def _link_became_faster(self, state: GoodputState, earlier: GoodputEntry, seconds: float) -> bool:
        """True if a candidate that is tried again takes so much less time that the link must have become faster.

        Args:
            state: state of the search, with the trial's window.
            earlier: earlier measurement of the candidate.
            seconds: median time of the trial's steps.
        """
        best, forecast = state.entry(state.best), state.forecast
        if best is None or state.position == state.best or forecast.candidate.mode == "native":
            return False
        lower_bound = state.belief(state.position, forecast.efficiency_at(state.window.gain)).lower_bound
        better = lower_bound > seconds * state.goodput(best)
        return state.freed or (better and seconds < (1 - self.change) * earlier.seconds)

    def _judge_window(self, state: GoodputState, seconds: float) -> tuple[GoodputState, str]:
        """Enter a window of the candidate that is held; search again if the link or the machine changed.

        Args:
            state: state of the search, with the window.
            seconds: median time of the window's steps.

        Returns:
            The state, and the reason as text.
        """
        entry = state.entry(state.position)
        if entry is None:
            took = f"{state.running} takes {milliseconds(seconds)} a step"
            return self._try_or_hold(state.enter(seconds), Finding(took, repeated=True))
        change, freed = abs(seconds - entry.seconds) / entry.seconds, state.freed
        takes = f"{state.running} takes {milliseconds(seconds)} a step"
        if change > self.change or freed:
            state = replace(state, off=state.off + 1)
            takes += f" instead of {milliseconds(entry.seconds)}" if change > self.change else ""
            takes += ", its exchange less than half the time" if freed else ""
            if state.off < 2 and change <= 2 * self.change:
                return state, f"{takes}: wait for another window"
            if state.running.mode == "native" and seconds < entry.seconds:
                state = replace(state.drift(seconds, at_once=True), off=0)
                return self._try_or_hold(state, Finding(f"{takes}: the link or the machine became faster"))
            if freed:
                faster = state.changed(min(seconds, entry.seconds))
                return self._search_again(faster, f"{takes}: the link became faster")
            if state.same_link(self.change):
                state = replace(state.drift(seconds, at_once=True), off=0)
                return self._try_or_hold(state, Finding(f"{takes}: the machine changed"))
            return self._search_again(state.changed(seconds), f"{takes}: the link or the machine changed")
        return self._try_or_hold(replace(state.cleared(), off=0).drift(seconds), Finding(takes, repeated=True))

    def _search_again(self, state: GoodputState, reason: str) -> tuple[GoodputState, str]:
        """Search again after a change, from the candidate that a run starts at, if it may be better than the current.

        Otherwise try a candidate that could be better than the best, or hold the best.
        """
        first = self._first_position(state.forecasts, link_changed=True)
        promise = state.least_efficiency(first) / state.fastest(first, self.expire)
        current = state.entry(state.position)
        assert current is not None
        may_try = first != state.position and state.allowed(first)
        if not may_try or promise <= self._goodput_to_beat(state, current, first):
            return self._try_or_hold(state, Finding(reason))
        ends_outer_steps = _ends_outer_steps(state.forecast, state.forecasts[first])
        if ends_outer_steps and not self._may_try(state, current, first, promise):
            return self._try_or_hold(state, Finding(reason))
        state = replace(state, phase=SEARCH, best=state.position, position=first)
        return state, f"{reason}; search again from {state.running}"

    def _try_or_hold(self, state: GoodputState, finding: Finding) -> tuple[GoodputState, str]:
        """Try a candidate that could be better than the best, or hold the best.

        Args:
            state: state of the search, in which the candidate that ran is still the running one.
            finding: what its steps showed.

        Returns:
            The state, and the reason as text.
        """
        previous, incumbent = state.position, state.entry(state.best)
        best = self._best_entry(state)
        state = replace(state, best=best.position)
        goodput = state.goodput(best)
        promises = {
            position: state.least_efficiency(position) / state.fastest(position, self.expire)
            for position in range(len(state.forecasts))
            if position != best.position and state.allowed(position)
        }
        trials = [
            position
            for position, promise in promises.items()
            if promise > self._goodput_to_beat(state, best, position) and self._may_try(state, best, position, promise)
        ]
        trials = [position for position in trials if not state.risky(position)] or trials
        if trials:
            harmless = [position for position in trials if state.efficiency(position) >= HARMLESS]
            # of equal promises, the candidate that sends fewest bytes: a wrong choice costs less
            trial = max(harmless or trials, key=lambda position: (promises[position], position))
            native = [position for position in trials if state.forecasts[position].candidate.mode == "native"]
            if trial in native or (native and state.forecasts[best.position].candidate.dense):
                # if dense is best so far, native before all that compress; float32 before float16, which must be better
                trial = min(native, key=lambda position: state.forecasts[position].candidate.cf)
            state = replace(state, phase=SEARCH, position=trial)
            times = f"which may be up to {promises[trial] / goodput:.2f} times as good"
            times += "" if best.position == previous else f" as {state.forecasts[best.position].candidate}"
            return state, f"{finding.text}; try {state.running}, {times}{cost_text(state, trial)}"
        if self._may_time_again(state, best):
            assert state.suspect is not None
            state = replace(state, phase=SEARCH, position=state.suspect)
            again = f"time {state.running} again, whose slow steps may have been a pause of the machine"
            return state, f"{finding.text}; {again}"
        state = replace(state, phase=HOLD, position=best.position)
        if best.position != previous:
            return state, f"{finding.text}; back to {step_text(state, best)}"
        if incumbent is None or incumbent.position == previous:
            conclusion = f"keep {step_text(state, best)}"
        else:
            conclusion = f"switched to {switch_text(state, best, incumbent)}"
        return state, conclusion if finding.repeated else f"{finding.text}; {conclusion}"

    def _may_try(self, state: GoodputState, best: GoodputEntry, position: int, promise: float) -> bool:
        """True if a trial may gain enough, and trials have not cost too much so far.

        Args:
            state: state of the search.
            best: measurement of the best candidate.
            position: position of the candidate.
            promise: upper bound of the candidate's goodput.
        """
        forecast, best_forecast = state.forecasts[position], state.forecasts[best.position]
        mode, best_mode = forecast.candidate.mode, best_forecast.candidate.mode
        spares_hook = mode == "native" and best_mode == "hook"  # the hook itself may cost more than it saves
        if not spares_hook and forecast.wire_ratio >= best_forecast.wire_ratio and state.exposed(best) < EXPOSED:
            return False
        price = _price_of_trial(state, best, position, state.slowest(position))
        budget_fraction = min(1.0, state.at_stake(best) / FULL_BUDGET)
        if best_mode == "native" and mode == "hook":
            budget_fraction **= 2
        if price > budget_fraction * (self.explore * state.elapsed + GRANT * best.seconds) - state.spent:
            return False
        if mode != "outer" or best_mode == "outer":
            return True
        gains = max(state.steps, SETTLED) * best.seconds * (promise / state.goodput(best) - 1)
        return max(0.0, price) + state.leaving(forecast) <= gains

    def _may_time_again(self, state: GoodputState, best: GoodputEntry) -> bool:
        """True if the candidate that showed that the link became slower can be timed again at little cost.

        The cost may be at most the fraction ``explore`` of the time since the link changed.
        """
        if state.suspect is None or state.suspect == best.position or not state.allowed(state.suspect):
            return False
        suspect = state.entry(state.suspect)
        if suspect is None:
            return False
        return _price_of_trial(state, best, state.suspect, suspect.seconds) <= self.explore * state.elapsed

    def _is_steady(self, state: GoodputState, seconds: float) -> bool:
        """True if steps of the candidate that is held take about as long as they did."""
        current = state.entry(state.position)
        return current is not None and abs(seconds - current.seconds) <= self.change * current.seconds

    def _best_entry(self, state: GoodputState) -> GoodputEntry:
        """Return the entry of highest goodput; within the hysteresis, that of the candidate that was best."""
        top = max(state.entries, key=lambda entry: (state.goodput(entry), -entry.position))
        incumbent = state.entry(state.best)
        if incumbent is None or state.goodput(top) > self._goodput_to_beat(state, incumbent, top.position):
            return top
        return incumbent

    def _goodput_to_beat(self, state: GoodputState, incumbent: GoodputEntry, position: int) -> float:
        """Return the goodput that a candidate must exceed to be tried, or to replace the incumbent.

        Args:
            state: state of the search.
            incumbent: measurement of the candidate that is best so far.
            position: position of the other candidate.
        """
        margin = self.hysteresis
        coarse = state.forecasts[incumbent.position].by_gain and incumbent.efficiency < COARSE
        if coarse and state.efficiency(position) > incumbent.efficiency:
            margin = max(margin, SETBACK / max(state.steps, SETTLED))
        forecast, incumbent_forecast = state.forecasts[position], state.forecasts[incumbent.position]
        if forecast.behind is not None and not state.was_tried(position):
            margin = max(margin, OUTER_HYSTERESIS)
        if forecast.candidate.mode == "native" and incumbent_forecast.candidate.mode == "hook":
            margin = 0.0
        return state.goodput(incumbent) * (1 + margin) * (1 + self._mode_change_price(state, incumbent, forecast))

    def _mode_change_price(self, state: GoodputState, incumbent: GoodputEntry, forecast: Forecast) -> float:
        """Return the time of changing into outer steps, or out of them, over the time of the steps so far.

        Args:
            state: state of the search.
            incumbent: measurement of the candidate that is best so far.
            forecast: forecast of the other candidate.
        """
        incumbent_forecast = state.forecasts[incumbent.position]
        if (forecast.candidate.mode == "outer") == (incumbent_forecast.candidate.mode == "outer"):
            return 0.0
        leaving = state.leaving(forecast if forecast.candidate.mode == "outer" else incumbent_forecast)
        return leaving / (max(state.steps, SETTLED) * incumbent.seconds)


def _remapped(
    dumped: dict[str, Any], positions: Mapping[int, int], forecasts: Sequence[Forecast]
) -> dict[str, Any] | None:
    """Return a dumped state for the current candidates, with the measurements of those that it had already.

    Args:
        dumped: the dumped state.
        positions: current positions of candidates by their positions in the dump, of those in both lists.
        forecasts: forecasts of the current candidates.

    Returns:
        The state; ``None`` if neither the candidate that ran nor a measured one is among the current candidates.
    """
    entries = [
        {**entry, "position": positions[entry["position"]]}
        for entry in dumped["entries"]
        if entry["position"] in positions
    ]
    floors = [(positions[position], seconds) for position, seconds in dumped["floors"] if position in positions]
    suspect = positions.get(dumped["suspect"])
    remapped = {**dumped, "entries": entries, "floors": floors, "trials": None, "suspect": suspect}
    remapped["learned"] = [
        {**learned, "candidate": positions[learned["candidate"]], "reference": positions[learned["reference"]]}
        for learned in dumped["learned"]
        if learned["candidate"] in positions and learned["reference"] in positions
    ]

    def goodput(entry: dict[str, Any]) -> float:
        return float(forecasts[entry["position"]].lower_bound(entry["efficiency"]) / entry["seconds"])

    best_measured = max(entries, key=goodput, default={"position": None})["position"]
    best = positions.get(dumped["best"], best_measured)
    if best is None:
        return None
    if dumped["position"] in positions:
        return {**remapped, "best": best, "position": positions[dumped["position"]]}
    return {**remapped, "best": best, "position": best, "phase": HOLD, "window": {}, "off": 0}


def _may_start(forecast: Forecast, dense: Forecast) -> bool:
    """True if a search may start with a candidate: not native float16, and outer steps only if all candidates are.

    Args:
        forecast: forecast of the candidate.
        dense: first forecast, that of the dense candidate.
    """
    candidate = forecast.candidate
    if candidate.mode == "outer":
        return dense.candidate.mode == "outer"
    return candidate.mode == "hook" or candidate.cf == 1


def _price_of_trial(state: GoodputState, best: GoodputEntry, position: int, slowest: float) -> float:
    """Return the most that a trial may cost, in seconds, with those of leaving outer steps for it.

    Args:
        state: state of the search.
        best: measurement of the best candidate.
        position: position of the candidate.
        slowest: longest time that a step of the candidate may take, in seconds.
    """
    forecast, best_forecast = state.forecasts[position], state.forecasts[best.position]
    price = trial_price(slowest, best.seconds, forecast.candidate.every)
    if forecast.candidate.mode == "native":
        price = WATCH * (slowest - best.seconds)
    if _ends_outer_steps(best_forecast, forecast):
        price = max(0.0, price) + state.leaving(best_forecast)
    return price


def _ends_outer_steps(current: Forecast, following: Forecast) -> bool:
    """True if the current candidate makes outer steps, and the following one does not."""
    return current.candidate.mode == "outer" and following.candidate.mode != "outer"


def _far_slower(state: GoodputState) -> bool:
    """True if the last steps of the candidate that is held are far slower than its steps were."""
    current = state.entry(state.position)
    return current is not None and _all_exceed(BROKEN * current.seconds, state.window.seconds)


def _all_exceed(limit: float, seconds: Sequence[float]) -> bool:
    """True if each of the last ``FEW_STEPS`` steps took longer than ``limit`` seconds."""
    return len(seconds) >= FEW_STEPS and min(seconds[-FEW_STEPS:]) > limit


def _expected_goodput(forecast: Forecast) -> float:
    """Return the goodput expected before the first step; 0 if the seconds of a step are not known."""
    return forecast.least_efficiency / forecast.step_s if forecast.step_s else 0.0


def _added_seconds(forecast: Forecast) -> float | None:
    """Return the seconds that coding and exchange are expected to add to a step that hides neither; ``None``: unknown.

    Coding is expected to take ``CODING_BESIDE_BACKWARD`` times as long as alone.
    """
    if forecast.coding_s is None or forecast.exchange_s is None:
        return None
    return CODING_BESIDE_BACKWARD * forecast.coding_s + forecast.exchange_s
