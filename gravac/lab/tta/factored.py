# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes factored records: records of runs whose time on a link is computed and not measured.

The time is the number of steps of a run on an unthrottled link, multiplied by the seconds of a step on the link. This
saves runs of methods without a controller and without local steps. Their number of steps to the target does not depend
on the link.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gravac.lab.provenance import Stamp
from gravac.lab.training.run import Event
from gravac.lab.tta.record import Split, TrainingRecord, first_reached


def factored_record(
    unthrottled_record: TrainingRecord,
    link: str,
    end_events: Sequence[Event],
    limit_s: float,
    reference: TrainingRecord,
    stamp: Stamp | None = None,
) -> TrainingRecord:
    """Return a method's record on a link, with times computed as number of steps x seconds of a step.

    The number of steps is from a run on the unthrottled link; short runs on the link measured the seconds of a step.

    Args:
        unthrottled_record: record of the method's run on the unthrottled link.
        link: the link as text, such as ``"100mbit"``.
        end_events: ``end`` events of the short runs on the link; the median of all their step times counts.
        limit_s: seconds of training after which a run on the link would have to stop.
        reference: record of the reference run, from which the scaling efficiency is computed.
        stamp: commit, time and machine's speed of the short runs; ``None``: not recorded.
    """
    step_times_s = [seconds for end_event in end_events for seconds in end_event["steps_s"]]
    step_s = statistics.median(step_times_s)
    samples_per_s = unthrottled_record.samples_per_s * unthrottled_record.step_s / step_s
    timed_steps = sum(end_event["step"] for end_event in end_events)
    steps_ratio = unthrottled_record.steps / timed_steps
    timed_split: dict[str, Any] | None = end_events[-1]["split"]
    timed_bytes = [end_event["interface_bytes"] for end_event in end_events]
    return _with_step_time(unthrottled_record, step_s, limit_s).model_copy(
        update={
            "link": link,
            "samples_per_s": samples_per_s,
            "efficiency": efficiency(samples_per_s, reference),
            "interface_bytes": None if None in timed_bytes else round(steps_ratio * sum(timed_bytes)),
            "split": None if timed_split is None else Split(**timed_split),
            "stamp": stamp,
        }
    )


def factored_record_of_seed(
    unthrottled_record: TrainingRecord, timed_record: TrainingRecord, limit_s: float
) -> TrainingRecord:
    """Return a method's record on a link for one more seed, with the seconds of a step of another seed's record.

    The times of the record are computed as number of steps of the unthrottled run x seconds of a step.

    Args:
        unthrottled_record: record of the method's run with the seed, on the unthrottled link.
        timed_record: factored record of the method on the link with another seed, which has the seconds of a step.
        limit_s: seconds of training after which a run on the link would have to stop.
    """
    updated_fields = {
        name: getattr(timed_record, name) for name in ("link", "samples_per_s", "efficiency", "split", "stamp")
    }
    timed_bytes = timed_record.interface_bytes
    steps_ratio = unthrottled_record.steps / timed_record.steps
    updated_fields["interface_bytes"] = None if timed_bytes is None else round(steps_ratio * timed_bytes)
    return _with_step_time(unthrottled_record, timed_record.step_s, limit_s).model_copy(update=updated_fields)


def _with_step_time(unthrottled_record: TrainingRecord, step_s: float, limit_s: float) -> TrainingRecord:
    """Return a copy of an unthrottled run's record, with all times as if each step had taken ``step_s`` seconds.

    Args:
        unthrottled_record: record of a run on the unthrottled link.
        step_s: seconds of a step on another link.
        limit_s: seconds of training after which a run on the other link would have to stop.
    """
    target_point = first_reached(
        unthrottled_record.curve, unthrottled_record.target, unthrottled_record.higher_is_better
    )
    tta_s = target_point[1] * step_s if target_point else None
    return unthrottled_record.model_copy(
        update={
            "step_s": step_s,
            "seconds": unthrottled_record.steps * step_s,
            "limit_s": limit_s,
            "tta_s": tta_s,
            "curve": tuple(
                point.model_copy(update={"seconds": point.step * step_s}) for point in unthrottled_record.curve
            ),
            "turns": tuple(
                decision.model_copy(update={"seconds": decision.step * step_s}) for decision in unthrottled_record.turns
            ),
            "factored": True,
        }
    )


def efficiency(samples_per_s: float, reference: TrainingRecord | None) -> float | None:
    """Return the scaling efficiency of a run: samples per second / (ranks x samples per second of one worker alone).

    The speed of one worker alone follows from the speed and the efficiency of the reference run. The result is
    ``None`` if the reference run or its efficiency is not known.

    Args:
        samples_per_s: samples per second of the run, over all ranks.
        reference: record of the reference run of the same task; ``None``: not known.
    """
    if reference is None or reference.efficiency is None:
        return None
    return samples_per_s * reference.efficiency / reference.samples_per_s
