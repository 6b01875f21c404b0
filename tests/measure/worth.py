# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a compressed step is worth: the loss after equally many steps, compressor by compressor, without a clock.

A character transformer of 0.6 M parameters on the standard library's source text; N ranks are stepped in one process,
with the compressors as they run over a network. The learning rate is the best of a few for *dense* training with the
same optimizer. Validation loss in nats; less is better. An interrupted run goes on where it was.

    python -m tests.measure.worth [--json FILE] [--steps N] [--seeds N] [--minutes N]
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from gravac.lab import simulate
from gravac.lab.tasks.charlm import CharLM
from gravac.lab.training.expression import compressor
from tests.measure.results import todays
from tests.measure.resuming import Book, run_in, until

RATES = {"adamw": (1e-3, 2e-3, 4e-3), "sgd": (0.03, 0.1, 0.3)}
"""Learning rates tried for dense training."""

FEEDBACKS = (0.0, 0.5, 1.0)
"""Strengths of error feedback."""


class Case(NamedTuple):
    """One training run.

    Attributes:
        label: of the compressor, as it would be written in Python.
        cf: compression factor; None for dense.
        feedback: error feedback.
        optimizer: ``"adamw"`` or ``"sgd"`` (momentum 0.9).
        ranks: stepped in memory.
        seed: of weights and batches.
        rate: learning rate.
        steps: of training.
    """

    label: str
    cf: float | None
    feedback: float
    optimizer: str
    ranks: int
    seed: int
    rate: float
    steps: int


def train(case: Case) -> dict[str, Any]:
    """Run one case; what came of it."""
    torch.set_num_threads(1)
    task = CharLM(sequences=4 if case.ranks == 2 else 1, width=128, layers=3, validation_sequences=128, seed=case.seed)
    model = task.model()
    if case.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=case.rate, betas=(0.9, 0.95))
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=case.rate, momentum=0.9, nesterov=True)
    came = simulate.train(
        model,
        optimizer,
        lambda step, rank: task.loss(model, task.batch(step, rank)),
        compressor(case.label),
        case.cf,
        case.feedback,
        case.ranks,
        case.steps,
    )
    score = task.validate(model)
    return {
        **case._asdict(),
        "loss": score.total / score.count,
        "gain": came.gain,
        "wire_ratio": came.wire_ratio,
    }


ONCE: tuple[tuple[str, float, tuple[float, ...]], ...] = (
    ("quantize(8)", 4, (0.0,)),
    ("quantize(3)", 32 / 3, (0.0,)),
    ("quantize(2, levels='uniform')", 16, (0.0,)),
    ("topk", 100, (1.0,)),
    ("topkc", 50, (1.0,)),
    ("topkc", 500, (1.0,)),
    ("topkc(values=quantize(4))", 10, (1.0,)),
    ("topkc(values=quantize(2))", 8, (1.0,)),
    ("topkc(values=quantize(1))", 2, (0.0, 1.0)),
    ("topkc(values=quantize(1))", 16, (1.0,)),
    ("topkc(values=quantize(1))", 64, (1.0,)),
    ("powersgd", 64, (1.0,)),
    *((f"powersgd({rank})", 512 / rank, (1.0,)) for rank in (4, 2, 1)),
    ("powersgd(alternating=True)", 16, (1.0,)),
)
"""Further labels, CFs and feedbacks: AdamW, two ranks, one seed."""

THROUGHOUT: tuple[tuple[str, float], ...] = (
    ("quantize(2)", 16),
    ("quantize(1)", 32),
    ("topk", 10),
    ("topkc", 10),
    ("topkc(values=quantize(1))", 4),
    ("powersgd", 16),
    ("quantize(4)", 8),
    ("thc", 8),
    ("signsgd", 32),
    ("randomk(block=64)", 10),
    ("artopk", 10),
)
"""One of every family: with both optimizers, three strengths of feedback, two and eight ranks, three seeds."""

SECOND = (("quantize(2, back_bits=4)", 16.0), ("quantize(1, back_bits=4)", 32.0))
"""What more bits in the second coding bring, between eight ranks."""


def cases(count: int, rates: dict[str, float], seeds: Sequence[int]) -> Iterable[Case]:
    """What is run, most telling first."""

    def grid(optimizer: str, ranks: int, seed: int) -> Iterable[Case]:
        yield Case("dense", None, 0.0, optimizer, ranks, seed, rates[optimizer], count)
        for label, cf in THROUGHOUT:
            for feedback in FEEDBACKS:
                yield Case(label, cf, feedback, optimizer, ranks, seed, rates[optimizer], count)

    for optimizer in RATES:
        for seed in seeds:
            yield from grid(optimizer, 2, seed)
    for label, cf, feedbacks in ONCE:
        for feedback in feedbacks:
            yield Case(label, cf, feedback, "adamw", 2, seeds[0], rates["adamw"], count)
    for label, cf in SECOND:
        yield Case(label, cf, 0.0, "adamw", 8, seeds[0], rates["adamw"], count)
    for seed in seeds:
        yield from grid("adamw", 8, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this many minutes")
    arguments = parser.parse_args()
    time_is_up, book = until(arguments.minutes), Book(arguments.json)
    todays()  # the machine's speed, before workers take it
    with multiprocessing.get_context("spawn").Pool(2) as pool:

        def run(wanted: Iterable[Case]) -> list[dict[str, Any]]:
            """Rows of these cases; those that an earlier run left in the file are not run again."""
            wanted = list(dict.fromkeys(wanted))
            ran = {key(row) for row in book.rows}
            run_in(pool, train, [case for case in wanted if case not in ran], book, time_is_up)
            rows = {key(row): row for row in book.rows}
            return [rows[case] for case in wanted if case in rows]

        tried = run(Case("dense", None, 0.0, o, 2, 0, r, arguments.steps) for o, rs in RATES.items() for r in rs)
        rates = {o: min((row["loss"], row["rate"]) for row in tried if row["optimizer"] == o)[1] for o in RATES}
        run(cases(arguments.steps, rates, range(arguments.seeds)))
    print(table(book.rows))


def key(row: dict[str, Any]) -> Case:
    """The case of a row."""
    return Case(**{field: row[field] for field in Case._fields})


def table(rows: list[dict[str, Any]]) -> str:
    """The runs as Markdown tables: by optimizer and ranks; seeds as median and range, feedbacks side by side."""
    lines = []
    settings = dict.fromkeys((row["optimizer"], row["ranks"]) for row in rows)
    tuned = {o: min((row["loss"], row["rate"]) for row in rows if row["optimizer"] == o)[1] for o, _ in settings}
    for optimizer, ranks in settings:
        lines += [
            "",
            f"{optimizer}, learning rate {tuned[optimizer]:g}, {ranks} ranks:",
            "",
            "| compressor | CF | wire ratio | no feedback | half | full | gain |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        own = [
            row for row in rows if (row["optimizer"], row["ranks"], row["rate"]) == (optimizer, ranks, tuned[optimizer])
        ]
        for label, cf in dict.fromkeys((row["label"], row["cf"]) for row in own):
            of = {f: [r for r in own if (r["label"], r["cf"], r["feedback"]) == (label, cf, f)] for f in FEEDBACKS}
            best = min((statistics.median(r["loss"] for r in some), f) for f, some in of.items() if some)[1]
            cells = [_cell([r["loss"] for r in of[f]], f == best and cf is not None) for f in FEEDBACKS]
            gains = "/".join(f"{statistics.median(r['gain'] for r in some):.2f}" for some in of.values() if some)
            ratio = next(r["wire_ratio"] for some in of.values() for r in some)
            asked = "" if cf is None else f"{cf:.4g}"
            lines.append(f"| `{label}` | {asked} | {ratio:.1f} | {' | '.join(cells)} | {gains} |")
    return "\n".join(lines)


def _cell(losses: list[float], bold: bool) -> str:
    if not losses:
        return ""
    spread = f" ({min(losses):.3f}-{max(losses):.3f})" if len(losses) > 1 else ""
    said = f"{statistics.median(losses):.3f}{spread}"
    return f"**{said}**" if bold else said


if __name__ == "__main__":
    main()
