# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A window: the steps of one candidate between two decisions, and the gain and throughput they had."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement, Summary
from gravac.controllers.plain import Above0, Amount, Count, from_plain, identify, to_plain

SETTLING = 3
"""Number of steps left out after a switch of candidate: caches, buffers and the residual have not settled yet."""

MEDIAN_ERROR = 1.2533 * 1.4826
"""Factor from a sample's median absolute deviation to its median's standard error, times the root of the sample's
size, where the sample is of a normal law."""

GAP = 5.0
"""A step longer than this many medians is a gap (evaluation, a checkpoint), not a step."""


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of one candidate; steps of another, and steps with a non-finite gradient, do not count.

    A round of outer steps, or a stretch of native ones, counts as the steps it has, and gives one time: that of a step
    in it.

    Attributes:
        candidate: the candidate whose steps count.
        settling: number of steps still to be left out of gain and time (when there are others).
        seconds: time of each clean step so far (no shadow step, not settling).
        rough: time in seconds of each other step, used when there is no clean one.
        saved: ``(waited, coded, exchanged)`` of each clean step in which they are known, seconds.
        samples: samples processed in the last step, over all ranks.
        gains: ``(error, energy)`` of each settled step.
        early: ``(error, energy)`` of each settling step, used when there is nothing else.
        shadow: ``(cf, Σ error, Σ energy)`` of each CF evaluated.
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
        """Return this window with one more step."""
        if measured.candidate != self.candidate or not math.isfinite(measured.error + measured.energy):
            return self
        pair = (measured.error, measured.energy)
        shadow = {cf: (error, energy) for cf, error, energy in self.shadow}
        for cf, error in measured.shadow:
            if math.isfinite(error):
                before = shadow.get(cf, (0.0, 0.0))
                shadow[cf] = (before[0] + error, before[1] + measured.energy)
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
        """Return the empty window after this one, which need not settle where the same candidate runs on."""
        return Window(candidate, settling=0 if candidate == self.candidate else SETTLING)

    def last(self, steps: int) -> "Window":
        """Return this window with the times of only its last clean steps."""
        return replace(self, seconds=self.seconds[-steps:], saved=self.saved[-steps:])

    @property
    def gain(self) -> float:
        """``1 - Σ error / Σ energy`` of the settled steps (ratio of sums); 1 when there was nothing to send."""
        pairs = self.gains or self.early
        return _gain(sum(error for error, _ in pairs), sum(energy for _, energy in pairs))

    @property
    def t_system(self) -> float | None:
        """Samples per second by the median clean step, gaps left out; by the other steps where none is clean."""
        seconds = self.seconds or self.rough
        if not seconds:
            return None
        middle = statistics.median(seconds)
        return self.samples / statistics.median(s for s in seconds if s <= GAP * middle)

    @property
    def doubt(self) -> float:
        """Standard error of the median step, seconds, by the clean steps' median deviation; 0 with fewer than three."""
        if len(self.seconds) < 3:
            return 0.0
        middle = statistics.median(self.seconds)
        spread = statistics.median(abs(s - middle) for s in self.seconds)
        return MEDIAN_ERROR * spread / math.sqrt(len(self.seconds))

    @property
    def savings(self) -> tuple[float, float, float] | None:
        """Median seconds a step waited, coded and exchanged; ``None`` when not known."""
        if not self.saved:
            return None
        waited, coded, exchanged = map(statistics.median, zip(*self.saved, strict=True))
        return waited, coded, exchanged

    def shadow_gain(self, cf: float) -> float | None:
        """Return the gain of a CF that was evaluated without running; ``None`` when it was not evaluated."""
        return next((_gain(error, energy) for at, error, energy in self.shadow if at == cf), None)

    def summary(self, phase: str) -> Summary:
        """Return gain and throughput of the window, for the records."""
        single = [_gain(*pair) for pair in self.gains or self.early] or [1.0]
        t_system = self.t_system
        t_compression = None if t_system is None else t_system * max(self.gain, 0.0)
        return Summary(phase, self.gain, min(single), max(single), t_system, t_compression)

    def dump(self) -> dict[str, Any]:
        """Return the window as plain values, without its candidate."""
        return to_plain(self)

    @classmethod
    def restore(cls, candidate: Candidate, plain: dict[str, Any]) -> "Window":
        """Return the window that ``dump`` made plain."""
        return from_plain(cls, {**plain, "candidate": candidate})

    @classmethod
    def resume(cls, candidate: Candidate, plain: dict[str, Any]) -> "Window":
        """Return the window of a controller's state that was made plain, if ``candidate`` ran; an empty one if not."""
        same = plain["running"] == identify([candidate])[0]
        return cls.restore(candidate, plain["window"]) if same else cls(candidate)


def _gain(error: float, energy: float) -> float:
    return 1.0 if energy == 0 else 1 - error / energy
