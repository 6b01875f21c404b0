# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Models of usual sizes in plain PyTorch, with random inputs: to time a step, not to learn anything."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.cifar import Bottleneck, convolution

CLASSES = 1000
"""Number of classes of the models for pictures."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """A model whose step ``gravac bench step`` times.

    Attributes:
        description: text that says what a rank computes in a step.
        make: function that returns a new model.
        inputs: function that returns a rank's inputs and targets, given a random generator; the model maps inputs to
            logits ``[..., classes]``, and targets are classes, ``[...]``, int64.
    """

    description: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], tuple[Tensor, Tensor]]


class GPT2(nn.Module):
    """GPT-2 small (Radford et al. 2019): 12 layers of width 768, 124 M parameters; tokens ``[batch, length]``."""

    width, heads, layers, vocabulary, positions = 768, 12, 12, 50_257, 1024

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(self.vocabulary, self.width)
        self.places = nn.Embedding(self.positions, self.width)
        self.blocks = nn.Sequential(*(GPT2Block(self.width, self.heads) for _ in range(self.layers)))
        self.norm = nn.LayerNorm(self.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``[batch, length, vocabulary]``."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


class GPT2Block(nn.Module):
    """A layer of GPT-2: attention and a perceptron, each after a norm; ``[batch, length, width]`` in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the shape of x."""
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=2)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.perceptron(self.perceptron_norm(x))
        return out


class WordLSTM(nn.Module):
    """The large LSTM of Zaremba et al. 2014: 2 layers of width 1500, 66 M parameters; words ``[batch, length]``."""

    width, vocabulary = 1500, 10_000

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(self.vocabulary, self.width)
        self.lstm = nn.LSTM(self.width, self.width, num_layers=2, batch_first=True)
        self.head = nn.Linear(self.width, self.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits ``[batch, length, vocabulary]``."""
        logits: Tensor = self.head(self.lstm(self.words(words))[0])
        return logits


def resnet101() -> nn.Module:
    """Return ResNet-101 (He et al. 2016), 44.5 M parameters in 314 tensors, for pictures ``[batch, 3, side, side]``."""
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, block_count in enumerate((3, 4, 23, 3)):
        for block in range(block_count):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not block else 1))
            channels = 4 * 64 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def vgg16() -> nn.Module:
    """Return VGG-16 (Simonyan & Zisserman 2015, D), 138 M parameters, for pictures ``[batch, 3, side, side]``."""
    layers: list[nn.Module] = []
    channels = 3
    for width, convolution_count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolution_count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES),
    )  # fmt: skip


def _pictures(count: int, side: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Return a function that draws pictures ``[count, 3, side, side]`` and their classes ``[count]``."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures = torch.randn(count, 3, side, side, generator=generator)
        return pictures, torch.randint(CLASSES, (count,), generator=generator)

    return draw


def _text(count: int, length: int, vocabulary: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Return a function that draws texts ``[count, length]`` and the next token at each place, ``[count, length]``."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (count, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return draw


STEP_MODELS: dict[str, StepModel] = {
    "gpt2": StepModel("a text of 128 tokens", GPT2, _text(1, 128, GPT2.vocabulary)),
    "lstm": StepModel("4 texts of 35 words", WordLSTM, _text(4, 35, WordLSTM.vocabulary)),
    "resnet101": StepModel("4 pictures of 64 x 64 pixels", resnet101, _pictures(4, 64)),
    "vgg16": StepModel("4 pictures of 32 x 32 pixels", vgg16, _pictures(4, 32)),
}
"""Models that ``gravac bench step`` knows, by name."""


def find_step_model(name: str) -> StepModel:
    """Return the model of a name: one of ``STEP_MODELS``, or ``MODULE:NAME``, a ``StepModel`` in a module of the user.

    The module may lie in the working folder.

    Raises:
        ValueError: there is no such model.
    """
    if name in STEP_MODELS:
        return STEP_MODELS[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"model: {name!r} is unknown; known: {', '.join(STEP_MODELS)}, or MODULE:NAME of a StepModel of your own"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        model = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model: {name!r} cannot be imported: {error}; give MODULE:NAME of a StepModel") from None
    if not isinstance(model, StepModel):
        raise ValueError(f"model: {name!r} is a {type(model).__name__}; give a gravac.lab.bench.models.StepModel")
    return model
