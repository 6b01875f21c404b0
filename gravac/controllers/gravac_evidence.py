# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a search of ``GraVAC`` knows of its candidates: which may still win, and whether dense is to be timed.

A gain is at most 1, so samples per second bound compression throughput (samples per second times gain).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gravac.controllers.gravac_state import EXPLORE, WARM_UP, GravacEntry, GravacState

DENSE_SETTLING = 1
"""Number of steps after a change to dense, in a trial, whose times are left out; dense has no residuals to settle."""

CLEAN_TIMES = 3
"""Number of step times, not right after a change of candidate, from which a candidate's speed is judged."""

GAIN_MARGIN = 1.25
"""Factor by which the gain of a few steps may still rise: a CF that would lose with this gain is not tried further."""

TOO_SLOW = 2.0
"""A dense candidate is not tried further, or not at all, if a step takes this many times the time per sample at which
its compression throughput would equal the best so far."""

SLOW = 1.25
"""As ``TOO_SLOW``, for a dense candidate of which ``CLEAN_TIMES`` steps or more were timed, clean or not."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the measurements of a search say.

    Attributes:
        state: state of the search.
        omega: relative difference up to which two throughputs count as the same.
        expire: age, in steps, from which a measurement no longer counts.
    """

    state: GravacState
    omega: float
    expire: int

    def entry(self, position: int) -> GravacEntry | None:
        """Return the measurement of a candidate; ``None`` if there is none, or if it is too old."""
        return self.state.entry(position, self.expire)

    @property
    def complete(self) -> list[GravacEntry]:
        """Measurements whose compression throughput counts: those of this search, and those of dense."""
        entries = (self.entry(position) for position in range(len(self.state.candidates)))
        return [
            entry
            for entry in entries
            if entry is not None
            and entry.complete
            and (entry.step > self.state.searched or self.state.candidates[entry.position].dense)
        ]

    @property
    def best(self) -> tuple[GravacEntry | None, float]:
        """The measurement of best compression throughput, and that throughput; ``None`` and 0 without any."""
        best = max(self.complete, key=lambda entry: entry.t_compression, default=None)
        return best, 0.0 if best is None else best.t_compression

    @property
    def needed_throughput(self) -> float:
        """Compression throughput that a CF needs to win; 0 if no candidate has one."""
        return self.best[1] / (1 + self.omega)

    @property
    def promising(self) -> list[int]:
        """Positions of the CFs in use that this search has not refused, and that may win by what is known.

        A CF cannot win if its samples per second, times the largest gain that is possible, are below the best
        compression throughput. A CF without a time is no faster than a lower CF that never waits for the exchange. In
        a search, gains count, too: a higher CF's gain is not higher, and is about its shadow gain.
        """
        needed_throughput, promising = self.needed_throughput, []
        lowest_in_use = self.state.floor if self._searches else self.state.lowest_position
        limit, gain = math.inf, 1.0
        for position in self.state.compressed_positions:
            if self.state.refused is not None and position >= self.state.refused:
                break
            entry = self.entry(position)
            gain = min(gain, self._largest_gain(position))
            fastest = limit if entry is None else min(limit, entry.fastest)
            if position >= lowest_in_use and fastest * gain >= needed_throughput:
                promising.append(position)
            if entry is not None and entry.limit is not None:
                limit = min(limit, entry.limit)
        return promising

    @property
    def _searches(self) -> bool:
        return self.state.phase in (WARM_UP, EXPLORE)

    def _largest_gain(self, position: int) -> float:
        """Return an upper bound of a CF's gain, by this search; 1 if nothing is known."""
        if not self._searches:
            return 1.0
        entry = self.entry(position)
        if entry is not None and entry.step > self.state.searched:
            return largest_gain(entry)
        shadow_gain = self.state.window.shadow_gain(self.state.candidates[position].cf)
        return 1.0 if shadow_gain is None else min(1.0, GAIN_MARGIN * max(shadow_gain, 0.0))

    @property
    def dense_is_due(self) -> bool:
        """True if dense in the fewest bytes is to be timed: its time is not known, and may be short enough."""
        position, limit_s = self.state.fallback_position, self.too_slow_s
        entry = self.entry(position)
        if entry is not None:  # a trial that ended at a slow step may have ended at a pause
            return not entry.complete and self.state.window.samples < entry.t_system * limit_s
        exchange_s = self.state.exchange_s[position] if self.state.exchange_s else None
        return exchange_s is None or exchange_s <= limit_s

    def other_dense_due(self, is_due: bool) -> int | None:
        """Return the position of the dense candidate that does not run, if its time is to be measured.

        It is not if its exchange alone is predicted to take longer than a step of the best candidate.

        Args:
            is_due: whether an old time is to be measured again.
        """
        other_positions = [
            position for position in range(self.state.lowest_position) if position != self.state.position
        ]
        if self.state.reference is None or not other_positions:
            return None
        exchange_s = self.state.exchange_s[other_positions[0]] if self.state.exchange_s else None
        best_throughput = self.best[1]
        if exchange_s is not None and exchange_s * best_throughput > SLOW * self.state.window.samples:
            return None
        was_timed = any(entry.position == other_positions[0] for entry in self.state.entries)
        is_known = self.entry(other_positions[0]) is not None
        return None if is_known or (was_timed and not is_due) else other_positions[0]

    @property
    def too_slow_s(self) -> float:
        """Seconds of a dense step above which dense is far from winning; infinite if not known."""
        throughputs = [
            entry.t_compression
            for position in self.state.compressed_positions
            if (entry := self.entry(position)) is not None
        ]
        samples = self.state.window.samples
        best_throughput = max(throughputs, default=0.0)
        return TOO_SLOW * samples / best_throughput if best_throughput and samples else math.inf

    def lowest_near_best(self, entries: Sequence[GravacEntry]) -> GravacEntry:
        """Return the measurement of the lowest CF whose compression throughput is within ω of the best."""
        best_throughput = max(entry.t_compression for entry in entries)
        near = [entry for entry in entries if entry.t_compression * (1 + self.omega) >= best_throughput]
        return min(near, key=lambda entry: entry.position)

    @property
    def saturated_pair(self) -> tuple[GravacEntry, GravacEntry] | None:
        """The two best measurements of CFs if their compression throughputs differ by at most the share ω.

        Dense is not one of the pair, since its throughput says nothing about higher CFs.

        The measurement of the lower CF is first. ``None`` if the throughputs differ by more, or if fewer than two CFs
        have a throughput above 0.
        """
        compressed = [entry for entry in self.complete if not self.state.candidates[entry.position].dense]
        best_two_entries = sorted(compressed, key=lambda entry: entry.t_compression)[-2:]
        if len(best_two_entries) < 2 or not best_two_entries[0].t_compression:
            return None
        second_throughput, best_throughput = (entry.t_compression for entry in best_two_entries)
        if (best_throughput - second_throughput) / second_throughput > self.omega:
            return None
        lower_entry, higher_entry = sorted(best_two_entries, key=lambda entry: entry.position)
        return lower_entry, higher_entry


def measured(state: GravacState, complete: bool = True) -> GravacEntry:
    """Return the measurement of the running candidate by the steps of its window."""
    window, gain = state.window, 1.0 if state.running.dense else state.window.gain
    t_system = window.t_system or 0.0
    step_s = window.samples / t_system if t_system else math.inf
    fastest = window.samples / max(step_s - 2 * window.standard_error_s, 0.5 * step_s)
    exchange_times = window.median_exchange_times
    busy_s = math.nan if exchange_times is None else step_s - exchange_times[0]
    limit = window.samples / busy_s if busy_s > 0 and window.samples else None
    return GravacEntry(state.position, state.steps, t_system, fastest, gain, limit, complete)


def largest_gain(entry: GravacEntry) -> float:
    """Return an upper bound of a CF's gain: that of a whole window, or that of a few steps with a margin."""
    return min(1.0, max(entry.gain, 0.0) * (1.0 if entry.complete else GAIN_MARGIN))
