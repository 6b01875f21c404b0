# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a short paired probe tells the steps that a compressor needs: against the runs of the matrix.

Each task trains densely for a while, then ``gravac.lab.probe`` compares the matrix's static methods from there.
Spearman's rank correlation of the probe's efficiency with dense's steps to the target / the method's, beside that of
the probe's mean gain.

    python -m tests.measure.probed [--runs docs/measurements/tta.json] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.probe import probe
from gravac.lab.tasks import make
from gravac.lab.training.methods import Method
from gravac.lab.tta import record
from gravac.lab.tta.matrix import REFERENCE_METHOD
from tests.measure.efficiency import spearman
from tests.measure.results import write

BEFORE, STEPS, REPEATS = 60, 40, 2
"""Dense steps before the probe; steps of each candidate, and how often."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/measurements/tta.json"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [run for run in record.read([arguments.runs]) if run.link == UNTHROTTLED and not run.adaptive]
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == name]
        dense = {run.seed: run.steps_to_target for run in own if run.method == REFERENCE_METHOD}
        needed: dict[str, list[float]] = {}
        for run in own:
            if Method.parse(run.method).uses_gravac:
                needed.setdefault(run.method, []).append((dense[run.seed] or 0) / (run.steps_to_target or run.steps))
        task = make(name, scale=own[0].scale)
        model = task.model()
        optimizer = task.optimizer(model)
        for step in range(BEFORE):
            for group in optimizer.param_groups:
                group["lr"] = task.learning_rate_at(step)
            optimizer.zero_grad()
            for rank in range(2):
                (task.loss(model, task.batch(step, rank)) / 2).backward()
            optimizer.step()

        def score(task: Any = task, model: torch.nn.Module = model) -> float:
            found = task.validate(model)
            return float(found.total / found.count)

        def loss(step: int, rank: int, task: Any = task, model: torch.nn.Module = model) -> torch.Tensor:
            return task.loss(model, task.batch(BEFORE + step, rank))  # type: ignore[no-any-return]

        methods = list(needed)
        candidates = [(Method.parse(text).base, Method.parse(text).cf) for text in methods]
        found = probe(model, optimizer, loss, score, candidates, steps=STEPS, repeats=REPEATS)  # type: ignore[arg-type]
        truth = [statistics.geometric_mean(needed[text]) for text in methods]
        rows.append(
            {
                "task": name,
                "methods": len(methods),
                "probe": spearman([one.efficiency for one in found], truth),
                "gain": spearman([one.gain for one in found], truth),
                "worth": dict(zip(methods, (round(value, 3) for value in truth), strict=True)),
                "probed": {text: round(one.efficiency, 3) for text, one in zip(methods, found, strict=True)},
            }
        )
        print(rows[-1], flush=True)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
