# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is told of a run: the record of a decision, and how its steps were shared out among the candidates."""

from collections.abc import Mapping, Sequence

from gravac.candidate import Candidate
from gravac.controllers.base import Decision
from gravac.telemetry.records import DecisionRecord


def decided(
    step: int, decision: Decision, changed: bool, gain: float | None, steps_per_epoch: float | None
) -> DecisionRecord:
    """The record of a decision.

    Args:
        step: the first it holds for.
        decision: made.
        changed: whether something else runs than before.
        gain: of the last step agreed on, told where no window ended; ``None``: not finite.
        steps_per_epoch: to date the reason; ``None`` does not.
    """
    summary, last = decision.summary, 0.0 if gain is None else gain
    return DecisionRecord(
        step=step,
        compressor=decision.candidate.compressor,
        cf=decision.candidate.cf,
        changed=changed,
        gain=summary.gain if summary else last,
        gain_low=summary.gain_low if summary else last,
        gain_high=summary.gain_high if summary else last,
        t_system=summary.t_system if summary else None,
        t_compression=summary.t_compression if summary else None,
        phase=summary.phase if summary else "",
        reason=decision.reason + (f" (epoch {step / steps_per_epoch:.2f})" if steps_per_epoch else ""),
    )


def shares(steps_at: Mapping[Candidate, int], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Of a run's steps: the shares that ran dense, at the lowest CF, and at higher ones.

    Args:
        steps_at: steps that each candidate ran.
        candidates: dense ones first, then ascending.
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
