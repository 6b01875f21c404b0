# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``digits``: a small convolutional net on scikit-learn's 8x8 handwritten digits.

A smoke test only: accuracy saturates at 99 % within seconds, and differences between methods are noise from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric, Score, Task

VALIDATION_PICTURES = 500
"""Number of pictures for validation, of 1797."""


@lru_cache(maxsize=1)
def pictures() -> tuple[Tensor, Tensor]:
    """Return all pictures, ``(1797, 1, 8, 8)`` in [0, 1], and their digits, in a fixed random order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.from_numpy((digits.images[order] / 16).astype(np.float32))
    return images.unsqueeze(1), torch.from_numpy(digits.target[order].astype(np.int64))


def net(factor: float) -> nn.Sequential:
    """Return three convolutions and two linear layers, ``factor`` times as wide as at scale 1."""
    narrow, wide, linear = (max(4, round(width * factor)) for width in (32, 64, 128))
    return nn.Sequential(
        nn.Conv2d(1, narrow, 3, padding=1), nn.ReLU(),
        nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * wide, linear), nn.ReLU(), nn.Linear(linear, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Digits(Task):
    """Model, data, optimizer and metric of ``digits``, a smoke test only; see ``Task``. A *sample* is one picture.

    Attributes:
        learning_rate: learning rate of SGD with momentum 0.9.
        pictures: number of pictures per rank and step.
    """

    name: ClassVar[str] = "digits"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a digit")
    budget: ClassVar[int] = 200
    every: ClassVar[int] = 8

    learning_rate: float = 0.05
    pictures: int = 16

    @property
    def batch_size(self) -> int:
        """Pictures per rank and step."""
        return self.pictures

    def model(self) -> nn.Module:
        """Return a freshly initialised model with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return net(self.scale**0.5)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum over the model's parameters."""
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return one rank's pictures of a step, ``(batch_size, 1, 8, 8)``, and their digits, ``(batch_size,)``."""
        images, targets = pictures()
        generator = np.random.default_rng((self.seed, rank, step))
        sampled = generator.integers(VALIDATION_PICTURES, len(images), self.batch_size)
        return images[sampled], targets[sampled]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar."""
        return F.cross_entropy(model(batch[0]), batch[1])

    def validate(self, model: nn.Module, shard: int = 0, shards: int = 1) -> Score:
        """Return the summed cross-entropy over a shard of the validation pictures; see ``Task``."""
        images, targets = (tensor[:VALIDATION_PICTURES][shard::shards] for tensor in pictures())
        training = model.training
        model.eval()
        with torch.no_grad():
            total = float(F.cross_entropy(model(images), targets, reduction="sum"))
        model.train(training)
        return Score(total, len(targets))
