# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of runs that were never made."""

from __future__ import annotations

from typing import Any

from gravac.lab.tta.record import CurvePoint, Split, TrainingRecord


def made_up(method: str = "fp16", seed: int = 0, **given: Any) -> TrainingRecord:
    """One short run that took 20 s; fields as given."""
    tta = given.get("tta_s", 20.0)
    fields: dict[str, Any] = {
        "task": "charlm",
        "scale": 1.0,
        "link": "100mbit",
        "workers": 2,
        "method": method,
        "adaptive": method.startswith(("gravac:", "literal:")),
        "seed": seed,
        "metric": "validation loss in nats a character",
        "higher_is_better": False,
        "target": 1.75,
        "tta_s": tta,
        "steps_to_target": None if tta is None else 100,
        "seconds": 24.0,
        "limit_s": None,
        "steps": 120,
        "step_s": 0.2,
        "samples_per_s": 320.0,
        "wire_bytes": 96_000_000,
        "interface_bytes": None,
        "cpu_seconds": 40.0,
        "gain": None,
        "val_metric": 1.7,
        "curve": tuple(CurvePoint(step=s, seconds=s / 5, metric=4.0 - 0.0225 * s) for s in range(0, 121, 20)),
        "turns": (),
        "split": Split(compute=0.15, compress=None, exchange=None, exposed=0.04, input_wait=0.01),
        "paced": False,
    }
    return TrainingRecord(**(fields | given))
