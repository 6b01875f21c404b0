# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is told of a run: the record of a decision, of a step, and how steps were shared out among the candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gravac.candidate import Candidate
from gravac.collectives import wire_ratio
from gravac.controllers.base import Decision, Measurement, Summary
from gravac.stepping.agreement import LAST, gain
from gravac.stepping.clock import StepCosts
from gravac.stepping.state import StepState
from gravac.telemetry.records import DecisionRecord, StepRecord


def decided(
    step: int, decision: Decision, changed: bool, gain: float | None, steps_per_epoch: float | None
) -> DecisionRecord:
    """The record of a decision.

    Args:
        step: first step that the decision holds for.
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
        **asdict(summary),
    )


def measured_step(measured: Measurement, costs: StepCosts) -> StepRecord:
    """The record of a step: what all ranks agreed on, and what this one costs."""
    kept = gain(measured.error, measured.energy)
    t_system = measured.samples / measured.seconds if measured.seconds > 0 else float("nan")
    return StepRecord(
        step=measured.step,
        compressor=measured.candidate.compressor,
        cf=measured.candidate.cf,
        achieved_cf=costs.achieved_cf,
        gain=kept,
        wire_ratio=costs.wire_ratio,
        payload_bytes=costs.payload_bytes,
        wire_bytes=costs.wire_bytes,
        dense_wire_bytes=costs.dense_wire_bytes,
        seconds=costs.seconds,
        compute_seconds=costs.compute,
        compress_seconds=costs.compress,
        exchange_seconds=costs.exchange,
        input_wait_seconds=costs.input_wait,
        t_system=t_system,
        t_compression=None if kept is None else t_system * max(kept, 0.0),
        shadow=tuple((cf, gain(error, measured.energy) or 0.0) for cf, error in measured.shadow),
        energy=measured.energy,
        every=measured.candidate.every,
        delay=measured.candidate.delay,
        steps_of_ranks=costs.steps_of_ranks,
        **{told: getattr(measured, slot) for slot, told in LAST.items()},
    )


def totals(state: StepState, candidates: Sequence[Candidate]) -> dict[str, float]:
    """What a run's steps come to; its candidates are dense ones first, then ascending."""
    sums = {"steps": float(state.step), "wire_bytes": float(state.wire_bytes)}
    sums["wire_ratio"] = wire_ratio(state.dense_wire_bytes, state.wire_bytes)
    if state.gain is not None:
        sums["gain"] = state.gain
    return {**sums, "survey_bytes": float(state.survey_bytes), **shares(state.steps_at, candidates)}


def shares(steps_at: Mapping[Candidate, int], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Shares of a run's steps that ran dense, at the lowest CF, and at higher ones.

    Args:
        steps_at: number of steps that each candidate ran.
        candidates: candidates of the run, dense ones first, then ascending.
    """
    made = max(1, sum(steps_at.values()))
    lowest = sum(candidate.dense for candidate in candidates)

    def share(part: Sequence[Candidate]) -> float:
        return sum(steps_at.get(candidate, 0) for candidate in part) / made

    return {
        "share_dense": share(candidates[:lowest]),
        "share_lowest_cf": share(candidates[lowest : lowest + 1]),
        "share_higher_cf": share(candidates[lowest + 1 :]),
    }
