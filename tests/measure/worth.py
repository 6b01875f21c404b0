# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a compressed step is worth: the loss after equally many steps, compressor by compressor, without a clock.

A character transformer of 0.6 M parameters on the standard library's source text; N ranks are stepped in one process,
with the compressors as they run over a network. The learning rate is the best of a few for *dense* training with the
same optimizer. Validation loss in nats; less is better. An interrupted run goes on where it was.

    python -m tests.measure.worth [--json FILE] [--steps N] [--quick]
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gravac.compressors import COMPRESSORS, Compressor
from gravac.lab.tasks.charlm import CharLM
from tests.measure import steps
from tests.measure.results import write

RATES = {"adamw": (1e-3, 2e-3, 4e-3), "sgd": (0.03, 0.1, 0.3)}
"""Learning rates tried for dense training."""


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


def compressor(label: str) -> Compressor:
    """The compressor that a label writes."""
    made = eval(label, {"__builtins__": {}}, dict(COMPRESSORS))  # noqa: S307 -- labels are this file's own
    assert isinstance(made, Compressor)
    return made


def train(case: Case) -> dict[str, Any]:
    """Run one case; what came of it."""
    torch.set_num_threads(1)
    task = CharLM(sequences=4 if case.ranks == 2 else 1, width=128, layers=3, validation_sequences=128, seed=case.seed)
    model = task.model()
    if case.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=case.rate, betas=(0.9, 0.95))
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=case.rate, momentum=0.9, nesterov=True)
    came = steps.train(
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


def cases(count: int, rates: dict[str, float], quick: bool) -> Iterable[Case]:
    """What is run, most telling first."""
    choices: list[tuple[str, float | None, tuple[float, ...]]] = [
        ("dense", None, (0.0,)),
        ("quantize(2)", 16, (0.0, 0.5, 1.0)),
        ("quantize(1)", 32, (0.0, 0.5, 1.0)),
        ("topk", 10, (0.0, 0.5, 1.0)),
        ("topkc", 10, (0.0, 0.5, 1.0)),
        ("powersgd", 16, (0.0, 0.5, 1.0)),
        ("quantize(8)", 4, (0.0,)),
        ("quantize(4)", 8, (0.0, 1.0)),
        ("quantize(3)", 32 / 3, (0.0,)),
        ("quantize(2, levels='uniform')", 16, (0.0,)),
        ("thc", 8, (0.0, 1.0)),
        ("signsgd", 32, (0.0, 1.0)),
        ("topk", 100, (1.0,)),
        ("topkc", 50, (1.0,)),
        ("topkc", 500, (1.0,)),
        ("topkc(values=quantize(4))", 10, (1.0,)),
        ("topkc(values=quantize(1))", 2, (0.0, 1.0)),
        ("topkc(values=quantize(1))", 4, (0.0, 1.0)),
        ("topkc(values=quantize(1))", 16, (1.0,)),
        ("topkc(values=quantize(1))", 64, (1.0,)),
        ("topkc(values=quantize(2))", 8, (1.0,)),
        ("randomk(block=64)", 10, (1.0,)),
        ("artopk", 10, (1.0,)),
        ("powersgd", 64, (1.0,)),
        ("powersgd(alternating=True)", 16, (1.0,)),
    ]
    for label, cf, feedbacks in choices:
        for feedback in feedbacks:
            yield Case(label, cf, feedback, "adamw", 2, 0, rates["adamw"], count)
    for label, cf, feedbacks in choices[:8]:
        for feedback in feedbacks:
            yield Case(label, cf, feedback, "sgd", 2, 0, rates["sgd"], count)
    for label, cf in (
        ("dense", None),
        ("quantize(2)", 16.0),
        ("quantize(2, back_bits=4)", 16.0),
        ("quantize(1)", 32.0),
        ("quantize(1, back_bits=4)", 32.0),
    ):
        yield Case(label, cf, 0.0, "adamw", 8, 0, rates["adamw"], count)
    for seed in () if quick else (1, 2):
        for label, cf, feedback in (
            ("dense", None, 0.0),
            ("quantize(2)", 16, 0.0),
            ("quantize(1)", 32, 0.0),
            ("quantize(1)", 32, 0.5),
            ("topk", 10, 1.0),
            ("topkc", 10, 1.0),
            ("powersgd", 16, 1.0),
            ("topkc(values=quantize(1))", 4, 1.0),
        ):
            yield Case(label, cf, feedback, "adamw", 2, seed, rates["adamw"], count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--quick", action="store_true", help="one seed")
    arguments = parser.parse_args()
    done = Path(arguments.json).with_suffix(".partial") if arguments.json else None
    rows: list[dict[str, Any]] = json.loads(done.read_text()) if done and done.exists() else []
    with multiprocessing.get_context("spawn").Pool(2) as pool:

        def run(wanted: Iterable[Case]) -> list[dict[str, Any]]:
            """Rows of these cases; those of an interrupted run are not run again."""
            wanted = list(wanted)
            ran = {key(row): row for row in rows}
            missing = [case for case in wanted if case not in ran]
            for position, row in enumerate(pool.imap(train, missing), 1):
                rows.append(row)
                ran[key(row)] = row
                print(f"{position} of {len(missing)}:", json.dumps(row), flush=True)
                if done:
                    done.write_text(json.dumps(rows))
            return [ran[case] for case in wanted]

        tried = run(Case("dense", None, 0.0, o, 2, 0, r, arguments.steps) for o, rs in RATES.items() for r in rs)
        rates = {o: min((row["loss"], row["rate"]) for row in tried if row["optimizer"] == o)[1] for o in RATES}
        finished = run(cases(arguments.steps, rates, arguments.quick))
    write(summary(finished), arguments.json)
    if done:
        done.unlink(missing_ok=True)


def key(row: dict[str, Any]) -> Case:
    """The case of a row."""
    return Case(**{field: row[field] for field in Case._fields})


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seeds of one case together: the median, and what there is on either side of it."""
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        same = tuple(row[k] for k in ("optimizer", "ranks", "label", "cf", "feedback", "rate", "steps"))
        together.setdefault(same, []).append(row)
    return [
        {
            "optimizer": key[0],
            "ranks": key[1],
            "compressor": key[2],
            "cf": key[3],
            "error_feedback": key[4],
            "learning_rate": key[5],
            "steps": key[6],
            "seeds": len(same),
            "loss": round(statistics.median(row["loss"] for row in same), 4),
            "losses": [round(row["loss"], 4) for row in same],
            "gain": round(statistics.median(row["gain"] for row in same), 4),
            "wire_ratio": round(same[0]["wire_ratio"], 2),
        }
        for key, same in together.items()
    ]


if __name__ == "__main__":
    main()
