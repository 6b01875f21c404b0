# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A static method's record on a link from parts: its steps, taken once, times the time of a step on that link."""

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
    """Return a static method's record on a link, from its unthrottled one and short runs there, with their stamp."""
    steps_s = [seconds for probe in probes for seconds in probe["steps_s"]]
    step_s = statistics.median(steps_s)
    samples = unthrottled.samples_per_s * unthrottled.step_s / step_s
    done = sum(probe["step"] for probe in probes)
    share = unthrottled.steps / done
    split: dict[str, Any] = probes[-1]["split"]
    interface = [probe["interface_bytes"] for probe in probes]
    timed = _timed(unthrottled, step_s, limit_s)
    return timed.model_copy(
        update={
            "link": link,
            "samples_per_s": samples,
            "efficiency": efficiency(samples, reference),
            "interface_bytes": None if None in interface else round(share * sum(interface)),
            "split": Split(**split),
            "stamp": stamp,
        }
    )


def refactored(unthrottled: TrainingRecord, known: TrainingRecord, limit_s: float) -> TrainingRecord:
    """Return a static method's record for another seed: a step takes as long as in the known one."""
    update = {name: getattr(known, name) for name in ("link", "samples_per_s", "efficiency", "split", "stamp")}
    interface = known.interface_bytes
    share = unthrottled.steps / known.steps
    update["interface_bytes"] = None if interface is None else round(share * interface)
    return _timed(unthrottled, known.step_s, limit_s).model_copy(update=update)


def _timed(unthrottled: TrainingRecord, step_s: float, limit_s: float) -> TrainingRecord:
    reached = first_reached(unthrottled.curve, unthrottled.target, unthrottled.higher_is_better)
    tta = reached[1] * step_s if reached else None
    return unthrottled.model_copy(
        update={
            "step_s": step_s,
            "seconds": unthrottled.steps * step_s,
            "limit_s": limit_s,
            "tta_s": tta,
            "curve": tuple(point.model_copy(update={"seconds": point.step * step_s}) for point in unthrottled.curve),
            "turns": tuple(turn.model_copy(update={"seconds": turn.step * step_s}) for turn in unthrottled.turns),
            "factored": True,
        }
    )


def efficiency(samples_per_s: float, reference: TrainingRecord | None) -> float | None:
    """Return samples per second over those of as many workers alone; ``None`` when what one does is not known."""
    if reference is None or reference.efficiency is None:
        return None
    return samples_per_s * reference.efficiency / reference.samples_per_s
