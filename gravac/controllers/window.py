# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a window, the steps of one candidate between two decisions: gain, step time and throughput."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement, Summary
from gravac.controllers.state_dicts import Above0, Amount, Count, from_plain, identify, to_plain

SETTLING = 3
"""Number of steps after a change of candidate that gain and step time leave out, since caches, buffers and residuals
still change."""

MEDIAN_ERROR_FACTOR = 1.2533 * 1.4826
"""Standard error of the median of n normal random numbers, times √n, divided by their median absolute deviation."""

GAP_MEDIANS = 5.0
"""Ratio of a step's time to the median step time above which the step is left out of throughput, as a gap: an
evaluation or a checkpoint lies in such a step."""


@dataclass(frozen=True, slots=True)
class Window:
    """Statistics of one candidate's steps; other candidates' steps, and steps with non-finite gradients, do not count.

    A measurement of several training steps (outer steps up to an exchange, or native steps that are timed together)
    counts as that many steps. It adds a single time to the window: the time of one of these steps.

    The steps right after a change of candidate are *settling*: caches, buffers and residuals still change. A step is
    *clean* if it is not settling, and no shadow CFs (evaluated without sending) took time in it.

    Attributes:
        candidate: the candidate whose steps count.
        settling: number of settling steps still to come.
        seconds: time of each clean step, in seconds.
        rough: time of each step that is not clean, in seconds; used only if there is no clean step.
        saved: ``(waited, coded, exchanged)``, in seconds, of each clean step with known times; see ``Measurement``.
        forwards: seconds of the forward of each clean step for which it is known; see ``AgreedNumbers``.
        samples: samples processed in the last step, over all ranks.
        gains: ``(error, energy)`` of each step that is not settling; see ``Measurement``.
        early: ``(error, energy)`` of each settling step; used only if ``gains`` is empty.
        shadow: ``(cf, Σ error, Σ energy)`` of each shadow CF, over the steps that evaluated it.
        steps: number of steps of the candidate so far, settling steps included.
    """

    candidate: Candidate
    settling: Count = SETTLING
    seconds: tuple[Above0, ...] = ()
    rough: tuple[Above0, ...] = ()
    saved: tuple[tuple[Amount, Amount, Amount], ...] = ()
    forwards: tuple[Above0, ...] = ()
    samples: Amount = 0.0
    gains: tuple[tuple[Amount, Amount], ...] = ()
    early: tuple[tuple[Amount, Amount], ...] = ()
    shadow: tuple[tuple[Above0, Amount, Amount], ...] = ()
    steps: Count = 0

    def add(self, measured: Measurement) -> "Window":
        """Return this window with one more measurement.

        The window is unchanged if another candidate ran, or if a gradient was not finite.
        """
        if measured.candidate != self.candidate or not math.isfinite(measured.error + measured.energy):
            return self
        error_and_energy = (measured.error, measured.energy)
        sums_by_cf = {cf: (error, energy) for cf, error, energy in self.shadow}
        for cf, error in measured.shadow:
            if math.isfinite(error):
                error_sum, energy_sum = sums_by_cf.get(cf, (0.0, 0.0))
                sums_by_cf[cf] = (error_sum + error, energy_sum + measured.energy)
        new_seconds, new_forwards = _if_known(measured.seconds), _if_known(measured.forward_seconds)
        has_settled = self.settling < measured.steps
        is_clean = has_settled and not measured.shadow
        exchange_times = (measured.waited, measured.coded, measured.exchanged)
        return replace(
            self,
            settling=max(0, self.settling - measured.steps),
            seconds=(*self.seconds, *new_seconds) if is_clean else self.seconds,
            rough=self.rough if is_clean else (*self.rough, *new_seconds),
            saved=(*self.saved, exchange_times) if is_clean and math.isfinite(sum(exchange_times)) else self.saved,
            forwards=(*self.forwards, *new_forwards) if is_clean else self.forwards,
            samples=measured.samples,
            gains=(*self.gains, error_and_energy) if has_settled else self.gains,
            early=self.early if has_settled else (*self.early, error_and_energy),
            shadow=tuple((cf, error, energy) for cf, (error, energy) in sorted(sums_by_cf.items())),
            steps=self.steps + measured.steps,
        )

    def following(self, candidate: Candidate) -> "Window":
        """Return an empty window for the next steps, which run ``candidate``.

        If ``candidate`` differs from this window's candidate, gain and time leave out the first ``SETTLING`` steps.
        """
        return Window(candidate, settling=0 if candidate == self.candidate else SETTLING)

    def with_newest_times(self, steps: int) -> "Window":
        """Return this window with the times of only its last ``steps`` clean steps; see the class for *clean*."""
        return replace(self, seconds=self.seconds[-steps:], saved=self.saved[-steps:], forwards=self.forwards[-steps:])

    def without_times_above(self, limit_s: float) -> "Window":
        """Return this window without step times above ``limit_s``, in seconds; unchanged if all times are above."""
        kept_indices = [index for index, step_s in enumerate(self.seconds) if step_s <= limit_s]
        if not kept_indices:
            return self
        saved = self.saved
        if len(saved) == len(self.seconds):  # each step time has its (waited, coded, exchanged)
            saved = tuple(saved[index] for index in kept_indices)
        return replace(self, seconds=tuple(self.seconds[index] for index in kept_indices), saved=saved)

    @property
    def gain(self) -> float:
        """Share of the energy sent: ``1 - Σ error / Σ energy`` over the window's steps; 1 if all gradients were 0.

        The first ``SETTLING`` steps after a change of candidate are left out if there are later steps.
        """
        errors_and_energies = self.gains or self.early
        return _gain(sum(error for error, _ in errors_and_energies), sum(energy for _, energy in errors_and_energies))

    @property
    def t_system(self) -> float | None:
        """Samples per second over all ranks, from the median step time; ``None`` if no step was timed.

        The median is over clean steps: steps long enough after a change of candidate, in which no shadow CFs were
        evaluated. Gaps, which are steps longer than ``GAP_MEDIANS`` times the median, are left out. If no step is
        clean, the lower median of the other steps' times counts: of two steps the faster, since the other may contain
        a pause.
        """
        if not self.seconds:
            return self.samples / statistics.median_low(self.rough) if self.rough else None
        median_s = statistics.median(self.seconds)
        return self.samples / statistics.median(step_s for step_s in self.seconds if step_s <= GAP_MEDIANS * median_s)

    @property
    def standard_error_s(self) -> float:
        """Standard error of the median step time, in seconds; 0 for fewer than three clean steps.

        The standard error follows from the median absolute deviation of the step times.
        """
        if len(self.seconds) < 3:
            return 0.0
        median_s = statistics.median(self.seconds)
        median_deviation_s = statistics.median(abs(step_s - median_s) for step_s in self.seconds)
        return MEDIAN_ERROR_FACTOR * median_deviation_s / math.sqrt(len(self.seconds))

    @property
    def median_exchange_times(self) -> tuple[float, float, float] | None:
        """Median seconds ``(waited, coded, exchanged)`` of a step, see ``Measurement``; ``None`` if not known.

        Steps right after a change of candidate are left out, and so are steps that evaluated shadow CFs.
        """
        if not self.saved:
            return None
        waited, coded, exchanged = map(statistics.median, zip(*self.saved, strict=True))
        return waited, coded, exchanged

    @property
    def forward_s(self) -> float | None:
        """Median time of a forward, in seconds, by which the machine's speed is judged; ``None`` if none was timed.

        The first ``SETTLING`` steps after a change of candidate are left out.
        """
        return statistics.median(self.forwards) if self.forwards else None

    def shadow_gain(self, cf: float) -> float | None:
        """Return the gain at a shadow CF (evaluated without sending) over the window; ``None`` if not evaluated."""
        return next((_gain(error, energy) for shadow_cf, error, energy in self.shadow if shadow_cf == cf), None)

    def summary(self, phase: str) -> Summary:
        """Return gain and throughput of the window, for the records of decisions.

        Args:
            phase: name of the controller's phase during the window.
        """
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
        """Return the window as JSON types, without its candidate, for a checkpoint."""
        return to_plain(self)

    @classmethod
    def restore(cls, candidate: Candidate, dumped: dict[str, Any]) -> "Window":
        """Return the window that a dict of ``dump`` describes; ``candidate`` is the candidate of the window's steps."""
        return from_plain(cls, {**dumped, "candidate": candidate})

    @classmethod
    def resume(cls, candidate: Candidate, dumped: dict[str, Any]) -> "Window":
        """Return the window in a dumped state of a controller if ``candidate`` ran in it; otherwise an empty window.

        Args:
            candidate: candidate that runs now.
            dumped: dumped state with the keys ``"running"`` (identity of the candidate that ran) and ``"window"``.
        """
        has_same_candidate = dumped["running"] == identify([candidate])[0]
        return cls.restore(candidate, dumped["window"]) if has_same_candidate else cls(candidate)


def _if_known(seconds: float) -> tuple[float, ...]:
    """Return a tuple with the seconds; an empty tuple if they are not a finite number above 0."""
    return (seconds,) if math.isfinite(seconds) and seconds > 0 else ()


def _gain(error: float, energy: float) -> float:
    """Return the gain ``1 - error / energy``; 1 if ``energy`` is 0, so that there was nothing to send."""
    return 1.0 if energy == 0 else 1 - error / energy
