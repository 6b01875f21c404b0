# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the demo's record comes to: a table, and two sentences for the README."""

import json
from typing import Any

from gravac.lab.demo.decisions import runs_words
from gravac.lab.demo.outcome import Comparison, DemoOutcome
from gravac.lab.tta.record import CurvePoint
from tests.measure.published import FOLDER
from tests.measure.tables_of_runs import head, line


def demo_record() -> dict[str, Any]:
    """The demo's record: what was asked, its runs by method, and the wire ratio of each."""
    found = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    ratios = {run["method"]: run["wire_ratio"] for run in found["runs"]}
    return {**found, "runs": {run["method"]: _outcome(run) for run in found["runs"]}, "ratios": ratios}


def _outcome(run: dict[str, Any]) -> DemoOutcome:
    """A run, of its JSON."""
    kept = {name: run[name] for name in ("method", "steps", "seconds", "samples_per_s", "wire_bytes")}
    curve = tuple(CurvePoint(**point) for point in run["curve"])
    return DemoOutcome(**kept, curve=curve, cf_path=tuple(run["cf_path"]))


def demo() -> str:
    """The demo's runs side by side."""
    said = {
        "dense-fp32": "dense float32, native DDP",
        "dense-fp16": "dense float16, torch's hook",
        "adaptive": "`AdaptiveCompressor()`",
        "adaptive-100": "`AdaptiveCompressor(every=(1, 100))`",
    }
    record = demo_record()
    found: dict[str, DemoOutcome] = record["runs"]
    comparison = Comparison(tuple(found.values()))
    equal, target = comparison.equal_steps, comparison.target
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
        until = run.time_to(target)
        cells = (
            str(run.steps),
            f"{run.samples_per_s:.1f}",
            f"{run.bytes_per_step / 1e6:.2f}",
            f"{record['ratios'][name]:.2f}",
            f"{run.val_loss:.3f}",
            f"{run.at_step(equal):.3f}",
            "not reached" if until is None else f"{until:.1f}",
        )
        lines.append(line(words, *cells))
    decided = [
        f"What {said[name]} ran, "
        + "; ".join(f"from step {change['step']}: {runs_words(change)}" for change in found[name].cf_path)
        for name in ("adaptive", "adaptive-100")
    ]
    return "\n\n".join(["\n".join(lines), *(f"{words}." for words in decided)])


def demo_in_short() -> str:
    """The README's two sentences."""
    record = demo_record()
    runs: dict[str, DemoOutcome] = record["runs"]
    full, half, own, apart = (runs[name] for name in ("dense-fp32", "dense-fp16", "adaptive", "adaptive-100"))
    until, its_own = own.time_to(half.val_loss), half.time_to(half.val_loss)
    sooner = (
        f"gravac reaches float16's final loss in {until:.0f} s instead of {its_own:.0f}."
        if until is not None and its_own is not None
        else "gravac does not reach float16's final loss."
    )
    return (
        f"The demo, {record['workers']} workers at {record['rate'] / 1e6:.0f} Mbit/s, {own.seconds:.0f} s of training "
        f"each: validation loss {full.val_loss:.2f} with\ndense float32, {half.val_loss:.2f} with float16, "
        f"**{own.val_loss:.2f} with gravac** at 1/{record['ratios']['adaptive']:.0f} of float32's bytes, and "
        f"{apart.val_loss:.2f} with\nouter steps allowed (`every=(1, 100)`). {sooner}"
    )
