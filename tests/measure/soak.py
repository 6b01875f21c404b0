# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Long runs with random delays, every compressor: no hang, replicas bitwise equal, histories equal.

4 processes on gloo and 16 ranks on the threaded process group, a model of 7 buckets, sleeps of 0-10 ms before every
hook and between steps.

    python -m tests.measure.soak [--json FILE] [--steps N]
"""

import argparse
import time

import torch

from tests.distributed.test_ddp import BASES, replicas
from tests.measure.results import write
from tests.ranks import processes, threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    rows = []
    for kind, world in (("gloo processes", 4), ("threaded group", 16)):
        for name, base in BASES.items():
            start = time.perf_counter()
            if kind == "gloo processes":
                ran = processes(replicas, world, base, arguments.steps, 0.01, timeout=900)
            else:
                ran = threads(replicas, world, base, arguments.steps, 0.01, timeout=900)
            rows.append(
                {
                    "ranks": world,
                    "group": kind,
                    "compressor": name,
                    "steps": arguments.steps,
                    "replicas_bitwise_equal": all(torch.equal(ran[0][0], other[0]) for other in ran),
                    "histories_equal": all(ran[0][1] == other[1] for other in ran),
                    "decisions": len(ran[0][1]),
                    "changes": sum(record.changed for record in ran[0][1]),
                    "loss": ran[0][2],
                    "minutes": round((time.perf_counter() - start) / 60, 2),
                }
            )
            print(rows[-1], flush=True)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
