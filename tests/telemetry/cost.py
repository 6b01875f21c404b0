# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step's record costs: python -m tests.telemetry.cost [STEPS].

Prints microseconds a step for each sink, on a made-up run of 20-step windows: time of the calling thread (what a step
may wait for) and of all threads (TensorBoard writes in its own).
"""

import sys
import tempfile
import time
from pathlib import Path

from gravac.telemetry import JSONLSink, Record, Sink, TensorBoardSink
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


def main() -> None:
    """Measure each sink alone and both."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    records = list(make_run(steps))[:-1]  # the end is once, not a step's
    with tempfile.TemporaryDirectory() as folder:
        tensorboard, jsonl = TensorBoardSink(Path(folder) / "tb"), JSONLSink(Path(folder) / "run.jsonl")
        both: list[Sink] = [tensorboard, jsonl]
        for name, sinks in (("TensorBoardSink", both[:1]), ("JSONLSink", both[1:]), ("both", both)):
            wall, thread, process = cost(sinks, records, steps)
            print(f"{name:16} {wall:6.1f} us a step; calling thread {thread:6.1f} us, all threads {process:6.1f} us")
        tensorboard.close()
        jsonl.close()
        written = {
            "event file": sum(path.stat().st_size for path in (Path(folder) / "tb").iterdir()),
            "JSONL": (Path(folder) / "run.jsonl").stat().st_size,
        }
    for name, size in written.items():
        print(f"{size / (2 * steps):.0f} bytes a step in the {name}")  # each sink took the run twice


if __name__ == "__main__":
    main()
