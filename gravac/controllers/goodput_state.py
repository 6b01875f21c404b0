# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of Goodput's search for the best candidate, as plain data, and bounds on step times of candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gravac.beliefs import Belief
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, Measurement
from gravac.controllers.corrected_belief import corrected_belief
from gravac.controllers.native import fits_float16
from gravac.controllers.progress import Learned, Trials
from gravac.controllers.state_dicts import Above0, Amount, Count, Finite, Positive
from gravac.controllers.window import Window

SEARCH: Final = "search"
HOLD: Final = "hold"
PROGRESS: Final = "progress"

FEW_STEPS = 3
"""Number of steps after which a trial may be given up at little cost; one more step runs before that takes effect. This
many consecutive steps, all far too slow, also end the window of the chosen candidate."""

FAR_SLOWER_RATIO = 2.0
"""Ratio of a step's time to a limit, above which the step is far too slow. The limit is the time that the candidate's
steps took before, or in a trial the longest time with which the candidate would be best. After ``FEW_STEPS``
consecutive steps that are far too slow the window ends."""

STEP_TIME_NOISE = 0.12
"""Relative difference of two step times that shows nothing about the link, since coding may cause it: quantizers of 1
and of 2 bits differ in coding."""

CHEAPER_CODING_RATIO = 0.5
"""Smallest assumed ratio of step times of two families of compressors that send equally many bytes. The family whose
coding is cheaper saves at most the rest of the step time."""

SHORTEST_TO_PREDICTED_RATIO = 0.8
"""Coding and exchange are assumed to take at least this fraction of the time predicted before the first step."""

FORWARD_FRACTION = 1 / 3
"""Fraction of a step's compute that is the forward pass, which hides no exchange."""

SHORTEST_STEP_RATIO_ON_UNKNOWN_LINK = 0.4
"""A step that sends less than a measured step is assumed to take at least this fraction of the measured time, while the
link's speed is not known."""

SHORTEST_STEP_RATIO = 0.01
"""A step that sends less than a measured step is assumed to take at least this fraction of the measured time, on any
link."""

MEASURABLE_EXCHANGE_FRACTION = 0.25
"""Smallest fraction of a step that an exchange must have taken, if a later, shorter exchange is to show a faster link.
The time of a very short exchange varies with the ranks' pace."""

STANDARD_ERRORS = 2
"""Number of standard errors by which a measured step time may be off."""

NATIVE_STEP_DEVIATION = 0.03
"""Relative standard deviation assumed for the steps of a native stretch, of which the ranks report only the median."""

HOOK_OVERHEAD = 0.2
"""Upper bound of the cost of gravac's hook besides coding, as a fraction of a step. Native steps, which run without the
hook, may save as much although they send more."""


@dataclass(frozen=True, slots=True)
class GoodputEntry:
    """The measurement of a candidate that ran.

    Attributes:
        position: position of the candidate in the list of candidates.
        seconds: median time of the candidate's steps.
        window: number of the window in which the candidate was measured; old measurements expire.
        efficiency: statistical efficiency of the candidate's steps, corrected by the measured gain.
        saved: ``(waited, coded, exchanged)``: median seconds of a step in each, see ``Measurement``; ``None`` if not
            known.
        doubt: standard error of ``seconds``, in seconds, from the spread of the step times.
        times: number of windows that ``seconds`` is a mean over.
    """

    position: Count
    seconds: Above0
    window: Count
    efficiency: Finite
    saved: tuple[Amount, Amount, Amount] | None = None
    doubt: Amount = 0.0
    times: Count = 1

    def mean_with(self, earlier: GoodputEntry, weight: float) -> GoodputEntry:
        """Return this entry with the weighted mean of its ``seconds`` and those of an earlier entry of the candidate.

        Args:
            earlier: the earlier entry.
            weight: weight of this entry, in [0, 1]; the earlier entry has the rest.

        Example:
            >>> earlier, newer = GoodputEntry(1, 0.2, 3, 0.9), GoodputEntry(1, 0.1, 4, 0.9)
            >>> round(newer.mean_with(earlier, weight=0.5).seconds, 3)
            0.15
        """
        seconds = earlier.seconds + weight * (self.seconds - earlier.seconds)
        doubt = math.hypot((1 - weight) * earlier.doubt, weight * self.doubt)
        return replace(self, seconds=seconds, doubt=doubt, times=earlier.times + 1)

    def scale_work(self, ratio: float) -> GoodputEntry:
        """Return this entry as if the machine took ``ratio`` times as long to compute and to code, but not to wait.

        Example:
            >>> entry = GoodputEntry(1, 0.3, 0, 0.9, saved=(0.1, 0.05, 0.15))  # waits 0.1 s of 0.3 s for bytes
            >>> entry.scale_work(2).seconds  # 0.2 s of work take twice as long, waiting does not
            0.5
        """
        saved = None if self.saved is None else (self.saved[0], ratio * self.saved[1], self.saved[2])
        waited_s = 0.0 if self.saved is None else self.saved[0]
        return replace(self, seconds=waited_s + ratio * (self.seconds - waited_s), saved=saved)


@dataclass(frozen=True, slots=True)
class GoodputState:
    """The state of a search for the candidate of highest goodput.

    Attributes:
        forecasts: forecasts of the candidates to choose from: dense first, then ascending by wire ratio.
        phase: ``"search"`` while candidates are tried, ``"hold"`` while the best runs, ``"progress"`` while switchback
            trials measure a candidate's progress.
        position: position of the candidate that runs, in ``forecasts``.
        best: position of the best candidate measured, in ``forecasts``.
        window: current window of steps.
        entries: newest measurement of each candidate that ran.
        windows: number of windows ended so far.
        steps: number of steps observed.
        elapsed: seconds of all steps since the run started, or since the link changed last.
        spent: seconds, in the same steps, that trials took beyond the best candidate's time for the same progress.
        floors: ``(position, seconds)`` of candidates that were measured before the link changed: lower bound of the
            time of a step after the change.
        off: number of consecutive windows in which the chosen candidate's steps, or its exchanges, took clearly longer
            or shorter than its measurement in ``entries`` says.
        moved: whether the link changed after its speed was probed.
        slowed: whether the link became slower, and not faster, at its last change.
        suspect: position of the candidate whose few slow steps alone showed that the link became slower; ``None`` if
            there is none, or it was timed again. The machine, not the link, may have paused.
        energy: largest energy of a measured step, see ``Measurement``; 0: no step was measured.
        watch: number of training steps of the next native stretch.
        learning_rate: last learning rate that was measured; 0 if none was.
        rose_at: number of steps observed when the learning rate rose last; 0: it never rose.
        trials: current switchback trials (steps of a candidate between steps of another, with the loss read around
            them); ``None``: no trials.
        learned: results of the switchback trials of each candidate that had some.
        booked: progress that all switchback trials have cost, in steps of the best candidate.
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
    watch: Positive = DEFAULT_STRETCH_STEPS
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

    def count_steps(self, measured: Measurement) -> GoodputState:
        """Return the state with the training steps, the time and the cost of one more measurement counted.

        After the decision to end a trial, the trial's candidate runs until the decision takes effect. Each of these
        steps costs as much as a measured step of the trial.
        """
        seconds = measured.seconds if math.isfinite(measured.seconds) and measured.seconds > 0 else 0.0
        energy = measured.energy if math.isfinite(measured.energy) and measured.candidate.mode == "hook" else 0.0
        best_entry = self.entry(self.best)
        learning_rate = measured.learning_rate if math.isfinite(measured.learning_rate) else self.learning_rate
        rate_rose = 0 < self.learning_rate < learning_rate
        superseded_entry = self._entry_of_superseded(measured.candidate)
        lost_s = (
            0.0
            if best_entry is None or superseded_entry is None
            else measured.steps * self.seconds_lost_per_step(superseded_entry, best_entry)
        )
        return replace(
            self,
            steps=self.steps + measured.steps,
            elapsed=self.elapsed + measured.steps * seconds,
            spent=self.spent + lost_s,
            energy=max(self.energy, energy),
            learning_rate=max(0.0, learning_rate),
            rose_at=self.steps + measured.steps if rate_rose else self.rose_at,
        )

    def seconds_lost_per_step(self, entry: GoodputEntry, best: GoodputEntry) -> float:
        """Return the seconds by which a candidate's step exceeds the best candidate's time for the same progress.

        Args:
            entry: measurement of the candidate.
            best: measurement of the best candidate.
        """
        return max(0.0, entry.seconds - self.least_efficiency(entry.position) / self.goodput(best))

    def _entry_of_superseded(self, candidate: Candidate) -> GoodputEntry | None:
        """Return the measurement of a candidate that ran in a step although another candidate was already decided on.

        ``None`` if ``candidate`` is the one decided on, or the best candidate, or was not measured.
        """
        if candidate == self.running or candidate == self.forecasts[self.best].candidate:
            return None
        return next((entry for entry in self.entries if self.forecasts[entry.position].candidate == candidate), None)

    @property
    def warming_up(self) -> bool:
        """True if the learning rate may still warm up: it rose within the latter half of the steps so far."""
        return 0 < self.steps < 2 * self.rose_at

    def may_run(self, position: int) -> bool:
        """True if the candidate at ``position`` may run.

        Native float16 may run only while gradients are far from overflow. Outer steps may not run while the learning
        rate warms up, unless all candidates are outer steps.
        """
        candidate = self.forecasts[position].candidate
        if candidate.mode == "outer" and self.forecasts[0].candidate.mode != "outer" and self.warming_up:
            return False
        return candidate.mode != "native" or candidate.cf == 1 or fits_float16(self.energy)

    def entry(self, position: int) -> GoodputEntry | None:
        """Return the measurement of the candidate at ``position``; ``None`` if the candidate was not measured."""
        return next((entry for entry in self.entries if entry.position == position), None)

    def enter_measurement(self, seconds: float, weight: float = 1.0) -> GoodputState:
        """Return the state with the running candidate's measurement in the window that ends.

        Args:
            seconds: median time of the candidate's steps in the window, in seconds.
            weight: weight of this window in the mean step time, in [0, 1]; the candidate's earlier measurement, if any,
                has the rest.
        """
        earlier_entry = self.entry(self.position)
        other_entries = tuple(entry for entry in self.entries if entry.position != self.position)
        efficiency, saved = self.forecast.efficiency_at(self.window.gain), self.window.median_times
        doubt = self.window.doubt
        if self.running.mode == "native":
            doubt = NATIVE_STEP_DEVIATION * seconds / math.sqrt(max(1, self.window.steps))
        entry = GoodputEntry(
            position=self.position,
            seconds=seconds,
            window=self.windows,
            efficiency=efficiency,
            saved=saved,
            doubt=doubt,
        )
        return replace(
            self, entries=(*other_entries, entry if earlier_entry is None else entry.mean_with(earlier_entry, weight))
        )

    def link_is_unchanged(self, change: float) -> bool:
        """True if the running candidate's exchange takes as long as before: the machine changed, not the link.

        Args:
            change: largest relative change of the exchange time that does not count.
        """
        ratio = self._exchange_ratio(0.0)
        return ratio is not None and abs(ratio - 1) <= change

    @property
    def exchange_became_faster(self) -> bool:
        """True if the running candidate's exchange takes less than half as long as when it was measured before.

        The exchange must have taken more than the fraction ``MEASURABLE_EXCHANGE_FRACTION`` of a step. A shorter
        exchange shows a faster link even if backward hides the exchange, and step times show nothing.
        """
        ratio = self._exchange_ratio(MEASURABLE_EXCHANGE_FRACTION)
        return ratio is not None and ratio < 1 / 2

    def _exchange_ratio(self, smallest: float) -> float | None:
        """Return the running candidate's exchange time in this window / its exchange time in the earlier measurement.

        Args:
            smallest: fraction of a step that the exchange time in the earlier measurement must exceed.

        Returns:
            The ratio; ``None`` if an exchange time is not known, or too small.
        """
        entry, medians = self.entry(self.position), self.window.median_times
        if entry is None or entry.saved is None or medians is None or not entry.saved[2] > smallest * entry.seconds:
            return None
        return medians[2] / entry.saved[2]

    def after_drift(self, seconds: float, at_once: bool = False) -> GoodputState:
        """Return the state after another window of the running candidate, adapted to a drift of the machine's speed.

        The seconds in which a step did not wait for bytes show how much faster or slower the machine became.
        Measurements of other candidates are scaled by that ratio; otherwise a candidate measured in a faster minute
        would look better for ever. A change within the standard errors of both windows is no drift: if one lucky trial
        made the candidate the best, the other measurements must not be scaled for that.

        Args:
            seconds: median time of the running candidate's steps in the window, in seconds.
            at_once: whether to apply the whole change; otherwise half of it.
        """
        earlier_entry = self.entry(self.position)
        assert earlier_entry is not None
        weight = 1.0 if at_once else 0.5
        updated_state = self.enter_measurement(seconds, weight)
        if self.running.mode == "native":  # how long it waits is not known: a small change counts as the machine's
            ratio = 1 + weight * (seconds / earlier_entry.seconds - 1)
            entries = (
                entry if entry.position == self.position else entry.scale_work(ratio) for entry in updated_state.entries
            )
            return replace(updated_state, entries=tuple(entries))
        is_within_errors = abs(seconds - earlier_entry.seconds) <= STANDARD_ERRORS * math.hypot(
            earlier_entry.doubt, self.window.doubt
        )
        if earlier_entry.saved is None or self.window.median_times is None or (is_within_errors and not at_once):
            return updated_state
        busy_s, earlier_busy_s = seconds - self.window.median_times[0], earlier_entry.seconds - earlier_entry.saved[0]
        ratio = 1 + weight * (busy_s / earlier_busy_s - 1) if min(busy_s, earlier_busy_s) > 0 else 1.0
        entries = (
            entry if entry.position == self.position else entry.scale_work(ratio) for entry in updated_state.entries
        )
        return replace(updated_state, entries=tuple(entries))

    def belief(self, position: int, by_gain: float | None = None) -> Belief:
        """Return the belief about a candidate's statistical efficiency, corrected by this run's switchback trials.

        Args:
            position: position of the candidate.
            by_gain: efficiency that the forecast states for a measured gain; ``None``: the efficiency of the
                candidate's last measurement, or of the forecast if the candidate was not measured.
        """
        forecast = self.forecasts[position]
        if by_gain is None:
            measured_entry = self.entry(position)
            by_gain = measured_entry.efficiency if measured_entry else forecast.efficiency
        return corrected_belief(self.forecasts, position, by_gain, self.learned)

    def trial_results(self, position: int) -> Learned | None:
        """Return the results of a candidate's switchback trials; ``None`` if there were no trials."""
        return next((learned for learned in self.learned if learned.candidate == position), None)

    def was_tried(self, position: int) -> bool:
        """True if switchback trials have measured a candidate's progress."""
        learned = self.trial_results(position)
        return learned is not None and learned.trials > 0

    def efficiency(self, position: int) -> float:
        """Return a candidate's efficiency: the median of ``belief``."""
        return self.belief(position).efficiency

    def least_efficiency(self, position: int) -> float:
        """Return the lower bound of a candidate's efficiency by ``belief``."""
        return self.belief(position).lower_bound

    def after_link_change(self, seconds: float) -> GoodputState:
        """Return the state after the link changed: the old measurements become lower bounds of step times.

        Let the running candidate send the fraction x of the dense bytes, and its step time change by d seconds.
        Backward hides the exchange up to some number of bytes, so the change grows at least in proportion to the bytes
        sent:

        - If steps became slower by d, steps that send the fraction y are slower by at least d y / x if y > x, and no
          faster otherwise.
        - If steps became faster by d, steps that send the fraction y are faster by at most d y / x if y < x; otherwise
          no bound follows.

        The exchanges of two candidates may overlap with different fractions of their compute. If steps became slower, a
        candidate whose exchange overlaps with more than the running candidate's keeps its old time as bound. If steps
        became faster, a candidate whose exchange overlaps with less gets no bound.

        Args:
            seconds: time of a step of the running candidate since the change, in seconds.
        """
        earlier_entry = self.entry(self.position)
        assert earlier_entry is not None
        fraction, slowdown_s = 1 / self.forecast.wire_ratio, seconds - earlier_entry.seconds
        floors = {}
        for entry in self.entries:
            other_fraction = 1 / self.forecasts[entry.position].wire_ratio
            more_overlap = _overlap(self.forecasts[entry.position]) - _overlap(self.forecast)
            if entry.position == self.position or (slowdown_s <= 0 and (other_fraction > fraction or more_overlap < 0)):
                continue
            is_proportional = (other_fraction > fraction) == (slowdown_s > 0) and not (
                slowdown_s > 0 and more_overlap > 0
            )
            change_s = slowdown_s * other_fraction / fraction if is_proportional else 0.0
            floors[entry.position] = (1 - STEP_TIME_NOISE) * max(0.0, entry.seconds + change_s)
        return self._without_entries(tuple(floors.items()), slowed=slowdown_s > 0).enter_measurement(seconds)

    def after_slow_trial(self, seconds: float) -> GoodputState:
        """Return the state after a trial whose steps were so slow that the link must have become slower.

        The only measurement in the state is that of the tried candidate: ``seconds`` a step.
        """
        return replace(self._without_entries((), slowed=True), best=self.position).enter_measurement(seconds)

    def _without_entries(self, floors: tuple[tuple[int, float], ...], slowed: bool) -> GoodputState:
        """Return the state without measurements, after the link changed.

        Args:
            floors: ``(position, seconds)``: lower bounds of step times since the change.
            slowed: whether the link became slower.
        """
        suspect = self.position if slowed else None
        emptied_state = replace(self, entries=(), floors=floors, off=0, spent=0.0, elapsed=0.0)
        return replace(emptied_state, moved=True, slowed=slowed, suspect=suspect)

    def machine_was_paused(self, seconds: float, change: float) -> bool:
        """True if the suspect runs, and its steps take clearly less time than when the link seemed to become slower.

        The suspect is the candidate whose few slow steps alone showed a slower link. If its steps are fast again, the
        machine had only paused.

        Args:
            seconds: median time of the suspect's steps now, in seconds.
            change: smallest relative change of a step's time that counts.
        """
        entry = self.entry(self.position)
        return self.position == self.suspect and entry is not None and seconds < (1 - change) * entry.seconds

    def without_suspect(self) -> GoodputState:
        """Return the state without ``suspect`` if that candidate runs, since its steps are timed again now."""
        return replace(self, suspect=None) if self.position == self.suspect else self

    def sends_less(self, position: int, than: int) -> bool:
        """True if the candidate at ``position`` has fewer bytes in an exchange than the candidate at ``than``."""
        return exchange_fraction(self.forecasts[position]) < exchange_fraction(self.forecasts[than])

    def goodput(self, entry: GoodputEntry) -> float:
        """Return a measured candidate's goodput: steps per second times the lower bound of their efficiency."""
        return self.belief(entry.position, entry.efficiency).lower_bound / entry.seconds

    def longest_step_seconds(self, position: int) -> float:
        """Return an upper bound of the seconds of a candidate's step; 0 if nothing was measured.

        The bound assumes that the whole time of a measured exchange grows with the bytes. If the time of an exchange is
        not known, the whole step counts as exchange.
        """
        forecast = self.forecasts[position]
        measured_entry = self.entry(position)

        def upper_bound(entry: GoodputEntry) -> float:
            measured_forecast = self.forecasts[entry.position]
            waited_s, _, exchanged_s = self.exchange_times(entry)
            hidden_s = max(0.0, exchanged_s - waited_s) if _overlap(forecast) < _overlap(measured_forecast) else 0.0
            coding_s = 0.0
            if measured_forecast.candidate.mode == "native":
                coding_s = (forecast.coding_s or 0.0) + HOOK_OVERHEAD / 2 * entry.seconds
            more_bytes = max(0.0, measured_forecast.wire_ratio / forecast.wire_ratio - 1)
            grown_s = entry.seconds + hidden_s + coding_s + exchanged_s * more_bytes
            if forecast.candidate.mode == "native" and forecast.exchange_s is not None and not self.moved:
                return min(grown_s, entry.seconds - waited_s + forecast.exchange_s * max(1.0, self._link_slowdown(max)))
            return grown_s

        return min(
            (upper_bound(entry) for entry in ((measured_entry,) if measured_entry else self.entries)), default=0.0
        )

    def exchange_times(self, entry: GoodputEntry) -> tuple[float, float, float]:
        """Return ``(waited, coded, exchanged)``: upper bounds of a measured step's seconds, see ``Measurement``.

        If the three times are not known, each bound is the whole step time. A native step codes nothing, and waits for
        no longer than its exchange should take.
        """
        if entry.saved is not None:
            return entry.saved
        forecast = self.forecasts[entry.position]
        if forecast.candidate.mode != "native":
            return (entry.seconds,) * 3
        exchange_s = math.inf if forecast.exchange_s is None else forecast.exchange_s * self._link_slowdown(min)
        return min(entry.seconds, exchange_s), 0.0, min(entry.seconds, exchange_s)

    def _link_slowdown(self, select: Callable[[Sequence[float]], float]) -> float:
        """Return the measured time of an exchange / the time forecast by the link's probe.

        1 if no exchange was measured and the link has not changed; infinite if none was measured since the link
        changed.

        Args:
            select: ``min`` or ``max``, which selects from the ratios of all measured candidates. Some ratios are large
                because ranks wait for each other.
        """
        ratios = [
            entry.saved[2] / expected
            for entry in self.entries
            if entry.saved is not None and (expected := self.forecasts[entry.position].exchange_s)
        ]
        return select(ratios) if ratios else math.inf if self.moved else 1.0

    def has_unbounded_time(self, position: int) -> bool:
        """True if no measurement bounds the time of a candidate's step from above, on a link that became slower.

        That is so if the candidate's exchange has more bytes than every exchange that was timed since the change. Once
        exchanges of two sizes were timed, every time has a bound: their difference shows the time of further bytes.
        """
        largest_fraction = max(
            (exchange_fraction(self.forecasts[entry.position]) for entry in self.entries), default=0.0
        )
        return (
            self.slowed and not self._two_sizes_timed and exchange_fraction(self.forecasts[position]) > largest_fraction
        )

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

    def leaving_seconds(self, forecast: Forecast) -> float:
        """Return the seconds that the ranks take to leave a candidate's outer steps; they send the whole model dense.

        While the link is as probed, these are the forecast's seconds. After the link changed, the forecast is
        multiplied by the growth of a dense exchange. If too few exchanges were timed to know that growth, the growth of
        the timed exchanges counts. That growth is too large if these exchanges are small, since much of their time is
        latency.
        """
        if not self.moved:
            return forecast.leaving_s or 0.0
        dense, growth = self.forecasts[0], self._link_slowdown(min)
        dense_growth = self._shortest_exchange(dense) / dense.exchange_s if dense.exchange_s else 1.0
        if self._two_sizes_timed or growth == math.inf:
            growth = 1.0
        return max(dense_growth, growth) * (forecast.leaving_s or 0.0)

    def waiting_fraction(self, entry: GoodputEntry) -> float:
        """Return the fraction of a measured step's time spent waiting for bytes: sending less can save no more."""
        waited_s, _, _ = self.exchange_times(entry)
        return waited_s / entry.seconds

    def largest_gain(self, entry: GoodputEntry) -> float:
        """Return an upper bound of what another candidate can gain, as a fraction of a measured step's time; at most 1.

        Another candidate can save time, and can make more progress in a step.
        """
        waited_s, coded_s, _ = self.exchange_times(entry)
        is_hook = self.forecasts[entry.position].candidate.mode == "hook"
        has_native = any(forecast.candidate.mode == "native" for forecast in self.forecasts)
        highest_efficiency = max(forecast.least_efficiency for forecast in self.forecasts)
        more_progress = highest_efficiency / max(self.least_efficiency(entry.position), 1e-9) - 1
        return min(
            1.0,
            (waited_s + coded_s) / entry.seconds + HOOK_OVERHEAD * (is_hook and has_native) + max(0.0, more_progress),
        )

    def shortest_step_seconds(self, position: int, expire: int) -> float:
        """Return a lower bound of the seconds of a candidate's step, by the measurements so far.

        A measured candidate takes at least its measured time minus ``STANDARD_ERRORS`` standard errors. That bound
        halves each time ``expire`` windows have passed. For a candidate that was not measured, each measured step of
        other candidates gives a bound:

        - Sending less saves at most the time that the measured step waited. Another family of compressors may also save
          the coding of the measured step, and takes its own coding.
        - Step time is convex in the bytes sent: constant while backward hides the exchange, then linear. So a slope
          measured between two numbers of bytes is a lower bound of the slope above them, and an upper bound of the
          slope below.
        - A candidate whose exchange may overlap with more of the steps may not wait at all, however many bytes it
          sends. Its bound is the time of the measured step without the wait and without ``_compute_growth``.

        Args:
            position: position of the candidate.
            expire: number of windows after which the lower bound by a measured step time halves.
        """
        forecast = self.forecasts[position]
        measured_entry = self.entry(position)
        if measured_entry is not None:
            shortest_s = max(
                measured_entry.seconds / 2, measured_entry.seconds - STANDARD_ERRORS * measured_entry.doubt
            )
            return shortest_s * 0.5 ** ((self.windows - measured_entry.window) // expire)
        bounds = [floor for floor_position, floor in self.floors if floor_position == position]
        bounds.append(self._shortest_by_probe(forecast))
        for entry in self.entries:
            measured_forecast = self.forecasts[entry.position]
            waited_s, coded_s, _ = self.exchange_times(entry)
            shortest_s = entry.seconds
            if forecast.candidate.mode == "native" and measured_forecast.candidate.mode != "native":
                shortest_s -= HOOK_OVERHEAD * entry.seconds
            if forecast.family != measured_forecast.family:
                coding_s = SHORTEST_TO_PREDICTED_RATIO * (forecast.coding_s or 0.0)
                shortest_s += coding_s - min(coded_s, (1 - CHEAPER_CODING_RATIO) * entry.seconds)
            more_bytes = 1 / forecast.wire_ratio - 1 / measured_forecast.wire_ratio
            more_overlap = _overlap(forecast) > _overlap(measured_forecast)
            if more_bytes < 0 or more_overlap:
                bounds.append(shortest_s - waited_s - self._compute_growth(entry))
            if more_overlap:
                continue
            bounds.append(shortest_s + more_bytes * self._slope(entry.position, above=more_bytes < 0))
        return max(bounds)

    def _compute_growth(self, entry: GoodputEntry) -> float:
        """Return the seconds by which a measured step's compute exceeds the compute measured before the first exchange.

        An exchange that overlaps with outer steps shares processors with them. A candidate that sends less may avoid
        that. The result is 0 if the exchange does not overlap with outer steps, or if one of the times is not known.
        """
        forecast = self.forecasts[entry.position]
        if entry.saved is None or forecast.compute_s is None or not _overlap(forecast):
            return 0.0
        waited_s, coded_s, _ = entry.saved
        return max(0.0, entry.seconds - waited_s - coded_s - forecast.compute_s)

    def _shortest_by_probe(self, forecast: Forecast) -> float:
        """Return a lower bound of the seconds of a candidate's step, by the link's probe and exchanges since then.

        - Forward hides no exchange. Outer steps hide an exchange for no longer than it may be in flight
          (``Forecast.behind``).
        - A step takes at least the compute of the measured steps, without their waiting and coding, and its own coding.
        """
        shortest_s = min((entry.seconds for entry in self.entries), default=0.0)
        measured_entries = [entry for entry in self.entries if entry.saved is not None]
        native_entries = [entry for entry in self.entries if self.forecasts[entry.position].candidate.mode == "native"]
        timed_entries = [(entry, self.exchange_times(entry)) for entry in measured_entries or native_entries]
        if self.moved or forecast.exchange_s is None or not timed_entries:
            exchange_s = SHORTEST_TO_PREDICTED_RATIO * self._shortest_exchange(forecast)
            return max(SHORTEST_STEP_RATIO_ON_UNKNOWN_LINK * shortest_s, exchange_s / max(1.0, _overlap(forecast)))
        if forecast.candidate.mode == "native":
            shortest_s *= 1 - HOOK_OVERHEAD
        compute_times_s = (
            entry.seconds - waited_s - coded_s - self._compute_growth(entry)
            for entry, (waited_s, coded_s, _) in timed_entries
        )
        compute_s = max(0.0, min(compute_times_s))
        if forecast.candidate.mode == "native":
            compute_s *= 1 - HOOK_OVERHEAD
        exchange_ratio = 1.0  # smallest exchange time measured / predicted; 1 or less
        for entry, (_, _, exchanged_s) in timed_entries:
            if entry.saved is None:
                continue
            expected_s = self.forecasts[entry.position].exchange_s
            exchange_ratio = min(exchange_ratio, exchanged_s / expected_s) if expected_s else exchange_ratio
        coding_s = SHORTEST_TO_PREDICTED_RATIO * (forecast.coding_s or 0.0)
        exchange_s = SHORTEST_TO_PREDICTED_RATIO * exchange_ratio * forecast.exchange_s
        if forecast.behind is not None:
            return max(
                SHORTEST_STEP_RATIO * shortest_s,
                compute_s + coding_s + max(0.0, exchange_s - forecast.behind * compute_s),
            )
        return max(SHORTEST_STEP_RATIO * shortest_s, compute_s + coding_s, exchange_s + FORWARD_FRACTION * compute_s)

    def _shortest_exchange(self, forecast: Forecast) -> float:
        """Return a lower bound of the seconds of a candidate's exchange, divided by the steps between two exchanges.

        The wait of a measured step for its exchange is estimated as the step's time, minus the time of the shortest
        measured step, minus the step's own coding.

        - An exchange of as many bytes as the measured one, or fewer, takes at least that wait times the ratio of their
          bytes: the time of the bytes falls in proportion, and latency does not fall.
        - An exchange of more bytes takes at least that wait plus the time of the further bytes. The latter follows from
          measured steps that send two different numbers of bytes (``_slope``).
        """
        shortest_s = min((entry.seconds for entry in self.entries), default=0.0)
        every, fraction = forecast.candidate.every, exchange_fraction(forecast)
        bounds = [0.0]
        for entry in self.entries:
            measured_forecast = self.forecasts[entry.position]
            coded_s = entry.saved[1] if entry.saved else 0.0
            wait_s = measured_forecast.candidate.every * (entry.seconds - coded_s - shortest_s)
            measured_fraction = exchange_fraction(measured_forecast)
            if fraction <= measured_fraction:
                bounds.append(wait_s * fraction / measured_fraction / every)
            elif self._exchanges_in_each_step(entry):
                bounds.append(
                    (wait_s + (fraction - measured_fraction) * self._slope(entry.position, above=False)) / every
                )
        return max(bounds)

    def _slope(self, position: int, *, above: bool) -> float:
        """Return the slope of step time: seconds by which a step grows per fraction of the dense bytes that it sends.

        Steps are compared within a family of compressors only, since coding costs differ between families.

        Args:
            position: position of a measured candidate, whose bytes limit which steps are compared.
            above: True: return an upper bound, by steps that send as much as that candidate or more; infinite if not
                known. False: return a lower bound, by steps that send as much or less, without the growth of coding.
        """
        fraction = 1 / self.forecasts[position].wire_ratio
        points_by_family: dict[str, list[tuple[float, float, float]]] = {}
        for entry in self.entries:
            forecast = self.forecasts[entry.position]
            measured_fraction = 1 / forecast.wire_ratio
            if measured_fraction >= fraction if above else measured_fraction <= fraction:
                coding_s = entry.saved[1] if entry.saved else 0.0
                points_by_family.setdefault(forecast.family, []).append((measured_fraction, entry.seconds, coding_s))
        slopes = []
        for points in points_by_family.values():
            (low_fraction, low_step_s, low_coding_s), (high_fraction, high_step_s, high_coding_s) = (
                min(points),
                max(points),
            )
            if high_fraction > low_fraction:
                noise_s = STEP_TIME_NOISE * max(high_step_s, low_step_s) * (1 if above else -1)
                more_coding_s = 0.0 if above else max(0.0, high_coding_s - low_coding_s)  # coding is no exchange
                grown_s = high_step_s - low_step_s - more_coding_s
                slopes.append((grown_s + noise_s) / (high_fraction - low_fraction))
        return math.inf if above and not slopes else max([0.0, *slopes])


def exchange_fraction(forecast: Forecast) -> float:
    """Return the bytes of one exchange of a candidate / the bytes of a dense float32 exchange.

    Example:
        >>> topk_every_10 = Forecast(Candidate("outer", "topk", 100.0, every=10), wire_ratio=1000.0)
        >>> exchange_fraction(topk_every_10)
        0.01
    """
    return forecast.candidate.every / forecast.wire_ratio


def _overlap(forecast: Forecast) -> float:
    """Return the fraction of outer steps' compute that their exchange may overlap with; 0 for other candidates."""
    return forecast.behind or 0.0
