# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How well the cost model predicts step times it was not fitted on: each link of the matrix, fitted on a third.

python -m tests.measure.predictions [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from gravac.costmodel import fit
from gravac.lab.calibrate import observations
from gravac.lab.tta import record
from tests.measure.results import write

CLOSE = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    runs = [run for run in record.read([arguments.runs]) if run.seed == 0]
    rows: list[dict[str, Any]] = []
    for link in ("20mbit", "100mbit", "1gbit"):
        steps = observations(run for run in runs if run.link == link)
        network, machine = fit(steps[::3])
        off = [
            abs(step.load(machine).over(network, machine.overlap).step_s / step.step_s - 1)
            for at, step in enumerate(steps)
            if at % 3
        ]
        rows.append(
            {
                "link": link,
                "fitted_on": len(steps[::3]),
                "tried_on": len(off),
                "within_15_percent": sum(error <= CLOSE for error in off),
                "median_error": statistics.median(off),
                "worst_error": max(off),
                "bandwidth_mbit": network.bandwidth / 1e6,
                "alpha_us": 1e6 * network.alpha,
                "overlap": machine.overlap,
            }
        )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
