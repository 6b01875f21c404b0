# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Multi-level against direct double compression, exact top-k, on real parameter shapes, one thread.

Direct is the faster of two exact selections (gravac's own and torch.topk). The bound is 1 + t(1000x)/t(10x): what a
second level that costs nothing would give. All numbers are ratios of times measured in turn in one process.

    python -m tests.measure.multilevel [--json FILE] [--rounds N]
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch

from gravac.compressors import Context, multilevel, topk
from gravac.compressors.base import k_for
from gravac.lab.shapes import MODELS
from tests.measure.results import write

PAPER = {"resnet101": 1.83, "vgg16": 1.49, "lstm": 1.59}
CANDIDATES = (10.0, 20.0, 40.0, 160.0, 1000.0)


def tensors(model: str) -> list[torch.Tensor]:
    """Heavy-tailed gradients of the model's compressed parameters, flat."""
    g = torch.Generator().manual_seed(0)
    flats = []
    for shape in MODELS[model]():
        elements = torch.Size(shape).numel()
        if len(shape) > 1 and elements >= 1024:
            flats.append(torch.randn(elements, generator=g) * torch.rand(elements, generator=g) ** 2)
    return flats


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(model: str, rounds: int) -> dict[str, object]:
    flats = tensors(model)

    def direct(cf: float) -> None:
        for x in flats:
            topk.select(x, k_for(x.numel(), cf))

    def torch_topk(cf: float) -> None:
        for x in flats:
            x.abs().topk(k_for(x.numel(), cf), sorted=False)

    def levels(*cfs: float) -> None:
        for x in flats:
            ctx = Context()
            for cf in cfs:
                multilevel.select_at(topk.select, x, cf, ctx)

    def errors(*cfs: float) -> None:
        for x in flats:
            topk.errors(x, cfs, Context())

    slow = {cf: min(seconds(lambda c=cf: torch_topk(c)) for _ in range(2)) for cf in (10.0, 1000.0)}
    runs: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        timed = {
            "direct 10x": lambda: direct(10),
            "direct 1000x": lambda: direct(1000),
            "multi-level": lambda: levels(10, 1000),
            "errors 10x": lambda: errors(10),
            "errors of all": lambda: errors(*CANDIDATES),
        }
        for name, function in timed.items():
            took = seconds(function)
            if turn:
                runs.setdefault(name, []).append(took)
        gc.collect()
    first = [min(t, slow[10.0]) for t in runs["direct 10x"]]
    second = [min(t, slow[1000.0]) for t in runs["direct 1000x"]]
    ratio = [(a + b) / m for a, b, m in zip(first, second, runs["multi-level"], strict=True)]
    bound = [1 + b / a for a, b in zip(first, second, strict=True)]
    everything = [a / o for a, o in zip(runs["errors of all"], runs["errors 10x"], strict=True)]
    return {
        "model": model,
        "elements": sum(x.numel() for x in flats),
        "tensors": len(flats),
        "multilevel_over_direct": statistics.median(ratio),
        "spread": [min(ratio), max(ratio)],
        "bound": statistics.median(bound),
        "share_of_bound": statistics.median(ratio) / statistics.median(bound),
        "paper": PAPER[model],
        "all_candidates_over_first": statistics.median(everything),
        "all_candidates_spread": [min(everything), max(everything)],
        "torch_topk_over_ours": {
            f"{cf:g}x": slow[cf] / statistics.median(ours)
            for cf, ours in ((10.0, runs["direct 10x"]), (1000.0, runs["direct 1000x"]))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write([measure(model, arguments.rounds) for model in MODELS], arguments.json)


if __name__ == "__main__":
    main()
