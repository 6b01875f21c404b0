# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of Goodput's search for the best candidate, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from gravac.beliefs import Belief
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, Measurement
from gravac.controllers.corrected_belief import corrected_belief
from gravac.controllers.native import fits_float16
from gravac.controllers.progress import Learned, Trials
from gravac.controllers.state_dicts import Amount, Count, Positive
from gravac.controllers.step_times import (
    HOOK_OVERHEAD,
    STANDARD_ERRORS,
    STEP_TIME_NOISE,
    GoodputEntry,
    StepTimeBounds,
    exchange_fraction,
    overlap_fraction,
)
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

MEASURABLE_EXCHANGE_FRACTION = 0.25
"""Smallest fraction of a step that an exchange must have taken, if a later, shorter exchange is to show a faster link.
The time of a very short exchange varies with the ranks' pace."""

NATIVE_STEP_DEVIATION = 0.03
"""Relative standard deviation assumed for the steps of a native stretch, of which the ranks report only the median."""


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

    @property
    def times(self) -> StepTimeBounds:
        """Measured step times, and bounds of those of other candidates."""
        return StepTimeBounds(self.forecasts, self.entries, self.floors, self.windows, self.moved, self.slowed)

    def entry(self, position: int) -> GoodputEntry | None:
        """Return the measurement of the candidate at ``position``; ``None`` if the candidate was not measured."""
        return self.times.entry(position)

    def enter_measurement(self, seconds: float, weight: float = 1.0) -> GoodputState:
        """Return the state with the running candidate's measurement in the window that ends.

        Args:
            seconds: median time of the candidate's steps in the window, in seconds.
            weight: weight of this window in the mean step time, in [0, 1]; the candidate's earlier measurement, if any,
                has the rest.
        """
        entry_before_window = self.entry(self.position)
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
            self,
            entries=(
                *other_entries,
                entry if entry_before_window is None else entry.mean_with(entry_before_window, weight),
            ),
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

        The exchange must have taken more than the fraction ``MEASURABLE_EXCHANGE_FRACTION`` of a step before. The time
        of the exchange shows a faster link even if backward hides the exchange, so that step times do not change.
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
        entry_before_window = self.entry(self.position)
        assert entry_before_window is not None
        weight = 1.0 if at_once else 0.5
        updated_state = self.enter_measurement(seconds, weight)
        if self.running.mode == "native":  # how long it waits is not known: a small change counts as the machine's
            ratio = 1 + weight * (seconds / entry_before_window.seconds - 1)
            entries = (
                entry if entry.position == self.position else entry.scale_work(ratio) for entry in updated_state.entries
            )
            return replace(updated_state, entries=tuple(entries))
        is_within_errors = abs(seconds - entry_before_window.seconds) <= STANDARD_ERRORS * math.hypot(
            entry_before_window.doubt, self.window.doubt
        )
        if entry_before_window.saved is None or self.window.median_times is None or (is_within_errors and not at_once):
            return updated_state
        busy_s, busy_before_s = (
            seconds - self.window.median_times[0],
            entry_before_window.seconds - entry_before_window.saved[0],
        )
        ratio = 1 + weight * (busy_s / busy_before_s - 1) if min(busy_s, busy_before_s) > 0 else 1.0
        entries = (
            entry if entry.position == self.position else entry.scale_work(ratio) for entry in updated_state.entries
        )
        return replace(updated_state, entries=tuple(entries))

    def belief(self, position: int, by_gain: float | None = None) -> Belief:
        """Return the belief about a candidate's statistical efficiency, corrected by this run's switchback trials.

        Args:
            position: index of the candidate in ``forecasts``.
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
        entry_before_window = self.entry(self.position)
        assert entry_before_window is not None
        fraction, slowdown_s = 1 / self.forecast.wire_ratio, seconds - entry_before_window.seconds
        floors = {}
        for entry in self.entries:
            other_fraction = 1 / self.forecasts[entry.position].wire_ratio
            more_overlap = overlap_fraction(self.forecasts[entry.position]) - overlap_fraction(self.forecast)
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

    def largest_gain(self, entry: GoodputEntry) -> float:
        """Return an upper bound of what another candidate can gain, as a fraction of a measured step's time; at most 1.

        Another candidate can save time, and can make more progress in a step.
        """
        waited_s, coded_s, _ = self.times.exchange_times(entry)
        is_hook = self.forecasts[entry.position].candidate.mode == "hook"
        has_native = any(forecast.candidate.mode == "native" for forecast in self.forecasts)
        highest_efficiency = max(forecast.least_efficiency for forecast in self.forecasts)
        more_progress = highest_efficiency / max(self.least_efficiency(entry.position), 1e-9) - 1
        return min(
            1.0,
            (waited_s + coded_s) / entry.seconds + HOOK_OVERHEAD * (is_hook and has_native) + max(0.0, more_progress),
        )
