# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Finds the learning rate that is best for *dense* training: one process plays all ranks, nothing is compressed.

An untuned baseline flatters compression, so every method later trains with the rate this finds::

    python -m gravac.lab.sweep --workers 2 --steps 100 200 400
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from gravac.lab.tasks.charlm import CharLM


def dense_losses(task: CharLM, workers: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Validation loss (nats a character) of dense training after each number of ``steps``, in rising order."""
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(max(steps)):
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate_at(step)
        optimizer.zero_grad()
        batch = torch.cat([task.batch(step, rank) for rank in range(workers)])
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step + 1 in steps:
            score = task.validate(model)
            yield step + 1, score.total / score.count


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line per learning rate and seed: the validation loss after each number of steps."""
    parser = argparse.ArgumentParser(prog="python -m gravac.lab.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 8e-3])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for seed in options.seeds:
        for rate in options.rates:
            task = CharLM(learning_rate=rate, seed=seed)
            losses = dense_losses(task, options.workers, options.steps)
            words = " ".join(f"{steps}:{loss:.3f}" for steps, loss in losses)
            print(f"seed {seed}  lr {rate:g}  validation loss after steps {words}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
