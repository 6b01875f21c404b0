# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times of candidates' steps: those measured, and bounds that follow from them for candidates that did not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gravac.candidate import Forecast
from gravac.controllers.state_dicts import Above0, Amount, Count, Finite

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

STANDARD_ERRORS = 2
"""Number of standard errors by which a measured step time may be off."""

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
            earlier: entry of the same candidate, from an earlier measurement.
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
class StepTimeBounds:
    """Measured step times of some candidates, by which the step times of all candidates are bounded.

    Attributes:
        forecasts: forecasts of all candidates: dense first, then ascending by wire ratio.
        entries: newest measurement of each candidate that ran.
        floors: ``(position, seconds)`` of candidates that were measured before the link changed: lower bound of the
            time of a step after the change.
        windows: number of windows ended so far; old measurements expire.
        moved: whether the link changed after its speed was probed.
        slowed: whether the link became slower, and not faster, at its last change.
    """

    forecasts: tuple[Forecast, ...]
    entries: tuple[GoodputEntry, ...]
    floors: tuple[tuple[int, float], ...]
    windows: int
    moved: bool
    slowed: bool

    def entry(self, position: int) -> GoodputEntry | None:
        """Return the measurement of the candidate at ``position``; ``None`` if the candidate was not measured."""
        return next((entry for entry in self.entries if entry.position == position), None)

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
            hidden_s = (
                max(0.0, exchanged_s - waited_s)
                if overlap_fraction(forecast) < overlap_fraction(measured_forecast)
                else 0.0
            )
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
            position: index of the candidate in ``forecasts``.
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
            more_overlap = overlap_fraction(forecast) > overlap_fraction(measured_forecast)
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
        if entry.saved is None or forecast.compute_s is None or not overlap_fraction(forecast):
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
            return max(
                SHORTEST_STEP_RATIO_ON_UNKNOWN_LINK * shortest_s, exchange_s / max(1.0, overlap_fraction(forecast))
            )
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
        >>> from gravac.candidate import Candidate
        >>> topk_every_10 = Forecast(Candidate("outer", "topk", 100.0, every=10), wire_ratio=1000.0)
        >>> exchange_fraction(topk_every_10)
        0.01
    """
    return forecast.candidate.every / forecast.wire_ratio


def overlap_fraction(forecast: Forecast) -> float:
    """Return the fraction of outer steps' compute that their exchange may overlap with; 0 for other candidates."""
    return forecast.behind or 0.0
