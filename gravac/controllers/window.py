# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Window: statistics of the steps of one candidate between two decisions: gain, step time and throughput."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement, Summary
from gravac.controllers.state_dicts import Above0, Amount, Count, from_plain, identify, to_plain

SETTLING = 3
"""Number of steps after a change of candidate that do not count: caches, buffers and residuals are not yet as usual."""

MEDIAN_ERROR = 1.2533 * 1.4826
"""Ratio for samples of a normal distribution: standard error of the median, times the root of the sample's size, over
the median absolute deviation."""

GAP_MEDIANS = 5.0
"""Multiple of the median step time above which a step's time is left out, as a gap: an evaluation or a checkpoint lies
in such a step."""


@dataclass(frozen=True, slots=True)
class Window:
    """Statistics of one candidate's steps; other candidates' steps, and steps with non-finite gradients, do not count.

    A measurement of several training steps (outer steps up to an exchange, or native steps that are timed together)
    counts as that many steps, and adds a single time: that of one of these steps.

    Attributes:
        candidate: the candidate whose steps count.
        settling: number of the next steps that gain and time leave out, since the candidate changed; these steps count
            only if the window has no later steps.
        seconds: time of each clean step, in seconds: after ``settling``, and without an evaluation of shadow CFs.
        rough: time of each step that is not clean, in seconds; used if there is no clean step.
        saved: ``(waited, coded, exchanged)`` of each clean step in which they are known, in seconds; see
            ``Measurement``.
        samples: samples processed in the last step, over all ranks.
        gains: ``(error, energy)`` of each step after ``settling``; see ``Measurement``.
        early: ``(error, energy)`` of each earlier step, used if there are no ``gains``.
        shadow: ``(cf, Σ error, Σ energy)`` of each shadow CF: a compression factor that was evaluated without sending.
        steps: number of steps of the candidate so far.
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
        """Return this window with one more measurement; unchanged if the measurement does not count."""
        if measured.candidate != self.candidate or not math.isfinite(measured.error + measured.energy):
            return self
        error_and_energy = (measured.error, measured.energy)
        shadow = {cf: (error, energy) for cf, error, energy in self.shadow}
        for cf, error in measured.shadow:
            if math.isfinite(error):
                error_sum, energy_sum = shadow.get(cf, (0.0, 0.0))
                shadow[cf] = (error_sum + error, energy_sum + measured.energy)
        new_seconds = (measured.seconds,) if math.isfinite(measured.seconds) and measured.seconds > 0 else ()
        has_settled = self.settling < measured.steps
        is_clean = has_settled and not measured.shadow
        times = (measured.waited, measured.coded, measured.exchanged)
        return replace(
            self,
            settling=max(0, self.settling - measured.steps),
            seconds=(*self.seconds, *new_seconds) if is_clean else self.seconds,
            rough=self.rough if is_clean else (*self.rough, *new_seconds),
            saved=(*self.saved, times) if is_clean and math.isfinite(sum(times)) else self.saved,
            samples=measured.samples,
            gains=(*self.gains, error_and_energy) if has_settled else self.gains,
            early=self.early if has_settled else (*self.early, error_and_energy),
            shadow=tuple((cf, error, energy) for cf, (error, energy) in sorted(shadow.items())),
            steps=self.steps + measured.steps,
        )

    def following(self, candidate: Candidate) -> "Window":
        """Return an empty window for the next steps, which run ``candidate``.

        All steps will count if this window has the same candidate; otherwise the first ``SETTLING`` steps do not count.
        """
        return Window(candidate, settling=0 if candidate == self.candidate else SETTLING)

    def with_newest_times(self, steps: int) -> "Window":
        """Return this window with only the times of its last ``steps`` clean steps."""
        return replace(self, seconds=self.seconds[-steps:], saved=self.saved[-steps:])

    def without_times_above(self, limit_s: float) -> "Window":
        """Return this window without the step times above a limit, in seconds; unchanged if all times are above it."""
        kept_positions = [position for position, step_s in enumerate(self.seconds) if step_s <= limit_s]
        if not kept_positions:
            return self
        saved = self.saved
        if len(saved) == len(self.seconds):  # each time has its parts
            saved = tuple(saved[position] for position in kept_positions)
        return replace(self, seconds=tuple(self.seconds[position] for position in kept_positions), saved=saved)

    @property
    def gain(self) -> float:
        """``1 - Σ error / Σ energy`` over the steps (ratio of sums); 1 if nothing was to be sent.

        The first steps after a change of candidate are left out if there are later steps.
        """
        errors_and_energies = self.gains or self.early
        return _gain(sum(error for error, _ in errors_and_energies), sum(energy for _, energy in errors_and_energies))

    @property
    def t_system(self) -> float | None:
        """Samples per second, by the median time of clean steps without gaps; by the other steps if none is clean.

        A step is clean unless it follows a change of candidate, or evaluates shadow CFs. A gap is a step longer than
        ``GAP_MEDIANS`` medians. If no step is clean, the lower median counts: of two steps the faster, since a pause
        may lie in the other. ``None`` if no step was timed.
        """
        if not self.seconds:
            return self.samples / statistics.median_low(self.rough) if self.rough else None
        median = statistics.median(self.seconds)
        return self.samples / statistics.median(step_s for step_s in self.seconds if step_s <= GAP_MEDIANS * median)

    @property
    def doubt(self) -> float:
        """Standard error of the median step time, in seconds; 0 for fewer than three steps.

        Computed from the median absolute deviation of the step times.
        """
        if len(self.seconds) < 3:
            return 0.0
        median = statistics.median(self.seconds)
        deviation = statistics.median(abs(step_s - median) for step_s in self.seconds)
        return MEDIAN_ERROR * deviation / math.sqrt(len(self.seconds))

    @property
    def median_times(self) -> tuple[float, float, float] | None:
        """``(waited, coded, exchanged)``: medians over clean steps, in seconds, see ``Measurement``.

        ``None`` if not known. A step is clean unless it follows a change of candidate, or evaluates shadow CFs.
        """
        if not self.saved:
            return None
        waited, coded, exchanged = map(statistics.median, zip(*self.saved, strict=True))
        return waited, coded, exchanged

    def shadow_gain(self, cf: float) -> float | None:
        """Return the gain of a CF that was evaluated without sending; ``None`` if the CF was not evaluated."""
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
        """Return the window that a dict of ``dump`` describes; ``candidate`` is the candidate of its steps."""
        return from_plain(cls, {**dumped, "candidate": candidate})

    @classmethod
    def resume(cls, candidate: Candidate, dumped: dict[str, Any]) -> "Window":
        """Return the window of a dumped controller state if ``candidate`` ran; otherwise an empty window."""
        has_same_candidate = dumped["running"] == identify([candidate])[0]
        return cls.restore(candidate, dumped["window"]) if has_same_candidate else cls(candidate)


def _gain(error: float, energy: float) -> float:
    """Return ``1 - error / energy``; 1 if there was nothing to send."""
    return 1.0 if energy == 0 else 1 - error / energy
