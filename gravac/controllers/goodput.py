# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput: steps per second times what a step is worth, maximized by trying what could still be better.

GraVAC multiplies throughput by gain, and gain is not progress: on ``charlm`` one bit of every value keeps 0.64 of the
energy and makes 0.91 of a dense step's progress, top-k at 100x keeps 0.07 and makes 0.33
(``docs/evidence/matrices.md``). Here a candidate is forecast an *efficiency*, the share of a dense step's progress that
one of its steps makes, from committed measurements (``gravac.beliefs``); throughput is measured while training. Since a
forecast may be wrong, a step counts with the lower bound of its efficiency, which it exceeds with a probability of 80 %
(``Forecast.lower_bound``).

The search starts, among those whose efficiency is near dense's, at what is expected to code and exchange fastest by
what the link was probed at (``gravac.exchange.link_probe``), and on a GPU by what codecs were timed at
(``gravac.engine.codec_timing``); where that is not known, at the highest wire ratio, which is fast on any link. What
was measured bounds how fast the others can be (``State.fastest``); the one whose bound promises most
is tried for a few steps, and given up early when it is clearly slower. When no bound promises more than ``hysteresis``
(to leave one bit, than the switch sets training back), the best is held, until its step time changes (the link did), or
its exchange takes half of what it did, though that was hidden. Others are tried again when what is known of them is
old, or was never sure, since the steps of a trial differed. All trials together cost at most ``explore`` of the run's
time, besides the first few; where a step waits little for bytes, less, and where it hardly waits, nothing that sends
less is tried at all. Where dense in the hook is best, native is tried before what compresses. Efficiency is corrected
by the gain that is measured, for compressors where gain tells (``Forecast.efficiency_at``).

With a probe, a run also measures the progress of its candidates' steps (``gravac.controllers.switchback``), where
better decisions are expected to gain more than that costs. The measurements correct the beliefs.

Of native steps only times are known: they are taken to wait for as long as their exchange was forecast to take, by how
quick the link turned out. They are measured in stretches, of which each is twice as long as the one before while
nothing changes. Outer steps have a price: the ranks must become one again afterwards (``Forecast.leaving_s``); and
they wait until the learning rate has warmed up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Forecast, Span
from gravac.controllers.base import BELIEVED, WATCH, Decision, Measurement, cost_at_equal_samples
from gravac.controllers.goodput_state import BROKEN, HOLD, PROGRESS, SEARCH, SOON, GoodputEntry, GoodputState
from gravac.controllers.measuring import NO_TRIALS, next_trials, trials_may_begin
from gravac.controllers.native import longer
from gravac.controllers.plain import (
    check_names,
    check_positions,
    identified,
    identify,
    named,
    state_from_plain,
    to_plain,
)
from gravac.controllers.progress import Trials
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.switchback import Switchback
from gravac.controllers.window import Window
from gravac.settings import Settings, SettingsError

GRANT = 25.0
"""Cost of trials, in times of the best candidate's step, that is allowed at the start of a run and after a change of
the link, besides the share ``explore`` of the run's time."""

BESIDE = 2.0
"""Time of coding while backward runs, with cold caches, over the time of coding by itself; roughly."""

ROUNDS = 3
"""Number of rounds that a trial of outer steps lasts at least, until what the first showed takes effect."""

FAR = 3.0
"""Largest ratio of the first step of a trial to the time that a step may take: a longer first step ends the trial."""

HARMLESS = 0.4
"""Efficiency below which a trial may set training back by more than its own steps: nine steps of rank 1 during the
warm-up cost ``denoise`` 30 to 180 steps, also when their residual was dropped. So such candidates are tried last."""

SETBACK, SETTLED = 15.0, 100
"""Progress, in steps, that leaving one bit for a candidate of higher efficiency may cost; and the number of steps from
which on it is taken in proportion to the steps so far: a run is taken to last as long again. The second moments that
AdamW has from one bit's steps are too small for others: on ``charlm`` the loss lies 0.014 to 0.024 nats above that of
staying for 40 steps, 10 to 20 steps' progress (``docs/evidence/measurements.md``)."""

COARSE = 0.8
"""Efficiency below which a quantizer is taken to leave second moments as one bit does; see ``SETBACK``."""

UNSURE = 0.1
"""Relative gain in goodput below which nothing changes where ranks exchange every so many steps: what those are worth
differs more from task to task (``docs/evidence/outer.md``), and a round is one measurement of many steps."""

EXPOSED = 0.03
"""Share of a step in which it waits for bytes, under which nothing that sends less is tried: it could save no more."""

HALF = 0.5
"""Share of a step's time that another candidate could save, from which on trials get their whole budget (``explore``,
``GRANT``). Below it the budget falls in proportion to that share. For trials of the hook while native steps are held it
falls with the share's square, since on a fast link such trials seldom find anything better."""


def cost(slowest: float, best: float, every: int = 1) -> float:
    """Return the most that a trial may cost, in seconds: one that is far too slow runs two steps, any other a few.

    Args:
        slowest: longest time that a step of the trial may take, in seconds.
        best: time of a step of the best candidate so far, in seconds.
        every: number of steps of a round, of which a trial lasts ``ROUNDS``.

    Example:
        >>> cost(slowest=0.2, best=0.1)  # four steps, each 0.1 s too long
        0.4
        >>> cost(slowest=2.0, best=0.1)  # two steps, each 1.9 s too long
        3.8
    """
    if every > 1:
        return max(SOON + 1, ROUNDS * every) * (slowest - best)
    return min((SOON + 1) * (slowest - best), max(2 * (slowest - best), (SOON + 1) * (FAR - 1) * best))


class Goodput(Settings):
    """Maximizes goodput: throughput times the statistical efficiency of a step.

    Attributes:
        window: number of steps from one judgement of the candidate that is held to the next.
        trial: number of steps of a trial; the first three after a switch are not timed.
        near: efficiency, relative to dense, from which on the search may start with a candidate.
        hysteresis: relative gain in goodput below which nothing is tried and nothing changes.
        change: relative change of the held candidate's step time, in two windows on end, that starts a new search;
            twice as much in one window does too.
        hopeless: ratio of a trial's step time to what it may take at most; a trial above it is given up at once.
        expire: number of windows after which the measured step time of a candidate that does not run counts half, and
            half again after as many more.
        explore: share of the run's time that trials may cost.
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

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """Return all CFs of a list; for a span the lowest CF, doubled again and again.

        Example:
            >>> Goodput().propose((10, 100), Span(1, 1000))
            (10, 20.0, 40.0, 80.0, 100)
        """
        if isinstance(reach, Span):
            return snap(geometric(cf_range), reach)
        return tuple(cf for cf in sorted(set(reach)) if cf_range[0] <= cf <= cf_range[1])

    def start(self, forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Begin the search where the module's text says."""
        at = self._first(forecasts)
        first = forecasts[at].candidate
        state = GoodputState(tuple(forecasts), SEARCH, at, at, Window(first))
        reason = f"start at {first}: the fewest bytes at an efficiency of {forecasts[at].efficiency:.2f}"
        if (step := forecasts[at].step_s) is not None:
            reason = f"start at {first}: the best goodput, {1000 * step:.3g} ms a step expected"
        elif (ahead := _ahead(forecasts[at])) is not None:
            reason = f"start at {first}: the quickest of those near dense, {1000 * ahead:.3g} ms expected"
        if len(forecasts) == 1:
            reason = "no candidate sends less than dense: dense for good"
        return state, Decision(first, reason=reason)

    def observe(self, state: GoodputState, measurement: Measurement) -> tuple[GoodputState, Decision]:
        """Take in one step; at the end of a window, or of a trial, decide what is tried or held next."""
        state = replace(state.count(measurement), window=state.window.add(measurement))
        if state.trials is not None:
            return self._measure_progress(state, state.trials, measurement)
        searching, native = state.phase == SEARCH, state.running.mode == "native"
        cut_short = not native and (self._hopeless(state) if searching else _broken(state))
        if state.window.steps < (1 if native else self.trial if searching else self.window) and not cut_short:
            return state, Decision(state.running, watch=state.watch)
        if cut_short:  # what came before may have been on a faster link
            state = replace(state, window=state.window.last(SOON))
        before, window = state.running, state.window
        summary = window.summary(state.phase)
        state = replace(state, windows=state.windows + max(1, window.steps // self.window))
        watched, state = state.watch, replace(state, watch=WATCH)
        if window.t_system is None or not 0 < window.t_system < math.inf:
            reason = f"no step of {before} could be timed: it goes on"
        elif searching:
            state, reason = self._tried(state, window.samples / window.t_system, cut_short)
        else:
            seconds = window.samples / window.t_system
            quiet = self._quiet(state, seconds)
            state, reason = self._held(state, seconds)
            if self.probe and quiet and state.running == before and state.phase == HOLD:
                trials = next_trials(state, self.total_steps, self.expire)
                if trials is not None:
                    return self._switchback.start(state, trials, reason, summary)
                if not state.learned and trials_may_begin(state, self.total_steps):
                    reason = f"{reason}; {NO_TRIALS}"
            if native and quiet and state.running == before:
                state = replace(state, watch=longer(watched, seconds, WATCH))
        state = replace(state, window=window.following(state.running))
        return state, Decision(state.running, (), reason, summary, watch=state.watch)

    @property
    def _switchback(self) -> Switchback:
        return Switchback(self.total_steps, self.expire)

    def _measure_progress(
        self, state: GoodputState, trials: Trials, measurement: Measurement
    ) -> tuple[GoodputState, Decision]:
        """Go on with switchback trials; when they end, hold the best candidate, or try another one's step time."""
        state, outcome = self._switchback.observe(state, trials, measurement)
        if isinstance(outcome, Decision):
            return state, outcome
        summary = state.window.summary(PROGRESS)
        state, reason = self._go_on(state, outcome.reason)
        state = replace(state, window=state.window.following(state.running))
        return state, Decision(state.running, (), reason, summary, progress=outcome.progress)

    def dump(self, state: GoodputState) -> dict[str, Any]:
        """Return the state as plain values, for a checkpoint."""
        candidates = identify(forecast.candidate for forecast in state.forecasts)
        return {"candidates": candidates, **to_plain(state)}

    def check(self, plain: dict[str, Any]) -> None:
        """Refuse what ``dump`` does not give."""
        check_names(GoodputState, plain, ("candidates",), Window)
        candidates = identified(plain["candidates"])
        forecasts = tuple(Forecast(candidate, wire_ratio=1.0) for candidate in candidates)
        state = state_from_plain(GoodputState, plain, candidates[0], forecasts=forecasts)
        entries, floors = [one.position for one in state.entries], [at for at, _ in state.floors]
        positions = {"position": [state.position], "best": [state.best], "entries": entries, "floors": floors}
        positions["suspect"] = [] if state.suspect is None else [state.suspect]
        tried = [(learned.candidate, learned.reference) for learned in state.learned]
        if state.trials is not None:
            tried.append((state.trials.candidate, state.trials.reference))
        positions["learned"] = [at for pair in tried for at in pair]
        check_positions(positions, len(candidates))
        if any(entry.window > state.windows for entry in state.entries):
            raise SettingsError(f"controller_state/entries: measured after window {state.windows}, the last")

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[GoodputState, Decision]:
        """Return the state that ``dump`` made plain, and the decision in force.

        With other candidates than at the dump, what was measured stays of those that there are still; the reason names
        the others. If the candidate that ran is none of them, the best that was measured is held; if none was measured,
        the search starts anew.
        """
        before, now = plain["candidates"], identify(forecast.candidate for forecast in forecasts)
        if before != now:
            gone = [named(one) for one in before if one not in now]
            places = {at: now.index(one) for at, one in enumerate(before) if one in now}
            moved = _moved(plain, places, forecasts)
            if moved is None:
                fresh, decision = self.start(forecasts)
                return fresh, replace(decision, reason=f"{_without(gone)}; nothing measured is left: {decision.reason}")
            running = forecasts[moved["position"]].candidate
            state = state_from_plain(GoodputState, moved, running, forecasts=forecasts)
            runs = before[plain["position"]] in now
            reason = "" if runs else f"; {state.running} is the best of those measured"
            return state, Decision(state.running, reason=_without(gone) + reason if gone else "", watch=state.watch)
        running = forecasts[plain["position"]].candidate
        state = state_from_plain(GoodputState, plain, running, forecasts=forecasts)
        return state, Decision(running, watch=state.watch)

    def _first(self, forecasts: Sequence[Forecast], moved: bool = False) -> int:
        """Return the position where a search starts; once the link has changed, that of the highest wire ratio.

        If the seconds of whole steps were forecast, the search starts at the best goodput by these.
        """
        if not moved and forecasts[0].step_s is not None:
            return max(range(len(forecasts)), key=lambda at: _expected(forecasts[at]))
        least = self.near * forecasts[0].efficiency
        good = [
            at
            for at, forecast in enumerate(forecasts)
            if forecast.efficiency >= least and _may_start(forecast, forecasts[0])
        ]
        ahead = [(seconds, at) for at in good if (seconds := _ahead(forecasts[at])) is not None]
        if moved or len(ahead) < len(good):
            return max(good, key=lambda position: forecasts[position].wire_ratio)
        return min(ahead)[1]

    def _hopeless(self, state: GoodputState) -> bool:
        """Tell whether a trial can be given up: its best step is clearly too slow for its efficiency, or its first far.

        Its best step counts, because a shared machine stalls a step now and then. If its last steps are far too slow,
        whatever came before, the link broke down.
        """
        best = state.entry(state.best)
        seconds = (*state.window.rough, *state.window.seconds)
        if best is None or state.position == state.best or not seconds:
            return False
        allowed = state.least_efficiency(state.position) / state.goodput(best)
        if state.window.steps < SOON or len(seconds) == 1:
            return seconds[0] > FAR * allowed
        return min(seconds[1:]) > self.hopeless * allowed or _all_beyond(BROKEN * allowed, seconds)

    def _tried(self, state: GoodputState, seconds: float, given_up: bool) -> tuple[GoodputState, str]:
        """Enter what a trial measured, and go on; return the state and the reason, in words."""
        best, ran = state.entry(state.best), state.forecast
        if best is not None and state.position != state.best:
            steps = state.window.steps
            lower_bound = state.belief(state.position, ran.efficiency_at(state.window.gain)).lower_bound
            more = max(0.0, steps * (seconds - lower_bound / state.goodput(best)))
            best_forecast = state.forecasts[best.position]
            if _ends_outer_steps(best_forecast, ran):
                more += state.leaving(best_forecast)
            state = replace(state, spent=state.spent + more)
        before = state.entry(state.position)
        recovered = before is not None and state.was_paused(seconds, self.change)
        state = state.cleared()
        if before is not None and (recovered or self._quicker(state, before, seconds)):
            reason = f"{1000 * seconds:.4g} ms a step at {ran.candidate}, not the {1000 * before.seconds:.4g} it was"
            state = replace(state.changed(min(seconds, before.seconds)), best=state.position)
            return self._anew(state, f"{reason}: the link became faster")
        share = 1.0 if before is None or state.windows - before.window >= self.expire else 1 / (before.times + 1)
        too_slow_for_link = given_up and best is not None and seconds > BROKEN * state.slowest(state.position)
        state = state.enter(seconds, share)
        reason = f"{1000 * seconds:.4g} ms a step at {ran.candidate}{_cost(state)}"
        if too_slow_for_link and state.sends_less(state.position, than=state.best):  # the best one is slower still
            return self._go_on(state.slower(seconds), f"{reason}: the link became slower")
        if too_slow_for_link:
            state = replace(state, phase=HOLD, position=state.best)
            return state, f"{reason}: given up early, since the link may have become slower; time {state.running} again"
        return self._go_on(state, f"{reason}: given up early" if given_up else reason)

    def _quicker(self, state: GoodputState, before: GoodputEntry, seconds: float) -> bool:
        """True if a candidate that is tried again takes so much less time that the link must have become faster."""
        best, ran = state.entry(state.best), state.forecast
        if best is None or state.position == state.best or ran.candidate.mode == "native":
            return False
        lower_bound = state.belief(state.position, ran.efficiency_at(state.window.gain)).lower_bound
        better = lower_bound > seconds * state.goodput(best)
        return state.freed or (better and seconds < (1 - self.change) * before.seconds)

    def _held(self, state: GoodputState, seconds: float) -> tuple[GoodputState, str]:
        """Enter what a window of the chosen candidate measured; search again if the link or the machine changed."""
        entry = state.entry(state.position)
        if entry is None:
            return self._go_on(state.enter(seconds), f"{1000 * seconds:.4g} ms a step at {state.running}")
        moved, freed = abs(seconds - entry.seconds) / entry.seconds, state.freed
        reason = f"{1000 * seconds:.4g} ms a step at {state.running}"
        if moved > self.change or freed:
            state = replace(state, off=state.off + 1)
            reason += f", not the {1000 * entry.seconds:.4g} it was" if moved > self.change else ""
            reason += ", its exchange in less than half the time" if freed else ""
            if state.off < 2 and moved <= 2 * self.change:
                return state, f"{reason}: wait for another window"
            if state.running.mode == "native" and seconds < entry.seconds:
                state = replace(state.drift(seconds, at_once=True), off=0)
                return self._go_on(state, f"{reason}: the link or the machine became faster")
            if freed:
                return self._anew(state.changed(min(seconds, entry.seconds)), f"{reason}: the link became faster")
            if state.same_link(self.change):
                return self._go_on(replace(state.drift(seconds, at_once=True), off=0), f"{reason}: the machine changed")
            return self._anew(state.changed(seconds), f"{reason}: the link or the machine changed")
        return self._go_on(replace(state.cleared(), off=0).drift(seconds), f"{reason} holds")

    def _anew(self, state: GoodputState, reason: str) -> tuple[GoodputState, str]:
        """Search again after a change, from where a run starts, when that is another candidate and may be better."""
        first = self._first(state.forecasts, moved=True)
        promise = state.least_efficiency(first) / state.fastest(first, self.expire)
        held = state.entry(state.position)
        assert held is not None
        if first == state.position or not state.allowed(first) or promise <= self._to_beat(state, held, first):
            return self._go_on(state, reason)
        ends_outer_steps = _ends_outer_steps(state.forecast, state.forecasts[first])
        if ends_outer_steps and not self._may_try(state, held, first, promise):
            return self._go_on(state, reason)
        state = replace(state, phase=SEARCH, best=state.position, position=first)
        return state, f"{reason}; search again from {state.running}"

    def _go_on(self, state: GoodputState, reason: str) -> tuple[GoodputState, str]:
        """Try a candidate that could still be better, or hold the best."""
        best = self._best(state)
        state = replace(state, best=best.position)
        goodput = state.goodput(best)
        promises = {
            at: state.least_efficiency(at) / state.fastest(at, self.expire)
            for at in range(len(state.forecasts))
            if at != best.position and state.allowed(at)
        }
        trials = [
            at
            for at, promise in promises.items()
            if promise > self._to_beat(state, best, at) and self._may_try(state, best, at, promise)
        ]
        trials = [at for at in trials if not state.risky(at)] or trials
        if trials:
            harmless = [at for at in trials if state.efficiency(at) >= HARMLESS]
            # of equals, the one that sends least: the cheaper mistake
            tried = max(harmless or trials, key=lambda at: (promises[at], at))
            native = [at for at in trials if state.forecasts[at].candidate.mode == "native"]
            if tried in native or (native and state.forecasts[best.position].candidate.dense):
                # before all that compresses, where dense is best so far; float32 before float16, which must be better
                tried = min(native, key=lambda at: state.forecasts[at].candidate.cf)
            state = replace(state, phase=SEARCH, position=tried)
            times = f"which may be up to {promises[tried] / goodput:.2f} times as good"
            return state, f"{reason}; try {state.running}, {times}{_cost(state)}"
        if self._may_time_again(state, best):
            assert state.suspect is not None
            state = replace(state, phase=SEARCH, position=state.suspect)
            return state, f"{reason}; time {state.running} again, whose slow steps may have been a pause of the machine"
        state = replace(state, phase=HOLD, position=best.position)
        what = f"{state.running}: {1000 * best.seconds:.4g} ms{_cost(state)}"
        return state, f"{reason}; best goodput at {what}"

    def _may_try(self, state: GoodputState, best: GoodputEntry, position: int, promise: float) -> bool:
        """True if a trial may gain enough, and trials have not cost too much so far.

        Args:
            state: state of the search.
            best: measurement of the best candidate.
            position: position of the candidate.
            promise: highest goodput that it may have.
        """
        forecast, held = state.forecasts[position], state.forecasts[best.position]
        mode, before = forecast.candidate.mode, held.candidate.mode
        instead = mode == "native" and before == "hook"  # gravac's hook itself may cost more than it saves
        if not instead and forecast.wire_ratio >= held.wire_ratio and state.exposed(best) < EXPOSED:
            return False
        price = _price_of_trial(state, best, position, state.slowest(position))
        part = min(1.0, state.at_stake(best) / HALF)
        if before == "native" and mode == "hook":
            part **= 2
        if price > part * (self.explore * state.elapsed + GRANT * best.seconds) - state.spent:
            return False
        if mode != "outer" or before == "outer":
            return True
        gains = max(state.steps, SETTLED) * best.seconds * (promise / state.goodput(best) - 1)
        return max(0.0, price) + state.leaving(forecast) <= gains

    def _may_time_again(self, state: GoodputState, best: GoodputEntry) -> bool:
        """True if the candidate that showed that the link became slower can be timed again at little cost.

        That may be no more than the share ``explore`` of the time since then.
        """
        if state.suspect is None or state.suspect == best.position or not state.allowed(state.suspect):
            return False
        suspect = state.entry(state.suspect)
        if suspect is None:
            return False
        return _price_of_trial(state, best, state.suspect, suspect.seconds) <= self.explore * state.elapsed

    def _quiet(self, state: GoodputState, seconds: float) -> bool:
        """True if steps of the candidate that is held take about as long as they did."""
        held = state.entry(state.position)
        return held is not None and abs(seconds - held.seconds) <= self.change * held.seconds

    def _best(self, state: GoodputState) -> GoodputEntry:
        """Return the entry of highest goodput; the one that was best stays so within the hysteresis."""
        top = max(state.entries, key=lambda entry: (state.goodput(entry), -entry.position))
        held = state.entry(state.best)
        if held is None or state.goodput(top) > self._to_beat(state, held, top.position):
            return top
        return held

    def _to_beat(self, state: GoodputState, held: GoodputEntry, position: int) -> float:
        """Return the goodput that a candidate must exceed to replace the one that is held, or to be tried."""
        margin = self.hysteresis
        coarse = state.forecasts[held.position].by_gain and held.efficiency < COARSE
        if coarse and state.efficiency(position) > held.efficiency:
            margin = max(margin, SETBACK / max(state.steps, SETTLED))
        other, ours = state.forecasts[position], state.forecasts[held.position]
        if other.behind is not None and not state.was_tried(position):
            margin = max(margin, UNSURE)
        if other.candidate.mode == "native" and ours.candidate.mode == "hook":
            margin = 0.0
        return state.goodput(held) * (1 + margin) * (1 + self._price(state, held, other, ours))

    def _price(self, state: GoodputState, held: GoodputEntry, other: Forecast, ours: Forecast) -> float:
        """Return the time that moving into outer steps, or out of them, takes: relative to that of the steps so far."""
        if (other.candidate.mode == "outer") == (ours.candidate.mode == "outer"):
            return 0.0
        leaving = state.leaving(other if other.candidate.mode == "outer" else ours)
        return leaving / (max(state.steps, SETTLED) * held.seconds)


def _moved(plain: dict[str, Any], places: Mapping[int, int], forecasts: Sequence[Forecast]) -> dict[str, Any] | None:
    """Return a dumped state with what it says of candidates that there are still, at their places now.

    Args:
        plain: what was dumped.
        places: places of candidates now by their places then, of those that there are still.
        forecasts: forecasts of the candidates now.

    Returns:
        The state; ``None`` if neither what ran nor anything measured is among them.
    """
    entries = [
        {**entry, "position": places[entry["position"]]} for entry in plain["entries"] if entry["position"] in places
    ]
    floors = [(places[at], seconds) for at, seconds in plain["floors"] if at in places]
    moved = {**plain, "entries": entries, "floors": floors, "trials": None, "suspect": places.get(plain["suspect"])}
    moved["learned"] = [
        {**learned, "candidate": places[learned["candidate"]], "reference": places[learned["reference"]]}
        for learned in plain["learned"]
        if learned["candidate"] in places and learned["reference"] in places
    ]

    def goodput(one: dict[str, Any]) -> float:
        return float(forecasts[one["position"]].lower_bound(one["efficiency"]) / one["seconds"])

    measured = max(entries, key=goodput, default={"position": None})["position"]
    best = places.get(plain["best"], measured)
    if best is None:
        return None
    if plain["position"] in places:
        return {**moved, "best": best, "position": places[plain["position"]]}
    return {**moved, "best": best, "position": best, "phase": HOLD, "window": {}, "off": 0}


def _without(gone: Sequence[str]) -> str:
    """Return in words that candidates of a checkpoint cannot be chosen now; at most three are named."""
    others = len(gone) - 3
    names = ", ".join(gone[:3]) + (f" and {others} more" if others > 0 else "")
    return f"restored with other candidates, without {names or 'none of its own'}"


def _may_start(forecast: Forecast, dense: Forecast) -> bool:
    """Return whether a search may start with a candidate: not native float16, and outer steps only if all are.

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
    price = cost(slowest, best.seconds, forecast.candidate.every)
    if forecast.candidate.mode == "native":
        price = WATCH * (slowest - best.seconds)
    if _ends_outer_steps(best_forecast, forecast):
        price = max(0.0, price) + state.leaving(best_forecast)
    return price


def _ends_outer_steps(current: Forecast, following: Forecast) -> bool:
    """True if the current candidate makes outer steps, and the following one does not."""
    return current.candidate.mode == "outer" and following.candidate.mode != "outer"


def _cost(state: GoodputState) -> str:
    """Return as text how many more steps than dense averaging the running candidate takes to the same loss."""
    results = state.learned_of(state.position)
    source = f"{results.trials} trials here" if results and results.trials else BELIEVED
    belief = state.belief(state.position)
    return cost_at_equal_samples(belief.efficiency, belief.lower_bound, source)


def _broken(state: GoodputState) -> bool:
    """Tell whether the last steps of the held candidate are far slower than its steps were."""
    held = state.entry(state.position)
    return held is not None and _all_beyond(BROKEN * held.seconds, state.window.seconds)


def _all_beyond(most: float, seconds: Sequence[float]) -> bool:
    """Tell whether each of the last ``SOON`` steps took longer than ``most`` seconds."""
    return len(seconds) >= SOON and min(seconds[-SOON:]) > most


def _expected(forecast: Forecast) -> float:
    """Return the goodput expected before the first step; 0 if the seconds of a step are not known."""
    return forecast.least_efficiency / forecast.step_s if forecast.step_s else 0.0


def _ahead(forecast: Forecast) -> float | None:
    """Return the seconds that coding and exchange are expected to add to a step that hides neither."""
    if forecast.coding_s is None or forecast.exchange_s is None:
        return None
    return BESIDE * forecast.coding_s + forecast.exchange_s
