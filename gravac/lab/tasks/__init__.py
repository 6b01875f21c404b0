# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reference tasks (model, data, optimizer, metric) by name; Python or scikit-learn brings the data, except CIFAR's."""

from __future__ import annotations

from typing import Any

from gravac.lab.tasks.base import Task
from gravac.lab.tasks.charlm import CharLM
from gravac.lab.tasks.cifar import VGG16, Cifar, ResNet101
from gravac.lab.tasks.denoise import Denoise
from gravac.lab.tasks.digits import Digits
from gravac.lab.tasks.language import GPT2, ModernBERT
from gravac.lab.tasks.lstm import LSTM

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (CharLM, LSTM, Denoise, GPT2, ModernBERT, Digits, ResNet101, VGG16)
}
"""Class of each task, by the task's name."""

MAX_SCALE = 1000.0
"""Maximum scale of a task's model; a larger scale is probably a mistake in typing."""


def make(name: str, *, scale: float = 1.0, seed: int = 0, learning_rate: float | None = None, data: str = "") -> Task:
    """Return a reference task, by its name.

    Args:
        name: key of ``TASKS``.
        scale: scale of the model; 1 suits two cores. The number of parameters grows about linearly with the scale.
        seed: seed of the initial weights and of the batches.
        learning_rate: learning rate after the warm-up; ``None``: the best rate for training without compression at that
            scale.
        data: folder of the data; empty if the task needs no folder.

    Raises:
        ValueError: the name is unknown, or the scale or the learning rate is out of range. Also if the folder of data
            is missing or incomplete, or is given to a task that needs none.

    Example:
        >>> task = make("charlm", scale=0.4)
        >>> sum(parameter.numel() for parameter in task.model().parameters())
        904192
        >>> task.batch(step=0, rank=0).shape  # the batch depends on seed, step and rank alone
        torch.Size([8, 97])
    """
    if name not in TASKS:
        raise ValueError(f"task: {name!r} is unknown; choose from {', '.join(TASKS)}")
    if not 0 < scale <= MAX_SCALE:
        raise ValueError(f"scale: {scale!r} is not in (0, {MAX_SCALE:g}]; 1 suits two cores")
    settings: dict[str, Any] = {"scale": scale, "seed": seed, "learning_rate": TASKS[name].tuned_learning_rate(scale)}
    if learning_rate is not None:
        if not 0 < learning_rate < float("inf"):
            raise ValueError(f"learning_rate: {learning_rate!r} is not a positive number; leave it out for the default")
        settings["learning_rate"] = learning_rate
    if issubclass(TASKS[name], Cifar):
        settings["data"] = data
    elif data:
        raise ValueError(f"data: {data!r} is given, but the task {name!r} needs no folder of data; leave data out")
    return TASKS[name](**settings)
