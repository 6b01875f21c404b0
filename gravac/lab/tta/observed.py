# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab's runs as steps that the cost model can be fitted to, and how well it then predicts the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gravac.costmodel import Fit, Format, Machine, Observation, fit
from gravac.lab.tasks import make
from gravac.lab.training.methods import Method, bucket_mb
from gravac.lab.tta.record import TrainingRecord

FEWEST = 9
"""Smallest number of steps of which a third can be fitted."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A cost model fitted to a third of some steps, and tried on the others.

    Attributes:
        fit: cost model fitted to a third of the steps.
        tried: the other steps.
        errors: predicted over measured step time, less one, of each of the other steps.
    """

    fit: Fit
    tried: tuple[Observation, ...]
    errors: tuple[float, ...]


def observations(runs: Iterable[TrainingRecord]) -> list[Observation]:
    """Return the steps of torch's dense exchange and of ours at one CF, not paced, on links of one rate throughout."""
    shapes: dict[tuple[str, float], list[tuple[int, ...]]] = {}
    found = []
    for run in runs:
        method = Method.parse(run.method)
        if run.adaptive or run.paced or run.split is None or not (method.native or method.ours):
            continue
        if method.apart:
            continue
        key = (run.task, run.scale)
        if key not in shapes:
            model = make(run.task, scale=run.scale).model()
            shapes[key] = [tuple(weight.shape) for weight in model.parameters() if weight.requires_grad]
        elements = sum(math.prod(shape) for shape in shapes[key])
        formats: dict[str | None, Format] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        found.append(
            Observation(
                shapes=shapes[key],
                compressor=method.base,
                cf=method.cf or 1.0,
                compute_s=run.split.compute,
                world=run.workers,
                step_s=run.step_s,
                buckets=max(1, math.ceil(4 * elements / (bucket_mb(method, elements) * 2**20))),
                dense=formats.get(method.native, "float32"),
                link=run.link,
            )
        )
    return found


def hold_out(steps: Sequence[Observation], machine: Machine | None = None, seed: int = 0) -> HeldOut:
    """Fit the cost model to a third of the steps, drawn at random, and try it on the others.

    Args:
        steps: nine steps or more.
        machine: machine that ``gravac.costmodel.fit`` starts from.
        seed: seed of the draw.

    Raises:
        ValueError: too few steps, or no bandwidth explains them.
    """
    if len(steps) < FEWEST:
        raise ValueError(f"steps: {len(steps)} are fewer than {FEWEST}, too few to hold two thirds out; measure more")
    drawn = [steps[at] for at in np.random.default_rng(seed).permutation(len(steps))]
    third = len(steps) // 3
    fitted, tried = fit(drawn[:third], machine), tuple(drawn[third:])
    return HeldOut(fitted, tried, tuple(fitted.error(step) for step in tried))
