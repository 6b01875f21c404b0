# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Factored records of static methods: the number of steps, measured once, times the seconds of a step on a link."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gravac.lab.provenance import Stamp
from gravac.lab.training.run import Event
from gravac.lab.tta.record import Split, TrainingRecord, first_reached


def factored(
    unthrottled: TrainingRecord,
    link: str,
    probes: Sequence[Event],
    limit_s: float,
    reference: TrainingRecord,
    stamp: Stamp | None = None,
) -> TrainingRecord:
    """Return a static method's record on a link, from its unthrottled record and short runs on the link.

    Args:
        unthrottled: record of the method on the unthrottled link.
        link: text of the link.
        probes: end events of short runs on the link.
        limit_s: limit of the training time in seconds.
        reference: record of the reference run.
        stamp: stamp of the short runs.
    """
    steps_s = [seconds for probe in probes for seconds in probe["steps_s"]]
    step_s = statistics.median(steps_s)
    samples = unthrottled.samples_per_s * unthrottled.step_s / step_s
    probe_steps = sum(probe["step"] for probe in probes)
    bytes_factor = unthrottled.steps / probe_steps
    split: dict[str, Any] = probes[-1]["split"]
    interface = [probe["interface_bytes"] for probe in probes]
    return _with_step_time(unthrottled, step_s, limit_s).model_copy(
        update={
            "link": link,
            "samples_per_s": samples,
            "efficiency": efficiency(samples, reference),
            "interface_bytes": None if None in interface else round(bytes_factor * sum(interface)),
            "split": Split(**split),
            "stamp": stamp,
        }
    )


def refactored(unthrottled: TrainingRecord, timed: TrainingRecord, limit_s: float) -> TrainingRecord:
    """Return a static method's record on a link for another seed, with the step time of an existing record.

    Args:
        unthrottled: record of the method and the seed on the unthrottled link.
        timed: factored record of the method on the link, of another seed.
        limit_s: limit of the training time in seconds.
    """
    update = {name: getattr(timed, name) for name in ("link", "samples_per_s", "efficiency", "split", "stamp")}
    interface = timed.interface_bytes
    bytes_factor = unthrottled.steps / timed.steps
    update["interface_bytes"] = None if interface is None else round(bytes_factor * interface)
    return _with_step_time(unthrottled, timed.step_s, limit_s).model_copy(update=update)


def _with_step_time(unthrottled: TrainingRecord, step_s: float, limit_s: float) -> TrainingRecord:
    """Return the unthrottled record with the times of steps of ``step_s`` seconds."""
    reached = first_reached(unthrottled.curve, unthrottled.target, unthrottled.higher_is_better)
    tta = reached[1] * step_s if reached else None
    return unthrottled.model_copy(
        update={
            "step_s": step_s,
            "seconds": unthrottled.steps * step_s,
            "limit_s": limit_s,
            "tta_s": tta,
            "curve": tuple(point.model_copy(update={"seconds": point.step * step_s}) for point in unthrottled.curve),
            "turns": tuple(
                decision.model_copy(update={"seconds": decision.step * step_s}) for decision in unthrottled.turns
            ),
            "factored": True,
        }
    )


def efficiency(samples_per_s: float, reference: TrainingRecord | None) -> float | None:
    """Return the efficiency of a run, from the efficiency of the reference run; ``None`` if that is not known.

    Args:
        samples_per_s: samples per second of the run, over all ranks.
        reference: record of the reference run of the same task.
    """
    if reference is None or reference.efficiency is None:
        return None
    return samples_per_s * reference.efficiency / reference.samples_per_s
