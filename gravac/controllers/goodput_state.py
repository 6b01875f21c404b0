# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of Goodput's search, as plain data, and how fast a candidate that has not run could be at best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gravac.beliefs import Belief
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import WATCH, Measurement
from gravac.controllers.corrected_belief import corrected_belief
from gravac.controllers.native import fits_float16
from gravac.controllers.plain import Above0, Amount, Count, Finite, Positive
from gravac.controllers.progress import Learned, Trials
from gravac.controllers.window import Window

SEARCH: Final = "search"
HOLD: Final = "hold"
PROGRESS: Final = "progress"

SOON = 3
"""Number of steps after which a trial may be given up at little cost; one more runs before that takes effect. As many
steps on end, all far too slow, end the window of the candidate that is held."""

BROKEN = 2.0
"""Ratio of a step's time to what it took, or may take, above which it is far too slow: after ``SOON`` such steps on end
the window ends."""

NOISE = 0.12
"""Relative difference of two step times below which they say nothing of the link: 1 bit and 2 bits differ in coding."""

LIGHTER = 0.5
"""Smallest share of another family's step time that a family which codes more cheaply takes, sending as many bytes."""

SURE = 0.8
"""Smallest share of the times predicted before the first step that coding and exchange really take."""

AHEAD = 1 / 3
"""Share of a step's compute behind which no exchange hides: that of the forward pass."""

FLOOR = 0.4
"""Smallest share of a measured step's time that a step takes when less is sent, while the link is not known."""

LEAST = 0.01
"""Smallest share of a measured step's time that a step takes when less is sent, whatever is known of the link."""

PART = 0.25
"""Smallest share of a step that an exchange must take for its getting shorter to tell of a faster link; what is shorter
than that varies with the ranks' pace."""

DOUBTS = 2
"""Number of standard errors by which a measured step time may be wrong."""

SPREAD = 0.03
"""Relative standard deviation that steps of a native stretch are taken to have, of which the ranks tell the median."""

OVERHEAD = 0.2
"""Largest share of a step that the hook costs besides coding: what native steps may save although they send more."""


@dataclass(frozen=True, slots=True)
class GoodputEntry:
    """The measurement of a candidate that ran.

    Attributes:
        position: place in the list of candidates.
        seconds: median time of its steps.
        window: number of the window it was measured in, to let it expire.
        efficiency: statistical efficiency of its steps, corrected by the gain that was measured.
        saved: seconds that a step waited, coded and exchanged, see ``Measurement``; ``None`` when not known.
        doubt: standard error of ``seconds``, from how much its steps differed.
        times: number of windows that ``seconds`` is a mean of.
    """

    position: Count
    seconds: Above0
    window: Count
    efficiency: Finite
    saved: tuple[Amount, Amount, Amount] | None = None
    doubt: Amount = 0.0
    times: Count = 1

    def pooled(self, before: GoodputEntry, share: float) -> GoodputEntry:
        """Return the mean of this entry and an earlier one of the same candidate.

        Args:
            before: the earlier entry.
            share: weight of this entry, in [0, 1].

        Example:
            >>> old, new = GoodputEntry(1, 0.2, 3, 0.9), GoodputEntry(1, 0.1, 4, 0.9)
            >>> round(new.pooled(old, share=0.5).seconds, 3)
            0.15
        """
        seconds = before.seconds + share * (self.seconds - before.seconds)
        doubt = math.hypot((1 - share) * before.doubt, share * self.doubt)
        return replace(self, seconds=seconds, doubt=doubt, times=before.times + 1)

    def scaled(self, ratio: float) -> GoodputEntry:
        """Return the entry that a machine would measure which takes ``ratio`` times as long to compute and to code.

        Example:
            >>> entry = GoodputEntry(1, 0.3, 0, 0.9, saved=(0.1, 0.05, 0.15))  # waits 0.1 s of 0.3 s for bytes
            >>> entry.scaled(2).seconds  # 0.2 s of work take twice as long, waiting does not
            0.5
        """
        saved = None if self.saved is None else (self.saved[0], ratio * self.saved[1], self.saved[2])
        waited = 0.0 if self.saved is None else self.saved[0]
        return replace(self, seconds=waited + ratio * (self.seconds - waited), saved=saved)


@dataclass(frozen=True, slots=True)
class GoodputState:
    """The state of a search.

    Attributes:
        forecasts: forecasts of the candidates to choose from: dense first, then ascending by wire ratio.
        phase: ``"search"``, ``"hold"``, or ``"progress"`` while trials measure a candidate's progress.
        position: place of the candidate that runs in ``forecasts``.
        best: place of the best candidate measured.
        window: window under way.
        entries: newest measurement of each candidate that ran.
        windows: number of windows ended so far.
        steps: number of steps observed.
        elapsed: seconds of all steps.
        spent: seconds that trials took beyond what the best candidate would have taken for the same progress.
        floors: ``(position, seconds)`` of candidates measured before the link changed: the least a step takes now.
        off: number of windows on end in which the chosen candidate's step time was not what it had been.
        moved: whether the link changed since it was probed.
        slowed: whether the link became slower, and not faster, when it changed last.
        suspect: place of the candidate whose few slow steps alone showed that the link became slower, until it is timed
            again: the machine may have paused; ``None``: there is none.
        energy: largest energy of a step that was measured, see ``Measurement``; 0: none was.
        watch: number of training steps of the next native stretch.
        learning_rate: last learning rate that was measured; 0 if none was.
        rose_at: number of steps observed when the learning rate rose last; 0: it never did.
        trials: switchback trials under way; ``None``: there are none.
        learned: results of switchback trials, of each candidate that was tried.
        booked: progress that these trials have cost, in steps of the candidate that was held.
    """

    forecasts: tuple[Forecast, ...]
    phase: Literal["search", "hold", "progress"]
    position: Count
    best: Count
    window: Window
    entries: tuple[GoodputEntry, ...] = ()
    windows: Count = 0
    steps: Count = 0
    elapsed: Amount = 0.0
    spent: Amount = 0.0
    floors: tuple[tuple[Count, Amount], ...] = ()
    off: Count = 0
    moved: bool = False
    slowed: bool = False
    suspect: Count | None = None
    energy: Amount = 0.0
    watch: Positive = WATCH
    learning_rate: Amount = 0.0
    rose_at: Count = 0
    trials: Trials | None = None
    learned: tuple[Learned, ...] = ()
    booked: Amount = 0.0

    @property
    def running(self) -> Candidate:
        """The candidate that runs."""
        return self.forecast.candidate

    @property
    def forecast(self) -> Forecast:
        """The forecast of the candidate that runs."""
        return self.forecasts[self.position]

    def count(self, measured: Measurement) -> GoodputState:
        """Return the state with the training steps of one more measurement.

        Steps of a trial that run on until its end takes effect cost as much as those that were measured.
        """
        seconds = measured.seconds if math.isfinite(measured.seconds) and measured.seconds > 0 else 0.0
        energy = measured.energy if math.isfinite(measured.energy) and measured.candidate.mode == "hook" else 0.0
        best = self.entry(self.best)
        rate = measured.learning_rate if math.isfinite(measured.learning_rate) else self.learning_rate
        rose = 0 < self.learning_rate < rate
        late = self._late(measured.candidate)
        lost = 0.0 if best is None or late is None else measured.steps * self.loss(late, best)
        return replace(
            self,
            steps=self.steps + measured.steps,
            elapsed=self.elapsed + measured.steps * seconds,
            spent=self.spent + lost,
            energy=max(self.energy, energy),
            learning_rate=max(0.0, rate),
            rose_at=self.steps + measured.steps if rose else self.rose_at,
        )

    def loss(self, entry: GoodputEntry, best: GoodputEntry) -> float:
        """Return the seconds that a step of a candidate takes beyond what the best would take for the same progress."""
        return max(0.0, entry.seconds - self.least_efficiency(entry.position) / self.goodput(best))

    def _late(self, ran: Candidate) -> GoodputEntry | None:
        """Return the measurement of a candidate that ran though another was decided and is under way."""
        if ran == self.running or ran == self.forecasts[self.best].candidate:
            return None
        return next((entry for entry in self.entries if self.forecasts[entry.position].candidate == ran), None)

    @property
    def warming_up(self) -> bool:
        """Whether the learning rate may still warm up: it rose within the latter half of the steps so far."""
        return 0 < self.steps < 2 * self.rose_at

    def allowed(self, position: int) -> bool:
        """True if a candidate may run.

        Native float16 may only while gradients are far from overflow. Outer steps may not while the learning rate warms
        up, unless all candidates are outer steps.
        """
        candidate = self.forecasts[position].candidate
        if candidate.mode == "outer" and self.forecasts[0].candidate.mode != "outer" and self.warming_up:
            return False
        return candidate.mode != "native" or candidate.cf == 1 or fits_float16(self.energy)

    def entry(self, position: int) -> GoodputEntry | None:
        """Return the measurement of a candidate; ``None`` when it has not run."""
        return next((entry for entry in self.entries if entry.position == position), None)

    def enter(self, seconds: float, share: float = 1.0) -> GoodputState:
        """Return the state with the measurement of the running candidate in the window that ends.

        Args:
            seconds: median time of its steps.
            share: weight of this window in the entry; the rest is what was measured before, where something was.
        """
        before = self.entry(self.position)
        others = tuple(entry for entry in self.entries if entry.position != self.position)
        efficiency, saved = self.forecast.efficiency_at(self.window.gain), self.window.savings
        doubt = self.window.doubt
        if self.running.mode == "native":
            doubt = SPREAD * seconds / math.sqrt(max(1, self.window.steps))
        entry = GoodputEntry(self.position, seconds, self.windows, efficiency, saved, doubt)
        return replace(self, entries=(*others, entry if before is None else entry.pooled(before, share)))

    def same_link(self, change: float) -> bool:
        """Tell whether the held candidate's exchange takes as long as it did, so that a change is the machine's."""
        share = self._exchange_now(0.0)
        return share is not None and abs(share - 1) <= change

    @property
    def freed(self) -> bool:
        """Tell whether the held candidate's exchange was a good part of its steps, and takes less than half now.

        Where it is hidden behind backward, step times do not tell that the link became faster.
        """
        share = self._exchange_now(PART)
        return share is not None and share < 1 / 2

    def _exchange_now(self, part: float) -> float | None:
        """Return the ratio of the held candidate's exchange time to what it was; ``None``: unknown, or too small."""
        held, now = self.entry(self.position), self.window.savings
        if held is None or held.saved is None or now is None or not held.saved[2] > part * held.seconds:
            return None
        return now[2] / held.saved[2]

    def drift(self, seconds: float, at_once: bool = False) -> GoodputState:
        """Return the state with another window of the held candidate; all others change as much as the machine did.

        Half of the change is believed, unless ``at_once``. What a step did not wait for bytes tells the machine from
        the link. Without that a candidate measured in a better minute would look better for ever after. What lies
        within both windows' doubt is no drift: what was held because of a lucky trial must not take the others along.
        """
        before = self.entry(self.position)
        assert before is not None
        believed = 1.0 if at_once else 0.5
        now = self.enter(seconds, believed)
        if self.running.mode == "native":  # its waiting is not known: a small change is taken for the machine's
            scaled = 1 + believed * (seconds / before.seconds - 1)
            others = (entry if entry.position == self.position else entry.scaled(scaled) for entry in now.entries)
            return replace(now, entries=tuple(others))
        by_chance = abs(seconds - before.seconds) <= DOUBTS * math.hypot(before.doubt, self.window.doubt)
        if before.saved is None or self.window.savings is None or (by_chance and not at_once):
            return now
        busy, was = seconds - self.window.savings[0], before.seconds - before.saved[0]
        ratio = 1 + believed * (busy / was - 1) if min(busy, was) > 0 else 1.0
        others = (entry if entry.position == self.position else entry.scaled(ratio) for entry in now.entries)
        return replace(now, entries=tuple(others))

    def belief(self, position: int, by_gain: float | None = None) -> Belief:
        """Return the belief about a candidate's statistical efficiency, corrected by this run's trials.

        Args:
            position: place of the candidate.
            by_gain: efficiency that a measured gain stands for; ``None``: that of its last measurement, or of the
                forecast if it has not run.
        """
        forecast = self.forecasts[position]
        if by_gain is None:
            measured = self.entry(position)
            by_gain = measured.efficiency if measured else forecast.efficiency
        return corrected_belief(self.forecasts, position, by_gain, self.learned)

    def learned_of(self, position: int) -> Learned | None:
        """Return the results of a candidate's trials; ``None`` if there were none."""
        return next((learned for learned in self.learned if learned.candidate == position), None)

    def was_tried(self, position: int) -> bool:
        """Tell whether trials have measured a candidate's progress."""
        learned = self.learned_of(position)
        return learned is not None and learned.trials > 0

    def efficiency(self, position: int) -> float:
        """Return the median of ``belief``."""
        return self.belief(position).efficiency

    def least_efficiency(self, position: int) -> float:
        """Return the lower bound of ``belief``."""
        return self.belief(position).lower_bound

    def changed(self, seconds: float) -> GoodputState:
        """Return the state after the link changed: measurements are forgotten, but for bounds that follow from them.

        A step of the held candidate takes ``seconds`` now.

        With exchange hidden behind backward up to a point, the change of a step's time over the share of dense bytes
        that it sends does not fall with that share. So when steps became slower by d where a share x is sent, where y
        is sent they are slower by at least d y / x if y > x, and no faster otherwise; when they became faster by d,
        they are faster by at most d y / x if y < x, and nothing follows otherwise. Of a candidate that may hide more
        behind steps, or less, the same follows only where that does not weaken it.
        """
        held = self.entry(self.position)
        assert held is not None
        here, slower = 1 / self.forecast.wire_ratio, seconds - held.seconds
        floors = {}
        for entry in self.entries:
            share = 1 / self.forecasts[entry.position].wire_ratio
            hidden = _hides(self.forecasts[entry.position]) - _hides(self.forecast)
            if entry.position == self.position or (slower <= 0 and (share > here or hidden < 0)):
                continue
            moved = slower * share / here if (share > here) == (slower > 0) and not (slower > 0 and hidden > 0) else 0.0
            floors[entry.position] = (1 - NOISE) * max(0.0, entry.seconds + moved)
        return self._forgotten(tuple(floors.items()), slowed=slower > 0).enter(seconds)

    def slower(self, seconds: float) -> GoodputState:
        """Return the state after a trial whose steps were so slow that the link must have become slower.

        The candidate that was tried, with ``seconds`` a step, is all that is known now.
        """
        return replace(self._forgotten((), slowed=True), best=self.position).enter(seconds)

    def _forgotten(self, floors: tuple[tuple[int, float], ...], slowed: bool) -> GoodputState:
        """Return the state without anything that was measured before the link changed, but for lower bounds."""
        suspect = self.position if slowed else None
        forgotten = replace(self, entries=(), floors=floors, off=0, spent=0.0, elapsed=0.0)
        return replace(forgotten, moved=True, slowed=slowed, suspect=suspect)

    def was_paused(self, seconds: float, change: float) -> bool:
        """True if the suspect runs, and its steps take clearly less time than when the link seemed to become slower.

        Args:
            seconds: median time of its steps.
            change: relative change of a step's time from which on it counts.
        """
        measured = self.entry(self.position)
        return self.position == self.suspect and measured is not None and seconds < (1 - change) * measured.seconds

    def cleared(self) -> GoodputState:
        """Return the state without the suspect, if the suspect runs: it is timed again now."""
        return replace(self, suspect=None) if self.position == self.suspect else self

    def sends_less(self, position: int, than: int) -> bool:
        """Tell whether an exchange of one candidate has fewer bytes than an exchange of another."""
        return exchange_share(self.forecasts[position]) < exchange_share(self.forecasts[than])

    def goodput(self, entry: GoodputEntry) -> float:
        """Return the goodput of a measured candidate: steps per second times the lower bound of their efficiency."""
        return self.belief(entry.position, entry.efficiency).lower_bound / entry.seconds

    def slowest(self, position: int) -> float:
        """Return the most seconds that a step of a candidate may take, if all exchange measured grew with bytes.

        Where the time of exchange is not known, all of the step is taken for it.
        """
        forecast = self.forecasts[position]
        measured = self.entry(position)

        def most(entry: GoodputEntry) -> float:
            other = self.forecasts[entry.position]
            waited, _, exchanged = self.times(entry)
            hidden = max(0.0, exchanged - waited) if _hides(forecast) < _hides(other) else 0.0
            coding = 0.0
            if other.candidate.mode == "native":
                coding = (forecast.coding_s or 0.0) + OVERHEAD / 2 * entry.seconds
            grown = entry.seconds + hidden + coding + exchanged * max(0.0, other.wire_ratio / forecast.wire_ratio - 1)
            if forecast.candidate.mode == "native" and forecast.exchange_s is not None and not self.moved:
                return min(grown, entry.seconds - waited + forecast.exchange_s * max(1.0, self._link(max)))
            return grown

        return min((most(entry) for entry in ((measured,) if measured else self.entries)), default=0.0)

    def times(self, entry: GoodputEntry) -> tuple[float, float, float]:
        """Return the seconds that a step waited, coded and exchanged, at most; all of the step if that is not known.

        A native step codes nothing, and waits for no longer than its exchange should take.
        """
        if entry.saved is not None:
            return entry.saved
        forecast = self.forecasts[entry.position]
        if forecast.candidate.mode != "native":
            return (entry.seconds,) * 3
        exchange = math.inf if forecast.exchange_s is None else forecast.exchange_s * self._link(min)
        return min(entry.seconds, exchange), 0.0, min(entry.seconds, exchange)

    def _link(self, of: Callable[[Sequence[float]], float]) -> float:
        """Return how many times longer than forecast exchanges take; 1 if none was measured since the link was probed.

        Once the link has changed, it may take any time until an exchange is measured.

        Args:
            of: chooses among the ratios of several candidates; ranks that wait for each other make some of them large.
        """
        ratios = [
            entry.saved[2] / expected
            for entry in self.entries
            if entry.saved is not None and (expected := self.forecasts[entry.position].exchange_s)
        ]
        return of(ratios) if ratios else math.inf if self.moved else 1.0

    def risky(self, position: int) -> bool:
        """Tell whether nothing measured bounds how long steps of a candidate take on a link that became slower.

        True if its exchange has more bytes than every exchange that was timed since then. Once exchanges of two sizes
        were timed it is true of no candidate: their difference shows what more bytes take.
        """
        largest = max((exchange_share(self.forecasts[entry.position]) for entry in self.entries), default=0.0)
        return self.slowed and not self._two_sizes_timed and exchange_share(self.forecasts[position]) > largest

    @property
    def _two_sizes_timed(self) -> bool:
        """Whether two candidates that exchange in each step, and send different numbers of bytes, were timed."""
        return len({self.forecasts[entry.position].wire_ratio for entry in self.entries if self._in_each(entry)}) > 1

    def _in_each(self, entry: GoodputEntry) -> bool:
        """Tell whether a measured candidate exchanges in each step."""
        return self.forecasts[entry.position].candidate.every == 1

    def leaving(self, forecast: Forecast) -> float:
        """Return the seconds that it takes the ranks to leave outer steps, in which they send everything dense.

        While the link is as it was probed, these are the seconds forecast. After it changed, they grow as a dense
        exchange does. If too little was timed to tell that, they grow as the exchanges that were timed did: that is
        too much where these are small, since much of a small exchange is latency.
        """
        if not self.moved:
            return forecast.leaving_s or 0.0
        dense, growth = self.forecasts[0], self._link(min)
        dense_growth = self._exchange_at_least(dense) / dense.exchange_s if dense.exchange_s else 1.0
        if self._two_sizes_timed or growth == math.inf:
            growth = 1.0
        return max(dense_growth, growth) * (forecast.leaving_s or 0.0)

    def exposed(self, entry: GoodputEntry) -> float:
        """Return the share of a measured step in which it waits for bytes, at most: what sending less can save."""
        return self.times(entry)[0] / entry.seconds

    def at_stake(self, entry: GoodputEntry) -> float:
        """Return the share of a measured step that another candidate can save at most, or make more progress by."""
        waited, coded, _ = self.times(entry)
        hook = self.forecasts[entry.position].candidate.mode == "hook"
        native = any(forecast.candidate.mode == "native" for forecast in self.forecasts)
        most = max(forecast.least_efficiency for forecast in self.forecasts)
        worth = most / max(self.least_efficiency(entry.position), 1e-9) - 1
        return min(1.0, (waited + coded) / entry.seconds + OVERHEAD * (hook and native) + max(0.0, worth))

    def fastest(self, position: int, expire: int) -> float:
        """Return the least seconds that a step of a candidate may take, by what is measured: a lower bound.

        The candidate's own measurement is believed but for its doubt, half of it after ``expire`` windows, a quarter
        after twice as many. Of a step that was measured, sending less saves the time it waited at most; another family
        may save its coding too, and takes its own. Step time is convex in the bytes sent: flat while the exchange hides
        behind backward, then linear. So a slope measured between two amounts of bytes is a lower bound of that above
        them, and an upper bound of that below. What may hide more behind steps waits for nothing, at best, whatever it
        sends.
        """
        forecast = self.forecasts[position]
        measured = self.entry(position)
        if measured is not None:
            least = max(measured.seconds / 2, measured.seconds - DOUBTS * measured.doubt)
            return least * 0.5 ** ((self.windows - measured.window) // expire)
        bounds = [floor for at, floor in self.floors if at == position]
        bounds.append(self._foreseen(forecast))
        for entry in self.entries:
            other = self.forecasts[entry.position]
            waited, coded, _ = self.times(entry)
            least = entry.seconds
            if forecast.candidate.mode == "native" and other.candidate.mode != "native":
                least -= OVERHEAD * entry.seconds
            if forecast.family != other.family:
                least += SURE * (forecast.coding_s or 0.0) - min(coded, (1 - LIGHTER) * entry.seconds)
            more = 1 / forecast.wire_ratio - 1 / other.wire_ratio
            if more < 0 or _hides(forecast) > _hides(other):
                bounds.append(least - waited - self._stretched(entry))
            if _hides(forecast) > _hides(other):
                continue
            bounds.append(least + more * self._slope(entry.position, above=more < 0))
        return max(bounds)

    def _stretched(self, entry: GoodputEntry) -> float:
        """Return the seconds by which a measured step's compute was longer than before the first exchange.

        Where an exchange travels behind steps, they share processors with it; what sends less may not.
        """
        forecast = self.forecasts[entry.position]
        if entry.saved is None or forecast.compute_s is None or not _hides(forecast):
            return 0.0
        waited, coded, _ = entry.saved
        return max(0.0, entry.seconds - waited - coded - forecast.compute_s)

    def _foreseen(self, forecast: Forecast) -> float:
        """Return the least seconds of a step by the link's probe, and by how quick other candidates turned out on it.

        No exchange hides behind forward, that of a round (``Forecast.behind``) behind no more than may pass until it
        is taken up; and no step is shorter than it would be if it neither waited nor coded what was measured, but coded
        what this one does.
        """
        shortest = min((entry.seconds for entry in self.entries), default=0.0)
        measured = [entry for entry in self.entries if entry.saved is not None]
        native = [entry for entry in self.entries if self.forecasts[entry.position].candidate.mode == "native"]
        known = [(entry, self.times(entry)) for entry in measured or native]
        if self.moved or forecast.exchange_s is None or not known:
            return max(FLOOR * shortest, SURE * self._exchange_at_least(forecast) / max(1.0, _hides(forecast)))
        if forecast.candidate.mode == "native":
            shortest *= 1 - OVERHEAD
        computes = (entry.seconds - waited - coded - self._stretched(entry) for entry, (waited, coded, _) in known)
        compute = max(0.0, min(computes))
        if forecast.candidate.mode == "native":
            compute *= 1 - OVERHEAD
        quick = 1.0
        for entry, (_, _, exchanged) in known:
            if entry.saved is None:
                continue
            expected = self.forecasts[entry.position].exchange_s
            quick = min(quick, exchanged / expected) if expected else quick
        coding, exchange = SURE * (forecast.coding_s or 0.0), SURE * quick * forecast.exchange_s
        if forecast.behind is not None:
            return max(LEAST * shortest, compute + coding + max(0.0, exchange - forecast.behind * compute))
        return max(LEAST * shortest, compute + coding, exchange + AHEAD * compute)

    def _exchange_at_least(self, forecast: Forecast) -> float:
        """Return how many seconds a candidate's exchange takes at least, divided by the steps between two exchanges.

        A measured step is taken to wait for its exchange as long as it exceeds the shortest step measured and its
        own coding.

        - An exchange of fewer bytes than the measured one, or as many, takes at least its share of that wait, by bytes:
          the time for the bytes falls as they do, and latency does not fall.
        - An exchange of more bytes takes that wait, and what steps of two sizes showed that the further bytes take.
        """
        shortest = min((entry.seconds for entry in self.entries), default=0.0)
        every, share = forecast.candidate.every, exchange_share(forecast)
        bounds = [0.0]
        for entry in self.entries:
            measured = self.forecasts[entry.position]
            coded = entry.saved[1] if entry.saved else 0.0
            wait = measured.candidate.every * (entry.seconds - coded - shortest)
            measured_share = exchange_share(measured)
            if share <= measured_share:
                bounds.append(wait * share / measured_share / every)
            elif self._in_each(entry):
                bounds.append((wait + (share - measured_share) * self._slope(entry.position, above=False)) / every)
        return max(bounds)

    def _slope(self, position: int, *, above: bool) -> float:
        """Return the seconds by which a step grows with the share of dense bytes sent, above or below a candidate's.

        Above it: at most, infinite when not known. Below it: at least, without what coding alone took longer. Steps are
        compared within a family only, since families differ in what coding costs.
        """
        here = 1 / self.forecasts[position].wire_ratio
        points: dict[str, list[tuple[float, float, float]]] = {}
        for entry in self.entries:
            forecast = self.forecasts[entry.position]
            share = 1 / forecast.wire_ratio
            if share >= here if above else share <= here:
                coded = entry.saved[1] if entry.saved else 0.0
                points.setdefault(forecast.family, []).append((share, entry.seconds, coded))
        slopes = []
        for family in points.values():
            (least, quick, light), (most, slow, heavy) = min(family), max(family)
            if most > least:
                doubt = NOISE * max(slow, quick) * (1 if above else -1)
                grown = slow - quick - (0.0 if above else max(0.0, heavy - light))  # coding more is not sending more
                slopes.append((grown + doubt) / (most - least))
        return math.inf if above and not slopes else max([0.0, *slopes])


def exchange_share(forecast: Forecast) -> float:
    """Return the bytes of one exchange of a candidate, divided by those of a dense float32 exchange.

    Example:
        >>> round_of_ten = Forecast(Candidate("outer", "topk", 100.0, every=10), wire_ratio=1000.0)
        >>> exchange_share(round_of_ten)
        0.01
    """
    return forecast.candidate.every / forecast.wire_ratio


def _hides(forecast: Forecast) -> float:
    """Return the share of a step's compute that the exchange of a round may overlap with; 0 if there are no rounds."""
    return forecast.behind or 0.0
