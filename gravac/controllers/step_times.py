# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measured step times of candidates, and bounds that follow for the step times of candidates that did not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gravac.candidate import Forecast
from gravac.controllers.state_dicts import Above0, Amount, Count, Finite

STEP_TIME_NOISE = 0.12
"""Relative difference of two step times up to which the difference says nothing about the link, since coding (encode
and decode) may cause it. For example, quantizers of 1 bit and of 2 bits differ in the time of coding."""

CHEAPER_CODING_RATIO = 0.5
"""Smallest ratio that gravac assumes between the step times of two families of compressors that send equally many
bytes. At 0.5, a family with cheaper coding (encode and decode) saves at most half of a step."""

SHORTEST_TO_PREDICTED_RATIO = 0.8
"""Gravac assumes that coding and exchange take at least this fraction of the time predicted before the first step."""

FORWARD_FRACTION = 1 / 3
"""Fraction of a step's compute time that forward takes; no exchange is in flight during forward."""

SHORTEST_STEP_RATIO_ON_UNKNOWN_LINK = 0.4
"""Lower bound of a candidate's step time while the speed of the link is not known: this fraction of the shortest
measured step time."""

SHORTEST_STEP_RATIO = 0.01
"""Lower bound of a candidate's step time on any link: this fraction of the shortest measured step time."""

STANDARD_ERRORS = 2
"""Number of standard errors by which a measured step time may differ from the true step time."""

STEADY_AGE_RATIO = 4
"""Measured step times stay valid this many times as long if exchanges show that the link has not changed. They become
old in any case, since step times may change for other reasons."""

HOOK_OVERHEAD = 0.2
"""Upper bound of the time that gravac's hook costs besides coding, as a fraction of a step. Native steps (DDP exchanges
by itself, without the hook) may save up to this fraction, although they send more bytes."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Measured step time of a candidate that ran.

    Attributes:
        position: index of the candidate in ``StepTimeBounds.forecasts``.
        seconds: median time of the candidate's steps, in seconds; a mean of such medians after several windows.
        window: number of windows that had ended when the candidate was measured; shows how old the measurement is.
        efficiency: assumed statistical efficiency of the candidate's steps at the gain that was measured.
        saved: ``(waited, coded, exchanged)``: median seconds of a step, see ``Measurement``; ``None`` if not known.
        doubt: standard error of ``seconds``, in seconds, from the spread of the step times.
        times: number of windows over which ``seconds`` is averaged.
        forward_s: time of a forward, in seconds, when the step was measured; ``None`` if it was not timed. If
            ``seconds`` is adapted to a faster or slower machine, so is this time.
    """

    position: Count
    seconds: Above0
    window: Count
    efficiency: Finite
    saved: tuple[Amount, Amount, Amount] | None = None
    doubt: Amount = 0.0
    times: Count = 1
    forward_s: Above0 | None = None

    def mean_with(self, earlier: StepTiming, weight: float) -> StepTiming:
        """Return this timing with the weighted mean of its ``seconds`` and the ``seconds`` of an earlier timing.

        Both timings are of the same candidate.

        Args:
            earlier: the earlier timing.
            weight: weight of this timing, in [0, 1]; the weight of ``earlier`` is ``1 - weight``.

        Example:
            >>> earlier, newer = StepTiming(1, 0.2, 3, 0.9), StepTiming(1, 0.1, 4, 0.9)
            >>> round(newer.mean_with(earlier, weight=0.5).seconds, 3)
            0.15
        """
        seconds = earlier.seconds + weight * (self.seconds - earlier.seconds)
        doubt = math.hypot((1 - weight) * earlier.doubt, weight * self.doubt)
        return replace(self, seconds=seconds, doubt=doubt, times=earlier.times + 1)

    def scale_work(self, ratio: float) -> StepTiming:
        """Return this timing for a machine that takes ``ratio`` times as long for compute and coding.

        The time of waiting for the exchange stays the same.

        Example:
            >>> timing = StepTiming(1, 0.3, 0, 0.9, saved=(0.1, 0.05, 0.15))  # waits 0.1 s of 0.3 s for bytes
            >>> timing.scale_work(2).seconds  # 0.2 s of work take twice as long, waiting does not
            0.5
        """
        saved = None if self.saved is None else (self.saved[0], ratio * self.saved[1], self.saved[2])
        waited_s = 0.0 if self.saved is None else self.saved[0]
        forward_s = None if self.forward_s is None else ratio * self.forward_s
        return replace(self, seconds=waited_s + ratio * (self.seconds - waited_s), saved=saved, forward_s=forward_s)

    def at_speed(self, forward_s: float) -> StepTiming:
        """Return this timing, converted to the speed of a machine on which a forward takes ``forward_s`` seconds.

        If no forward was timed when the step was measured, the step time is kept, and ``forward_s`` is stored with it.

        Example:
            >>> StepTiming(0, 0.3, 0, 1.0, forward_s=0.1).at_speed(0.2).seconds
            0.6
            >>> StepTiming(0, 0.3, 0, 1.0).at_speed(0.2).seconds
            0.3
        """
        if self.forward_s is None:
            return replace(self, forward_s=forward_s)
        return self.scale_work(forward_s / self.forward_s)


@dataclass(frozen=True, slots=True)
class SteadyLink:
    """Period in which nothing shows that the link changed: a candidate's exchange took as long as at first.

    If the candidate makes native steps, whose exchange is not timed, the time of the whole step counts instead, over
    the time of a forward, which tells the machine's speed.

    Attributes:
        position: index of the candidate in ``StepTimeBounds.forecasts``.
        measure: seconds of an exchange in the first window; or time of a native step / time of a forward.
        since: number of windows that had ended when the period began. It begins shortly before the first window, and so
            contains the trials that led to the choice of the candidate.
        until: number of windows that had ended after the last window in which ``measure`` was about the same.
    """

    position: Count
    measure: Above0
    since: Count
    until: Count


@dataclass(frozen=True, slots=True)
class StepTimeBounds:
    """Lower and upper bounds of the step times of all candidates, computed from measured step times of some candidates.

    Attributes:
        forecasts: forecasts of all candidates: dense first, then ascending by wire ratio.
        timings: newest measurement of each candidate that was measured since the link last changed.
        floors: ``(position, seconds)`` of each candidate that was measured before the link changed: ``seconds`` is a
            lower bound of its step time after the change.
        windows: number of windows (groups of steps after which the controller decides) that have ended.
        link_changed: whether the speed of the link changed since the link was probed before the first step.
        link_slowed: whether the link became slower at its last change; false if it became faster or never changed.
        steady_link: latest period in which nothing shows that the link changed; ``None``: not known.
    """

    forecasts: tuple[Forecast, ...]
    timings: tuple[StepTiming, ...]
    floors: tuple[tuple[int, float], ...]
    windows: int
    link_changed: bool
    link_slowed: bool
    steady_link: SteadyLink | None = None

    def timing(self, position: int) -> StepTiming | None:
        """Return the measurement of the candidate at index ``position`` of ``forecasts``; ``None`` if not measured."""
        return next((timing for timing in self.timings if timing.position == position), None)

    def longest_step_seconds(self, position: int) -> float:
        """Return an upper bound of the seconds of a candidate's step; 0 if no candidate was measured.

        The bound assumes that the time of an exchange grows in proportion to the bytes sent, without a fixed part. If
        the time of a measured exchange is not known, the time of the whole step is used.

        Args:
            position: index of the candidate in ``forecasts``.
        """
        forecast = self.forecasts[position]
        candidate_timing = self.timing(position)

        def upper_bound_s(timing: StepTiming) -> float:
            measured_forecast = self.forecasts[timing.position]
            waited_s, _, exchanged_s = self.exchange_times(timing)
            hidden_s = (
                max(0.0, exchanged_s - waited_s)
                if overlap_fraction(forecast) < overlap_fraction(measured_forecast)
                else 0.0
            )
            coding_s = 0.0
            if measured_forecast.candidate.mode == "native":
                coding_s = (forecast.coding_s or 0.0) + HOOK_OVERHEAD / 2 * timing.seconds
            byte_growth = max(0.0, measured_forecast.wire_ratio / forecast.wire_ratio - 1)
            grown_s = timing.seconds + hidden_s + coding_s + exchanged_s * byte_growth
            if forecast.candidate.mode == "native" and forecast.exchange_s is not None and not self.link_changed:
                return min(
                    grown_s, timing.seconds - waited_s + forecast.exchange_s * max(1.0, self._link_slowdown(max))
                )
            return grown_s

        return min(
            (upper_bound_s(timing) for timing in ((candidate_timing,) if candidate_timing else self.timings)),
            default=0.0,
        )

    def exchange_times(self, timing: StepTiming) -> tuple[float, float, float]:
        """Return upper bounds of a measured step's seconds ``(waited, coded, exchanged)``, see ``Measurement``.

        If the three times were measured, these are returned. If not, each bound is the whole step time, except for a
        native step (DDP exchanges by itself). For a native step, the bound of coding is 0. The other two bounds are the
        forecast time of its exchange, corrected by the measured speed of the link, but at most the step time.
        """
        if timing.saved is not None:
            return timing.saved
        forecast = self.forecasts[timing.position]
        if forecast.candidate.mode != "native":
            return (timing.seconds,) * 3
        exchange_s = math.inf if forecast.exchange_s is None else forecast.exchange_s * self._link_slowdown(min)
        return min(timing.seconds, exchange_s), 0.0, min(timing.seconds, exchange_s)

    def _link_slowdown(self, choose_ratio: Callable[[Sequence[float]], float]) -> float:
        """Return measured time of an exchange / time forecast from the probe of the link before the first step.

        If no exchange was measured, the result is 1 on an unchanged link, and infinite if the link has changed since
        the probe.

        Args:
            choose_ratio: ``min`` or ``max``, which is given the ratios of all measured candidates, at least one, and
                returns one of them. A ratio is too large if ranks waited for each other in the measured exchange.
        """
        ratios = [
            timing.saved[2] / expected_s
            for timing in self.timings
            if timing.saved is not None and (expected_s := self.forecasts[timing.position].exchange_s)
        ]
        return choose_ratio(ratios) if ratios else math.inf if self.link_changed else 1.0

    def has_unbounded_time(self, position: int) -> bool:
        """True if the time of a candidate's step has no upper bound after the link became slower.

        The bound is missing if the candidate's exchange has more bytes than every exchange timed since the change.
        After exchanges of two sizes were timed, the result is false for all candidates: the difference of the two times
        shows how long further bytes take.

        Args:
            position: index of the candidate in ``forecasts``.
        """
        largest_timed_fraction = max(
            (exchange_fraction(self.forecasts[timing.position]) for timing in self.timings), default=0.0
        )
        return (
            self.link_slowed
            and not self._two_sizes_timed
            and exchange_fraction(self.forecasts[position]) > largest_timed_fraction
        )

    @property
    def _two_sizes_timed(self) -> bool:
        """True if two candidates were timed that exchange in each step and send different numbers of bytes."""
        wire_ratios = {
            self.forecasts[timing.position].wire_ratio
            for timing in self.timings
            if self._exchanges_in_each_step(timing)
        }
        return len(wire_ratios) > 1

    def _exchanges_in_each_step(self, timing: StepTiming) -> bool:
        """True if the measured candidate exchanges in each step, and not only once in several steps."""
        return self.forecasts[timing.position].candidate.every == 1

    def leaving_seconds(self, forecast: Forecast) -> float:
        """Return the seconds that ranks need to make their models equal again when a candidate's outer steps end.

        The ranks then send the whole model, not compressed. If the link has not changed since the probe, the result is
        the forecast (``Forecast.leaving_s``). Otherwise the forecast is multiplied by a lower bound of the ratio by
        which a dense exchange became slower. As long as only exchanges of one size were timed, that bound may be too
        low; the factor is then at least the ratio by which the timed exchanges became slower.

        Args:
            forecast: forecast of the candidate.
        """
        if not self.link_changed:
            return forecast.leaving_s or 0.0
        dense_forecast, slowdown = self.forecasts[0], self._link_slowdown(min)
        dense_slowdown = (
            self._shortest_exchange_seconds(dense_forecast) / dense_forecast.exchange_s
            if dense_forecast.exchange_s
            else 1.0
        )
        if self._two_sizes_timed or slowdown == math.inf:
            slowdown = 1.0
        return max(dense_slowdown, slowdown) * (forecast.leaving_s or 0.0)

    def waiting_fraction(self, timing: StepTiming) -> float:
        """Return seconds waited for the exchange / seconds of the step: the largest share that fewer bytes can save."""
        waited_s, _, _ = self.exchange_times(timing)
        return waited_s / timing.seconds

    def shortest_step_seconds(self, position: int, expire: int) -> float:
        """Return a lower bound of the seconds of a candidate's step, from all measurements so far.

        The bound of a measured candidate is its measured time minus ``STANDARD_ERRORS`` standard errors, but at least
        half of the measured time. The bound halves whenever ``windows_until_old`` further windows have passed.

        For a candidate that was not measured, each measured step of other candidates gives a bound, and the largest
        bound counts:

        - Fewer bytes save at most the time for which the measured step waited. A candidate of another family of
          compressors may also save the coding of the measured step, but adds its own coding.
        - Step time is a convex function of the bytes sent: constant while backward hides the exchange, then linear.
          Therefore a slope measured between two numbers of bytes is a lower bound of the slope at more bytes. At fewer
          bytes, it is an upper bound.
        - Outer steps whose exchange may be in flight for longer may not wait at all, however many bytes they send. The
          bound is the time of the measured step without its wait and without ``_compute_growth_seconds``.

        Args:
            position: index of the candidate in ``forecasts``.
            expire: number of windows after which the bound of a measured candidate halves; see ``windows_until_old``.
        """
        forecast = self.forecasts[position]
        candidate_timing = self.timing(position)
        if candidate_timing is not None:
            shortest_s = max(
                candidate_timing.seconds / 2, candidate_timing.seconds - STANDARD_ERRORS * candidate_timing.doubt
            )
            return shortest_s * 0.5 ** (
                (self.windows - candidate_timing.window) // self.windows_until_old(candidate_timing, expire)
            )
        bounds_s = [floor_s for floor_position, floor_s in self.floors if floor_position == position]
        bounds_s.append(self._shortest_step_by_probe(forecast))
        for timing in self.timings:
            measured_forecast = self.forecasts[timing.position]
            waited_s, coded_s, _ = self.exchange_times(timing)
            shortest_s = timing.seconds
            if forecast.candidate.mode == "native" and measured_forecast.candidate.mode != "native":
                shortest_s -= HOOK_OVERHEAD * timing.seconds
            if forecast.family != measured_forecast.family:
                coding_s = SHORTEST_TO_PREDICTED_RATIO * (forecast.coding_s or 0.0)
                shortest_s += coding_s - min(coded_s, (1 - CHEAPER_CODING_RATIO) * timing.seconds)
            fraction_difference = 1 / forecast.wire_ratio - 1 / measured_forecast.wire_ratio
            overlaps_more = overlap_fraction(forecast) > overlap_fraction(measured_forecast)
            if fraction_difference < 0 or overlaps_more:
                bounds_s.append(shortest_s - waited_s - self._compute_growth_seconds(timing))
            if overlaps_more:
                continue
            bounds_s.append(
                shortest_s
                + fraction_difference * self._step_time_slope(timing.position, upper_bound=fraction_difference < 0)
            )
        return max(bounds_s)

    def windows_until_old(self, timing: StepTiming, expire: int) -> int:
        """Return the age, in windows, from which a measurement is old, since the link may have changed unnoticed.

        If the link was seen to be as fast as when the candidate was measured, and one of the last ``expire`` windows
        showed that, the result is ``STEADY_AGE_RATIO * expire``.

        Args:
            timing: measurement of the candidate.
            expire: the result if nothing is known about the link since the measurement.
        """
        link = self.steady_link
        is_steady = link is not None and link.since <= timing.window and self.windows - link.until < expire
        return STEADY_AGE_RATIO * expire if is_steady else expire

    def _compute_growth_seconds(self, timing: StepTiming) -> float:
        """Return the seconds by which an overlapping exchange lengthens the compute of a measured step.

        An exchange in flight during outer steps competes with their compute for processors. A candidate that sends
        fewer bytes may avoid that. The result is the step's compute minus the compute measured before the first
        exchange. It is 0 if no exchange is in flight during outer steps, or if one of the times is not known.
        """
        forecast = self.forecasts[timing.position]
        if timing.saved is None or forecast.compute_s is None or not overlap_fraction(forecast):
            return 0.0
        waited_s, coded_s, _ = timing.saved
        return max(0.0, timing.seconds - waited_s - coded_s - forecast.compute_s)

    def _shortest_step_by_probe(self, forecast: Forecast) -> float:
        """Return a lower bound of the seconds of a candidate's step, from the forecast and measured times of exchanges.

        The time of an exchange is forecast from a probe of the link before the first step. The bound uses two facts:

        - Forward hides no exchange. Outer steps hide an exchange for at most the time for which it may be in flight
          (``Forecast.behind``).
        - A step takes at least its own coding, and the compute of a measured step: the step's time without waiting and
          coding.
        """
        shortest_measured_s = min((timing.seconds for timing in self.timings), default=0.0)
        timings_with_exchange = [timing for timing in self.timings if timing.saved is not None]
        native_timings = [
            timing for timing in self.timings if self.forecasts[timing.position].candidate.mode == "native"
        ]
        timings_and_exchange_times = [
            (timing, self.exchange_times(timing)) for timing in timings_with_exchange or native_timings
        ]
        if self.link_changed or forecast.exchange_s is None or not timings_and_exchange_times:
            exchange_s = SHORTEST_TO_PREDICTED_RATIO * self._shortest_exchange_seconds(forecast)
            return max(
                SHORTEST_STEP_RATIO_ON_UNKNOWN_LINK * shortest_measured_s,
                exchange_s / max(1.0, overlap_fraction(forecast)),
            )
        if forecast.candidate.mode == "native":
            shortest_measured_s *= 1 - HOOK_OVERHEAD
        compute_times_s = (
            timing.seconds - waited_s - coded_s - self._compute_growth_seconds(timing)
            for timing, (waited_s, coded_s, _) in timings_and_exchange_times
        )
        compute_s = max(0.0, min(compute_times_s))
        if forecast.candidate.mode == "native":
            compute_s *= 1 - HOOK_OVERHEAD
        exchange_ratio = 1.0  # smallest exchange time measured / predicted; 1 or less
        for timing, (_, _, exchanged_s) in timings_and_exchange_times:
            if timing.saved is None:
                continue
            expected_s = self.forecasts[timing.position].exchange_s
            exchange_ratio = min(exchange_ratio, exchanged_s / expected_s) if expected_s else exchange_ratio
        coding_s = SHORTEST_TO_PREDICTED_RATIO * (forecast.coding_s or 0.0)
        exchange_s = SHORTEST_TO_PREDICTED_RATIO * exchange_ratio * forecast.exchange_s
        if forecast.behind is not None:
            return max(
                SHORTEST_STEP_RATIO * shortest_measured_s,
                compute_s + coding_s + max(0.0, exchange_s - forecast.behind * compute_s),
            )
        return max(
            SHORTEST_STEP_RATIO * shortest_measured_s, compute_s + coding_s, exchange_s + FORWARD_FRACTION * compute_s
        )

    def _shortest_exchange_seconds(self, forecast: Forecast) -> float:
        """Return a lower bound of a candidate's exchange time per training step, in seconds, from measured steps.

        Each measured step gives a bound, and the largest bound counts. The step's wait for its exchange is estimated:
        its time, minus the time of the shortest measured step, minus its own coding.

        - If the candidate's exchange has no more bytes than the measured exchange, the bound is the wait x candidate's
          bytes / measured bytes. The time of the bytes shrinks in that proportion; the latency does not shrink.
        - If the candidate's exchange has more bytes, the bound is the wait plus the time of the further bytes. That
          time follows from two measured steps that send different numbers of bytes (``_step_time_slope``).
        """
        shortest_measured_s = min((timing.seconds for timing in self.timings), default=0.0)
        every, candidate_fraction = forecast.candidate.every, exchange_fraction(forecast)
        bounds_s = [0.0]
        for timing in self.timings:
            measured_forecast = self.forecasts[timing.position]
            coded_s = timing.saved[1] if timing.saved else 0.0
            wait_s = measured_forecast.candidate.every * (timing.seconds - coded_s - shortest_measured_s)
            measured_fraction = exchange_fraction(measured_forecast)
            if candidate_fraction <= measured_fraction:
                bounds_s.append(wait_s * candidate_fraction / measured_fraction / every)
            elif self._exchanges_in_each_step(timing):
                bounds_s.append(
                    (
                        wait_s
                        + (candidate_fraction - measured_fraction)
                        * self._step_time_slope(timing.position, upper_bound=False)
                    )
                    / every
                )
        return max(bounds_s)

    def _step_time_slope(self, position: int, *, upper_bound: bool) -> float:
        """Return a bound of the slope of step time over bytes: seconds / (bytes sent / bytes of a dense float32 step).

        Only steps of the same family of compressors are compared, since coding costs differ between families.

        Args:
            position: index, in ``forecasts``, of a measured candidate.
            upper_bound: True: return an upper bound of the slope, from steps that send at least as many bytes as that
                candidate; infinite if not known. False: return a lower bound, from steps that send at most as many
                bytes, without the growth of coding; 0 if not known.
        """
        candidate_fraction = 1 / self.forecasts[position].wire_ratio
        steps_by_family: dict[str, list[tuple[float, float, float]]] = {}
        for timing in self.timings:
            forecast = self.forecasts[timing.position]
            measured_fraction = 1 / forecast.wire_ratio
            if measured_fraction >= candidate_fraction if upper_bound else measured_fraction <= candidate_fraction:
                coding_s = timing.saved[1] if timing.saved else 0.0
                steps_by_family.setdefault(forecast.family, []).append((measured_fraction, timing.seconds, coding_s))
        slopes = []
        for measured_steps in steps_by_family.values():
            (low_fraction, low_step_s, low_coding_s), (high_fraction, high_step_s, high_coding_s) = (
                min(measured_steps),
                max(measured_steps),
            )
            if high_fraction > low_fraction:
                noise_s = STEP_TIME_NOISE * max(high_step_s, low_step_s) * (1 if upper_bound else -1)
                more_coding_s = 0.0 if upper_bound else max(0.0, high_coding_s - low_coding_s)  # coding is no exchange
                grown_s = high_step_s - low_step_s - more_coding_s
                slopes.append((grown_s + noise_s) / (high_fraction - low_fraction))
        return math.inf if upper_bound and not slopes else max([0.0, *slopes])


def exchange_fraction(forecast: Forecast) -> float:
    """Return the bytes of one exchange of a candidate / the bytes of a dense float32 exchange.

    Example:
        >>> from gravac.candidate import Candidate
        >>> topk_every_10 = Forecast(Candidate("outer", "topk", 100.0, every=10), wire_ratio=1000.0)
        >>> exchange_fraction(topk_every_10)
        0.01
    """
    return forecast.candidate.every / forecast.wire_ratio


def overlap_fraction(forecast: Forecast) -> float:
    """Return ``Forecast.behind``: for which fraction of the compute of outer steps an exchange may be in flight.

    The result is 0 for candidates without outer steps.
    """
    return forecast.behind or 0.0
