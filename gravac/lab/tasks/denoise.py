# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``denoise``: remove noise from patches of a photograph, trained on one photograph, evaluated on another.

The net is a small VGG: a few convolutions with pooling, then wide fully connected layers. These layers have nearly all
of the parameters and do little computation, so communication delays a step as it does for VGG16. The net predicts the
noise of the patch, which is then subtracted (residual learning). The photographs come with scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric, Score, Task

SIDE = 16
"""Width and height of a patch, in pixels."""

DETAIL = 0.2
"""Rough standard deviation of a noisy patch around its mean, which scales the net's inputs to numbers around 1."""


@lru_cache(maxsize=1)
def photographs() -> dict[str, npt.NDArray[np.float32]]:
    """Return scikit-learn's two sample photographs, by name: gray, in [0, 1]."""
    from sklearn.datasets import load_sample_image

    return {
        name: (load_sample_image(f"{name}.jpg") @ np.array([0.299, 0.587, 0.114]) / 255).astype(np.float32)
        for name in ("china", "flower")
    }


class PatchNet(nn.Module):
    """Net from noisy patches ``(batch, 1, SIDE, SIDE)`` to their noise, of the same shape.

    A few features predict the clean patch, but not the noise. So the last layer predicts the clean patch's detail, and
    the rest of the noisy patch is the noise.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(width, SIDE * SIDE)
        self.connected = nn.Sequential(
            nn.Linear(2 * channels * (SIDE // 4) ** 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), head
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.zeros_(head.weight)  # so that the net first predicts the patch minus its mean as noise

    def forward(self, noisy: Tensor) -> Tensor:
        """Map noisy patches ``(batch, 1, SIDE, SIDE)`` to their noise; see the class."""
        detail = noisy - noisy.mean((2, 3), keepdim=True)
        clean_detail: Tensor = self.connected(self.features(detail / DETAIL)) * DETAIL
        return detail - clean_detail.view(noisy.shape)


@dataclass(frozen=True)
class Denoise(Task):
    """Model, data, optimizer and metric of ``denoise``; see ``Task``. A *sample* is one patch.

    Attributes:
        learning_rate: learning rate of SGD with momentum 0.9.
        patches: number of patches per rank and step.
        sigma: standard deviation of the noise; pixels are in [0, 1].
        channels: number of channels of the first convolution at scale 1; the second has twice as many.
        width: width of the fully connected layers at scale 1.
        validation_patches: number of patches for the PSNR; always the same patches, with the same noise.
    """

    name: ClassVar[str] = "denoise"
    metric: ClassVar[Metric] = Metric("validation PSNR", "dB", higher_is_better=True, decibels=True)
    budget: ClassVar[int] = 300
    every: ClassVar[int] = 10

    learning_rate: float = 0.2
    patches: int = 64
    sigma: float = 0.1
    channels: int = 16
    width: int = 768
    validation_patches: int = 512

    @classmethod
    def tuned(cls, scale: float) -> float:
        """Return the learning rate that is best at a scale: 0.1 at 0.4, 0.2 at 1."""
        return 0.1 if scale < 0.7 else 0.2

    @property
    def batch_size(self) -> int:
        """Patches per rank and step."""
        return self.patches

    def model(self) -> nn.Module:
        """Return a freshly initialised model with the same weights on every rank."""
        factor = self.scale**0.5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return PatchNet(max(2, round(self.channels * factor)), max(16, round(self.width * factor)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum over the model's parameters."""
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return the noisy patches of a step on a rank, and their noise, both ``(batch_size, 1, SIDE, SIDE)``."""
        clean, noise = self._sample("china", np.random.default_rng((self.seed, rank, step)), self.batch_size)
        return clean + noise, noise

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return mean squared error / variance of the noise, a scalar: 1 for a model that predicts no noise."""
        return F.mse_loss(model(batch[0]), batch[1]) / self.sigma**2

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        """Clean patches and their noise, both ``(validation_patches, 1, SIDE, SIDE)``; the same for every seed."""
        return self._sample("flower", np.random.default_rng(0), self.validation_patches)

    def validate(self, model: nn.Module, shard: int = 0, shards: int = 1) -> Score:
        """Return the squared error of the denoised pixels over a shard of the validation patches; see ``Task``."""
        clean, noise = (patches[shard::shards] for patches in self.validation)
        noisy = clean + noise
        training = model.training
        model.eval()
        with torch.no_grad():
            denoised = (noisy - model(noisy)).clamp(0, 1)
        model.train(training)
        return Score(float((denoised - clean).double().square().sum()), clean.numel())

    def _sample(self, name: str, generator: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        """Return ``count`` random clean patches of a photograph, and random noise, ``(count, 1, SIDE, SIDE)``."""
        photograph = photographs()[name]
        rows, columns = (generator.integers(0, size - SIDE + 1, (count, 1, 1, 1)) for size in photograph.shape)
        offsets = np.arange(SIDE)
        clean = photograph[rows + offsets[:, None], columns + offsets]
        noise = generator.standard_normal(clean.shape, dtype=np.float32) * np.float32(self.sigma)
        return torch.from_numpy(clean), torch.from_numpy(noise)
