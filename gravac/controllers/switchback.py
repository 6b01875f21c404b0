# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs switchback trials for Goodput: decides which candidate runs next, and when the loss is read.

A switchback trial runs a stretch (successive steps) of one candidate between two stretches of another candidate, the
reference. The loss is read in the stretches of the reference. ``gravac.controllers.measuring`` decides whether trials
are made, and ``gravac.controllers.progress`` keeps and evaluates the readings of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gravac.candidate import Candidate
from gravac.controllers.base import Decision, Measurement, Progress, Summary
from gravac.controllers.goodput_reasons import milliseconds, trial_count_text
from gravac.controllers.goodput_state import EARLY_END_STEPS, FAR_SLOWER_RATIO, HOLD, PROGRESS, GoodputState
from gravac.controllers.measuring import expected_gain_steps, progress_of, trial_costs_steps, with_trial_results
from gravac.controllers.progress import CANDIDATE, SETTLING_STEPS, Trials

READING_STRETCH_STEPS = 3
"""Number of native steps (DDP exchanges by itself) that gravac times together while a reading of the loss is requested.
The number is small so that the reading comes soon."""


@dataclass(frozen=True, slots=True)
class TrialsEnd:
    """Outcome of a candidate's switchback trials after the last trial.

    Attributes:
        reason: text that says why the trials ended, or what they measured.
        progress: results of the trials; ``None`` if the last trial was ended early.
    """

    reason: str
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Switchback:
    """Runs switchback trials, which compare the progress of a candidate's steps with that of a reference candidate.

    Attributes:
        total_steps: number of steps of the run; ``None``: not known.
        expire: age of a measured step time, in windows, from which only half of the time counts as lower bound; see
            ``StepTimeBounds.shortest_step_seconds``.
    """

    total_steps: int | None
    expire: int

    def start_trials(
        self, state: GoodputState, trials: Trials, reason: str, summary: Summary | None
    ) -> tuple[GoodputState, Decision]:
        """Start switchback trials; return the state with the trials, and the decision to run the reference first.

        The reference is the candidate that the trials compare another candidate with.

        Args:
            state: state of the search.
            trials: the new trials, in which no step was made yet.
            reason: text with which the decision's reason begins: why the search keeps its best candidate.
            summary: gain and throughput of the window that has ended.
        """
        reference, candidate = _reference_and_candidate(state, trials)
        is_settled = trials.made >= SETTLING_STEPS
        trials = trials.request_reading() if is_settled else trials
        state = replace(state, phase=PROGRESS, trials=trials, position=trials.reference)
        state = replace(state, window=state.window.following(reference))
        reason = (
            f"{reason}; start switchback trials, which compare the progress of a step of {candidate} with that of a "
            f"step of {reference}"
        )
        stretch_steps = READING_STRETCH_STEPS if is_settled else trials.remaining_steps
        return state, Decision(reference, (), reason, summary, watch=stretch_steps, probe=is_settled)

    def observe(
        self, state: GoodputState, trials: Trials, measurement: Measurement
    ) -> tuple[GoodputState, Decision | TrialsEnd]:
        """Continue switchback trials after a measurement.

        Args:
            state: state of the search, whose window already includes the measurement.
            trials: the current trials.
            measurement: measurement of the newest step.

        Returns:
            The state after the measurement, and the next decision; a ``TrialsEnd`` in place of the decision if the
            trials have ended.
        """
        reference, candidate = _reference_and_candidate(state, trials)
        timing = state.timing(state.position)
        is_far_slower = timing is not None and measurement.seconds > FAR_SLOWER_RATIO * timing.seconds
        trials = trials.add(
            measurement, measurement.candidate == candidate, measurement.candidate == reference, is_far_slower
        )
        state = replace(state, trials=trials)
        if trials.slow >= EARLY_END_STEPS or trials.gave_up_waiting:
            cause_text = "the probe gave no finite loss"
            if trials.slow >= EARLY_END_STEPS:
                cause_text = (
                    f"{trials.slow} steps in succession took more than {FAR_SLOWER_RATIO:g} times as long as before"
                )
            return self._abort(state, trials, f"{cause_text}: end the switchback trials of {candidate}")
        if trials.stage == CANDIDATE:
            if _is_too_slow(state, trials):
                seconds = state.window.samples / (state.window.t_system or math.inf)
                cause_text = (
                    f"{candidate} takes {milliseconds(seconds)} a step, too long to be better than {reference}, "
                    f"whatever progress a step makes: end the switchback trials of {candidate}"
                )
                return self._abort(state.enter_measurement(seconds), trials, cause_text)
            return (
                (state, _keep_running(trials, candidate))
                if trials.remaining_steps
                else _end_candidate_steps(state, trials)
            )
        if trials.asked:
            return state, _keep_running(trials, reference, probe=trials.requests_again)
        if trials.reference_has_ended:
            return self._after_reference_stretch(state, trials)
        if trials.remaining_steps:
            return state, _keep_running(trials, reference)
        state = replace(state, trials=trials.request_reading())
        return state, _keep_running(trials, reference, probe=True)

    def _after_reference_stretch(
        self, state: GoodputState, trials: Trials
    ) -> tuple[GoodputState, Decision | TrialsEnd]:
        """Start another trial, or end the trials if further trials would cost more than they gain.

        Called after a stretch of the reference, which is the candidate that trials compare with.

        Returns:
            The state, and the decision to run the candidate under trial; a ``TrialsEnd`` in place of the decision if
            the trials have ended.
        """
        reference, candidate = _reference_and_candidate(state, trials)
        first_cost_steps, trial_cost_steps = trial_costs_steps(
            state, trials.candidate, trials.reference, trials.length, self.expire
        )
        progress = None
        if trials.ended_count:
            state = with_trial_results(state, trials, trial_cost_steps)
            progress = progress_of(state, state.learned[-1])
            reason = progress_text(progress)
            if not expected_gain_steps(
                state, trials.candidate, trials.reference, trials.length, self.total_steps, self.expire
            ):
                return replace(state, trials=None, phase=HOLD), TrialsEnd(reason, progress)
        else:
            state = replace(state, booked=state.booked + first_cost_steps)
            reason = f"switchback trial: the loss was read while {reference} ran"
        trials, summary = trials.start_candidate(), state.window.summary(PROGRESS)
        state = replace(state, trials=trials, position=trials.candidate, window=state.window.following(candidate))
        following_text = "start another trial: run" if progress else "run"
        reason = f"{reason}; {following_text} {candidate} for {trials.steps} steps"
        return state, Decision(candidate, (), reason, summary, watch=trials.remaining_steps, progress=progress)

    def _abort(self, state: GoodputState, trials: Trials, reason: str) -> tuple[GoodputState, TrialsEnd]:
        """End the trials in the middle of a trial; return the state, and a ``TrialsEnd`` with the reason.

        The results of finished trials stay. The cost of the unfinished trial is added to the cost of all trials of the
        run (``GoodputState.booked``).
        """
        price_steps = self._unfinished_trial_price(state, trials)
        return replace(with_trial_results(state, trials, price_steps), trials=None, phase=HOLD), TrialsEnd(reason)

    def _unfinished_trial_price(self, state: GoodputState, trials: Trials) -> float:
        """Return the cost so far of the unfinished trial, in steps of the best candidate.

        The cost of the whole trial is multiplied by the fraction of the candidate's steps that were made. Before the
        candidate's first step, the result is the cost of the reference's steps before the first trial. The reference is
        the candidate that trials compare with.
        """
        first_cost_steps, trial_cost_steps = trial_costs_steps(
            state, trials.candidate, trials.reference, trials.length, self.expire
        )
        if not trials.candidate_steps:
            return first_cost_steps
        return trial_cost_steps * min(1.0, trials.candidate_steps[-1] / trials.steps)


def _reference_and_candidate(state: GoodputState, trials: Trials) -> tuple[Candidate, Candidate]:
    """Return the reference (the candidate compared with), and the candidate under trial, in this order."""
    return state.forecasts[trials.reference].candidate, state.forecasts[trials.candidate].candidate


def _keep_running(trials: Trials, candidate: Candidate, probe: bool = False) -> Decision:
    """Return the decision to keep running a candidate.

    Args:
        trials: the current trials.
        candidate: candidate that runs.
        probe: whether the ranks compute the loss on their fixed batches before the next step.
    """
    stretch_steps = READING_STRETCH_STEPS if probe or trials.asked else trials.remaining_steps
    return Decision(candidate, watch=max(1, stretch_steps), probe=probe)


def _is_too_slow(state: GoodputState, trials: Trials) -> bool:
    """True if the candidate under trial is too slow to reach the reference's goodput, whatever its progress.

    Goodput is steps per second times efficiency. The candidate's goodput is computed from its fastest step and the
    upper bound of its efficiency. The reference is the candidate that the trial compares with.
    """
    reference_timing, step_times_s = state.timing(trials.reference), state.window.seconds
    if reference_timing is None or len(step_times_s) < EARLY_END_STEPS:
        return False
    upper_bound = min(1.0, state.belief(trials.candidate).upper_bound)
    return upper_bound / min(step_times_s) < state.goodput(reference_timing)


def _end_candidate_steps(state: GoodputState, trials: Trials) -> tuple[GoodputState, Decision]:
    """End the candidate's steps of a trial; return the state, and the decision to run the reference again.

    The reference is the candidate that the trial compares with. The loss is read after ``SETTLING_STEPS`` steps of the
    reference.
    """
    reference, candidate = _reference_and_candidate(state, trials)
    window = state.window
    summary = window.summary(PROGRESS)
    if window.t_system is not None and 0 < window.t_system < math.inf:
        state = state.enter_measurement(window.samples / window.t_system)
    state = replace(
        state, trials=trials.start_settling(), position=trials.reference, window=window.following(reference)
    )
    ran_text = f"switchback trial: {candidate} ran for {trials.candidate_steps[-1]} steps"
    reason = f"{ran_text}; run {reference} again for {SETTLING_STEPS} steps, then read the loss"
    return state, Decision(reference, (), reason, summary, watch=SETTLING_STEPS)


def progress_text(progress: Progress) -> str:
    """Return a text that states the ratio of progress that switchback trials measured, and its standard error.

    Example:
        >>> from gravac.candidate import Candidate
        >>> outer, hook = Candidate("outer", "dense", 1.0, every=10), Candidate("hook", "dense", 1.0)
        >>> text = progress_text(Progress(outer, hook, 0.77, 0.09, 4, 0.8, 0.74, 0.87))
        >>> text.split(" of the progress of ")
        ['a step of dense 1x every 10 steps makes 0.77 ± 0.09', 'a step of dense 1x in this run (4 switchback trials)']
        >>> progress_text(Progress(outer, hook, 1.0, math.inf, 0, 0.8, 0.74, 0.87))
        'the switchback trial of dense 1x every 10 steps tells nothing: the loss did not fall while dense 1x ran'
    """
    if not progress.trials:
        return (
            f"the switchback trial of {progress.candidate} tells nothing: the loss did not fall while "
            f"{progress.reference} ran"
        )
    return (
        f"a step of {progress.candidate} makes {progress.ratio:.2f} ± {progress.error:.2f} of the progress of a step "
        f"of {progress.reference} in this run ({trial_count_text(progress.trials)})"
    )
