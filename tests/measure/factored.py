# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a factored time to accuracy is what a full run on the link gives: six of the matrix's cells, run in full.

python -m tests.measure.factored [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from gravac.lab.tta.matrix import REFERENCE_METHOD, RunMatrix
from gravac.lab.tta.runner import run_matrix
from tests.measure.results import write

CASES = (
    ("charlm", "100mbit", "fp16"),
    ("charlm", "20mbit", "quantize(1)"),
    ("lstm", "1gbit", "fp16"),
    ("lstm", "100mbit", "topk@10"),
    ("denoise", "1gbit", "fp32"),
    ("denoise", "100mbit", "quantize(2)"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    there = record.read([arguments.runs])
    rows = []
    for task, link, method in CASES:
        own = [run for run in there if (run.task, run.method, run.seed) == (task, method, 0)]
        parts = next(run for run in own if run.link == link and run.factored)
        reference = next(
            run
            for run in there
            if (run.task, run.method, run.link, run.seed) == (task, REFERENCE_METHOD, UNTHROTTLED, 0)
        )
        with tempfile.TemporaryDirectory() as folder, TtaLive(Console(), paced=False) as live:
            path = Path(folder, "runs.json")
            record.save(path, [reference])
            matrix = RunMatrix(
                (task,), (link,), (method,), seeds=(0,), scale=reference.scale, budget=reference.steps, json=path
            )
            whole = run_matrix(matrix, live)[-1]
        assert whole.tta_s is not None
        assert parts.tta_s is not None
        rows.append(
            {
                "task": task,
                "link": link,
                "method": method,
                "steps": parts.steps_to_target,
                "steps_on_the_link": whole.steps_to_target,
                "same_curve": [p.metric for p in parts.curve] == [p.metric for p in whole.curve],
                "factored_over_full": parts.tta_s / whole.tta_s,
            }
        )
        print(rows[-1], flush=True)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
