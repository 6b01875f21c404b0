# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac costs when it compresses nothing: settled on dense float32, against native DDP.

Two ranks on gloo over loopback, one thread each. Three models train in the same processes, in blocks of steps that
take turns: native DDP, ours, and a bare hook of two lines of Python, the least that any hook can cost; a pair is the
ratio of two blocks' median step times. Telemetry (TensorBoard and JSONL) is on, and its share
of a step is timed where the records are handed over.

    python -m tests.measure.overhead [--json FILE] [--pairs N]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.telemetry.records import Record
from tests.measure.one_side import WIDE, eight_layers
from tests.measure.results import interval, write
from tests.ranks import processes

BLOCK = 8
"""Steps of one kind before it is the other's turn."""


class Timed:
    """A sink that adds up how long another takes."""

    def __init__(self, sink: object) -> None:
        self.sink = sink
        self.seconds = 0.0

    def __call__(self, record: Record) -> None:
        start = time.perf_counter()
        self.sink(record)  # type: ignore[operator]
        self.seconds += time.perf_counter() - start

    def close(self) -> None:
        self.sink.close()  # type: ignore[attr-defined]


def bare(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0].mul_(1 / dist.get_world_size()))


def race(rank: int, world: int, width: int, rows: int, pairs: int, log_dir: str) -> dict[str, object]:
    x = torch.randn(rows, width)
    models = {
        kind: DistributedDataParallel(eight_layers(width), bucket_cap_mb=2) for kind in ("native", "ours", "bare")
    }
    optimizers = {kind: torch.optim.SGD(ddp.parameters(), lr=1e-4) for kind, ddp in models.items()}
    models["bare"].register_comm_hook(None, bare)
    compressor = AdaptiveCompressor(topk, cf_range=(1, 1000), controller=Static(cf=1), log_dir=log_dir)
    compressor.attach(models["ours"], optimizers["ours"])
    timed = compressor._sinks._sinks = [Timed(sink) for sink in compressor._sinks._sinks]  # type: ignore[assignment]

    def block(kind: str) -> float:
        taken = []
        for _ in range(BLOCK):
            start = time.perf_counter()
            optimizers[kind].zero_grad()
            models[kind](x).square().mean().backward()
            optimizers[kind].step()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    kinds = list(models)
    for kind in kinds * 2:
        block(kind)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    before = sum(sink.seconds for sink in timed)
    for pair in range(pairs):
        for kind in kinds[pair % 3 :] + kinds[: pair % 3]:
            dist.barrier()
            times[kind].append(block(kind))
    compressor.close()
    telemetry = sum(sink.seconds for sink in timed) - before
    step = statistics.median(times["native"])
    ratios = {kind: [a / b for a, b in zip(times[kind], times["native"], strict=True)] for kind in ("ours", "bare")}
    return {"ratios": ratios, "step": step, "telemetry_share": telemetry / (pairs * BLOCK) / step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--pairs", type=int, default=40)
    arguments = parser.parse_args()
    rows = []
    for width, batch in WIDE:
        with tempfile.TemporaryDirectory() as folder:
            ran = processes(race, 2, width, batch, arguments.pairs, str(Path(folder) / "runs"), timeout=900)
        first = ran[0]
        ratios = first["ratios"]
        rows.append(
            {
                "parameters": 8 * width * (width + 1),
                "native_step_ms": round(first["step"] * 1e3, 1),
                "pairs": arguments.pairs,
                "ours_over_native": statistics.median(ratios["ours"]),
                "interval_95": interval(ratios["ours"]),
                "bare_hook_over_native": statistics.median(ratios["bare"]),
                "bare_hook_interval_95": interval(ratios["bare"]),
                "telemetry_share_of_step": first["telemetry_share"],
            }
        )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
