# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the demo's record comes to: a table, and two sentences for the README."""

import json
from typing import Any

from gravac.lab.demo.decisions import describe_new_candidate
from gravac.lab.demo.outcome import Comparison, DemoOutcome
from gravac.lab.tta.record import CurvePoint
from tests.measure.published import FOLDER
from tests.measure.rendering import render


def demo_record() -> dict[str, Any]:
    """The demo's record: what was asked, its runs by method, and the wire ratio of each."""
    record = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    ratios = {run["method"]: run["wire_ratio"] for run in record["runs"]}
    return {**record, "runs": {run["method"]: _outcome(run) for run in record["runs"]}, "ratios": ratios}


def _outcome(run: dict[str, Any]) -> DemoOutcome:
    """A run, of its JSON."""
    numbers = {name: run[name] for name in ("method", "steps", "seconds", "samples_per_s", "wire_bytes")}
    curve = tuple(CurvePoint(**point) for point in run["curve"])
    return DemoOutcome(**numbers, curve=curve, cf_path=tuple(run["cf_path"]))


def demo() -> str:
    """The demo's runs side by side."""
    record = demo_record()
    comparison = Comparison(tuple(record["runs"].values()))
    return render(
        "tables/demo",
        **record,
        equal_steps=comparison.equal_steps,
        target=comparison.target,
        runs_words=describe_new_candidate,
    )


def demo_in_short() -> str:
    """The README's two sentences."""
    return render("tables/demo_in_short", **demo_record())
