# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fits the cost model of a step's time to a third of the lab's runs, and tests its predictions on the other runs."""

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
"""Minimum number of observations (measured steps) that ``hold_out`` accepts."""


@dataclass(frozen=True, slots=True)
class HeldOutFit:
    """A cost model that was fitted to a third of the observations, and its errors on the other observations.

    Attributes:
        fit: cost model that was fitted to a third of the observations.
        held_out: other observations (measured steps), to which the model was not fitted.
        errors: relative error for each observation in ``held_out``: predicted / measured seconds of the step - 1.
    """

    fit: Fit
    held_out: tuple[Observation, ...]
    errors: tuple[float, ...]


def observations(runs: Iterable[TrainingRecord]) -> list[Observation]:
    """Return one observation (a measured typical step) for each run whose step time the cost model can predict.

    The model covers dense methods of torch, and gravac's compressors at a fixed compression factor. Left out are runs

    - with a controller, or with local steps;
    - on a mesh, or whose slow link gravac only emulated (``paced``);
    - without measured times of the step's phases (``split``).

    Args:
        runs: records of runs.
    """
    shapes_by_model: dict[tuple[str, float], list[tuple[int, ...]]] = {}
    step_observations = []
    for run in runs:
        method = Method.parse(run.method)
        if run.adaptive or run.paced or run.split is None or not (method.torch_format or method.uses_gravac):
            continue
        if method.has_local_steps or run.mesh is not None:
            continue
        task_and_scale = (run.task, run.scale)
        if task_and_scale not in shapes_by_model:
            model = make(run.task, scale=run.scale).model()
            shapes_by_model[task_and_scale] = [
                tuple(weight.shape) for weight in model.parameters() if weight.requires_grad
            ]
        elements = sum(math.prod(shape) for shape in shapes_by_model[task_and_scale])
        format_by_method: dict[str | None, Format] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        step_observations.append(
            Observation(
                shapes=shapes_by_model[task_and_scale],
                compressor=method.base,
                cf=method.cf or 1.0,
                compute_s=run.split.compute,
                world=run.workers,
                step_s=run.step_s,
                buckets=max(1, math.ceil(4 * elements / (bucket_mb(method, elements) * 2**20))),
                dense=format_by_method.get(method.torch_format, "float32"),
                link=run.link,
            )
        )
    return step_observations


def hold_out(steps: Sequence[Observation], machine: Machine | None = None, seed: int = 0) -> HeldOutFit:
    """Fit the cost model to a random third of the observations, and predict the other observations.

    Args:
        steps: observations (measured steps), ``MIN_OBSERVATIONS`` or more.
        machine: machine on which the steps ran; ``None``: the default of ``gravac.costmodel.fit``.
        seed: seed of the random selection of the third.

    Raises:
        ValueError: there are too few observations, or no bandwidth of a link explains them.
    """
    if len(steps) < MIN_OBSERVATIONS:
        raise ValueError(
            f"steps: {len(steps)} observations are too few to hold two thirds out; measure {MIN_OBSERVATIONS} or more"
        )
    shuffled_steps = [steps[index] for index in np.random.default_rng(seed).permutation(len(steps))]
    fitted_count = len(steps) // 3
    fitted_model, held_out = fit(shuffled_steps[:fitted_count], machine), tuple(shuffled_steps[fitted_count:])
    return HeldOutFit(fitted_model, held_out, tuple(fitted_model.error(step) for step in held_out))
