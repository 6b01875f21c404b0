# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the demo's record comes to: a table, and two sentences for the README."""

import itertools
import json
from typing import Any

from gravac.lab.tta.record import CurvePoint, first_reached
from tests.measure.published import FOLDER
from tests.measure.tables_of_runs import head, line


def _demo() -> dict[str, Any]:
    """The demo's record: what was asked, and its runs by method."""
    found = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    return {**found, "runs": {run["method"]: run for run in found["runs"]}}


def _at(run: dict[str, Any], step: float) -> float:
    """The validation loss at a step, linear between evaluations."""
    for before, after in itertools.pairwise(run["curve"]):
        if before["step"] <= step <= after["step"]:
            share = (step - before["step"]) / max(1, after["step"] - before["step"])
            return float(before["metric"] + share * (after["metric"] - before["metric"]))
    return float(run["curve"][-1]["metric"])


def _until(run: dict[str, Any], loss: float) -> float | None:
    reached = first_reached([CurvePoint(**point) for point in run["curve"]], loss, higher_is_better=False)
    return reached[0] if reached else None


def demo() -> str:
    """The demo's runs side by side."""
    said = {
        "dense-fp32": "dense float32, native DDP",
        "dense-fp16": "dense float16, torch's hook",
        "adaptive": "`AdaptiveCompressor()`",
        "adaptive-100": "`AdaptiveCompressor(every=(1, 100))`",
    }
    found = _demo()["runs"]
    equal, target = min(run["steps"] for run in found.values()), found["dense-fp16"]["val_loss"]
    lines = head(
        "method",
        "steps",
        "samples/s",
        "MB a step",
        "wire ratio",
        "validation loss at the end",
        f"at step {equal}",
        f"seconds to {target:.3f}",
    )
    for name, words in said.items():
        run = found[name]
        until = _until(run, target)
        cells = (
            str(run["steps"]),
            f"{run['samples_per_s']:.1f}",
            f"{run['wire_bytes'] / run['steps'] / 1e6:.2f}",
            f"{run['wire_ratio']:.2f}",
            f"{run['val_loss']:.3f}",
            f"{_at(run, equal):.3f}",
            "not reached" if until is None else f"{until:.1f}",
        )
        lines.append(line(words, *cells))
    decided = [
        f"What {said[name]} ran, from which step on: {'; '.join(map(_turn, found[name]['cf_path']))}."
        for name in ("adaptive", "adaptive-100")
    ]
    return "\n\n".join(["\n".join(lines), *decided])


def _turn(turn: dict[str, Any]) -> str:
    """A change of what runs, in words."""
    often = f" every {turn['every']} steps" if turn["every"] > 1 else ""
    return f"step {turn['step']}: {turn['mode']} {turn['cf']:.4g}x{often}"


def demo_in_short() -> str:
    """The README's two sentences."""
    found = _demo()
    runs = found["runs"]
    full, half, own, apart = (runs[name] for name in ("dense-fp32", "dense-fp16", "adaptive", "adaptive-100"))
    until, its_own = _until(own, half["val_loss"]), _until(half, half["val_loss"])
    sooner = (
        f"gravac reaches float16's final loss in {until:.0f} s instead of {its_own:.0f}."
        if until is not None and its_own is not None
        else "gravac does not reach float16's final loss."
    )
    return (
        f"The demo, {found['workers']} workers at {found['rate'] / 1e6:.0f} Mbit/s, {own['seconds']:.0f} s of training "
        f"each: validation loss {full['val_loss']:.2f} with\ndense float32, {half['val_loss']:.2f} with float16, "
        f"**{own['val_loss']:.2f} with gravac** at 1/{own['wire_ratio']:.0f} of float32's bytes, and "
        f"{apart['val_loss']:.2f} where ranks\nmay train apart (`every=(1, 100)`). {sooner}"
    )
