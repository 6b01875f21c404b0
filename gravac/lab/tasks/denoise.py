# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``denoise``: remove noise from patches of a photograph. Training and evaluation use different photographs.

The net is a small VGG: two convolutions with pooling, then wide fully connected layers. The fully connected layers have
nearly all parameters and do little computation, so communication delays a step as much as with VGG16. The net predicts
the noise of a patch, which is then subtracted (residual learning). The photographs come with scikit-learn.
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

PATCH_SIDE = 16
"""Width and height of a patch, in pixels."""

DETAIL_DEVIATION = 0.2
"""Approximate standard deviation of the pixels of a noisy patch; the net divides its inputs by this number."""


@lru_cache(maxsize=1)
def photographs() -> dict[str, npt.NDArray[np.float32]]:
    """Return scikit-learn's two sample photographs by name, in grey: arrays ``(height, width)``, float32 in [0, 1]."""
    from sklearn.datasets import load_sample_image

    return {
        name: (load_sample_image(f"{name}.jpg") @ np.array([0.299, 0.587, 0.114]) / 255).astype(np.float32)
        for name in ("china", "flower")
    }


class PatchNet(nn.Module):
    """Predicts the noise of noisy patches; input and output are ``(batch, 1, PATCH_SIDE, PATCH_SIDE)``, float32.

    A few features suffice to predict the clean patch, but not to predict the noise. So the last layer predicts the
    clean patch minus its mean. The output is the noisy patch minus its mean, minus the last layer's prediction.

    Args:
        channels: number of channels of the first convolution; the second has twice as many.
        width: number of features of the fully connected layers.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(width, PATCH_SIDE * PATCH_SIDE)
        self.connected = nn.Sequential(
            nn.Linear(2 * channels * (PATCH_SIDE // 4) ** 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), head
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.zeros_(head.weight)  # before training, the predicted noise is the patch minus its mean

    def forward(self, noisy: Tensor) -> Tensor:
        """Return the predicted noise of noisy patches; both ``(batch, 1, PATCH_SIDE, PATCH_SIDE)``."""
        detail = noisy - noisy.mean((2, 3), keepdim=True)
        clean_detail: Tensor = self.connected(self.features(detail / DETAIL_DEVIATION)) * DETAIL_DEVIATION
        return detail - clean_detail.view(noisy.shape)


@dataclass(frozen=True)
class Denoise(Task):
    """The task ``denoise``: remove noise from patches of a photograph. See ``Task``. A *sample* is one patch.

    Attributes:
        learning_rate: learning rate of SGD with momentum 0.9.
        patches: number of patches that a rank trains on in a step.
        sigma: standard deviation of the added noise, for pixels in [0, 1].
        channels: number of channels of the first convolution at scale 1; the second has twice as many.
        width: number of features of the fully connected layers at scale 1.
        validation_patches: number of patches for the validation PSNR. Every evaluation uses the same patches and noise.
    """

    name: ClassVar[str] = "denoise"
    metric: ClassVar[Metric] = Metric("validation PSNR", "dB", higher_is_better=True, decibels=True)
    budget: ClassVar[int] = 300
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 0.2
    patches: int = 64
    sigma: float = 0.1
    channels: int = 16
    width: int = 768
    validation_patches: int = 512

    @classmethod
    def tuned_learning_rate(cls, scale: float) -> float:
        """Return 0.1, the best learning rate at scale 0.4, for scales below 0.7; otherwise 0.2, the best at scale 1."""
        return 0.1 if scale < 0.7 else 0.2

    @property
    def batch_size(self) -> int:
        """Number of patches that a rank trains on in a step."""
        return self.patches

    def model(self) -> nn.Module:
        """Return a new ``PatchNet`` with the same weights on every rank."""
        width_factor = self.scale**0.5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return PatchNet(max(2, round(self.channels * width_factor)), max(16, round(self.width * width_factor)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a new SGD optimizer for the model's parameters, with momentum 0.9."""
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return ``(noisy patches, their noise)`` of a step on a rank.

        Both are ``(batch_size, 1, PATCH_SIDE, PATCH_SIDE)``, float32.
        """
        clean, noise = self._sample_patches("china", np.random.default_rng((self.seed, rank, step)), self.batch_size)
        return clean + noise, noise

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return mean squared error / variance of the noise, a scalar tensor; about 1 for a model that predicts 0."""
        return F.mse_loss(model(batch[0]), batch[1]) / self.sigma**2

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        """``(clean validation patches, noise to add)``, the same for every seed of the task.

        Both are ``(validation_patches, 1, PATCH_SIDE, PATCH_SIDE)``, float32.
        """
        return self._sample_patches("flower", np.random.default_rng(0), self.validation_patches)

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Return the sum of squared errors of denoised pixels, and the number of pixels, over a part of the patches.

        Pixels are in [0, 1]. The arguments are those of ``Task.validate``.
        """
        clean, noise = (patches[portion_index::portion_count] for patches in self.validation)
        noisy = clean + noise
        was_training = model.training
        model.eval()
        with torch.no_grad():
            denoised = (noisy - model(noisy)).clamp(0, 1)
        model.train(was_training)
        return Score(float((denoised - clean).double().square().sum()), clean.numel())

    def _sample_patches(
        self, photograph_name: str, generator: np.random.Generator, patch_count: int
    ) -> tuple[Tensor, Tensor]:
        """Return ``(clean patches, noise)``: patches at random positions of a photograph, and random noise to add.

        Both are ``(count, 1, PATCH_SIDE, PATCH_SIDE)``, float32.

        Args:
            photograph_name: name of the photograph, ``"china"`` or ``"flower"``.
            generator: source of random numbers.
            patch_count: number of patches.
        """
        photograph = photographs()[photograph_name]
        rows, columns = (
            generator.integers(0, side_pixels - PATCH_SIDE + 1, (patch_count, 1, 1, 1))
            for side_pixels in photograph.shape
        )
        offsets = np.arange(PATCH_SIDE)
        clean = photograph[rows + offsets[:, None], columns + offsets]
        noise = generator.standard_normal(clean.shape, dtype=np.float32) * np.float32(self.sigma)
        return torch.from_numpy(clean), torch.from_numpy(noise)
