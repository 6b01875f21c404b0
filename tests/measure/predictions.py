# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How well the cost model predicts step times it was not fitted on: the matrix's, fitted on a third, ten times.

python -m tests.measure.predictions [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from gravac.lab.tta import record
from gravac.lab.tta.observations import hold_out, observations
from tests.measure.results import write

CLOSE = 0.15

SPLITS = 10

LINKS = ("20mbit", "100mbit", "1gbit")
"""Unthrottled there is no bandwidth to be found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    parser.add_argument("--mixed", action="store_true", help="allow runs of several commits, with a note")
    arguments = parser.parse_args()
    there = record.read([arguments.runs])
    print(record.commits_of([arguments.runs], there, arguments.mixed))
    steps = observations(run for run in there if run.seed == 0 and run.link in LINKS)
    rows: list[dict[str, Any]] = []
    tried = [hold_out(steps, seed=seed) for seed in range(SPLITS)]
    for link in LINKS:
        off = [
            [abs(error) for step, error in zip(held.held_out, held.errors, strict=True) if step.link == link]
            for held in tried
        ]
        shares = [statistics.fmean(error <= CLOSE for error in split) for split in off]
        errors = [error for split in off for error in split]
        rows.append(
            {
                "link": link,
                "within_15_percent": statistics.fmean(shares),
                "least_of_a_draw": min(shares),
                "most_of_a_draw": max(shares),
                "median_error": statistics.median(errors),
                "worst_error": max(errors),
                "bandwidth_mbit": statistics.median(held.fit.networks[link].bandwidth / 1e6 for held in tried),
            }
        )
    shares = [statistics.fmean(abs(error) <= CLOSE for error in held.errors) for held in tried]
    rows.append(
        {
            "link": "all",
            "steps": len(steps),
            "tried_on": len(tried[0].held_out),
            "within_15_percent": statistics.fmean(shares),
            "least_of_a_draw": min(shares),
            "most_of_a_draw": max(shares),
            "alpha_us": statistics.median(1e6 * held.fit.networks[LINKS[0]].alpha for held in tried),
            "copy_gbyte_per_s": statistics.median(held.fit.machine.copy_bytes_per_s / 1e9 for held in tried),
            "start_ms": statistics.median(1e3 * held.fit.machine.start_s for held in tried),
            "overlap": statistics.median(held.fit.machine.overlap for held in tried),
        }
    )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
