# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``charlm``: a small character-level transformer on the source text of Python's standard library.

A causal convolution over the latest characters comes before the attention layers. Without the convolution, the model
would need its first few hundred steps just to learn to look at the previous character. A demo of one minute would show
little more than these steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.characters import Characters
from gravac.lab.tasks.text import VOCABULARY


class TransformerBlock(nn.Module):
    """A transformer block: causal attention, then a feed-forward layer of four times the width, each with pre-norm.

    Args:
        width: number of features of a position.
        heads: number of attention heads.
    """

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
        """Return the block's output; input ``x`` and output are ``(batch, length, width)``, float32."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.feed_norm(x))))
        return out


HEAD_WIDTH = 32
"""Number of features of an attention head."""

CONVOLUTION_LENGTH = 4
"""Kernel length of the convolution before the attention layers: the current character and the three before it."""


class CharTransformer(nn.Module):
    """A transformer that predicts the next character at each position.

    It maps character codes ``(batch, length)``, int64, to logits ``(batch, length, VOCABULARY)``, float32.

    Args:
        width: number of features of a position.
        layers: number of transformer blocks.
        heads: number of attention heads of a block.
        context: maximum length of a sequence, in characters.
    """

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.entry = nn.Conv1d(width, width, CONVOLUTION_LENGTH)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        blocks = [TransformerBlock(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        nn.init.normal_(self.characters.weight, std=0.5)
        for block in blocks:  # residual branches start small, so that the output's scale does not depend on depth
            for branch in (block.projection, block.narrow):
                nn.init.normal_(branch.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the logits of the next characters ``(batch, length, VOCABULARY)``, float32.

        Args:
            characters: character codes ``(batch, length)``, int64.
        """
        embedded = self.characters(characters)
        padded_sequence = F.pad(embedded.transpose(1, 2), (CONVOLUTION_LENGTH - 1, 0))
        x = embedded + self.entry(padded_sequence).transpose(1, 2) + self.positions[: characters.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


@dataclass(frozen=True)
class CharLM(Characters):
    """The task ``charlm``: a small transformer that predicts the next character. See ``Characters``.

    Attributes:
        width: width of the embedding at scale 1, a multiple of ``HEAD_WIDTH``.
        layers: number of transformer blocks; each has an attention and a feed-forward layer.
    """

    name: ClassVar[str] = "charlm"
    blocks: ClassVar[str] = "blocks"
    budget: ClassVar[int] = 300
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 2e-3
    width: int = 192
    layers: int = 4
    validation_sequences: int = 64

    @classmethod
    def tuned_learning_rate(cls, scale: float) -> float:
        """Return 4e-3, the best learning rate at scale 0.4, for scales below 0.7; otherwise 2e-3, best at scale 1."""
        return 4e-3 if scale < 0.7 else 2e-3

    def model(self) -> nn.Module:
        """Return a new ``CharTransformer`` with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            heads = max(1, round(self.width / HEAD_WIDTH * self.scale**0.5))
            return CharTransformer(heads * HEAD_WIDTH, self.layers, heads, self.context)
