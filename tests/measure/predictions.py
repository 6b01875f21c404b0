# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How well the cost model predicts step times it was not fitted on: the matrix's, fitted on each third in turn.

python -m tests.measure.predictions [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from gravac.lab.tta import record
from gravac.lab.tta.observed import hold_out, observations
from tests.measure.results import write

CLOSE = 0.15

LINKS = ("20mbit", "100mbit", "1gbit")
"""Unthrottled there is no bandwidth to be found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    steps = observations(run for run in record.read([arguments.runs]) if run.seed == 0 and run.link in LINKS)
    rows: list[dict[str, Any]] = []
    for first in range(3):
        held = hold_out(steps, first=first)
        machine = held.fit.machine
        for link in LINKS:
            off = [abs(error) for step, error in zip(held.tried, held.errors, strict=True) if step.link == link]
            rows.append(
                {
                    "third": first,
                    "link": link,
                    "tried_on": len(off),
                    "within_15_percent": sum(error <= CLOSE for error in off),
                    "median_error": statistics.median(off),
                    "worst_error": max(off),
                    "bandwidth_mbit": held.fit.networks[link].bandwidth / 1e6,
                    "alpha_us": 1e6 * held.fit.networks[link].alpha,
                    "copy_gbyte_per_s": machine.copy_bytes_per_s / 1e9,
                    "start_ms": 1e3 * machine.start_s,
                    "overlap": machine.overlap,
                }
            )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
