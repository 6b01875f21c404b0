# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes spent over the tensors by what each would lose, against one CF for all, at equal bytes: loss after training.

The character transformer of ``tests.measure.worth``, AdamW, two ranks in memory, the same learning rate, weights and
batches for both.

    python -m tests.measure.allocation [--json FILE] [--steps N] [--seeds N]
"""

import argparse
import multiprocessing
from typing import Any

import torch

from gravac.lab import simulate
from gravac.lab.tasks.charlm import CharLM
from gravac.lab.training.expression import compressor
from tests.measure.results import write

CASES = (("topk", 100.0), ("topkc", 10.0), ("topkc", 50.0), ("topkc(values=quantize(1))", 16.0), ("powersgd", 32.0))

RATE = 2e-3


def train(case: tuple[str, float, bool, int, int]) -> dict[str, Any]:
    """Label, CF, whether bytes are spent by gain, seed, steps."""
    label, cf, by_gain, seed, count = case
    torch.set_num_threads(1)
    task = CharLM(sequences=4, width=128, layers=3, validation_sequences=128, seed=seed)
    model = task.model()
    levels = tuple(cf * 2.0**power for power in range(-3, 4) if cf * 2.0**power >= 1)
    came = simulate.train(
        model,
        torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95)),
        lambda step, rank: task.loss(model, task.batch(step, rank)),
        compressor(label),
        cf,
        None,
        2,
        count,
        levels if by_gain else (),
    )
    score = task.validate(model)
    loss = score.total / score.count
    return {"compressor": label, "cf": cf, "by_gain": by_gain, "seed": seed, "loss": loss, **came._asdict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    cases = [
        (label, cf, by_gain, seed, arguments.steps)
        for label, cf in CASES
        for seed in range(arguments.seeds)
        for by_gain in (False, True)
    ]
    rows = []
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for row in pool.imap(train, cases):
            rows.append(row)
            print(len(rows), "of", len(cases), row, flush=True)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
