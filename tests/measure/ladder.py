# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a ladder serves each wire ratio as well as its best member would, on a task it was not derived from.

A convolutional net on scikit-learn's handwritten digits, SGD with momentum, two ranks in memory. At each wire ratio
every family trains at the lowest CF that reaches it, with its own error feedback. Validation loss in nats.

    python -m tests.measure.ladder [--json FILE] [--steps N] [--seeds N]
"""

import argparse
import multiprocessing
import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from gravac.candidate import Span
from gravac.compressors import Compressor, Ladder, dense, ladder, powersgd, quantize, topk, topkc
from gravac.compressors.ladder import HIGHEST_CF, wire_ratio
from gravac.lab import simulate
from tests.measure.results import write

RATIOS = (1, 2, 3.9, 7.5, 10, 15, 28, 50, 100, 250, 500, 1000)

FAMILIES: dict[str, Compressor] = {
    "bfloat16": dense(dtype="bfloat16"),
    "quantize": quantize,
    "topk": topk,
    "topkc": topkc,
    "topkc(values=quantize(4))": topkc(values=quantize(4)),
    "topkc(values=quantize(1))": topkc(values=quantize(1)),
    "powersgd": powersgd,
    "powersgd(rank)": ladder(*(powersgd(rank) for rank in (16, 8, 4, 2, 1))),
    "ladder": ladder,
}

MEMBERS = ("bfloat16", "quantize", "topkc(values=quantize(1))", "powersgd(rank)")
"""Families that the ladder is made of."""

REACHED = 0.9
"""A member that comes to less than this share of the ladder's wire ratio on this net does not compete with it."""

RATES = (0.01, 0.03, 0.1)
"""Learning rates tried for dense training."""


def lowest(compressor: Compressor, ratio: float) -> float | None:
    """The lowest CF that reaches a wire ratio; None when none does, or when a much lower one would do."""
    if isinstance(compressor, Ladder):
        rungs = compressor.candidates((1.0, HIGHEST_CF))
        return ratio if rungs[0] <= ratio * 1.15 and ratio <= rungs[-1] else None
    reach = compressor.candidates((1.0, HIGHEST_CF))
    if not isinstance(reach, Span):
        able = [cf for cf in reach if wire_ratio(compressor, cf) >= ratio * 0.999]
        return min(able) if able else None
    low, high = reach.low, reach.high
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wire_ratio(compressor, middle) >= ratio else (middle, high)
    return high if wire_ratio(compressor, high) >= ratio * 0.99 else None


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(1024, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10),
    )  # fmt: skip


def train(case: tuple[str, float, float, int, int]) -> dict[str, Any]:
    """Family, wire ratio (1: dense), learning rate, seed, steps."""
    family, ratio, rate, seed, count = case
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held, used = order[:500], order[500:]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def loss(step: int, rank: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(seed * 10**6 + step * 100 + rank)
        rows = used[torch.randint(len(used), (16,), generator=drawn)]
        return torch.nn.functional.cross_entropy(model(x[rows]), y[rows])

    base = FAMILIES.get(family, dense)
    cf = None if family == "float32" else lowest(base, ratio)
    came = simulate.train(model, optimizer, loss, base, cf, None, 2, count)
    with torch.no_grad():
        validation = torch.nn.functional.cross_entropy(model(x[held]), y[held])
    return {"family": family, "ratio": ratio, "rate": rate, "loss": float(validation), "wire_ratio": came.wire_ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        tried = pool.map(train, [("float32", 1.0, rate, seed, arguments.steps) for rate in RATES for seed in seeds])
        by_rate = {rate: statistics.median(r["loss"] for r in tried if r["rate"] == rate) for rate in RATES}
        rate = min(by_rate, key=by_rate.__getitem__)
        print("learning rates", by_rate, flush=True)
        wanted = [
            (family, ratio)
            for ratio in RATIOS[1:]
            for family, compressor in FAMILIES.items()
            if lowest(compressor, ratio) is not None
        ]
        cases = [(family, ratio, rate, seed, arguments.steps) for family, ratio in wanted for seed in seeds]
        ran = []
        for row in pool.imap(train, cases):
            ran.append(row)
            print(len(ran), "of", len(cases), row, flush=True)
    rows = [{"family": "float32", "ratio": 1.0, "loss": by_rate[rate], "learning_rate": rate}]
    for family, ratio in wanted:
        same = [row for row in ran if (row["family"], row["ratio"]) == (family, ratio)]
        losses = [row["loss"] for row in same]
        rows.append(
            {
                "family": family,
                "ratio": ratio,
                "loss": statistics.median(losses),
                "low": min(losses),
                "high": max(losses),
                "wire_ratio": same[0]["wire_ratio"],
            }
        )
    write(rows, arguments.json)
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown: families side by side, what each came to in brackets, and the ladder against its best member."""
    families = list(FAMILIES)
    lines = [
        "| wire ratio asked for | " + " | ".join(f"`{family}`" for family in families) + " | ladder - best member |",
        "| --- " * (len(families) + 2) + "|",
    ]
    for ratio in RATIOS[1:]:
        own = {row["family"]: row for row in rows if row["ratio"] == ratio}
        cells = [f"{own[f]['loss']:.3f} ({own[f]['wire_ratio']:.0f}x)" if f in own else "-" for f in families]
        able = [own[f] for f in MEMBERS if f in own and own[f]["wire_ratio"] >= REACHED * own["ladder"]["wire_ratio"]]
        off = own["ladder"]["loss"] - min(row["loss"] for row in able)
        lines.append(f"| {ratio:g} | {' | '.join(cells)} | {off:+.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
