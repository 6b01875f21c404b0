# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes the log's records of decisions and steps, and a run's totals, such as the fraction of steps that ran dense."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate, Forecast, named
from gravac.collectives import wire_ratio
from gravac.controllers.base import (
    Controller,
    Decision,
    Measurement,
    cost_at_equal_samples,
    has_flag,
)
from gravac.engine.agreement import gain
from gravac.engine.run_state import RunState
from gravac.telemetry.records import DecisionRecord, EndRecord, StepRecord


def decision_record(
    step: int,
    decision: Decision,
    changed: bool,
    gain: float | None,
    forecasts: Sequence[Forecast],
) -> DecisionRecord:
    """Return the log record of a decision.

    Args:
        step: number of the first training step that the decision holds for.
        decision: what the controller decided.
        changed: whether the decision changes which candidates run.
        gain: gain of the last step that the ranks agreed on; used if the decision has no summary of a window. ``None``:
            the gain was not finite, or no step was agreed on yet.
        forecasts: forecasts of the candidates that the run may choose; they know what the candidate sends in words.
    """
    candidate = named(decision.candidate, forecasts)
    window_numbers: dict[str, Any] = {"phase": "", "gain": gain, "gain_low": gain, "gain_high": gain}
    window_numbers |= {"t_system": None, "t_compression": None}
    if decision.summary is not None:
        window_numbers = asdict(decision.summary)
    return DecisionRecord(
        step=step,
        changed=changed,
        reason=decision.reason,
        **asdict(candidate),
        **window_numbers,
    )


def with_cost(decision: Decision, forecasts: Sequence[Forecast], controller: Controller[Any]) -> Decision:
    """Add the cost of a decision's candidate to the decision's reason: how many more steps it needs than dense.

    Args:
        decision: decision that changes which candidates run.
        forecasts: forecast of each candidate.
        controller: controller that decided.

    Returns:
        The decision with the longer reason; the same decision if there is no forecast of its candidate, or if the
        controller's reasons state the cost already.
    """
    forecast = next((forecast for forecast in forecasts if forecast.candidate == decision.candidate), None)
    if forecast is None or has_flag(controller, "states_cost"):
        return decision
    cost = cost_at_equal_samples(forecast.efficiency, forecast.efficiency)  # the controller does not use a bound of it
    if not cost:
        return decision
    reason = f"{decision.reason}; {forecast.candidate} needs" if decision.reason else f"run {forecast.candidate}, with"
    return replace(decision, reason=f"{reason} {cost}")


def holds_from(measured: Measurement, latency: int) -> int:
    """Return the number of the first training step that a decision holds for.

    A decision by a measurement of native steps holds at once. Any other decision holds ``latency`` steps of the engine
    later. Each of these is assumed to cover as many training steps as the measured step.

    Args:
        measured: the measurement that led to the decision.
        latency: number of the engine's steps from a measurement to its decision.
    """
    engine_steps = 1 if measured.candidate.mode == "native" else latency
    return measured.first + engine_steps * measured.steps


def compute_of(measured: Measurement) -> float:
    """Return an upper bound of the seconds that a training step takes without its exchange; nan if not known."""
    if measured.candidate.mode == "native":
        return measured.seconds
    return measured.seconds - measured.waited - measured.coded


def step_record(measured: Measurement, local: StepRecording) -> StepRecord:
    """Return the log record of a step.

    Args:
        measured: the measurement that all ranks agreed on.
        local: this rank's measurement of the same step, for its bytes and times.
    """
    step_gain = gain(measured.error, measured.energy)
    t_system = measured.samples / measured.seconds if measured.seconds > 0 else float("nan")
    timed_steps = local.timed_steps
    return StepRecord(
        step=measured.first,
        compressor=measured.candidate.compressor,
        cf=measured.candidate.cf,
        achieved_cf=local.achieved_cf,
        gain=step_gain,
        wire_ratio=local.wire_ratio,
        payload_bytes=local.payload_bytes,
        wire_bytes=local.wire_bytes,
        dense_wire_bytes=local.dense_wire_bytes,
        seconds=local.seconds / timed_steps,
        compute_seconds=local.compute / timed_steps,
        compress_seconds=local.coded / timed_steps,
        exchange_seconds=local.in_flight / timed_steps,
        input_wait_seconds=local.input_wait / timed_steps,
        t_system=t_system,
        t_compression=None if step_gain is None else t_system * max(step_gain, 0.0),
        shadow=tuple((cf, gain(error, measured.energy) or 0.0) for cf, error in measured.shadow),
        energy=measured.energy,
        waited_seconds=measured.waited,
        coded_seconds=measured.coded,
        exchanged_seconds=measured.exchanged,
        every=measured.candidate.every,
        delay=measured.candidate.delay,
        steps=measured.steps,
        mode=measured.candidate.mode,
        **measured.agreed_numbers(),
    )


def end_record(state: RunState, forecasts: Sequence[Forecast], cf: float) -> EndRecord:
    """Return the log record of a run's end.

    Args:
        state: state of the run.
        forecasts: forecasts of the run's candidates, dense candidates first, then ascending by wire ratio.
        cf: compression factor of the newest decision.
    """
    candidates = [forecast.candidate for forecast in forecasts]
    steps_at = tuple((named(candidate, forecasts), steps) for candidate, steps in state.totals.steps_at.items())
    return EndRecord(state.trained, {**totals(state, candidates), "cf": cf}, steps_at)


def totals(state: RunState, candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return totals of a run by name: steps, wire bytes, wire ratio, gain, bytes of norms, and shares of steps.

    ``EndRecord`` explains the names.

    Args:
        state: state of the run.
        candidates: candidates of the run, dense candidates first, then ascending by wire ratio.
    """
    run_totals = {"steps": float(state.trained), "wire_bytes": float(state.totals.wire_bytes)}
    run_totals["wire_ratio"] = wire_ratio(state.totals.dense_wire_bytes, state.totals.wire_bytes)
    if state.gain is not None:
        run_totals["gain"] = state.gain
    return {**run_totals, "norm_bytes": float(state.totals.norm_bytes), **shares(state.totals.steps_at, candidates)}


def shares(steps_at: Mapping[Candidate, int], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the shares of a run's training steps that ran dense, compressed, native and outer.

    Args:
        steps_at: number of training steps that each candidate ran.
        candidates: candidates of the run, dense candidates first, then ascending by wire ratio.

    Returns:
        Five shares in [0, 1]. ``"share_dense"``: dense steps; ``"share_lowest_cf"``: steps at the lowest CF;
        ``"share_higher_cf"``: steps at higher CFs. These three add up to 1. ``"share_native"``: native steps, in which
        DDP exchanged by itself. ``"share_outer"``: outer steps, in which ranks trained on their own weights.
    """
    total_steps = max(1, sum(steps_at.values()))
    compressed_candidates = [candidate for candidate in candidates if not candidate.dense]
    lowest_cf_candidate = compressed_candidates[0] if compressed_candidates else None

    def share_of_steps(selects: Callable[[Candidate], bool]) -> float:
        return sum(steps for candidate, steps in steps_at.items() if selects(candidate)) / total_steps

    return {
        "share_dense": share_of_steps(lambda candidate: candidate.dense),
        "share_lowest_cf": share_of_steps(lambda candidate: candidate == lowest_cf_candidate),
        "share_higher_cf": share_of_steps(lambda candidate: not candidate.dense and candidate != lowest_cf_candidate),
        "share_native": share_of_steps(lambda candidate: candidate.mode == "native"),
        "share_outer": share_of_steps(lambda candidate: candidate.mode == "outer"),
    }
