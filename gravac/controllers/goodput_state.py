# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of Goodput's search, as plain data, and bounds on the step time of candidates that have not run."""

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
from gravac.controllers.progress import Learned, Trials
from gravac.controllers.state_dicts import Above0, Amount, Count, Finite, Positive
from gravac.controllers.window import Window

SEARCH: Final = "search"
HOLD: Final = "hold"
PROGRESS: Final = "progress"

FEW_STEPS = 3
"""Number of steps after which a trial may be given up at little cost; one more step runs before that takes effect. As
many consecutive steps, all far too slow, end the window of the candidate that is held."""

BROKEN = 2.0
"""Ratio of a step's time to the time that it took before, or may take, above which the step is far too slow: after
``FEW_STEPS`` such consecutive steps the window ends."""

NOISE = 0.12
"""Relative difference of two step times below which they tell nothing about the link: 1 bit and 2 bits differ in
coding."""

CHEAPER_CODING = 0.5
"""Step time of a family that codes more cheaply than another family and sends as many bytes, over the other family's
step time: lower bound."""

SHORTEST_OF_PREDICTED = 0.8
"""Actual time of coding and exchange, over the time predicted before the first step: lower bound."""

FORWARD = 1 / 3
"""Fraction of a step's compute that is the forward pass, which hides no exchange."""

SHORTEST_ON_UNKNOWN_LINK = 0.4
"""Time of a step that sends less than a measured step, over the measured time: lower bound while the link is not
known."""

SHORTEST = 0.01
"""Time of a step that sends less than a measured step, over the measured time: lower bound on any link."""

MEASURABLE_EXCHANGE = 0.25
"""Smallest fraction of a step that an exchange must take if a shorter exchange is to show a faster link. The time of a
shorter exchange varies with the ranks' pace."""

DOUBTS = 2
"""Number of standard errors by which a measured step time may be wrong."""

SPREAD = 0.03
"""Relative standard deviation assumed for the steps of a native stretch, of which the ranks report only the median."""

OVERHEAD = 0.2
"""Cost of the hook besides coding, as a fraction of a step: upper bound. Native steps may save as much although they
send more."""


@dataclass(frozen=True, slots=True)
class GoodputEntry:
    """The measurement of a candidate that ran.

    Attributes:
        position: position of the candidate in the list of candidates.
        seconds: median time of the candidate's steps.
        window: number of the window in which the candidate was measured; old measurements expire.
        efficiency: statistical efficiency of the candidate's steps, corrected by the measured gain.
        saved: seconds that a step waited, coded and exchanged, see ``Measurement``; ``None`` if not known.
        doubt: standard error of ``seconds``, from the spread of the step times.
        times: number of windows that ``seconds`` is a mean of.
    """

    position: Count
    seconds: Above0
    window: Count
    efficiency: Finite
    saved: tuple[Amount, Amount, Amount] | None = None
    doubt: Amount = 0.0
    times: Count = 1

    def pooled(self, earlier: GoodputEntry, weight: float) -> GoodputEntry:
        """Return the mean of this entry and an earlier entry of the same candidate.

        Args:
            earlier: the earlier entry.
            weight: weight of this entry, in [0, 1].

        Example:
            >>> earlier, newer = GoodputEntry(1, 0.2, 3, 0.9), GoodputEntry(1, 0.1, 4, 0.9)
            >>> round(newer.pooled(earlier, weight=0.5).seconds, 3)
            0.15
        """
        seconds = earlier.seconds + weight * (self.seconds - earlier.seconds)
        doubt = math.hypot((1 - weight) * earlier.doubt, weight * self.doubt)
        return replace(self, seconds=seconds, doubt=doubt, times=earlier.times + 1)

    def scaled(self, ratio: float) -> GoodputEntry:
        """Return the entry as measured on a machine that takes ``ratio`` times as long to compute and to code.

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
        position: position of the candidate that runs, in ``forecasts``.
        best: position of the best candidate measured, in ``forecasts``.
        window: current window.
        entries: newest measurement of each candidate that ran.
        windows: number of windows ended so far.
        steps: number of steps observed.
        elapsed: seconds of all steps.
        spent: seconds that trials took beyond those of the best candidate for the same progress.
        floors: ``(position, seconds)`` of candidates measured before the link changed: lower bound of a step's seconds
            since then.
        off: number of consecutive windows in which the step time of the candidate that is held differed from its
            earlier step time.
        moved: whether the link changed since it was probed.
        slowed: whether the link became slower, and not faster, when it changed last.
        suspect: position of the candidate whose few slow steps alone showed that the link became slower, until the
            candidate is timed again: the machine may have paused; ``None``: no such candidate.
        energy: largest energy of a measured step, see ``Measurement``; 0: no step was measured.
        watch: number of training steps of the next native stretch.
        learning_rate: last learning rate that was measured; 0 if none was.
        rose_at: number of steps observed when the learning rate rose last; 0: it never rose.
        trials: current switchback trials; ``None``: no trials.
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

        A trial's candidate still runs until the decision to end the trial takes effect. These steps cost as much as the
        measured steps of the trial.
        """
        seconds = measured.seconds if math.isfinite(measured.seconds) and measured.seconds > 0 else 0.0
        energy = measured.energy if math.isfinite(measured.energy) and measured.candidate.mode == "hook" else 0.0
        best = self.entry(self.best)
        rate = measured.learning_rate if math.isfinite(measured.learning_rate) else self.learning_rate
        rose = 0 < self.learning_rate < rate
        superseded = self._superseded(measured.candidate)
        lost = 0.0 if best is None or superseded is None else measured.steps * self.seconds_lost(superseded, best)
        return replace(
            self,
            steps=self.steps + measured.steps,
            elapsed=self.elapsed + measured.steps * seconds,
            spent=self.spent + lost,
            energy=max(self.energy, energy),
            learning_rate=max(0.0, rate),
            rose_at=self.steps + measured.steps if rose else self.rose_at,
        )

    def seconds_lost(self, entry: GoodputEntry, best: GoodputEntry) -> float:
        """Return the seconds by which a candidate's step is longer than the best candidate's time for its progress."""
        return max(0.0, entry.seconds - self.least_efficiency(entry.position) / self.goodput(best))

    def _superseded(self, candidate: Candidate) -> GoodputEntry | None:
        """Return the measurement of a candidate that ran although another candidate was already decided on.

        ``None`` if the candidate is the one decided on, or the best, or was not measured.
        """
        if candidate == self.running or candidate == self.forecasts[self.best].candidate:
            return None
        return next((entry for entry in self.entries if self.forecasts[entry.position].candidate == candidate), None)

    @property
    def warming_up(self) -> bool:
        """True if the learning rate may still warm up: it rose within the latter half of the steps so far."""
        return 0 < self.steps < 2 * self.rose_at

    def allowed(self, position: int) -> bool:
        """True if a candidate may run.

        Native float16 may run only while gradients are far from overflow. Outer steps may not run while the learning
        rate warms up, unless all candidates are outer steps.
        """
        candidate = self.forecasts[position].candidate
        if candidate.mode == "outer" and self.forecasts[0].candidate.mode != "outer" and self.warming_up:
            return False
        return candidate.mode != "native" or candidate.cf == 1 or fits_float16(self.energy)

    def entry(self, position: int) -> GoodputEntry | None:
        """Return the measurement of a candidate; ``None`` if the candidate has not run."""
        return next((entry for entry in self.entries if entry.position == position), None)

    def enter(self, seconds: float, weight: float = 1.0) -> GoodputState:
        """Return the state with the measurement of the running candidate in the window that ends.

        Args:
            seconds: median time of the candidate's steps in the window.
            weight: weight of this window in the entry, in [0, 1]; the candidate's earlier entry, if any, has the rest.
        """
        earlier = self.entry(self.position)
        others = tuple(entry for entry in self.entries if entry.position != self.position)
        efficiency, saved = self.forecast.efficiency_at(self.window.gain), self.window.median_times
        doubt = self.window.doubt
        if self.running.mode == "native":
            doubt = SPREAD * seconds / math.sqrt(max(1, self.window.steps))
        entry = GoodputEntry(
            position=self.position,
            seconds=seconds,
            window=self.windows,
            efficiency=efficiency,
            saved=saved,
            doubt=doubt,
        )
        return replace(self, entries=(*others, entry if earlier is None else entry.pooled(earlier, weight)))

    def same_link(self, change: float) -> bool:
        """True if the running candidate's exchange takes as long as it did, so that the machine changed.

        Args:
            change: relative change of the exchange time up to which it counts as the same.
        """
        ratio = self._exchange_ratio(0.0)
        return ratio is not None and abs(ratio - 1) <= change

    @property
    def freed(self) -> bool:
        """True if the running candidate's exchange was a good part of its steps, and now takes less than half as long.

        If backward hides the exchange, step times do not show that the link became faster.
        """
        ratio = self._exchange_ratio(MEASURABLE_EXCHANGE)
        return ratio is not None and ratio < 1 / 2

    def _exchange_ratio(self, smallest: float) -> float | None:
        """Return the running candidate's exchange time in this window over that in its entry.

        Args:
            smallest: fraction of a step that the exchange in the entry must exceed.

        Returns:
            The ratio; ``None`` if an exchange time is not known, or too small.
        """
        entry, times = self.entry(self.position), self.window.median_times
        if entry is None or entry.saved is None or times is None or not entry.saved[2] > smallest * entry.seconds:
            return None
        return times[2] / entry.saved[2]

    def drift(self, seconds: float, at_once: bool = False) -> GoodputState:
        """Return the state with another window of the running candidate, and the others' entries scaled likewise.

        The seconds in which a step did not wait for bytes show how much faster or slower the machine became. Entries of
        other candidates are scaled by that ratio; otherwise a candidate measured in a faster minute would look better
        for ever. A change within the standard errors of both windows is no drift: if one lucky trial made the candidate
        the best, the others must not be scaled for that.

        Args:
            seconds: median time of the running candidate's steps in the window.
            at_once: whether to apply the whole change; otherwise half of it.
        """
        earlier = self.entry(self.position)
        assert earlier is not None
        weight = 1.0 if at_once else 0.5
        updated = self.enter(seconds, weight)
        if self.running.mode == "native":  # its waiting is not known: a small change is attributed to the machine
            ratio = 1 + weight * (seconds / earlier.seconds - 1)
            others = (entry if entry.position == self.position else entry.scaled(ratio) for entry in updated.entries)
            return replace(updated, entries=tuple(others))
        by_chance = abs(seconds - earlier.seconds) <= DOUBTS * math.hypot(earlier.doubt, self.window.doubt)
        if earlier.saved is None or self.window.median_times is None or (by_chance and not at_once):
            return updated
        busy, earlier_busy = seconds - self.window.median_times[0], earlier.seconds - earlier.saved[0]
        ratio = 1 + weight * (busy / earlier_busy - 1) if min(busy, earlier_busy) > 0 else 1.0
        others = (entry if entry.position == self.position else entry.scaled(ratio) for entry in updated.entries)
        return replace(updated, entries=tuple(others))

    def belief(self, position: int, by_gain: float | None = None) -> Belief:
        """Return the belief about a candidate's statistical efficiency, corrected by this run's trials.

        Args:
            position: position of the candidate.
            by_gain: efficiency by a measured gain; ``None``: that of the candidate's last measurement, or of the
                forecast if the candidate has not run.
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
        """True if trials have measured a candidate's progress."""
        learned = self.learned_of(position)
        return learned is not None and learned.trials > 0

    def efficiency(self, position: int) -> float:
        """Return the median of ``belief``."""
        return self.belief(position).efficiency

    def least_efficiency(self, position: int) -> float:
        """Return the lower bound of ``belief``."""
        return self.belief(position).lower_bound

    def changed(self, seconds: float) -> GoodputState:
        """Return the state after the link changed: without measurements, but with bounds that follow from them.

        Let a step be slower by d if the fraction x of the dense bytes is sent. Backward hides the exchange up to some
        number of bytes, so the change of a step's time grows at least in proportion to that fraction:

        - If steps became slower by d, steps that send the fraction y are slower by at least d y / x if y > x, and no
          faster otherwise.
        - If steps became faster by d, steps that send the fraction y are faster by at most d y / x if y < x; otherwise
          no bound follows.

        For a candidate whose exchange overlaps with more or less of the steps, a bound is used only if that difference
        does not weaken it.

        Args:
            seconds: seconds of a step of the running candidate since the change.
        """
        earlier = self.entry(self.position)
        assert earlier is not None
        fraction, slowdown = 1 / self.forecast.wire_ratio, seconds - earlier.seconds
        floors = {}
        for entry in self.entries:
            other_fraction = 1 / self.forecasts[entry.position].wire_ratio
            more_overlap = _overlap(self.forecasts[entry.position]) - _overlap(self.forecast)
            if entry.position == self.position or (slowdown <= 0 and (other_fraction > fraction or more_overlap < 0)):
                continue
            scales = (other_fraction > fraction) == (slowdown > 0) and not (slowdown > 0 and more_overlap > 0)
            change = slowdown * other_fraction / fraction if scales else 0.0
            floors[entry.position] = (1 - NOISE) * max(0.0, entry.seconds + change)
        return self._without_entries(tuple(floors.items()), slowed=slowdown > 0).enter(seconds)

    def slower(self, seconds: float) -> GoodputState:
        """Return the state after a trial whose steps were so slow that the link must have become slower.

        The state has only the measurement of the candidate that was tried, with ``seconds`` a step.
        """
        return replace(self._without_entries((), slowed=True), best=self.position).enter(seconds)

    def _without_entries(self, floors: tuple[tuple[int, float], ...], slowed: bool) -> GoodputState:
        """Return the state without the measurements from before the link changed, but with lower bounds."""
        suspect = self.position if slowed else None
        emptied = replace(self, entries=(), floors=floors, off=0, spent=0.0, elapsed=0.0)
        return replace(emptied, moved=True, slowed=slowed, suspect=suspect)

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
        """True if an exchange of the candidate at ``position`` has fewer bytes than that of candidate ``than``."""
        return exchange_fraction(self.forecasts[position]) < exchange_fraction(self.forecasts[than])

    def goodput(self, entry: GoodputEntry) -> float:
        """Return the goodput of a measured candidate: steps per second times the lower bound of their efficiency."""
        return self.belief(entry.position, entry.efficiency).lower_bound / entry.seconds

    def slowest(self, position: int) -> float:
        """Return an upper bound of the seconds of a candidate's step, as if all measured exchange grew with bytes.

        If the time of an exchange is not known, the whole step counts as exchange.
        """
        forecast = self.forecasts[position]
        measured = self.entry(position)

        def upper_bound(entry: GoodputEntry) -> float:
            measured_forecast = self.forecasts[entry.position]
            waited, _, exchanged = self.times(entry)
            hidden = max(0.0, exchanged - waited) if _overlap(forecast) < _overlap(measured_forecast) else 0.0
            coding = 0.0
            if measured_forecast.candidate.mode == "native":
                coding = (forecast.coding_s or 0.0) + OVERHEAD / 2 * entry.seconds
            more_bytes = max(0.0, measured_forecast.wire_ratio / forecast.wire_ratio - 1)
            grown = entry.seconds + hidden + coding + exchanged * more_bytes
            if forecast.candidate.mode == "native" and forecast.exchange_s is not None and not self.moved:
                return min(grown, entry.seconds - waited + forecast.exchange_s * max(1.0, self._link_slowdown(max)))
            return grown

        return min((upper_bound(entry) for entry in ((measured,) if measured else self.entries)), default=0.0)

    def times(self, entry: GoodputEntry) -> tuple[float, float, float]:
        """Return upper bounds of the seconds that a step waited, coded and exchanged; the whole step if not known.

        A native step codes nothing, and waits for no longer than its exchange should take.
        """
        if entry.saved is not None:
            return entry.saved
        forecast = self.forecasts[entry.position]
        if forecast.candidate.mode != "native":
            return (entry.seconds,) * 3
        exchange = math.inf if forecast.exchange_s is None else forecast.exchange_s * self._link_slowdown(min)
        return min(entry.seconds, exchange), 0.0, min(entry.seconds, exchange)

    def _link_slowdown(self, select: Callable[[Sequence[float]], float]) -> float:
        """Return exchange time measured / forecast; 1 if no exchange was measured since the link was probed.

        Infinite if the link has changed and no exchange was measured since then.

        Args:
            select: ``min`` or ``max`` of the ratios of several candidates. Some ratios are large because ranks wait for
                each other.
        """
        ratios = [
            entry.saved[2] / expected
            for entry in self.entries
            if entry.saved is not None and (expected := self.forecasts[entry.position].exchange_s)
        ]
        return select(ratios) if ratios else math.inf if self.moved else 1.0

    def risky(self, position: int) -> bool:
        """True if no measurement bounds the time of a candidate's step on a link that became slower.

        True if the candidate's exchange has more bytes than every exchange that was timed since the change. Once
        exchanges of two sizes were timed, no candidate is risky: their difference shows the time of further bytes.
        """
        largest = max((exchange_fraction(self.forecasts[entry.position]) for entry in self.entries), default=0.0)
        return self.slowed and not self._two_sizes_timed and exchange_fraction(self.forecasts[position]) > largest

    @property
    def _two_sizes_timed(self) -> bool:
        """True if two candidates that exchange in each step, and send different numbers of bytes, were timed."""
        wire_ratios = {
            self.forecasts[entry.position].wire_ratio for entry in self.entries if self._exchanges_in_each_step(entry)
        }
        return len(wire_ratios) > 1

    def _exchanges_in_each_step(self, entry: GoodputEntry) -> bool:
        """True if a measured candidate exchanges in each step."""
        return self.forecasts[entry.position].candidate.every == 1

    def leaving(self, forecast: Forecast) -> float:
        """Return the seconds that the ranks need to leave outer steps: they send everything dense.

        While the link is as probed, these are the seconds forecast. After the link changed, they grow as a dense
        exchange does. If too few exchanges were timed to know that growth, they grow as the timed exchanges did. For
        small exchanges that is too much, since much of their time is latency.
        """
        if not self.moved:
            return forecast.leaving_s or 0.0
        dense, growth = self.forecasts[0], self._link_slowdown(min)
        dense_growth = self._shortest_exchange(dense) / dense.exchange_s if dense.exchange_s else 1.0
        if self._two_sizes_timed or growth == math.inf:
            growth = 1.0
        return max(dense_growth, growth) * (forecast.leaving_s or 0.0)

    def exposed(self, entry: GoodputEntry) -> float:
        """Return the fraction of a measured step that waits for bytes: an upper bound of what sending less can save."""
        waited, _, _ = self.times(entry)
        return waited / entry.seconds

    def at_stake(self, entry: GoodputEntry) -> float:
        """Return an upper bound of what another candidate can gain, as a fraction of a measured step.

        Another candidate can save time, and make more progress in a step.
        """
        waited, coded, _ = self.times(entry)
        hook = self.forecasts[entry.position].candidate.mode == "hook"
        native = any(forecast.candidate.mode == "native" for forecast in self.forecasts)
        highest_efficiency = max(forecast.least_efficiency for forecast in self.forecasts)
        more_progress = highest_efficiency / max(self.least_efficiency(entry.position), 1e-9) - 1
        return min(1.0, (waited + coded) / entry.seconds + OVERHEAD * (hook and native) + max(0.0, more_progress))

    def fastest(self, position: int, expire: int) -> float:
        """Return a lower bound of the seconds of a candidate's step, by what is measured.

        A candidate that was measured takes at least its measured time less its doubt. That bound halves after
        ``expire`` windows, and again after as many more. For a candidate that was not measured, each measured step
        gives a bound:

        - Sending less saves at most the time that the measured step waited. Another family may also save the coding
          of the measured step, and takes its own coding.
        - Step time is convex in the bytes sent: constant while backward hides the exchange, then linear. So a slope
          measured between two numbers of bytes is a lower bound of the slope above them, and an upper bound of the
          slope below.
        - If more of a candidate's exchange may overlap with steps, it waits for nothing at best, whatever it sends.

        Args:
            position: position of the candidate.
            expire: number of windows after which a measurement's bound halves.
        """
        forecast = self.forecasts[position]
        measured = self.entry(position)
        if measured is not None:
            shortest = max(measured.seconds / 2, measured.seconds - DOUBTS * measured.doubt)
            return shortest * 0.5 ** ((self.windows - measured.window) // expire)
        bounds = [floor for floor_position, floor in self.floors if floor_position == position]
        bounds.append(self._shortest_by_probe(forecast))
        for entry in self.entries:
            measured_forecast = self.forecasts[entry.position]
            waited, coded, _ = self.times(entry)
            shortest = entry.seconds
            if forecast.candidate.mode == "native" and measured_forecast.candidate.mode != "native":
                shortest -= OVERHEAD * entry.seconds
            if forecast.family != measured_forecast.family:
                coding = SHORTEST_OF_PREDICTED * (forecast.coding_s or 0.0)
                shortest += coding - min(coded, (1 - CHEAPER_CODING) * entry.seconds)
            more_bytes = 1 / forecast.wire_ratio - 1 / measured_forecast.wire_ratio
            more_overlap = _overlap(forecast) > _overlap(measured_forecast)
            if more_bytes < 0 or more_overlap:
                bounds.append(shortest - waited - self._compute_growth(entry))
            if more_overlap:
                continue
            bounds.append(shortest + more_bytes * self._slope(entry.position, above=more_bytes < 0))
        return max(bounds)

    def _compute_growth(self, entry: GoodputEntry) -> float:
        """Return the seconds by which a measured step's compute was longer than before the first exchange.

        An exchange that overlaps with steps shares processors with them. A candidate that sends less may not.
        """
        forecast = self.forecasts[entry.position]
        if entry.saved is None or forecast.compute_s is None or not _overlap(forecast):
            return 0.0
        waited, coded, _ = entry.saved
        return max(0.0, entry.seconds - waited - coded - forecast.compute_s)

    def _shortest_by_probe(self, forecast: Forecast) -> float:
        """Return a lower bound of the seconds of a step, by the link's probe and the exchanges measured since.

        - Forward hides no exchange. Steps hide an exchange of a round for no longer than it may be in flight
          (``Forecast.behind``).
        - A step takes at least the compute of the measured steps, without their waiting and coding, and its own coding.
        """
        shortest = min((entry.seconds for entry in self.entries), default=0.0)
        measured = [entry for entry in self.entries if entry.saved is not None]
        native = [entry for entry in self.entries if self.forecasts[entry.position].candidate.mode == "native"]
        timed = [(entry, self.times(entry)) for entry in measured or native]
        if self.moved or forecast.exchange_s is None or not timed:
            exchange = SHORTEST_OF_PREDICTED * self._shortest_exchange(forecast)
            return max(SHORTEST_ON_UNKNOWN_LINK * shortest, exchange / max(1.0, _overlap(forecast)))
        if forecast.candidate.mode == "native":
            shortest *= 1 - OVERHEAD
        computes = (entry.seconds - waited - coded - self._compute_growth(entry) for entry, (waited, coded, _) in timed)
        compute = max(0.0, min(computes))
        if forecast.candidate.mode == "native":
            compute *= 1 - OVERHEAD
        slowdown = 1.0  # smallest exchange time measured / predicted; 1 or less
        for entry, (_, _, exchanged) in timed:
            if entry.saved is None:
                continue
            expected = self.forecasts[entry.position].exchange_s
            slowdown = min(slowdown, exchanged / expected) if expected else slowdown
        coding = SHORTEST_OF_PREDICTED * (forecast.coding_s or 0.0)
        exchange = SHORTEST_OF_PREDICTED * slowdown * forecast.exchange_s
        if forecast.behind is not None:
            return max(SHORTEST * shortest, compute + coding + max(0.0, exchange - forecast.behind * compute))
        return max(SHORTEST * shortest, compute + coding, exchange + FORWARD * compute)

    def _shortest_exchange(self, forecast: Forecast) -> float:
        """Return a lower bound of the seconds of a candidate's exchange / the steps between two of its exchanges.

        The bound assumes that a measured step waits for its exchange as long as it exceeds the shortest step measured
        and its own coding.

        - An exchange of as many bytes as the measured one, or fewer, takes at least that wait times the ratio of their
          bytes: the time of the bytes falls in proportion, and latency does not fall.
        - An exchange of more bytes takes that wait, and the time of the further bytes by steps of two sizes.
        """
        shortest = min((entry.seconds for entry in self.entries), default=0.0)
        every, fraction = forecast.candidate.every, exchange_fraction(forecast)
        bounds = [0.0]
        for entry in self.entries:
            measured = self.forecasts[entry.position]
            coded = entry.saved[1] if entry.saved else 0.0
            wait = measured.candidate.every * (entry.seconds - coded - shortest)
            measured_fraction = exchange_fraction(measured)
            if fraction <= measured_fraction:
                bounds.append(wait * fraction / measured_fraction / every)
            elif self._exchanges_in_each_step(entry):
                bounds.append(
                    (wait + (fraction - measured_fraction) * self._slope(entry.position, above=False)) / every
                )
        return max(bounds)

    def _slope(self, position: int, *, above: bool) -> float:
        """Return the seconds by which a step grows with the fraction of dense bytes sent.

        Steps are compared within a family only, since coding costs differ between families.

        Args:
            position: position of the candidate from whose fraction on steps are compared.
            above: True: an upper bound, by steps that send as much or more; infinite if not known. False: a lower
                bound, by steps that send as much or less, without the difference that coding alone makes.
        """
        fraction = 1 / self.forecasts[position].wire_ratio
        points: dict[str, list[tuple[float, float, float]]] = {}
        for entry in self.entries:
            forecast = self.forecasts[entry.position]
            measured_fraction = 1 / forecast.wire_ratio
            if measured_fraction >= fraction if above else measured_fraction <= fraction:
                coded = entry.saved[1] if entry.saved else 0.0
                points.setdefault(forecast.family, []).append((measured_fraction, entry.seconds, coded))
        slopes = []
        for family in points.values():
            (low, low_seconds, low_coded), (high, high_seconds, high_coded) = min(family), max(family)
            if high > low:
                doubt = NOISE * max(high_seconds, low_seconds) * (1 if above else -1)
                more_coding = 0.0 if above else max(0.0, high_coded - low_coded)  # coding more is not sending more
                grown = high_seconds - low_seconds - more_coding
                slopes.append((grown + doubt) / (high - low))
        return math.inf if above and not slopes else max([0.0, *slopes])


def exchange_fraction(forecast: Forecast) -> float:
    """Return the bytes of one exchange of a candidate / the bytes of a dense float32 exchange.

    Example:
        >>> round_of_ten = Forecast(Candidate("outer", "topk", 100.0, every=10), wire_ratio=1000.0)
        >>> exchange_fraction(round_of_ten)
        0.01
    """
    return forecast.candidate.every / forecast.wire_ratio


def _overlap(forecast: Forecast) -> float:
    """Return the fraction of a step's compute that a round's exchange may overlap with; 0 without rounds."""
    return forecast.behind or 0.0
