# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""In how many data-centre set-ups a compressor is predicted to beat dense exchange by more than 5 %; nothing is run.

Agarwal et al., "On the Utility of Gradient Compression in Distributed Training Systems", MLSys 2022, found 6 of more
than 200, against dense float32. Here, by ``gravac.costmodel``: four models on three GPUs, 4 to 96 ranks, 1 to 100
Gbit/s per rank.

Batch times are batch / throughput of one GPU. From NVIDIA/DeepLearningExamples at 729963d, ResNet-50 v1.5 and BERT in
PyTorch: ResNet-50 images per second V100 in float32 367, V100 in mixed precision 1200, A100 in mixed precision 2470;
BERT-large sequences of 128 per second 50, 224, 580. By arithmetic, not published: ResNet-101 does 7.8 billion products
per image to ResNet-50's 4.1; BERT-base has 85 M parameters in its layers to BERT-large's 302 M.

What compression costs on a GPU, two ways:

- ``published``: encode and decode of a ResNet-50 on V100s as that paper's table is remembered in our notes, with low
  confidence: top-k 295 ms at 20 %, 289 at 10 %, 240 at 1 %; PowerSGD 45, 64, 130 ms at rank 4, 8, 16; signSGD 16 ms.
  Assumed: by parameter the same for other models, the same at any number of ranks, a majority vote and quantizing as
  signSGD, an A100 faster by its memory. Compressed exchange does not overlap backward, as in the paper.
- ``copies``: as many copies as on a CPU (docs/measurements/compressors.json), at a GPU's speed of a copy. Assumed: that
  a GPU needs no more of them, which for sorting and for QR it does. Overlap as for dense.

Also assumed: 15 µs a message; 90 % of backward hides dense exchange; rings.

    python -m tests.measure.datacentre [--json FILE]
"""

import argparse
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from gravac.compressors import Compressor, majority, powersgd, quantize, signsgd, topk
from gravac.costmodel import Costs, Load, Machine, Network, load
from gravac.lab.shapes import MODELS
from tests.measure.results import write

MARGIN = 1.05
LATENCY = 15e-6
OVERLAP = 0.9
RANKS = (4, 8, 16, 32, 64, 96)
GBITS = (1, 5, 10, 15, 25, 40, 50, 100)

BATCHES = {"resnet50": 64, "resnet101": 64, "bert-base": 32, "bert-large": 16}

CANDIDATES: tuple[tuple[Compressor, float], ...] = (
    (topk, 10),
    (topk, 100),
    (powersgd, 10),
    (powersgd, 100),
    (signsgd, 32),
    (majority, 32),
    (quantize, 8),
    (quantize, 16),
    (quantize, 32),
)


PAPERS = ("topk", "powersgd", "signsgd")
"""Judged in the paper; the others were not."""


@dataclass(frozen=True)
class GPU:
    """Throughputs of ResNet-50 and BERT-large, samples per second; bytes copied per second, 0.39 of the memory's."""

    name: str
    resnet50: float
    bert_large: float
    copy: float

    def seconds(self, model: str) -> float:
        """Of one batch."""
        rates = {
            "resnet50": self.resnet50,
            "resnet101": self.resnet50 * 4.1 / 7.8,
            "bert-base": self.bert_large * 302 / 85,
            "bert-large": self.bert_large,
        }
        return BATCHES[model] / rates[model]


GPUS = (
    GPU("V100 float32", 367, 50, 350e9),
    GPU("V100 mixed", 1200, 224, 350e9),
    GPU("A100 mixed", 2470, 580, 600e9),
)


def published() -> Costs:
    """Of the paper, in copies of a ResNet-50 on a V100."""
    shapes = MODELS["resnet50"]()
    copy = 4 * sum(math.prod(shape) for shape in shapes) / GPUS[0].copy

    def cf(rank: int) -> float:
        matrices = [(shape[0], math.prod(shape[1:])) for shape in shapes if len(shape) > 1]
        return sum(n * m for n, m in matrices) / sum(min(n, m, rank) * (n + m) for n, m in matrices)

    signs = ((32, 0.016 / copy, 0.0),)
    return {
        "topk": ((5, 0.295 / copy, 0.0), (10, 0.289 / copy, 0.0), (100, 0.240 / copy, 0.0)),
        "powersgd": tuple((cf(rank), s / copy, 0.0) for rank, s in ((16, 0.130), (8, 0.064), (4, 0.045))),
        "signsgd": signs,
        "majority": signs,
        "quantize": signs,
    }


def count(costs: str, gpu: GPU, model: str) -> list[dict[str, Any]]:
    """Over all numbers of ranks, at each bandwidth."""
    shapes, seconds = MODELS[model](), gpu.seconds(model)
    machine = (
        Machine(gpu.copy, OVERLAP, published(), per_rank=False) if costs == "published" else Machine(gpu.copy, OVERLAP)
    )
    coding = replace(machine, overlap=0.0) if costs == "published" else machine
    loads: dict[int, tuple[Load, Load, list[Load]]] = {
        ranks: (
            load(shapes, None, 1, seconds, ranks, machine, dense="float32"),
            load(shapes, None, 1, seconds, ranks, machine),
            [load(shapes, compressor, cf, seconds, ranks, machine) for compressor, cf in CANDIDATES],
        )
        for ranks in RANKS
    }
    rows = []
    for gbit in GBITS:
        network = Network(LATENCY, gbit * 1e9)
        row: dict[str, Any] = {"costs": costs, "gpu": gpu.name, "model": model, "batch_s": round(seconds, 4)}
        row |= {"gbit": gbit, "setups": len(RANKS), "wins": 0, "wins_over_float32": 0, "wins_in_progress": 0}
        row |= {"papers_wins": 0, "papers_wins_over_float32": 0}
        best = (0.0, "", 0)
        for ranks, (single, sixteen, others) in loads.items():
            full, half = (dense.over(network, machine).step_s for dense in (single, sixteen))
            steps = [other.over(network, coding).step_s for other in others]
            worths = [compressor.profile(cf).efficiency for compressor, cf in CANDIDATES]
            papers = min(s for s, (compressor, _) in zip(steps, CANDIDATES, strict=True) if compressor.name in PAPERS)
            row["papers_wins"] += half / papers > MARGIN
            row["papers_wins_over_float32"] += full / papers > MARGIN
            row["wins"] += half / min(steps) > MARGIN
            row["wins_over_float32"] += full / min(steps) > MARGIN
            row["wins_in_progress"] += any(half / s * w > MARGIN for s, w in zip(steps, worths, strict=True))
            at = steps.index(min(steps))
            best = max(best, (half / steps[at], f"{CANDIDATES[at][0].name} {CANDIDATES[at][1]:g}x", ranks))
        rows.append(row | {"most_speed_up": round(best[0], 3), "by": best[1], "at_ranks": best[2]})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Wins by costs and GPU, at each bandwidth: of any compressor, and of the three that the paper judged."""
    lines = [
        f"{'set-ups in which one wins':54}"
        + "".join(f"{gbit:>5}" for gbit in GBITS)
        + " Gbit/s     at 10 and more             all"
    ]
    keys = {
        "wins": "over 16 bit",
        "wins_over_float32": "over float32",
        "wins_in_progress": "over 16 bit, by progress",
        "papers_wins": "the paper's, over 16 bit",
        "papers_wins_over_float32": "the paper's, over float32",
    }
    for costs, gpu, (key, words) in itertools.product(("published", "copies"), GPUS, keys.items()):
        mine = [row for row in rows if (row["costs"], row["gpu"]) == (costs, gpu.name)]
        wins = [sum(row[key] for row in mine if row["gbit"] == gbit) for gbit in GBITS]
        of = sum(row["setups"] for row in mine)
        usual = [sum(row[what] for row in mine if row["gbit"] >= 10) for what in (key, "setups")]
        name = f"{costs}, {gpu.name}, {words}"
        counted = f"{usual[0]:>10} of {usual[1]}{sum(wins):>12} of {of}"
        lines.append(f"{name:54}" + "".join(f"{w:>5}" for w in wins) + counted)
    return "\n".join([*lines, f"each bandwidth has {len(RANKS) * len(BATCHES)} set-ups a line"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    counts = [
        row
        for costs, gpu, model in itertools.product(("published", "copies"), GPUS, BATCHES)
        for row in count(costs, gpu, model)
    ]
    write(counts, arguments.json)
    print(table(counts))
