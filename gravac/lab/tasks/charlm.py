# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``charlm``: a small character-level transformer on the source text of Python's standard library.

A causal convolution over the last characters stands before the attention layers: without it such a model spends its
first few hundred steps on learning to look at the character before, and a demo of a minute would show little else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric, Score, Task
from gravac.lab.tasks.text import VOCABULARY, Text, library_text


class Block(nn.Module):
    """Pre-norm causal attention, then a feed-forward layer of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, width)`` to the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.feed_norm(x))))
        return out


HEAD = 32
"""Width of an attention head."""

NEIGHBOURS = 4
"""Characters that the convolution at the entry sees, the current one included."""


class CharTransformer(nn.Module):
    """Characters ``(batch, length)``, int64, to logits ``(batch, length, VOCABULARY)``, float32."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.entry = nn.Conv1d(width, width, NEIGHBOURS)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        nn.init.normal_(self.characters.weight, std=0.5)
        for block in blocks:  # residual branches start small, so that depth does not set the scale
            for branch in (block.projection, block.narrow):
                nn.init.normal_(branch.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, characters: Tensor) -> Tensor:
        """See the class."""
        embedded = self.characters(characters)
        before = F.pad(embedded.transpose(1, 2), (NEIGHBOURS - 1, 0))
        x = embedded + self.entry(before).transpose(1, 2) + self.positions[: characters.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


@dataclass(frozen=True)
class CharLM(Task):
    """Model, data, optimizer and metric of ``charlm``; see ``Task``. A *sample* is one sequence.

    Attributes:
        learning_rate: AdamW's.
        sequences: per rank and step.
        context: characters per sequence.
        width: of the embedding at scale 1, a multiple of 32.
        layers: attention and feed-forward pairs.
        validation_sequences: sequences the validation loss is taken over; the same ones each time.
    """

    name: ClassVar[str] = "charlm"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a character")
    budget: ClassVar[int] = 400
    every: ClassVar[int] = 10

    learning_rate: float = 2e-3
    sequences: int = 8
    context: int = 96
    width: int = 192
    layers: int = 4
    validation_sequences: int = 128

    @property
    def batch_size(self) -> int:
        """Sequences per rank and step."""
        return self.sequences

    @cached_property
    def text(self) -> Text:
        """What is trained and validated on; read once."""
        return library_text()

    def model(self) -> nn.Module:
        """A freshly initialised model: the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            heads = max(1, round(self.width / HEAD * self.scale**0.5))
            return CharTransformer(heads * HEAD, self.layers, heads, self.context)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over the model's parameters."""
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def batch(self, step: int, rank: int) -> Tensor:
        """Training sequences of one step on one rank: ``(batch_size, context + 1)``, int64."""
        generator = np.random.default_rng((self.seed, rank, step))
        starts = generator.integers(0, len(self.text.train) - self.context - 1, self.batch_size)
        return self._sequences(self.text.train, starts)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross-entropy of the next character, nats."""
        return self._cross_entropy(model, batch, "mean")

    def validate(self, model: nn.Module, part: int = 0, parts: int = 1) -> Score:
        """The loss over the ``part``-th of ``parts`` shares of the validation sequences, without gradients."""
        starts = np.linspace(0, len(self.text.validation) - self.context - 2, self.validation_sequences, dtype=np.int64)
        total, count = 0.0, 0
        training = model.training
        model.eval()
        with torch.no_grad():
            for chunk in np.array_split(starts[part::parts], max(1, len(starts[part::parts]) // 16)):
                batch = self._sequences(self.text.validation, chunk)
                total += float(self._cross_entropy(model, batch, "sum"))
                count += batch.shape[0] * self.context
        model.train(training)
        return Score(total, count)

    def _cross_entropy(self, model: nn.Module, batch: Tensor, reduction: str) -> Tensor:
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction=reduction)

    def _sequences(self, text: np.ndarray, starts: np.ndarray) -> Tensor:
        return torch.from_numpy(text[starts[:, None] + np.arange(self.context + 1)].astype(np.int64))
