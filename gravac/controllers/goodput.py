# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput: steps per second times what a step is worth, maximized by trying what could still be better.

GraVAC multiplies throughput by gain, and gain is not progress: on ``charlm`` one bit of every value keeps 0.64 of the
energy and makes 0.92 of a dense step's progress, top-k at 100x keeps 0.07 and makes 0.34 (``docs/results.md``). Here a
candidate carries its *worth*, the share of a dense step's progress that one of its steps makes, from committed
measurements (``gravac.compressors.profile``); throughput is measured while training.

The search starts, among those whose worth is near dense's, at what is expected to code and exchange fastest by what the
link was probed at (``gravac.exchange.link_probe``); where that is not known, at the highest wire ratio, which is fast
on any link. What was measured bounds how fast the others can be (``State.fastest``); the one whose bound promises most
is tried for a few steps, and given up early when it is clearly slower. When no bound promises more than ``hysteresis``
(to leave one bit, than the switch sets training back), the best is held, until its step time changes (the link did), or
its exchange takes half of what it did, though that was hidden. Others are tried again when what is known of them is
old, or was never sure, since the steps of a trial differed. All trials together cost at most ``explore`` of the run's
time, besides the first few. Worth is corrected by the gain that is measured, for compressors where gain tells
(``Candidate.efficiency_at``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Span
from gravac.controllers.base import Decision, Measurement
from gravac.controllers.goodput_state import HOLD, SEARCH, Entry, State
from gravac.controllers.gravac_state import identify
from gravac.controllers.schedule import geometric, snap
from gravac.controllers.window import Window
from gravac.settings import Settings

GRANT = 25.0
"""Steps' time that trials may cost at the start of a run and after a change, whatever their share."""

BESIDE = 2.0
"""Coding beside backward, with cold caches, takes about so many times what it takes by itself."""

SOON = 3
"""Steps of a trial after which it may be given up for little; one more runs before that takes effect. Of what is held,
steps on end that end its window when all are far too slow."""

FAR = 3.0
"""Times what it may take: a first step of a trial that takes longer ends it."""

HARMLESS = 0.4
"""Worth below which a trial may set training back by more than its own steps: nine steps of rank 1 during the warm-up
cost ``denoise`` 30 to 180 steps, also when their residual was dropped. So such candidates come last."""

SETBACK, SETTLED = 15.0, 100
"""Steps' progress that leaving one bit for what keeps more may cost, and steps from which on it is taken in proportion
to them: a run is taken to last as long again. The second moments that AdamW has from one bit's steps are too small for
others: on ``charlm`` the loss lies 0.014 to 0.024 nats above that of staying for 40 steps, 10 to 20 steps' progress
(``docs/measurements.md``)."""

BROKEN = 2.0
"""Times what they took, or may take: steps that take longer, ``SOON`` on end, are not waited out."""


def cost(slowest: float, best: float) -> float:
    """Most that a trial may cost, seconds: one that is far too slow runs two steps, any other a few."""
    return min((SOON + 1) * (slowest - best), max(2 * (slowest - best), (SOON + 1) * (FAR - 1) * best))


class Goodput(Settings):
    """Maximizes throughput times the worth of a step.

    Attributes:
        window: steps between two looks at what is held.
        trial: steps of a trial; the first three after a switch are not timed.
        near: worth, relative to dense, from which on a candidate may be what the search starts with.
        hysteresis: relative gain in goodput below which nothing is tried and nothing changes.
        change: relative change of the held candidate's step time, in two windows on end, that starts a new search;
            twice as much in one window does too.
        hopeless: a trial whose steps take this many times what they may is given up at once.
        expire: windows after which half a measured step time of what does not run is believed, and again.
        explore: share of the run's time that trials may cost.
    """

    name: ClassVar[str] = "goodput"
    keeps_all: ClassVar[bool] = False
    sixteen_bit: ClassVar[bool] = True

    window: int = Field(default=12, ge=5)
    trial: int = Field(default=8, ge=5)
    near: float = Field(default=0.93, gt=0, le=1)
    hysteresis: float = Field(default=0.03, ge=0, lt=1)
    change: float = Field(default=0.25, gt=0)
    hopeless: float = Field(default=1.3, gt=1)
    expire: int = Field(default=40, ge=1)
    explore: float = Field(default=0.05, ge=0, lt=1)

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """All CFs of a list; of a span the lowest, doubled again and again."""
        if isinstance(reach, Span):
            return snap(geometric(cf_range), reach)
        return tuple(cf for cf in sorted(set(reach)) if cf_range[0] <= cf <= cf_range[1])

    def start(self, candidates: Sequence[Candidate]) -> tuple[State, Decision]:
        """Where the search starts, see the module's text."""
        at = self._first(candidates)
        state = State(tuple(candidates), SEARCH, at, at, Window(candidates[at]))
        said = f"start at {candidates[at]}: the fewest bytes at a worth of {candidates[at].efficiency:.2f}"
        if (ahead := _ahead(candidates[at])) is not None:
            said = f"start at {candidates[at]}: at a worth near dense's the quickest, {1000 * ahead:.3g} ms expected"
        if len(candidates) == 1:
            said = "no candidate sends less than dense: dense for good"
        return state, Decision(candidates[at], reason=said)

    def observe(self, state: State, measurement: Measurement) -> tuple[State, Decision]:
        """See the module's text."""
        state = replace(state.count(measurement), window=state.window.add(measurement))
        given_up = state.phase == SEARCH and self._hopeless(state)
        broken = state.phase == HOLD and _broken(state)
        steps = self.trial if state.phase == SEARCH else self.window
        if state.window.steps < steps and not given_up and not broken:
            return state, Decision(state.running)
        if broken:
            state = replace(state, window=state.window.last(SOON))
        before, window = state.running, state.window
        summary = window.summary(state.phase)
        state = replace(state, windows=state.windows + 1)
        if window.t_system is None or not 0 < window.t_system < math.inf:
            said = f"no step of {before} could be timed: it goes on"
        elif state.phase == SEARCH:
            state, said = self._tried(state, window.samples / window.t_system, given_up)
        else:
            state, said = self._held(state, window.samples / window.t_system)
        changed = state.running != before
        state = replace(state, window=Window(state.running) if changed else Window(state.running, settling=0))
        return state, Decision(state.running, (), said, summary)

    def dump(self, state: State) -> dict[str, Any]:
        """As plain values."""
        return {"candidates": identify(state.candidates), **state.dump()}

    def restore(self, plain: dict[str, Any], candidates: Sequence[Candidate]) -> tuple[State, Decision]:
        """The inverse of ``dump``; with other candidates than then, a start."""
        if plain["candidates"] != identify(candidates):
            fresh, decision = self.start(candidates)
            return fresh, replace(decision, reason=f"not what the checkpoint was made with: {decision.reason}")
        state = State.restore({name: value for name, value in plain.items() if name != "candidates"}, candidates)
        return state, Decision(state.running)

    def _first(self, candidates: Sequence[Candidate], moved: bool = False) -> int:
        """Position of where a search starts; by wire ratio once the link has changed."""
        good = [
            at
            for at, candidate in enumerate(candidates)
            if candidate.efficiency >= self.near * candidates[0].efficiency
        ]
        ahead = [(seconds, at) for at in good if (seconds := _ahead(candidates[at])) is not None]
        if moved or len(ahead) < len(good):
            return max(good, key=lambda position: candidates[position].wire_ratio)
        return min(ahead)[1]

    def _hopeless(self, state: State) -> bool:
        """Whether a trial can be given up: its best step takes clearly longer than its worth allows, or the first far.

        The best, for a shared machine stalls a step now and then. If its last steps are far too slow, whatever came
        before, the link broke down.
        """
        best = state.entry(state.best)
        seconds = (*state.window.rough, *state.window.seconds)
        if best is None or state.position == state.best or not seconds:
            return False
        allowed = state.efficiency(state.position) / state.goodput(best)
        if state.window.steps < SOON or len(seconds) == 1:
            return seconds[0] > FAR * allowed
        return min(seconds[1:]) > self.hopeless * allowed or _all_beyond(BROKEN * allowed, seconds)

    def _tried(self, state: State, seconds: float, given_up: bool) -> tuple[State, str]:
        """A trial ended."""
        best, ran = state.entry(state.best), state.running
        if best is not None and state.position != state.best:
            steps = state.window.steps
            more = steps * (seconds - ran.efficiency_at(state.window.gain) / state.goodput(best))
            state = replace(state, spent=state.spent + max(0.0, more))
        before = state.entry(state.position)
        share = 1.0 if before is None or state.windows - before.window >= self.expire else 1 / (before.times + 1)
        state = state.enter(seconds, share)
        said = f"{1000 * seconds:.4g} ms a step at {ran}, worth {state.efficiency(state.position):.2f}"
        return self._go_on(state, f"{said}: given up early" if given_up else said)

    def _held(self, state: State, seconds: float) -> tuple[State, str]:
        """A window of what was chosen ended."""
        entry = state.entry(state.position)
        if entry is None:
            return self._go_on(state.enter(seconds), f"{1000 * seconds:.4g} ms a step at {state.running}")
        moved, freed = abs(seconds - entry.seconds) / entry.seconds, state.freed
        said = f"{1000 * seconds:.4g} ms a step at {state.running}"
        if moved > self.change or freed:
            state = replace(state, off=state.off + 1)
            said += f", not the {1000 * entry.seconds:.4g} it was" if moved > self.change else ""
            said += ", its exchange in less than half the time" if freed else ""
            if state.off < 2 and moved <= 2 * self.change:
                return state, f"{said}: wait for another window"
            if freed:
                return self._anew(state.changed(min(seconds, entry.seconds)), f"{said}: the link became faster")
            if state.same_link(self.change):
                return self._go_on(replace(state.drift(seconds, at_once=True), off=0), f"{said}: the machine changed")
            return self._anew(state.changed(seconds), f"{said}: the link or the machine changed")
        return self._go_on(replace(state, off=0).drift(seconds), f"{said} holds")

    def _anew(self, state: State, said: str) -> tuple[State, str]:
        """After a change: from where a run starts, when that is elsewhere and may be better."""
        first = self._first(state.candidates, moved=True)
        promise = state.efficiency(first) / state.fastest(first, self.expire)
        held = state.entry(state.position)
        assert held is not None
        if first == state.position or promise <= self._to_beat(state, held, first):
            return self._go_on(state, said)
        state = replace(state, phase=SEARCH, best=state.position, position=first)
        return state, f"{said}; search again from {state.running}"

    def _go_on(self, state: State, said: str) -> tuple[State, str]:
        """Try what could be better still, or hold the best."""
        best = self._best(state)
        state = replace(state, best=best.position)
        own, left = state.goodput(best), self.explore * state.elapsed + GRANT * best.seconds - state.spent
        promising = [
            (state.efficiency(at) / state.fastest(at, self.expire), at)
            for at in range(len(state.candidates))
            if at != best.position and cost(state.slowest(at), best.seconds) <= left
        ]
        better = [one for one in promising if one[0] > self._to_beat(state, best, one[1])]
        if better:
            harmless = [one for one in better if state.efficiency(one[1]) >= HARMLESS]
            promise, at = max(harmless or better)  # of equals, the one that sends least: the cheaper mistake
            state = replace(state, phase=SEARCH, position=at)
            return state, f"{said}; try {state.running}, which may be up to {promise / own:.2f} times as good"
        state = replace(state, phase=HOLD, position=best.position)
        return (
            state,
            f"{said}; best goodput at {state.running}: {1000 * best.seconds:.4g} ms, worth {best.efficiency:.2f}",
        )

    def _best(self, state: State) -> Entry:
        """The entry of highest goodput; the one that was best stays so within the hysteresis."""
        top = max(state.entries, key=lambda entry: (state.goodput(entry), -entry.position))
        held = state.entry(state.best)
        if held is None or state.goodput(top) > self._to_beat(state, held, top.position):
            return top
        return held

    def _to_beat(self, state: State, held: Entry, position: int) -> float:
        """The goodput that a candidate must exceed to take the place of the one that is held, or to be tried."""
        margin = self.hysteresis
        coarse = (
            state.candidates[held.position].by_gain and held.efficiency < self.near * state.candidates[0].efficiency
        )
        if coarse and state.efficiency(position) > held.efficiency:
            margin = max(margin, SETBACK / max(state.steps, SETTLED))
        return state.goodput(held) * (1 + margin)


def _broken(state: State) -> bool:
    """Whether the last steps of what is held are far slower than it was."""
    held = state.entry(state.position)
    return held is not None and _all_beyond(BROKEN * held.seconds, state.window.seconds)


def _all_beyond(most: float, seconds: Sequence[float]) -> bool:
    """Whether the last ``SOON`` steps, each of them, took longer than ``most``."""
    return len(seconds) >= SOON and min(seconds[-SOON:]) > most


def _ahead(candidate: Candidate) -> float | None:
    """Seconds that coding and exchange were expected to add to a step in which nothing hides."""
    if candidate.coding_s is None or candidate.exchange_s is None:
        return None
    return BESIDE * candidate.coding_s + candidate.exchange_s
