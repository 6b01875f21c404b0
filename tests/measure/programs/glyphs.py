# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``glyphs``: a small residual net with batch normalisation reads characters, in fonts that it has not seen.

The fonts come with matplotlib. Each picture is one character, moved, turned and scaled at random, under noise. Trained
as residual nets usually are: SGD with Nesterov's momentum and weight decay.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gravac.lab.tasks.base import Metric, Score, Task

SIDE = 24
"""Width and height of a picture, in pixels."""

CHARACTERS = string.ascii_letters + string.digits
"""Characters to be told apart: 62 classes."""

HELD = ("DejaVuSerif-Italic", "STIXGeneralBol", "DejaVuSansMono-Oblique", "cmss10")
"""Fonts that are never trained on."""

TRAINED = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSans-Oblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic",
    "STIXGeneral", "STIXGeneralBolIta", "STIXGeneralItalic", "cmb10", "cmr10", "cmti10", "cmtt10",
)  # fmt: skip
"""Fonts to train on."""

NOISE = 0.35
"""Standard deviation of the noise; ink is 1, paper 0."""


@lru_cache(maxsize=2)
def drawn(fonts: tuple[str, ...]) -> Tensor:
    """Return every character in every font, ``(fonts, characters, 1, SIDE, SIDE)``, float32 in [0, 1]."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    pictures = np.zeros((len(fonts), len(CHARACTERS), 1, SIDE, SIDE), np.float32)
    for number, name in enumerate(fonts):
        font = ImageFont.truetype(folder / f"{name}.ttf", 20)
        for place, character in enumerate(CHARACTERS):
            picture = Image.new("L", (SIDE, SIDE))
            ImageDraw.Draw(picture).text((SIDE / 2, SIDE / 2), character, fill=255, font=font, anchor="mm")
            pictures[number, place, 0] = np.asarray(picture, np.float32) / 255
    return torch.from_numpy(pictures)


class Residual(nn.Module):
    """Two convolutions with batch normalisation, added to their input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, before, side, side)`` to ``(batch, after, side / stride, side / stride)``, float32."""
        out: Tensor = functional.relu(self.branch(x) + self.shortcut(x))
        return out


@dataclass(frozen=True)
class Glyphs(Task):
    """Model, data, optimizer and metric of ``glyphs``; see ``Task``. A *sample* is one picture.

    Attributes:
        learning_rate: learning rate of SGD with Nesterov's momentum 0.9 and weight decay 5e-4.
        pictures: number of pictures per rank and step.
        channels: number of channels of the first convolution.
        validation_pictures: number of pictures for the validation loss; the same ones each time.
    """

    name: ClassVar[str] = "glyphs"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a character")
    budget: ClassVar[int] = 400
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 0.1
    pictures: int = 32
    channels: int = 16
    validation_pictures: int = 744

    @property
    def batch_size(self) -> int:
        """Pictures per rank and step."""
        return self.pictures

    def model(self) -> nn.Module:
        """Return a freshly initialised model: the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            narrow = self.channels
            return nn.Sequential(
                nn.Conv2d(1, narrow, 3, 2, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(),
                Residual(narrow, narrow, 1), Residual(narrow, 2 * narrow, 2), Residual(2 * narrow, 4 * narrow, 2),
                Residual(4 * narrow, 8 * narrow, 1),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * narrow, len(CHARACTERS)),
            )  # fmt: skip

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """SGD with Nesterov's momentum and weight decay over the model's parameters."""
        return torch.optim.SGD(
            model.parameters(), lr=self.learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return one rank's pictures of a step, ``(batch_size, 1, SIDE, SIDE)``, and their classes."""
        return _transformed(drawn(TRAINED), np.random.default_rng((self.seed, rank, step)), self.batch_size)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar."""
        return functional.cross_entropy(model(batch[0]), batch[1])

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Cross-entropy over one of ``portion_count`` portions of pictures of characters in ``HELD`` fonts."""
        images, classes = (data[portion_index::portion_count] for data in _validation(self.validation_pictures))
        training = model.training
        model.eval()
        with torch.no_grad():
            total = float(functional.cross_entropy(model(images), classes, reduction="sum"))
        model.train(training)
        return Score(total, len(classes))


@lru_cache(maxsize=2)
def _validation(count: int) -> tuple[Tensor, Tensor]:
    return _transformed(drawn(HELD), np.random.default_rng(0), count)


def _transformed(characters: Tensor, generator: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    fonts, classes = (torch.from_numpy(generator.integers(0, size, count)) for size in characters.shape[:2])
    turned, scaled = generator.normal(0, 0.15, count), np.exp(generator.normal(0, 0.12, count))
    moved = generator.uniform(-0.2, 0.2, (count, 2))
    matrix = np.stack([np.cos(turned), -np.sin(turned), np.sin(turned), np.cos(turned)], 1).reshape(count, 2, 2)
    affine = np.concatenate([matrix / scaled[:, None, None], moved[:, :, None]], 2).astype(np.float32)
    grid = functional.affine_grid(torch.from_numpy(affine), [count, 1, SIDE, SIDE], align_corners=False)
    images = functional.grid_sample(characters[fonts, classes], grid, align_corners=False)
    noise = generator.standard_normal((count, 1, SIDE, SIDE), dtype=np.float32) * np.float32(NOISE)
    return images + torch.from_numpy(noise), classes
