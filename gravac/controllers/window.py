# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A window: the steps of one candidate between two decisions, with their gain and throughput."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement, Summary
from gravac.controllers.state_dicts import Above0, Amount, Count, from_plain, identify, to_plain

SETTLING = 3
"""Number of steps left out after a switch of candidate: caches, buffers and the residual have not settled yet."""

MEDIAN_ERROR = 1.2533 * 1.4826
"""Standard error of a sample's median, times the root of the sample's size, over the sample's median absolute
deviation; for samples of a normal distribution."""

GAP = 5.0
"""A step longer than this many medians is a gap (evaluation, a checkpoint), not a step."""


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of one candidate; steps of another candidate, and steps with a non-finite gradient, do not count.

    A round of outer steps, or a stretch of native steps, counts as its number of training steps. It adds a single time:
    that of one of these steps.

    Attributes:
        candidate: the candidate whose steps count.
        settling: number of steps to come that gain and time leave out (if there are others).
        seconds: time of each clean step so far (no shadow step, not settling), in seconds.
        rough: time of each other step, in seconds; used if there is no clean step.
        saved: ``(waited, coded, exchanged)`` of each clean step in which they are known, seconds.
        samples: samples processed in the last step, over all ranks.
        gains: ``(error, energy)`` of each settled step.
        early: ``(error, energy)`` of each settling step, used if no step has settled.
        shadow: ``(cf, Σ error, Σ energy)`` of each CF that was evaluated without sending.
        steps: number of steps that count.
    """

    candidate: Candidate
    settling: Count = SETTLING
    seconds: tuple[Above0, ...] = ()
    rough: tuple[Above0, ...] = ()
    saved: tuple[tuple[Amount, Amount, Amount], ...] = ()
    samples: Amount = 0.0
    gains: tuple[tuple[Amount, Amount], ...] = ()
    early: tuple[tuple[Amount, Amount], ...] = ()
    shadow: tuple[tuple[Above0, Amount, Amount], ...] = ()
    steps: Count = 0

    def add(self, measured: Measurement) -> "Window":
        """Return this window with one more measurement."""
        if measured.candidate != self.candidate or not math.isfinite(measured.error + measured.energy):
            return self
        pair = (measured.error, measured.energy)
        shadow = {cf: (error, energy) for cf, error, energy in self.shadow}
        for cf, error in measured.shadow:
            if math.isfinite(error):
                error_sum, energy_sum = shadow.get(cf, (0.0, 0.0))
                shadow[cf] = (error_sum + error, energy_sum + measured.energy)
        timed = (measured.seconds,) if math.isfinite(measured.seconds) and measured.seconds > 0 else ()
        settled = self.settling < measured.steps
        clean = settled and not measured.shadow
        times = (measured.waited, measured.coded, measured.exchanged)
        return replace(
            self,
            settling=max(0, self.settling - measured.steps),
            seconds=(*self.seconds, *timed) if clean else self.seconds,
            rough=self.rough if clean else (*self.rough, *timed),
            saved=(*self.saved, times) if clean and math.isfinite(sum(times)) else self.saved,
            samples=measured.samples,
            gains=(*self.gains, pair) if settled else self.gains,
            early=self.early if settled else (*self.early, pair),
            shadow=tuple((cf, error, energy) for cf, (error, energy) in sorted(shadow.items())),
            steps=self.steps + measured.steps,
        )

    def following(self, candidate: Candidate) -> "Window":
        """Return the empty window after this one; it need not settle if the same candidate runs on."""
        return Window(candidate, settling=0 if candidate == self.candidate else SETTLING)

    def with_newest_times(self, steps: int) -> "Window":
        """Return this window with only the times of its last ``steps`` clean steps."""
        return replace(self, seconds=self.seconds[-steps:], saved=self.saved[-steps:])

    @property
    def gain(self) -> float:
        """``1 - Σ error / Σ energy`` of the settled steps (ratio of sums); 1 if there was nothing to send."""
        pairs = self.gains or self.early
        return _gain(sum(error for error, _ in pairs), sum(energy for _, energy in pairs))

    @property
    def t_system(self) -> float | None:
        """Samples per second by the median clean step without gaps; by the other steps if none is clean."""
        seconds = self.seconds or self.rough
        if not seconds:
            return None
        middle = statistics.median(seconds)
        return self.samples / statistics.median(time for time in seconds if time <= GAP * middle)

    @property
    def doubt(self) -> float:
        """Standard error of the median step time, seconds, by the median deviation; 0 for fewer than three steps."""
        if len(self.seconds) < 3:
            return 0.0
        middle = statistics.median(self.seconds)
        spread = statistics.median(abs(time - middle) for time in self.seconds)
        return MEDIAN_ERROR * spread / math.sqrt(len(self.seconds))

    @property
    def median_times(self) -> tuple[float, float, float] | None:
        """Median seconds that a step waited, coded and exchanged; ``None`` if not known."""
        if not self.saved:
            return None
        waited, coded, exchanged = map(statistics.median, zip(*self.saved, strict=True))
        return waited, coded, exchanged

    def shadow_gain(self, cf: float) -> float | None:
        """Return the gain of a CF that was evaluated without running; ``None`` if it was not evaluated."""
        return next((_gain(error, energy) for shadow_cf, error, energy in self.shadow if shadow_cf == cf), None)

    def summary(self, phase: str) -> Summary:
        """Return gain and throughput of the window, for the records."""
        gains = [_gain(error, energy) for error, energy in self.gains or self.early] or [1.0]
        t_system = self.t_system
        t_compression = None if t_system is None else t_system * max(self.gain, 0.0)
        return Summary(
            phase=phase,
            gain=self.gain,
            gain_low=min(gains),
            gain_high=max(gains),
            t_system=t_system,
            t_compression=t_compression,
        )

    def dump(self) -> dict[str, Any]:
        """Return the window as JSON types, without its candidate."""
        return to_plain(self)

    @classmethod
    def restore(cls, candidate: Candidate, dumped: dict[str, Any]) -> "Window":
        """Return the window that ``dump`` wrote."""
        return from_plain(cls, {**dumped, "candidate": candidate})

    @classmethod
    def resume(cls, candidate: Candidate, dumped: dict[str, Any]) -> "Window":
        """Return the window of a dumped controller state if ``candidate`` ran; otherwise an empty window."""
        same = dumped["running"] == identify([candidate])[0]
        return cls.restore(candidate, dumped["window"]) if same else cls(candidate)


def _gain(error: float, energy: float) -> float:
    """Return ``1 - error / energy``; 1 if there was nothing to send."""
    return 1.0 if energy == 0 else 1 - error / energy
