# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Turns the lab's runs into observations for fitting the cost model, and tests its predictions on held-out runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gravac.costmodel import Fit, Format, Machine, Observation, fit
from gravac.lab.tasks import make
from gravac.lab.training.methods import Method, bucket_mb
from gravac.lab.tta.record import TrainingRecord

MIN_OBSERVATIONS = 9
"""Minimum number of observations of which a third suffices for a fit."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A cost model fitted to a third of the observations, and its errors on the others.

    Attributes:
        fit: cost model fitted to a third of the observations.
        tried: the other observations.
        errors: predicted / measured step time - 1, of each of the other observations.
    """

    fit: Fit
    tried: tuple[Observation, ...]
    errors: tuple[float, ...]


def observations(runs: Iterable[TrainingRecord]) -> list[Observation]:
    """Return the typical steps of runs with a dense exchange of torch, or with gravac at a fixed CF.

    Leaves out adaptive and paced runs, and methods with local steps.
    """
    shapes: dict[tuple[str, float], list[tuple[int, ...]]] = {}
    observed = []
    for run in runs:
        method = Method.parse(run.method)
        if run.adaptive or run.paced or run.split is None or not (method.native or method.ours):
            continue
        if method.local_steps:
            continue
        key = (run.task, run.scale)
        if key not in shapes:
            model = make(run.task, scale=run.scale).model()
            shapes[key] = [tuple(weight.shape) for weight in model.parameters() if weight.requires_grad]
        elements = sum(math.prod(shape) for shape in shapes[key])
        formats: dict[str | None, Format] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        observed.append(
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
    return observed


def hold_out(steps: Sequence[Observation], machine: Machine | None = None, seed: int = 0) -> HeldOut:
    """Fit the cost model to a random third of the observations, and predict the others.

    Args:
        steps: observations, nine or more.
        machine: machine that ``gravac.costmodel.fit`` starts from.
        seed: seed of the random choice.

    Raises:
        ValueError: there are too few observations, or no bandwidth explains them.
    """
    if len(steps) < MIN_OBSERVATIONS:
        raise ValueError(
            f"steps: {len(steps)} are fewer than {MIN_OBSERVATIONS}, too few to hold two thirds out; measure more"
        )
    permuted = [steps[index] for index in np.random.default_rng(seed).permutation(len(steps))]
    third = len(steps) // 3
    fitted, tried = fit(permuted[:third], machine), tuple(permuted[third:])
    return HeldOut(fitted, tried, tuple(fitted.error(step) for step in tried))
