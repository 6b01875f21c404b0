# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput: a controller that maximizes steps per second times the progress of a step, by trying candidates.

The controller GraVAC multiplies throughput by gain (share of the energy sent), but gain is not progress. On the task
``charlm``, 1-bit compression has gain 0.64, and its step makes 0.91 of a dense step's progress. Top-k at 100x has gain
0.07, and makes 0.33 (``docs/evidence/decisions.md``). Therefore Goodput uses each candidate's *efficiency*: progress of
its step / progress of a dense step. Efficiencies are forecast from committed measurements (``gravac.beliefs``);
throughput is measured while training. Since a forecast may be wrong, the controller uses the lower bound of each
efficiency: the efficiency is higher with a probability of 80 % (``Forecast.lower_bound``).

- Start: if the times of whole steps were forecast, the search starts at the candidate of best expected goodput.
  Otherwise it starts at a candidate of an efficiency near dense whose coding and exchange should be fastest. These
  times come from a probe of the link (``gravac.exchange.link_probe``) and, on a GPU, from the timing of codecs
  (``gravac.engine.codec_timing``). If no times are known, the search starts at the candidate that sends fewest bytes,
  which is fast on any link.
- Trials: the measurements so far give a lower bound of the step time of each other candidate
  (``StepTimeBounds.shortest_step_seconds``). The candidate whose bound promises the highest goodput runs for a few
  steps, as a trial. The trial ends early if the candidate is clearly slower. If dense with gravac's hook is best so
  far, native steps are tried before candidates that compress.
- Hold: if no candidate promises a gain above ``hysteresis``, the best candidate keeps running. A switch away from 1-bit
  compression costs progress, so the promised gain must be above that cost. A new search starts if step times change, or
  if an exchange hidden behind backward takes less than half as long as before. Other candidates are tried again if
  their measurements are old, or uncertain because the steps of their trial differed in time.
- Machine: a forward sends nothing, so if forwards take longer, the machine became slower, and not the link. All
  measured step times are then converted to the machine's present speed. On GPUs, forwards are not timed.
- Cost: beyond a starting budget, trials cost at most the fraction ``explore`` of the run's time. The controller lowers
  this limit if steps wait little for the exchange. If a step hardly waits, no candidate that sends fewer bytes is
  tried.

For some compressors, the measured gain corrects the efficiency (``Forecast.efficiency_at``).

Of native steps (DDP exchanges by itself) only times are known. The controller assumes that a native step waits for its
exchange for the forecast time, which is corrected by the measured speed of the link. gravac times several successive
native steps together, as a stretch. While nothing changes, each stretch is twice as long as the previous stretch. Outer
steps (ranks exchange once in several steps) have a cost at their end: the ranks must make their models equal again
(``Forecast.leaving_s``). Outer steps are not tried before the learning rate has warmed up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Forecast, Span
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, Decision, Measurement, more_steps_text
from gravac.controllers.early_end import (
    chosen_is_far_slower,
    explained_seconds,
    longest_expected_seconds,
    longest_useful_seconds,
    trial_is_hopeless,
    window_may_be_paused,
)
from gravac.controllers.goodput_prices import ends_outer_steps, goodput_to_beat, may_time_again, may_try
from gravac.controllers.goodput_reasons import (
    Finding,
    exchange_text,
    given_up_text,
    milliseconds,
    missing_text,
    step_text,
    switch_text,
    took_text,
    trial_text,
)
from gravac.controllers.goodput_saved import check_saved, with_current_positions
from gravac.controllers.goodput_start import added_seconds, first_position
from gravac.controllers.goodput_state import (
    EARLY_END_STEPS,
    FAR_SLOWER_RATIO,
    HOLD,
    SEARCH,
    GoodputState,
)
from gravac.controllers.native import next_stretch_length
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.state_dicts import (
    identify,
    name_of,
    state_from_plain,
    to_plain,
)
from gravac.controllers.step_times import StepTiming
from gravac.controllers.window import Window
from gravac.settings import Settings

HARMLESS_EFFICIENCY = 0.4
"""Efficiency below which a trial may set training back by more than the trial's own steps. Candidates of lower
efficiency are tried last. Example: nine steps of a rank-1 compressor, while the learning rate warmed up, set the task
``denoise`` back by 30 to 180 steps. Dropping the residual of these nine steps did not prevent that."""


class Goodput(Settings):
    """Maximizes goodput: steps per second times statistical efficiency (progress of a step / progress of a dense step).

    Attributes:
        window: number of steps after which the controller decides again whether to keep its candidate.
        trial: number of steps of a trial; the first three after a switch are not timed.
        near: smallest ratio, efficiency of a candidate / efficiency of dense, at which the search may start with the
            candidate.
        hysteresis: relative gain in goodput below which no other candidate is tried or chosen.
        change: relative change of the chosen candidate's step time, in two consecutive windows, that starts a new
            search. Twice that change in a single window also starts a new search.
        hopeless: ratio above which a trial ends early: step time of the trial / longest step time with which the
            candidate would be best.
        expire: age, in windows, from which a measured step time is old; 4 times as many windows if the running
            candidate's exchanges and forwards show that the link is as fast as before. Only half of an old time counts
            as lower bound of the candidate's step time, so that the candidate may be tried again. From twice this age
            on, a quarter counts, and so on.
        explore: largest fraction of the run's time that trials of other candidates may cost.
    """

    name: ClassVar[str] = "goodput"
    keeps_all: ClassVar[bool] = False
    chooses_sixteen_bit: ClassVar[bool] = True
    chooses_every: ClassVar[bool] = True
    chooses_native: ClassVar[bool] = True
    states_cost: ClassVar[bool] = True

    window: int = Field(default=12, ge=5)
    trial: int = Field(default=8, ge=5)
    near: float = Field(default=0.93, gt=0, le=1)
    hysteresis: float = Field(default=0.03, ge=0, lt=1)
    change: float = Field(default=0.25, gt=0)
    hopeless: float = Field(default=1.3, gt=1)
    expire: int = Field(default=40, ge=1)
    explore: float = Field(default=0.05, ge=0, lt=1)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the compression factors (CFs) to choose from, ascending.

        If the compressor supports a list of CFs, these are all CFs of the list within ``cf_range``. If it supports a
        span, these are the lowest CF of ``cf_range`` times 1, 2, 4, 8 ..., and the highest.

        Example:
            >>> Goodput().propose((10, 100), Span(1, 1000))
            (10, 20.0, 40.0, 80.0, 100)
        """
        if isinstance(supported, Span):
            return snap(geometric(cf_range), supported)
        return tuple(cf for cf in sorted(set(supported)) if cf_range[0] <= cf <= cf_range[1])

    def start(self, forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Return the state before the first step, and the decision to start with the candidate that promises most."""
        position = first_position(forecasts, self.near)
        first_candidate = forecasts[position].candidate
        state = GoodputState(
            forecasts=tuple(forecasts), phase=SEARCH, position=position, best=position, window=Window(first_candidate)
        )
        most_steps_text = more_steps_text(self.near * forecasts[0].efficiency)
        threshold_text = f"expected to need at most {most_steps_text} for the same loss"
        reason = (
            f"start at {first_candidate}: of the candidates {threshold_text}, {first_candidate} sends the fewest "
            f"bytes, with about {more_steps_text(forecasts[position].efficiency)}"
        )
        if (step_s := forecasts[position].step_s) is not None:
            reason = (
                f"start at {first_candidate}: of all candidates, gravac expects the most progress per second from "
                f"{first_candidate}, with {milliseconds(step_s)} a step"
            )
        elif (added_s := added_seconds(forecasts[position])) is not None:
            reason = (
                f"start at {first_candidate}: of the candidates {threshold_text}, gravac expects "
                f"{first_candidate} to need the least time for coding and exchange, {milliseconds(added_s)} a step"
            )
        if len(forecasts) == 1:
            reason = f"no candidate sends fewer bytes than {first_candidate}: keep {first_candidate} for the whole run"
        return state, Decision(first_candidate, reason=reason)

    def observe(self, state: GoodputState, measurement: Measurement) -> tuple[GoodputState, Decision]:
        """Return the state after a measurement, and a decision.

        The candidate can change only when a window or a trial ends.
        """
        state = replace(state.count_steps(measurement), window=state.window.add(measurement)).at_present_speed()
        is_searching, is_native = state.phase == SEARCH, state.running.mode == "native"
        ends_early = not is_native and (
            trial_is_hopeless(state, self.hopeless) if is_searching else chosen_is_far_slower(state)
        )
        fewest_steps = 1 if is_native else self.trial if is_searching else self.window
        if not ends_early and (state.window.steps < fewest_steps or window_may_be_paused(state, self.change)):
            return state, Decision(state.running, watch=state.watch)
        longest_expected_s = longest_expected_seconds(state, self.change)
        state = replace(state, window=state.window.without_times_above(longest_expected_s))
        if ends_early:  # earlier steps of the window may have been on a faster link
            state = replace(state, window=state.window.with_newest_times(EARLY_END_STEPS))
        candidate, window = state.running, state.window
        summary = window.summary(state.phase)
        state = replace(state, windows=state.windows + max(1, window.steps // self.window))
        previous_stretch_steps, state = state.watch, replace(state, watch=DEFAULT_STRETCH_STEPS)
        if window.t_system is None or not 0 < window.t_system < math.inf:
            reason = f"no step of {candidate} could be timed: keep {candidate}"
        elif is_searching:
            state, reason = self._evaluate_trial(state, window.samples / window.t_system, ends_early)
        else:
            seconds = window.samples / window.t_system
            is_steady = self._is_steady(state, seconds)
            state, reason = self._evaluate_window(state, seconds)
            if is_native and is_steady and state.running == candidate:
                state = replace(
                    state, watch=next_stretch_length(previous_stretch_steps, seconds, DEFAULT_STRETCH_STEPS)
                )
        state = replace(state, window=window.following(state.running))
        return state, Decision(state.running, (), reason, summary, watch=state.watch)

    def dump(self, state: GoodputState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        candidates = identify(forecast.candidate for forecast in state.forecasts)
        return {"candidates": candidates, **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned."""
        check_saved(dumped)

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        If ``forecasts`` lacks some of the dumped candidates, their measurements are dropped, and the reason names these
        candidates. If the candidate that ran at the dump is missing, the best measured candidate runs. If no
        measurement is left, the search starts again.
        """
        dumped_candidates, candidates = dumped["candidates"], identify(forecast.candidate for forecast in forecasts)
        if dumped_candidates != candidates:
            missing_names = [name_of(identity) for identity in dumped_candidates if identity not in candidates]
            new_positions = {
                position: candidates.index(identity)
                for position, identity in enumerate(dumped_candidates)
                if identity in candidates
            }
            remapped_dump = with_current_positions(dumped, new_positions, forecasts)
            if remapped_dump is None:
                fresh_state, decision = self.start(forecasts)
                reason = f"{missing_text(missing_names)}; no measurement is left; {decision.reason}"
                return fresh_state, replace(decision, reason=reason)
            running = forecasts[remapped_dump["position"]].candidate
            state = state_from_plain(GoodputState, remapped_dump, running, forecasts=forecasts)
            still_runs = dumped_candidates[dumped["position"]] in candidates
            reason = f"; keep {state.running}" if still_runs else f"; run {state.running}, the best that was measured"
            reason = missing_text(missing_names) + reason if missing_names else ""
            return state, Decision(state.running, reason=reason, watch=state.watch)
        running = forecasts[dumped["position"]].candidate
        state = state_from_plain(GoodputState, dumped, running, forecasts=forecasts)
        return state, Decision(running, watch=state.watch)

    def _evaluate_trial(self, state: GoodputState, seconds: float, ended_early: bool) -> tuple[GoodputState, str]:
        """Evaluate a trial that has ended: add its measurement to the state, and choose the next candidate.

        Args:
            state: state of the search, with the trial's window.
            seconds: median time of the trial's steps, in seconds.
            ended_early: whether the trial ended early.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        best_timing, forecast = state.timing(state.best), state.forecast
        if best_timing is not None and state.position != state.best:
            trial_steps = state.window.steps
            lower_bound = state.belief(state.position, forecast.efficiency_at(state.window.gain)).lower_bound
            lost_s = max(0.0, trial_steps * (seconds - lower_bound / state.goodput(best_timing)))
            best_forecast = state.forecasts[best_timing.position]
            if ends_outer_steps(best_forecast, forecast):
                lost_s += state.step_time_bounds.leaving_seconds(best_forecast)
            state = replace(state, spent=state.spent + lost_s)
        timing_before_trial = state.timing(state.position)
        pause_is_over = timing_before_trial is not None and state.machine_was_paused(seconds, self.change)
        state = state.without_suspect()
        if timing_before_trial is not None and (
            pause_is_over or self._link_became_faster(state, timing_before_trial, seconds)
        ):
            earlier_time_text = milliseconds(timing_before_trial.seconds)
            reason = f"{forecast.candidate} took {milliseconds(seconds)} a step instead of {earlier_time_text}"
            if pause_is_over:
                reason += ": the earlier slow steps were a pause, not a slow link"
            else:
                reason += f", and {exchange_text(state)}" if state.exchange_became_faster else ""
                reason += ": the link became faster"
            state = replace(state.after_link_change(min(seconds, timing_before_trial.seconds)), best=state.position)
            return self._search_again(state, reason)
        is_expired = timing_before_trial is None or state.is_old(timing_before_trial, self.expire)
        weight = 1.0 if timing_before_trial is None or is_expired else 1 / (timing_before_trial.times + 1)
        explained_s = explained_seconds(state)
        too_slow_for_link = ended_early and best_timing is not None and seconds > explained_s
        too_slow_text = (
            f"{forecast.candidate} took {milliseconds(seconds)} a step, more than {FAR_SLOWER_RATIO:g} times the upper "
            f"bound of {milliseconds(explained_s / FAR_SLOWER_RATIO)} from earlier measurements"
        )
        early_end_text = ""
        if ended_early and best_timing is not None:
            limit_s = longest_useful_seconds(state, best_timing)
            early_end_text = f": {given_up_text(limit_s, str(state.forecasts[best_timing.position].candidate))}"
        state = state.enter_measurement(seconds, weight)
        finding_text = took_text(state, state.position, seconds)
        if too_slow_for_link and state.sends_less(state.position, than=state.best):
            # the best candidate sends more bytes, so the slower link slows it even more
            return self._try_or_hold(
                state.after_slow_trial(seconds), Finding(f"{too_slow_text}: the link became slower")
            )
        if too_slow_for_link:
            state = replace(state, phase=HOLD, position=state.best)
            return (
                state,
                f"{too_slow_text}: given up early; time {state.running} again, since the link may have become slower",
            )
        return self._try_or_hold(state, Finding(finding_text + early_end_text, omit_if_best=not ended_early))

    def _link_became_faster(self, state: GoodputState, earlier_timing: StepTiming, seconds: float) -> bool:
        """True if a candidate that is tried again is so much faster than before that the link must have become faster.

        Args:
            state: state of the search, with the trial's window.
            earlier_timing: earlier measurement of the candidate.
            seconds: median time of the trial's steps, in seconds.
        """
        best_timing, forecast = state.timing(state.best), state.forecast
        if best_timing is None or state.position == state.best or forecast.candidate.mode == "native":
            return False
        lower_bound = state.belief(state.position, forecast.efficiency_at(state.window.gain)).lower_bound
        is_better = lower_bound > seconds * state.goodput(best_timing)
        return state.exchange_became_faster or (is_better and seconds < (1 - self.change) * earlier_timing.seconds)

    def _evaluate_window(self, state: GoodputState, seconds: float) -> tuple[GoodputState, str]:
        """Evaluate a window of the chosen candidate: update its measurement, and search again if step times changed.

        Args:
            state: state of the search, with the window.
            seconds: median time of the window's steps, in seconds.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        timing_before_window = state.timing(state.position)
        if timing_before_window is None:
            state = state.enter_measurement(seconds)
            finding_text = took_text(state, state.position, seconds, "takes")
            return self._try_or_hold(state, Finding(finding_text, omit_if_best=True))
        relative_change, has_faster_exchange = (
            abs(seconds - timing_before_window.seconds) / timing_before_window.seconds,
            state.exchange_became_faster,
        )
        takes_text = f"{state.running} takes {milliseconds(seconds)} a step"
        if relative_change > self.change or has_faster_exchange:
            state = replace(state, off=state.off + 1)
            expected_text = milliseconds(timing_before_window.seconds)
            changed_text, faster_text = ": the link or the machine changed", ": the link or the machine became faster"
            if state.window.forward_s is not None:
                changed_text, faster_text = ": the link changed", ": the link became faster"
                expected_text = f"the {expected_text} expected at the machine's present speed"
            takes_text += f" instead of {expected_text}" if relative_change > self.change else ""
            takes_text += f", and {exchange_text(state)}" if has_faster_exchange else ""
            if state.off < 2 and relative_change <= 2 * self.change:
                return state, f"{takes_text}: keep {state.running} until a second window confirms the change"
            if state.running.mode == "native" and seconds < timing_before_window.seconds:
                state = replace(state.after_drift(seconds, apply_whole_change=True), off=0)
                return self._try_or_hold(state, Finding(takes_text + faster_text))
            if has_faster_exchange:
                faster_state = state.after_link_change(min(seconds, timing_before_window.seconds))
                return self._search_again(faster_state, f"{takes_text}: the link became faster")
            if state.link_is_unchanged(self.change):
                takes_text += f", and {exchange_text(state)}: the link is as fast as before, but not the rest of a step"
                state = replace(state.after_drift(seconds, apply_whole_change=True), off=0)
                return self._try_or_hold(state, Finding(takes_text))
            return self._search_again(state.after_link_change(seconds), takes_text + changed_text)
        state = replace(state.watch_link(seconds, self.change, self.expire).without_suspect(), off=0).after_drift(
            seconds
        )
        return self._try_or_hold(state, Finding(took_text(state, state.position, seconds, "takes"), omit_if_best=True))

    def _search_again(self, state: GoodputState, reason: str) -> tuple[GoodputState, str]:
        """Start a new search after the link changed, at the candidate of efficiency near dense that sends fewest bytes.

        If that candidate cannot be better than the running candidate, another candidate that could be better is tried.
        If there is no such candidate, the best candidate is kept.

        Args:
            state: state of the search after the change.
            reason: text that says what the steps showed.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        start_position = first_position(state.forecasts, self.near, link_changed=True)
        goodput_bound = state.least_efficiency(start_position) / state.step_time_bounds.shortest_step_seconds(
            start_position, self.expire
        )
        current_timing = state.timing(state.position)
        assert current_timing is not None
        may_start = start_position != state.position and state.may_run(start_position)
        if not may_start or goodput_bound <= goodput_to_beat(state, current_timing, start_position, self.hysteresis):
            return self._try_or_hold(state, Finding(reason))
        leaves_outer_steps = ends_outer_steps(state.forecast, state.forecasts[start_position])
        if leaves_outer_steps and not may_try(state, current_timing, start_position, goodput_bound, self.explore):
            return self._try_or_hold(state, Finding(reason))
        state = replace(state, phase=SEARCH, best=state.position, position=start_position)
        return state, f"{reason}; search again, beginning with {state.running}"

    def _try_or_hold(self, state: GoodputState, finding: Finding) -> tuple[GoodputState, str]:
        """Start a trial of a candidate that could be better than the best candidate; without one, run the best.

        Args:
            state: state of the search, whose ``position`` is still that of the candidate that ran.
            finding: text that says what the steps of that candidate showed.

        Returns:
            The state with the next candidate, and the reason as text.
        """
        previous_position, incumbent_timing = state.position, state.timing(state.best)
        best_timing = self._best_timing(state)
        state = replace(state, best=best_timing.position)
        best_goodput = state.goodput(best_timing)
        goodput_bounds = {
            position: state.least_efficiency(position)
            / state.step_time_bounds.shortest_step_seconds(position, self.expire)
            for position in range(len(state.forecasts))
            if position != best_timing.position and state.may_run(position)
        }
        triable_positions = [
            position
            for position, goodput_bound in goodput_bounds.items()
            if goodput_bound > goodput_to_beat(state, best_timing, position, self.hysteresis)
            and may_try(state, best_timing, position, goodput_bound, self.explore)
        ]
        triable_positions = [
            position for position in triable_positions if not state.step_time_bounds.has_unbounded_time(position)
        ] or triable_positions
        if triable_positions:
            harmless_positions = [
                position for position in triable_positions if state.efficiency(position) >= HARMLESS_EFFICIENCY
            ]
            # among equal bounds, choose the candidate that sends fewest bytes, since a wrong choice then costs least
            trial_position = max(
                harmless_positions or triable_positions, key=lambda position: (goodput_bounds[position], position)
            )
            native_positions = [
                position for position in triable_positions if state.forecasts[position].candidate.mode == "native"
            ]
            if trial_position in native_positions or (
                native_positions and state.forecasts[best_timing.position].candidate.dense
            ):
                # if dense is best so far, try native steps before candidates that compress, and float32 before float16
                trial_position = min(native_positions, key=lambda position: state.forecasts[position].candidate.cf)
            state = replace(state, phase=SEARCH, position=trial_position)
            incumbent_text = str(state.forecasts[best_timing.position].candidate)
            incumbent_text += "" if best_timing.position == previous_position else ", the best so far"
            goodput_ratio = goodput_bounds[trial_position] / best_goodput
            just_ran = trial_position == previous_position
            try_text = trial_text(state, trial_position, goodput_ratio, incumbent_text, self.expire, just_ran)
            return state, f"{finding.text}; {try_text}"
        if may_time_again(state, best_timing, self.explore):
            assert state.suspect is not None
            state = replace(state, phase=SEARCH, position=state.suspect)
            again_text = f"time {state.running} again: its steps may only have been slow because the machine paused"
            return state, f"{finding.text}; {again_text}"
        state = replace(state, phase=HOLD, position=best_timing.position)
        if best_timing.position != previous_position:
            return state, f"{finding.text}; back to {step_text(state, best_timing)}"
        if incumbent_timing is None or incumbent_timing.position == previous_position:
            conclusion = f"keep {step_text(state, best_timing)}"
        else:
            conclusion = f"switched {switch_text(state, best_timing, incumbent_timing)}"
        return state, conclusion if finding.omit_if_best else f"{finding.text}; {conclusion}"

    def _is_steady(self, state: GoodputState, seconds: float) -> bool:
        """True if ``seconds`` differs from the chosen candidate's measured step time by at most a share ``change``."""
        current_timing = state.timing(state.position)
        return (
            current_timing is not None and abs(seconds - current_timing.seconds) <= self.change * current_timing.seconds
        )

    def _best_timing(self, state: GoodputState) -> StepTiming:
        """Return the measurement of the best candidate, which changes only if another candidate is clearly better.

        Clearly better means a goodput above ``goodput_to_beat``. Of the measured candidates, only the candidate of
        highest goodput is compared with the best so far.
        """
        top_timing = max(state.entries, key=lambda timing: (state.goodput(timing), -timing.position))
        incumbent_timing = state.timing(state.best)
        if incumbent_timing is None or state.goodput(top_timing) > goodput_to_beat(
            state, incumbent_timing, top_timing.position, self.hysteresis
        ):
            return top_timing
        return incumbent_timing
