# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The records of a run's decisions and steps, and a summary: how many steps each kind of candidate ran."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from gravac.candidate import Candidate, Forecast
from gravac.collectives import wire_ratio
from gravac.controllers.base import Controller, Decision, Measurement, Progress, Summary, cost_at_equal_samples
from gravac.engine.agreement import gain
from gravac.engine.run_state import RunState
from gravac.measurement import LAST, LocalMeasurement
from gravac.telemetry.records import DecisionRecord, ProgressRecord, StepRecord


def decided(
    step: int, decision: Decision, changed: bool, gain: float | None, steps_per_epoch: float | None
) -> DecisionRecord:
    """The record of a decision.

    Args:
        step: first training step that the decision holds for.
        decision: the decision.
        changed: whether something else runs than before.
        gain: gain of the last step agreed on, told where no window ended; ``None``: not finite.
        steps_per_epoch: number of steps that dates the reason by epoch; ``None``: it is not dated.
    """
    last = 0.0 if gain is None else gain
    summary = decision.summary or Summary("", last, last, last, t_system=None, t_compression=None)
    return DecisionRecord(
        step=step,
        compressor=decision.candidate.compressor,
        cf=decision.candidate.cf,
        changed=changed,
        reason=decision.reason + (f" (epoch {step / steps_per_epoch:.2f})" if steps_per_epoch else ""),
        every=decision.candidate.every,
        delay=decision.candidate.delay,
        mode=decision.candidate.mode,
        **asdict(summary),
    )


def with_cost(decision: Decision, forecasts: Sequence[Forecast], controller: Controller[Any]) -> Decision:
    """Add to a decision's reason how many more steps than dense averaging its candidate is expected to take.

    Args:
        decision: decision that changes what runs.
        forecasts: what is expected of each candidate.
        controller: controller that decided; if its reasons state the cost, the decision is returned as it is.
    """
    forecast = next((forecast for forecast in forecasts if forecast.candidate == decision.candidate), None)
    if forecast is None or getattr(controller, "states_cost", False):
        return decision
    cost = cost_at_equal_samples(forecast.efficiency, forecast.least_efficiency)
    return replace(decision, reason=decision.reason + cost)


def holds_from(measured: Measurement, latency: int) -> int:
    """Return the first training step that the decision by a measurement holds for.

    After a native stretch the ranks decide at once; otherwise when ``latency`` steps of the engine have ended, which
    are taken to be as long as the one that was measured.
    """
    ahead = 1 if measured.candidate.mode == "native" else latency
    return measured.first + ahead * measured.steps


def compute_of(measured: Measurement) -> float:
    """Return the seconds of a training step without exchange: at most so many; nan if not known."""
    if measured.candidate.mode == "native":
        return measured.seconds
    return measured.seconds - measured.waited - measured.coded


def step_record(measured: Measurement, local: LocalMeasurement) -> StepRecord:
    """Return the record of a step: what all ranks agreed on, and what the step cost on this rank."""
    share = gain(measured.error, measured.energy)
    t_system = measured.samples / measured.seconds if measured.seconds > 0 else float("nan")
    timed = local.steps if local.watched is None else 1  # a native stretch tells seconds of one step, not of all
    return StepRecord(
        step=measured.first,
        compressor=measured.candidate.compressor,
        cf=measured.candidate.cf,
        achieved_cf=local.achieved_cf,
        gain=share,
        wire_ratio=local.wire_ratio,
        payload_bytes=local.payload_bytes,
        wire_bytes=local.wire_bytes,
        dense_wire_bytes=local.dense_wire_bytes,
        seconds=local.seconds / timed,
        compute_seconds=local.compute / timed,
        compress_seconds=local.coded / timed,
        exchange_seconds=local.in_flight / timed,
        input_wait_seconds=local.input_wait / timed,
        t_system=t_system,
        t_compression=None if share is None else t_system * max(share, 0.0),
        shadow=tuple((cf, gain(error, measured.energy) or 0.0) for cf, error in measured.shadow),
        energy=measured.energy,
        every=measured.candidate.every,
        delay=measured.candidate.delay,
        steps_of_ranks=local.steps_of_ranks,
        steps=measured.steps,
        mode=measured.candidate.mode,
        **{recorded: getattr(measured, slot) for slot, recorded in LAST.items()},
    )


def progress_record(measured: Measurement, progress: Progress) -> ProgressRecord:
    """Return the record of what trials of a candidate have shown by a measurement."""
    values = {entry.name: getattr(progress, entry.name) for entry in fields(progress)}
    return ProgressRecord(step=measured.first, **values)


def totals(state: RunState, candidates: Sequence[Candidate]) -> dict[str, float]:
    """What a run's training steps come to; its candidates are dense ones first, then ascending."""
    sums = {"steps": float(state.trained), "wire_bytes": float(state.totals.wire_bytes)}
    sums["wire_ratio"] = wire_ratio(state.totals.dense_wire_bytes, state.totals.wire_bytes)
    if state.gain is not None:
        sums["gain"] = state.gain
    return {**sums, "norm_bytes": float(state.totals.norm_bytes), **shares(state.totals.steps_at, candidates)}


def shares(steps_at: Mapping[Candidate, int], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Shares of a run's training steps by what they ran.

    Args:
        steps_at: number of training steps that each candidate ran.
        candidates: candidates of the run, dense ones first, then ascending.

    Returns:
        Shares of steps that ran dense, at the lowest CF, and at higher ones; and of those in which DDP exchanged by
        itself, and in which ranks trained apart.
    """
    made = max(1, sum(steps_at.values()))
    compressed = [candidate for candidate in candidates if not candidate.dense]
    lowest = compressed[0] if compressed else None

    def share(among: Callable[[Candidate], bool]) -> float:
        return sum(steps for candidate, steps in steps_at.items() if among(candidate)) / made

    return {
        "share_dense": share(lambda candidate: candidate.dense),
        "share_lowest_cf": share(lambda candidate: candidate == lowest),
        "share_higher_cf": share(lambda candidate: not candidate.dense and candidate != lowest),
        "share_native": share(lambda candidate: candidate.mode == "native"),
        "share_outer": share(lambda candidate: candidate.mode == "outer"),
    }
