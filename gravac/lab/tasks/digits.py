# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``digits``: a small convolutional net on scikit-learn's 8x8 handwritten digits.

For quick tests only: accuracy reaches 99 % within seconds, after which differences between methods are noise.
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
"""Number of pictures for validation; the other 1297 are for training."""


@lru_cache(maxsize=1)
def all_pictures() -> tuple[Tensor, Tensor]:
    """Return ``(pictures, digits)``: all pictures and the digit that each shows, in a fixed random order.

    Pictures are ``(1797, 1, 8, 8)``, float32 in [0, 1]; digits ``(1797,)``, int64.
    """
    from sklearn.datasets import load_digits

    digit_data = load_digits()
    shuffled_indices = np.random.default_rng(0).permutation(len(digit_data.target))
    images = torch.from_numpy((digit_data.images[shuffled_indices] / 16).astype(np.float32))
    return images.unsqueeze(1), torch.from_numpy(digit_data.target[shuffled_indices].astype(np.int64))


def digit_net(width_factor: float) -> nn.Sequential:
    """Return a net of three convolutions and two linear layers, from pictures to logits of the 10 digits.

    Pictures are ``(batch, 1, 8, 8)``, float32; logits ``(batch, 10)``, float32.

    Args:
        width_factor: width of all layers, as a multiple of the width at scale 1.
    """
    narrow_channels, wide_channels, linear_width = (max(4, round(width * width_factor)) for width in (32, 64, 128))
    return nn.Sequential(
        nn.Conv2d(1, narrow_channels, 3, padding=1), nn.ReLU(),
        nn.Conv2d(narrow_channels, wide_channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(wide_channels, wide_channels, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * wide_channels, linear_width), nn.ReLU(), nn.Linear(linear_width, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Digits(Task):
    """The task ``digits``: classify handwritten digits, for quick tests only. A *sample* is one picture. See ``Task``.

    Attributes:
        learning_rate: learning rate of SGD with momentum 0.9.
        pictures: number of pictures that a rank trains on in a step.
    """

    name: ClassVar[str] = "digits"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a digit")
    budget: ClassVar[int] = 200
    steps_per_evaluation: ClassVar[int] = 8

    learning_rate: float = 0.05
    pictures: int = 16

    @property
    def batch_size(self) -> int:
        """Number of pictures that a rank trains on in a step."""
        return self.pictures

    def model(self) -> nn.Module:
        """Return a new ``digit_net`` with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return digit_net(self.scale**0.5)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a new SGD optimizer for the model's parameters, with momentum 0.9."""
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return ``(pictures, digits)`` of a step on a rank.

        Pictures are ``(batch_size, 1, 8, 8)``, float32 in [0, 1]; digits ``(batch_size,)``, int64.
        """
        images, targets = all_pictures()
        generator = np.random.default_rng((self.seed, rank, step))
        sampled_indices = generator.integers(VALIDATION_PICTURES, len(images), self.batch_size)
        return images[sampled_indices], targets[sampled_indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar tensor."""
        return F.cross_entropy(model(batch[0]), batch[1])

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Return the summed cross-entropy in nats, and the number of pictures, over a part of the validation pictures.

        The arguments are those of ``Task.validate``.
        """
        images, targets = (tensor[:VALIDATION_PICTURES][portion_index::portion_count] for tensor in all_pictures())
        was_training = model.training
        model.eval()
        with torch.no_grad():
            loss_sum = float(F.cross_entropy(model(images), targets, reduction="sum"))
        model.train(was_training)
        return Score(loss_sum, len(targets))
