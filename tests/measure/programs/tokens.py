# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``tokens``: a gated convolutional net predicts the next word of English text, without attention.

The text is what Python's library says of itself: its docstrings and comments. Trained by Adam as torch has it by
default, without weight decay; the embedding, tied to the output layer, is over half of the parameters.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from gravac.lab.tasks.base import Metric, Score, Task
from gravac.lab.tasks.text import library_text

VOCABULARY = 4096
"""Number of words told apart; all rarer ones are word 0."""

WORD = re.compile(r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]")
"""A word: letters, digits, or one other sign."""

PROSE = re.compile(r'"""(.*?)"""|#([^\n]*)', re.DOTALL)
"""What is prose in source text."""


@lru_cache(maxsize=1)
def words() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the words to train on and those to validate on, as places in the vocabulary, 0 the rare ones."""
    text = library_text(limit=16_000_000)
    parts = [
        [
            word
            for found in PROSE.findall(bytes(part).decode("ascii", "replace"))
            for word in WORD.findall("".join(found))
        ]
        for part in (text.train, text.validation)
    ]
    frequent = [word for word, _ in collections.Counter(parts[0]).most_common(VOCABULARY - 1)]
    place = {word: number for number, word in enumerate(frequent, 1)}
    train, validation = (np.array([place.get(word, 0) for word in part], np.int64) for part in parts)
    return train, validation


class Gated(nn.Module):
    """A causal convolution over ``reach`` words with a gated linear unit, added to its input."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(width, 2 * width, reach)
        self.reach = reach

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, length, width)``, float32, to the same shape."""
        before = functional.pad(self.norm(x).transpose(1, 2), (self.reach - 1, 0))
        out: Tensor = x + functional.glu(self.convolution(before), dim=1).transpose(1, 2)
        return out


class WordNet(nn.Module):
    """Words ``(batch, length)``, int64, to logits ``(batch, length, VOCABULARY)``, float32."""

    def __init__(self, width: int, layers: int, reach: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.layers = nn.Sequential(*(Gated(width, reach) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, words: Tensor) -> Tensor:
        """Map words to logits; see the class."""
        return functional.linear(self.layers(self.words(words)), self.words.weight)


@dataclass(frozen=True)
class Tokens(Task):
    """Model, data, optimizer and metric of ``tokens``; see ``Task``. A *sample* is one sequence.

    Attributes:
        learning_rate: learning rate of Adam.
        sequences: number of sequences per rank and step.
        context: number of words per sequence.
        width: width of the embedding and of the layers.
        layers: number of gated convolutions.
        validation_sequences: number of sequences for the validation loss; the same ones each time.
    """

    name: ClassVar[str] = "tokens"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a word")
    budget: ClassVar[int] = 500
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 3e-3
    sequences: int = 8
    context: int = 32
    width: int = 96
    layers: int = 4
    validation_sequences: int = 96

    @property
    def batch_size(self) -> int:
        """Sequences per rank and step."""
        return self.sequences

    def model(self) -> nn.Module:
        """Return a freshly initialised model: the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return WordNet(self.width, self.layers, reach=4)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam over the model's parameters."""
        return torch.optim.Adam(model.parameters(), lr=self.learning_rate)

    def batch(self, step: int, rank: int) -> Tensor:
        """Training sequences of one step on one rank: ``(batch_size, context + 1)``, int64."""
        text = words()[0]
        starts = np.random.default_rng((self.seed, rank, step)).integers(
            0, len(text) - self.context - 1, self.sequences
        )
        return self._sequences(text, starts)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next word in nats, a scalar."""
        return self._cross_entropy(model, batch, "mean")

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Cross-entropy over one of ``portion_count`` portions of the validation sequences."""
        text = words()[1]
        starts = np.linspace(0, len(text) - self.context - 2, self.validation_sequences, dtype=np.int64)[
            portion_index::portion_count
        ]
        training = model.training
        model.eval()
        with torch.no_grad():
            total = float(self._cross_entropy(model, self._sequences(text, starts), "sum"))
        model.train(training)
        return Score(total, len(starts) * self.context)

    def _cross_entropy(self, model: nn.Module, batch: Tensor, reduction: str) -> Tensor:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction=reduction)

    def _sequences(self, text: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(text[starts[:, None] + np.arange(self.context + 1)])
