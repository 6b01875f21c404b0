# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""When the ranks' agreement travels: whether anything of a step waits for it, on a trace.

Two ranks over loopback, paced at 100 Mbit/s, the lab's character transformer with four bits. Of every step are taken,
since its first gradient bucket: when the agreement on the step before was handed over and how long that call took, when
the first gradients were started, when the last had arrived, and how long the step's end then waited for the agreement.

    python -m tests.measure.agreement [--json FILE] [--steps N] [--draw FILE]
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, quantize
from gravac.collectives import AllReduce, Collective
from gravac.exchange.group import Pending
from gravac.lab.tasks import make
from gravac.lab.training.methods import Method, bucket_mb
from gravac.measurement import slots
from tests.measure.results import write
from tests.ranks import processes

Span = dict[str, Any]


def agreed(requests: list[Collective]) -> bool:
    """Whether it is the agreement on a step without shadow CFs: nothing else is so short and float64."""
    tensor = requests[0].tensor if isinstance(requests[0], AllReduce) else torch.empty(0)
    return tensor.dtype == torch.float64 and tensor.numel() == len(slots(()))


def trace(rank: int, world: int, steps: int) -> list[list[Span]]:
    """The spans of every step, in seconds since its first bucket: calls that start collectives, and waits for them."""
    task = make("charlm", scale=0.4)
    model = task.model()
    elements = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(Method.parse("quantize(4)"), elements))
    optimizer = task.optimizer(model)
    spans: list[Span] = []
    came: list[list[Span]] = []
    with AdaptiveCompressor(quantize(4), (2, 8), controller=Static(cf=8), pace=100e6) as compressor:
        compressor.attach(ddp, optimizer)
        transport = compressor._engine.executor.transport
        begin = compressor._connection.adapter._begin
        starts, finishes = transport.launch, transport.finish
        ours: set[int] = set()

        def launch(requests: list[Collective]) -> list[Pending]:
            since = time.perf_counter()
            pending = starts(requests)
            what = "agreement" if agreed(requests) else "gradients"
            if what == "agreement":
                ours.add(id(pending))
            spans.append({"what": f"start {what}", "from": since, "to": time.perf_counter()})
            return pending

        def finish(pending: list[Pending]) -> list[Any]:
            since = time.perf_counter()
            answers = finishes(pending)
            what = "agreement" if id(pending) in ours else "gradients"
            ours.discard(id(pending))
            spans.append({"what": f"wait for {what}", "from": since, "to": time.perf_counter()})
            return answers

        def first_bucket(*arguments: Any) -> None:
            spans.append({"what": "first bucket", "from": time.perf_counter(), "to": time.perf_counter()})
            begin(*arguments)

        transport.launch, transport.finish = launch, finish  # type: ignore[method-assign]
        compressor._connection.adapter._begin = first_bucket  # type: ignore[method-assign]
        for step in range(steps):
            spans.clear()
            optimizer.zero_grad()
            task.loss(ddp, task.batch(step, rank)).backward()
            compressor._engine.drain()
            origin = next(span["from"] for span in spans if span["what"] == "first bucket")
            came.append([{**span, "from": span["from"] - origin, "to": span["to"] - origin} for span in spans])
            optimizer.step()
    return came


def told(step: list[Span]) -> dict[str, float]:
    """What a step's spans say, in seconds."""

    def of(what: str) -> list[Span]:
        return [span for span in step if span["what"] == what]

    (agreement,), (waited,) = of("start agreement"), of("wait for agreement")
    gradients = of("start gradients")
    return {
        "agreement_started": agreement["from"],
        "start_call": agreement["to"] - agreement["from"],
        "first_gradients_started": gradients[0]["from"],
        "gradients_arrived": max(span["to"] for span in of("wait for gradients")),
        "waited_for_agreement": waited["to"] - waited["from"],
    }


def draw(step: list[Span], path: Path) -> None:
    """One step's spans as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 2.2), layout="constrained")
    rows = ["start agreement", "start gradients", "wait for gradients", "wait for agreement"]
    for span in step:
        if span["what"] in rows:
            width = max(1000 * (span["to"] - span["from"]), 0.8)
            color = "tab:orange" if "agreement" in span["what"] else "tab:blue"
            axes.barh(rows.index(span["what"]), width, left=1000 * span["from"], color=color)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds since the first bucket")
    axes.set_title("Exchange thread of one step: 4 bits at 100 Mbit/s")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--draw", type=Path)
    arguments = parser.parse_args()
    steps = processes(trace, 2, arguments.steps)[0][5:]
    summary = [told(step) for step in steps]
    rows: list[dict[str, Any]] = []
    for name in summary[0]:
        values = sorted(1000 * one[name] for one in summary)
        rows.append(
            {
                "what": name,
                "median_ms": round(statistics.median(values), 3),
                "lowest_ms": round(values[0], 3),
                "highest_ms": round(values[-1], 3),
                "steps": len(values),
            }
        )
    write(rows, arguments.json)
    if arguments.draw:
        middle = sorted(range(len(steps)), key=lambda at: summary[at]["gradients_arrived"])[len(steps) // 2]
        draw(steps[middle], arguments.draw)


if __name__ == "__main__":
    main()
