# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes factored records: a run's number of steps, measured on one link, times the seconds of a step on another link.

This saves full runs of static methods, whose number of steps to the target does not depend on the link.
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
    probes: Sequence[Event],
    limit_s: float,
    reference: TrainingRecord,
    stamp: Stamp | None = None,
) -> TrainingRecord:
    """Return a method's factored record on a link: steps of a full run on another link, step times of short runs.

    Args:
        unthrottled_record: record of the method's full run on the unthrottled link.
        link: the link in text form, such as ``"100mbit"``.
        probes: events at the ends of the short runs on the link, which give the seconds of a step.
        limit_s: limit of the training time on the link, in seconds.
        reference: record of the reference run, for the efficiency.
        stamp: code, time and machine of the short runs; ``None`` if not recorded.
    """
    steps_s = [seconds for probe in probes for seconds in probe["steps_s"]]
    step_s = statistics.median(steps_s)
    samples_per_s = unthrottled_record.samples_per_s * unthrottled_record.step_s / step_s
    probe_steps = sum(probe["step"] for probe in probes)
    steps_ratio = unthrottled_record.steps / probe_steps
    probe_split: dict[str, Any] | None = probes[-1]["split"]
    probe_bytes = [probe["interface_bytes"] for probe in probes]
    return _with_step_time(unthrottled_record, step_s, limit_s).model_copy(
        update={
            "link": link,
            "samples_per_s": samples_per_s,
            "efficiency": efficiency(samples_per_s, reference),
            "interface_bytes": None if None in probe_bytes else round(steps_ratio * sum(probe_bytes)),
            "split": None if probe_split is None else Split(**probe_split),
            "stamp": stamp,
        }
    )


def factored_record_of_seed(
    unthrottled_record: TrainingRecord, timed_record: TrainingRecord, limit_s: float
) -> TrainingRecord:
    """Return a method's factored record on a link for a seed: the step time is that of another seed's record.

    Args:
        unthrottled_record: record of the method's full run with this seed, on the unthrottled link.
        timed_record: factored record of the method on the link, of another seed.
        limit_s: limit of the training time on the link, in seconds.
    """
    update = {name: getattr(timed_record, name) for name in ("link", "samples_per_s", "efficiency", "split", "stamp")}
    timed_bytes = timed_record.interface_bytes
    steps_ratio = unthrottled_record.steps / timed_record.steps
    update["interface_bytes"] = None if timed_bytes is None else round(steps_ratio * timed_bytes)
    return _with_step_time(unthrottled_record, timed_record.step_s, limit_s).model_copy(update=update)


def _with_step_time(unthrottled_record: TrainingRecord, step_s: float, limit_s: float) -> TrainingRecord:
    """Return the record of an unthrottled run with all times as if each step took ``step_s`` seconds."""
    target_point = first_reached(
        unthrottled_record.curve, unthrottled_record.target, unthrottled_record.higher_is_better
    )
    tta = target_point[1] * step_s if target_point else None
    return unthrottled_record.model_copy(
        update={
            "step_s": step_s,
            "seconds": unthrottled_record.steps * step_s,
            "limit_s": limit_s,
            "tta_s": tta,
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
    """Return the scaling efficiency of a run, computed from the reference run's; ``None`` if that is not known.

    The efficiency is samples per second of the run / (ranks x samples per second of one worker alone).

    Args:
        samples_per_s: samples per second of the run, over all ranks.
        reference: record of the reference run of the same task; ``None`` without such a run.
    """
    if reference is None or reference.efficiency is None:
        return None
    return samples_per_s * reference.efficiency / reference.samples_per_s
