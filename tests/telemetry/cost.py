# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step's record costs: python -m tests.telemetry.cost [--steps N] [--repeats N] [--json FILE].

Microseconds a step for each sink, on a made-up run of 20-step windows: wall time, time of the calling thread (what a
step may wait for) and of all threads (TensorBoard writes in its own); medians over the repeats, with range.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gravac.telemetry import JSONLSink, Record, Sink, TensorBoardSink
from tests.measure.results import write
from tests.telemetry.made_up import make_run


def cost(sinks: list[Sink], records: list[Record], steps: int) -> tuple[float, float, float]:
    """Wall, calling thread's and process's microseconds a step."""
    start = time.perf_counter(), time.thread_time(), time.process_time()
    for record in records:
        for sink in sinks:
            sink(record)
    end = time.perf_counter(), time.thread_time(), time.process_time()
    wall, thread, process = (1e6 * (after - before) / steps for before, after in zip(start, end, strict=True))
    return wall, thread, process


def measure(steps: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each sink alone and one for both."""
    records = list(make_run(steps))[:-1]  # the end is once, not a step's
    names = ("TensorBoardSink", "JSONLSink", "both")
    costs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    written: dict[str, float] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            tensorboard, jsonl = TensorBoardSink(Path(folder) / "tb"), JSONLSink(Path(folder) / "run.jsonl")
            both: list[Sink] = [tensorboard, jsonl]
            for name, sinks in zip(names, (both[:1], both[1:], both), strict=True):
                costs[name].append(cost(sinks, records, steps))
            tensorboard.close()
            jsonl.close()
            taken = 2 * steps  # each sink took the run twice
            written["TensorBoardSink"] = sum(file.stat().st_size for file in (Path(folder) / "tb").iterdir()) / taken
            written["JSONLSink"] = (Path(folder) / "run.jsonl").stat().st_size / taken
    rows: list[dict[str, Any]] = []
    for name in names:
        row: dict[str, Any] = {"sink": name, "steps": steps, "repeats": repeats}
        for what, values in zip(("wall", "calling_thread", "all_threads"), zip(*costs[name], strict=True), strict=True):
            row[f"{what}_us"] = round(statistics.median(values), 2)
            row[f"{what}_us_range"] = [round(min(values), 2), round(max(values), 2)]
        rows.append(row | {"bytes_a_step": round(written.get(name, sum(written.values())))})
    return rows


def main() -> None:
    """Measure each sink alone and both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    write(measure(arguments.steps, arguments.repeats), arguments.json)


if __name__ == "__main__":
    main()
