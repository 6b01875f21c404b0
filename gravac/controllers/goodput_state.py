# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of the controller ``Goodput``, which searches for the candidate of highest goodput, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from gravac.beliefs import Belief
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import DEFAULT_STRETCH_STEPS, Measurement
from gravac.controllers.native import fits_float16
from gravac.controllers.state_dicts import Amount, Count, PositiveCount
from gravac.controllers.step_times import (
    HOOK_OVERHEAD,
    STANDARD_ERRORS,
    STEP_TIME_NOISE,
    SteadyLink,
    StepTimeBounds,
    StepTiming,
    exchange_fraction,
    overlap_fraction,
)
from gravac.controllers.window import Window

SEARCH: Final = "search"
HOLD: Final = "hold"

SMALLEST_EFFICIENCY = 1e-6
"""Efficiency that replaces smaller efficiencies, such as 0, in beliefs, which need the efficiency's logarithm."""

EARLY_END_STEPS = 3
"""Number of steps after which a trial may end early, so that a trial costs little. One more step runs before the end
takes effect. The window of the chosen candidate ends early after this many consecutive steps that are far too slow."""

FAR_SLOWER_RATIO = 2.0
"""Ratio of a step's time to a limit above which the step is *far too slow*. In a trial, the limit is the longest step
time with which the candidate would be best. Otherwise, the limit is the time that the candidate's steps took before."""

MEASURABLE_EXCHANGE_FRACTION = 0.25
"""Fraction of a step that an exchange must have taken before, so that a shorter exchange now shows a faster link. The
time of a very short exchange depends more on the pace of the ranks than on the link."""

NATIVE_STEP_DEVIATION = 0.03
"""Relative standard deviation that gravac assumes for the times of native steps (DDP exchanges by itself). The ranks
report only the median time of several successive native steps."""


@dataclass(frozen=True, slots=True)
class GoodputState:
    """State of a search for the candidate of highest goodput: steps per second times efficiency.

    Attributes:
        forecasts: forecasts of the candidates to choose from: dense first, then ascending by wire ratio.
        phase: ``"search"`` while candidates are tried, ``"hold"`` while the best runs.
        position: index, in ``forecasts``, of the candidate that runs.
        best: index, in ``forecasts``, of the best candidate measured so far.
        window: statistics of the steps since the last window ended.
        entries: newest measurement of each candidate that was measured since the link last changed.
        windows: number of windows (groups of steps after which the controller decides) that have ended.
        steps: number of training steps observed.
        elapsed: seconds of all steps since the run started, or since the last change of the link.
        spent: cost of the trials made during ``elapsed``, in seconds: the time of their steps, minus the time in which
            the best candidate makes the same progress.
        floors: ``(position, seconds)`` of each candidate that was measured before the link changed: ``seconds`` is a
            lower bound of its step time after the change.
        off: number of consecutive windows in which the chosen candidate's steps or exchanges took clearly more or less
            time than in its measurement in ``entries``.
        moved: whether the speed of the link changed since the link was probed before the first step.
        slowed: whether the link became slower at its last change; false if it became faster or never changed.
        steady_link: latest period in which nothing shows that the link changed; ``None``: not known.
        suspect: position of the candidate whose few slow steps were the only sign that the link became slower. The
            machine may have paused instead. ``None``: no such candidate, or it was timed again.
        energy: largest ``Measurement.energy`` of a hook step so far; 0: no step was measured.
        watch: number of native steps (DDP exchanges by itself) that gravac times together next, as a stretch.
        learning_rate: last learning rate that was measured; 0: none was measured.
        rose_at: number of training steps observed when the learning rate last rose; 0: it never rose, or has fallen
            since.
    """

    forecasts: tuple[Forecast, ...]
    phase: Literal["search", "hold"]
    position: Count
    best: Count
    window: Window
    entries: tuple[StepTiming, ...] = ()
    windows: Count = 0
    steps: Count = 0
    elapsed: Amount = 0.0
    spent: Amount = 0.0
    floors: tuple[tuple[Count, Amount], ...] = ()
    off: Count = 0
    moved: bool = False
    slowed: bool = False
    steady_link: SteadyLink | None = None
    suspect: Count | None = None
    energy: Amount = 0.0
    watch: PositiveCount = DEFAULT_STRETCH_STEPS
    learning_rate: Amount = 0.0
    rose_at: Count = 0

    @property
    def running(self) -> Candidate:
        """The candidate that runs."""
        return self.forecast.candidate

    @property
    def forecast(self) -> Forecast:
        """The forecast of the candidate that runs."""
        return self.forecasts[self.position]

    def count_steps(self, measured: Measurement) -> GoodputState:
        """Return the state with steps, time, learning rate and cost of trials updated by one more measurement.

        After a decision to end a trial, the tried candidate runs until the decision takes effect. ``spent`` counts each
        of these steps as a step of the trial.
        """
        seconds = measured.seconds if math.isfinite(measured.seconds) and measured.seconds > 0 else 0.0
        energy = measured.energy if math.isfinite(measured.energy) and measured.candidate.mode == "hook" else 0.0
        best_timing = self.timing(self.best)
        learning_rate = measured.learning_rate if math.isfinite(measured.learning_rate) else self.learning_rate
        rose_at = 0 if learning_rate < self.learning_rate else self.rose_at
        if 0 < self.learning_rate < learning_rate:
            rose_at = self.steps + measured.steps
        superseded_timing = self._timing_if_superseded(measured.candidate)
        lost_s = (
            0.0
            if best_timing is None or superseded_timing is None
            else measured.steps * self.seconds_lost_per_step(superseded_timing, best_timing)
        )
        return replace(
            self,
            steps=self.steps + measured.steps,
            elapsed=self.elapsed + measured.steps * seconds,
            spent=self.spent + lost_s,
            energy=max(self.energy, energy),
            learning_rate=max(0.0, learning_rate),
            rose_at=rose_at,
        )

    def seconds_lost_per_step(self, timing: StepTiming, best_timing: StepTiming) -> float:
        """Return the seconds by which a candidate's step is longer than the best candidate's time for equal progress.

        The result is 0 or more.

        Args:
            timing: measurement of the candidate.
            best_timing: measurement of the best candidate.
        """
        return max(0.0, timing.seconds - self.least_efficiency(timing.position) / self.goodput(best_timing))

    def _timing_if_superseded(self, candidate: Candidate) -> StepTiming | None:
        """Return the measurement of a candidate that still runs, although the controller decided on another candidate.

        Args:
            candidate: candidate that ran in the newest step.

        Returns:
            The measurement; ``None`` if ``candidate`` is the one decided on, or the best candidate, or not measured.
        """
        if candidate == self.running or candidate == self.forecasts[self.best].candidate:
            return None
        return next((timing for timing in self.entries if self.forecasts[timing.position].candidate == candidate), None)

    @property
    def warming_up(self) -> bool:
        """True if the learning rate may still warm up: it rose in the second half of the steps and never fell since."""
        return 0 < self.steps < 2 * self.rose_at

    def may_run(self, position: int) -> bool:
        """True if the candidate at index ``position`` of ``forecasts`` may run.

        Native float16 (DDP exchanges in float16 by itself) may run only if gradients are far from overflow. While the
        learning rate warms up, outer steps may run only if all candidates make outer steps.
        """
        candidate = self.forecasts[position].candidate
        if candidate.mode == "outer" and self.forecasts[0].candidate.mode != "outer" and self.warming_up:
            return False
        return candidate.mode != "native" or candidate.cf == 1 or fits_float16(self.energy)

    @property
    def step_time_bounds(self) -> StepTimeBounds:
        """Object that computes bounds of the step times of all candidates, from the measured step times."""
        return StepTimeBounds(
            self.forecasts, self.entries, self.floors, self.windows, self.moved, self.slowed, self.steady_link
        )

    def timing(self, position: int) -> StepTiming | None:
        """Return the measurement of the candidate at index ``position`` of ``forecasts``; ``None`` if not measured."""
        return self.step_time_bounds.timing(position)

    def is_old(self, timing: StepTiming, expire: int) -> bool:
        """True if a measurement is so old that the link may have changed; see ``StepTimeBounds.windows_until_old``."""
        return self.windows - timing.window >= self.step_time_bounds.windows_until_old(timing, expire)

    def enter_measurement(self, seconds: float, weight: float = 1.0) -> GoodputState:
        """Return the state with the running candidate's timing updated by the window that has ended.

        Args:
            seconds: median time of the candidate's steps in the window, in seconds.
            weight: weight of this window in the new mean step time, in [0, 1]; the weight of the candidate's earlier
                timing is ``1 - weight``. Without an earlier timing, ``seconds`` counts alone.
        """
        timing_before_window = self.timing(self.position)
        other_timings = tuple(timing for timing in self.entries if timing.position != self.position)
        efficiency, median_times = self.forecast.efficiency_at(self.window.gain), self.window.median_exchange_times
        standard_error_s = self.window.standard_error_s
        if self.running.mode == "native":
            standard_error_s = NATIVE_STEP_DEVIATION * seconds / math.sqrt(max(1, self.window.steps))
        timing = StepTiming(
            position=self.position,
            seconds=seconds,
            window=self.windows,
            efficiency=efficiency,
            saved=median_times,
            doubt=standard_error_s,
            forward_s=self.window.forward_s,
        )
        return replace(
            self,
            entries=(
                *other_timings,
                timing if timing_before_window is None else timing.mean_with(timing_before_window, weight),
            ),
        )

    def link_is_unchanged(self, max_change: float) -> bool:
        """True if the running candidate's exchange takes as long as before, so that the link is as fast as before.

        Args:
            max_change: relative change of the exchange time up to which the time counts as unchanged.
        """
        ratio = self._exchange_ratio(0.0)
        return ratio is not None and abs(ratio - 1) <= max_change

    def watch_link(self, seconds: float, max_change: float, expire: int) -> GoodputState:
        """Return the state with ``steady_link`` updated by the window of the chosen candidate that has ended.

        A new period begins if another candidate was chosen, or if ``SteadyLink.measure`` was another one for ``expire``
        windows. It contains the last ``expire / 4`` windows, too. Nothing changes if that number is not known, or the
        time of a forward is not.

        If native steps take as long as before, the link may have become faster unnoticed. But then fewer bytes save
        less time than before, so that native steps stay the best choice.

        Args:
            seconds: median time of the window's steps, in seconds.
            max_change: relative change of an exchange's time up to which the time counts as unchanged. For native
                steps, ``STEP_TIME_NOISE`` counts instead.
            expire: age, in windows, from which a measured step time is old.
        """
        forward_s, median_times, link = self.window.forward_s, self.window.median_exchange_times, self.steady_link
        is_native = self.running.mode == "native"
        exchange_s = 0.0 if median_times is None else median_times[2]
        if forward_s is None or not (is_native or exchange_s > 0):
            return self
        measure = seconds / forward_s if is_native else exchange_s
        if link is None or link.position != self.position or self.windows - link.until >= expire:
            since = max(0, self.windows - expire // 4)
            return replace(self, steady_link=SteadyLink(self.position, measure, since, self.windows))
        if abs(measure / link.measure - 1) > (STEP_TIME_NOISE if is_native else max_change):
            return self
        return replace(self, steady_link=replace(link, until=self.windows))

    @property
    def exchange_became_faster(self) -> bool:
        """True if the running candidate's exchange takes less than half as long as in its earlier measurement.

        The earlier exchange must have taken more than ``MEASURABLE_EXCHANGE_FRACTION`` of a step. Exchange times show a
        faster link even if backward hides the exchange, so that step times do not change.
        """
        ratio = self._exchange_ratio(MEASURABLE_EXCHANGE_FRACTION)
        return ratio is not None and ratio < 1 / 2

    def _exchange_ratio(self, min_step_fraction: float) -> float | None:
        """Return the running candidate's exchange time in this window / its exchange time in the earlier measurement.

        Args:
            min_step_fraction: fraction of a step, in [0, 1], that the exchange must have exceeded in the earlier
                measurement.

        Returns:
            The ratio; ``None`` if an exchange time is not known, or too small.
        """
        timing, median_times = self.timing(self.position), self.window.median_exchange_times
        if (
            timing is None
            or timing.saved is None
            or median_times is None
            or not timing.saved[2] > min_step_fraction * timing.seconds
        ):
            return None
        return median_times[2] / timing.saved[2]

    def at_present_speed(self) -> GoodputState:
        """Return the state with each measured step time converted to the machine's present speed.

        If a forward now takes twice as long as when a candidate was measured, the machine is half as fast, and the
        candidate's compute and coding are assumed to take twice as long. If the candidate's steps still differ from
        that, the link has changed. The state is unchanged if no forward was timed in the present window.
        """
        forward_s = self.window.forward_s
        if forward_s is None:
            return self
        return replace(self, entries=tuple(timing.at_speed(forward_s) for timing in self.entries))

    def after_drift(self, seconds: float, apply_whole_change: bool = False) -> GoodputState:
        """Return the state with measured step times adapted to the machine's speed in the window that has ended.

        The machine may have become faster or slower. The seconds of a step without its wait for the exchange show by
        which ratio. The measurements of other candidates are scaled by that ratio. Otherwise a candidate that was
        measured while the machine was faster would always look better.

        Nothing is scaled if the step time changed by at most ``STANDARD_ERRORS`` standard errors, since that may be
        chance. The wait of native steps (DDP exchanges by itself) is not known. If such steps run, the whole change of
        their time counts as a change of the machine. If a forward was timed, ``at_present_speed`` has already
        converted the measurements, and nothing is scaled here.

        Args:
            seconds: median time of the running candidate's steps in the window, in seconds.
            apply_whole_change: true: apply the whole change, even if it is within the standard errors; false: apply
                half of the change.
        """
        timing_before_window = self.timing(self.position)
        assert timing_before_window is not None
        weight = 1.0 if apply_whole_change else 0.5
        updated_state = self.enter_measurement(seconds, weight)
        if self.window.forward_s is not None:
            return updated_state
        if self.running.mode == "native":  # its wait is not known, so a small change counts as one of the machine
            work_ratio = 1 + weight * (seconds / timing_before_window.seconds - 1)
            scaled_timings = (
                timing if timing.position == self.position else timing.scale_work(work_ratio)
                for timing in updated_state.entries
            )
            return replace(updated_state, entries=tuple(scaled_timings))
        is_within_errors = abs(seconds - timing_before_window.seconds) <= STANDARD_ERRORS * math.hypot(
            timing_before_window.doubt, self.window.standard_error_s
        )
        if (
            timing_before_window.saved is None
            or self.window.median_exchange_times is None
            or (is_within_errors and not apply_whole_change)
        ):
            return updated_state
        busy_s, busy_before_s = (
            seconds - self.window.median_exchange_times[0],
            timing_before_window.seconds - timing_before_window.saved[0],
        )
        work_ratio = 1 + weight * (busy_s / busy_before_s - 1) if min(busy_s, busy_before_s) > 0 else 1.0
        scaled_timings = (
            timing if timing.position == self.position else timing.scale_work(work_ratio)
            for timing in updated_state.entries
        )
        return replace(updated_state, entries=tuple(scaled_timings))

    def belief(self, position: int, efficiency_at_gain: float | None = None) -> Belief:
        """Return the belief about a candidate's statistical efficiency.

        Args:
            position: index of the candidate in ``forecasts``.
            efficiency_at_gain: median efficiency that the forecast states for a measured gain. ``None``: the efficiency
                in the candidate's last measurement, or in the forecast if not measured.
        """
        forecast = self.forecasts[position]
        if efficiency_at_gain is None:
            candidate_timing = self.timing(position)
            efficiency_at_gain = candidate_timing.efficiency if candidate_timing else forecast.efficiency
        return Belief(max(SMALLEST_EFFICIENCY, efficiency_at_gain), forecast.deviation)

    def efficiency(self, position: int) -> float:
        """Return the median of the belief about the efficiency of the candidate at index ``position``."""
        return self.belief(position).efficiency

    def least_efficiency(self, position: int) -> float:
        """Return the lower bound of the efficiency of the candidate at index ``position``, by which Goodput decides."""
        return self.belief(position).lower_bound

    def after_link_change(self, seconds: float) -> GoodputState:
        """Return the state after the link changed: measurements of other candidates become lower bounds (``floors``).

        Say that the running candidate sends the fraction x of the dense bytes, and its steps became d seconds slower or
        faster. Another candidate sends the fraction y. Backward hides an exchange up to some number of bytes, so the
        change grows at least in proportion to the bytes:

        - Slower, y > x: the other candidate's steps became slower by at least d y / x.
        - Slower, y <= x: the other candidate's steps became no faster.
        - Faster, y <= x: the other candidate's steps became faster by at most d y / x.
        - Faster, y > x: no bound follows.

        In outer steps, the exchanges of two candidates may be in flight for different fractions of the compute. If
        steps became slower, and the other candidate's fraction is larger, its old step time is the bound. If steps
        became faster, and the other candidate's fraction is smaller, no bound follows.

        Args:
            seconds: time of a step of the running candidate since the change, in seconds.
        """
        timing_before_window = self.timing(self.position)
        assert timing_before_window is not None
        sent_fraction, slowdown_s = 1 / self.forecast.wire_ratio, seconds - timing_before_window.seconds
        floors = {}
        for timing in self.entries:
            other_sent_fraction = 1 / self.forecasts[timing.position].wire_ratio
            overlap_difference = overlap_fraction(self.forecasts[timing.position]) - overlap_fraction(self.forecast)
            if timing.position == self.position or (
                slowdown_s <= 0 and (other_sent_fraction > sent_fraction or overlap_difference < 0)
            ):
                continue
            is_proportional = (other_sent_fraction > sent_fraction) == (slowdown_s > 0) and not (
                slowdown_s > 0 and overlap_difference > 0
            )
            change_s = slowdown_s * other_sent_fraction / sent_fraction if is_proportional else 0.0
            floors[timing.position] = (1 - STEP_TIME_NOISE) * max(0.0, timing.seconds + change_s)
        return self._without_timings(tuple(floors.items()), slowed=slowdown_s > 0).enter_measurement(seconds)

    def after_slow_trial(self, seconds: float) -> GoodputState:
        """Return the state after a trial whose steps were so slow that the link must have become slower.

        All earlier measurements are dropped. The tried candidate becomes the best.

        Args:
            seconds: time of a step of the tried candidate, in seconds.
        """
        return replace(self._without_timings((), slowed=True), best=self.position).enter_measurement(seconds)

    def _without_timings(self, floors: tuple[tuple[int, float], ...], slowed: bool) -> GoodputState:
        """Return the state without measurements of step times, after the link changed.

        Args:
            floors: ``(position, seconds)`` of candidates: ``seconds`` is a lower bound of the step time after the
                change.
            slowed: whether the link became slower; the running candidate then becomes the suspect.
        """
        suspect = self.position if slowed else None
        emptied_state = replace(self, entries=(), floors=floors, off=0, spent=0.0, elapsed=0.0)
        return replace(emptied_state, moved=True, slowed=slowed, steady_link=None, suspect=suspect)

    def machine_was_paused(self, seconds: float, min_decrease: float) -> bool:
        """True if the suspect runs and its steps are fast again, so that the machine had only paused.

        The suspect is the candidate whose few slow steps were the only sign that the link became slower.

        Args:
            seconds: median time of the suspect's steps now, in seconds.
            min_decrease: relative decrease of the step time above which the steps count as fast again.
        """
        timing = self.timing(self.position)
        return self.position == self.suspect and timing is not None and seconds < (1 - min_decrease) * timing.seconds

    def without_suspect(self) -> GoodputState:
        """Return the state with ``suspect`` cleared if that candidate runs now, since its steps were timed again."""
        return replace(self, suspect=None) if self.position == self.suspect else self

    def sends_less(self, position: int, than: int) -> bool:
        """True if the candidate at index ``position`` sends fewer bytes per exchange than the one at index ``than``."""
        return exchange_fraction(self.forecasts[position]) < exchange_fraction(self.forecasts[than])

    def goodput(self, timing: StepTiming) -> float:
        """Return a measured candidate's goodput: steps per second times the lower bound of their efficiency."""
        return self.belief(timing.position, timing.efficiency).lower_bound / timing.seconds

    def largest_improvement(self, timing: StepTiming) -> float:
        """Return an upper bound of what any other candidate can gain over a measured candidate; a fraction, 0 to 1.

        The bound adds the fractions of the measured step's time that went to waiting, to coding and to gravac's hook,
        and the relative increase of progress per step with the candidate of highest efficiency.

        Args:
            timing: measurement of the candidate that the others are compared with.
        """
        waited_s, coded_s, _ = self.step_time_bounds.exchange_times(timing)
        is_hook = self.forecasts[timing.position].candidate.mode == "hook"
        has_native = any(forecast.candidate.mode == "native" for forecast in self.forecasts)
        highest_efficiency = max(forecast.least_efficiency for forecast in self.forecasts)
        progress_increase = highest_efficiency / max(self.least_efficiency(timing.position), 1e-9) - 1
        return min(
            1.0,
            (waited_s + coded_s) / timing.seconds
            + HOOK_OVERHEAD * (is_hook and has_native)
            + max(0.0, progress_increase),
        )
