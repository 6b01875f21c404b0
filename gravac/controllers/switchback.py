# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs switchback trials for Goodput: which candidate runs next, and when the loss is read.

``gravac.controllers.measuring`` decides whether trials are made, and ``gravac.controllers.progress`` keeps and
evaluates the readings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gravac.candidate import Candidate
from gravac.controllers.base import Decision, Measurement, Progress, Summary
from gravac.controllers.goodput_reasons import trials_made
from gravac.controllers.goodput_state import BROKEN, FEW_STEPS, HOLD, PROGRESS, GoodputState
from gravac.controllers.measuring import expected_gain, prices, progress_of, with_trials
from gravac.controllers.progress import CANDIDATE, SETTLE, Trials

READING_STRETCH = 3
"""Number of steps of a native stretch that ends as soon as the loss was read."""


@dataclass(frozen=True, slots=True)
class TrialsEnd:
    """The end of switchback trials.

    Attributes:
        reason: reason of the end, as text.
        progress: results of the trials; ``None``: no new results.
    """

    reason: str
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Switchback:
    """Runs switchback trials.

    Attributes:
        total_steps: number of steps of the run; ``None``: not known.
        expire: see ``GoodputState.fastest``.
    """

    total_steps: int | None
    expire: int

    def start(
        self, state: GoodputState, trials: Trials, reason: str, summary: Summary | None
    ) -> tuple[GoodputState, Decision]:
        """Start trials with steps of the reference.

        Args:
            state: state of the search.
            trials: the trials.
            reason: reason why the search rests, as text.
            summary: summary of the window that ended.
        """
        reference, candidate = _pair(state, trials)
        ready = trials.made >= SETTLE
        trials = trials.ask() if ready else trials
        state = replace(state, phase=PROGRESS, trials=trials, position=trials.reference)
        state = replace(state, window=state.window.following(reference))
        reason = f"{reason}; measure the progress of steps of {candidate}, beside {reference}"
        watch = READING_STRETCH if ready else trials.remaining
        return state, Decision(reference, (), reason, summary, watch=watch, probe=ready)

    def observe(
        self, state: GoodputState, trials: Trials, measurement: Measurement
    ) -> tuple[GoodputState, Decision | TrialsEnd]:
        """Add one measurement to the trials; return the next decision, or the end of the trials.

        Args:
            state: state of the search, whose window has the measurement.
            trials: the current trials.
            measurement: the measurement.
        """
        reference, candidate = _pair(state, trials)
        entry = state.entry(state.position)
        far = entry is not None and measurement.seconds > BROKEN * entry.seconds
        trials = trials.add(measurement, measurement.candidate == candidate, measurement.candidate == reference, far)
        state = replace(state, trials=trials)
        if trials.slow >= FEW_STEPS or trials.given_up:
            cause = (
                "steps take far longer than they did" if trials.slow >= FEW_STEPS else "the probe gave no finite loss"
            )
            return self._aborted(state, trials, f"{cause}: no more is measured of {candidate}")
        if trials.stage == CANDIDATE:
            if _too_slow(state, trials):
                seconds = state.window.samples / (state.window.t_system or math.inf)
                cause = f"{1000 * seconds:.4g} ms a step at {candidate} are too many, whatever its progress"
                return self._aborted(state.enter(seconds), trials, cause)
            return (state, _continue(trials, candidate)) if trials.remaining else _settle(state, trials)
        if trials.asked:
            return state, _continue(trials, reference, probe=trials.ask_again)
        if trials.between:
            return self._after_reference(state, trials)
        if trials.remaining:
            return state, _continue(trials, reference)
        state = replace(state, trials=trials.ask())
        return state, _continue(trials, reference, probe=True)

    def _after_reference(self, state: GoodputState, trials: Trials) -> tuple[GoodputState, Decision | TrialsEnd]:
        """After a stretch of the reference, start another trial, or end the trials if no further trial pays."""
        reference, candidate = _pair(state, trials)
        first_price, trial_price = prices(state, trials.candidate, trials.reference, trials.length, self.expire)
        progress = None
        if trials.ended:
            state = with_trials(state, trials, trial_price)
            progress = progress_of(state, state.learned[-1])
            reason = progress_text(progress)
            if not expected_gain(
                state, trials.candidate, trials.reference, trials.length, self.total_steps, self.expire
            ):
                return replace(state, trials=None, phase=HOLD), TrialsEnd(reason, progress)
        else:
            state, reason = replace(state, booked=state.booked + first_price), "the loss was read"
        trials, summary = trials.start_candidate(), state.window.summary(PROGRESS)
        state = replace(state, trials=trials, position=trials.candidate, window=state.window.following(candidate))
        reason = f"{reason}; {trials.steps} steps of {candidate} follow, to be compared with {reference}"
        return state, Decision(candidate, (), reason, summary, watch=trials.remaining, progress=progress)

    def _aborted(self, state: GoodputState, trials: Trials, reason: str) -> tuple[GoodputState, TrialsEnd]:
        """End the trials early: the results of finished trials stay, and the price of the unfinished one is booked."""
        price = self._price_of_unfinished(state, trials)
        return replace(with_trials(state, trials, price), trials=None, phase=HOLD), TrialsEnd(reason)

    def _price_of_unfinished(self, state: GoodputState, trials: Trials) -> float:
        """Return the price of the unfinished trial, by the fraction of the candidate's steps that were made.

        Before the first trial, return the price of the first stretch of the reference.
        """
        first_price, trial_price = prices(state, trials.candidate, trials.reference, trials.length, self.expire)
        if not trials.candidate_steps:
            return first_price
        return trial_price * min(1.0, trials.candidate_steps[-1] / trials.steps)


def _pair(state: GoodputState, trials: Trials) -> tuple[Candidate, Candidate]:
    """Return the reference and the candidate under trial."""
    return state.forecasts[trials.reference].candidate, state.forecasts[trials.candidate].candidate


def _continue(trials: Trials, candidate: Candidate, probe: bool = False) -> Decision:
    """Return the decision to keep the same candidate."""
    watch = READING_STRETCH if probe or trials.asked else trials.remaining
    return Decision(candidate, watch=max(1, watch), probe=probe)


def _too_slow(state: GoodputState, trials: Trials) -> bool:
    """True if the candidate's goodput is below the reference's even with the upper bound of its efficiency."""
    reference, seconds = state.entry(trials.reference), state.window.seconds
    if reference is None or len(seconds) < FEW_STEPS:
        return False
    upper_bound = min(1.0, state.belief(trials.candidate).upper_bound)
    return upper_bound / min(seconds) < state.goodput(reference)


def _settle(state: GoodputState, trials: Trials) -> tuple[GoodputState, Decision]:
    """End the candidate's stretch: steps of the reference run before the loss is read."""
    reference, candidate = _pair(state, trials)
    window = state.window
    summary = window.summary(PROGRESS)
    if window.t_system is not None and 0 < window.t_system < math.inf:
        state = state.enter(window.samples / window.t_system)
    state = replace(state, trials=trials.settle(), position=trials.reference, window=window.following(reference))
    reason = f"{trials.candidate_steps[-1]} steps of {candidate}: back to {reference} before the loss is read"
    return state, Decision(reference, (), reason, summary, watch=SETTLE)


def progress_text(progress: Progress) -> str:
    """Return as text what trials have shown of a candidate's progress.

    Example:
        >>> from gravac.candidate import Candidate
        >>> outer, hook = Candidate("outer", "dense", 1.0, every=10), Candidate("hook", "dense", 1.0)
        >>> progress_text(Progress(outer, hook, 0.77, 0.09, 4, 0.8, 0.74, 0.87))
        'a step of dense 1x every 10 steps makes 0.77 ± 0.09 of the progress of a step of dense 1x here (4 trials)'
    """
    return (
        f"a step of {progress.candidate} makes {progress.ratio:.2f} ± {progress.error:.2f} of the progress of a step "
        f"of {progress.reference} here ({trials_made(progress.trials)})"
    )
