# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The task ``lstm``: a two-layer character LSTM on the same text as ``charlm``.

With the same amount of computation, a recurrent net has many more parameters than a convolutional net. So training
often waits for communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gravac.lab.tasks.characters import Characters
from gravac.lab.tasks.text import VOCABULARY


class CharLSTM(nn.Module):
    """An LSTM that predicts the next character at each position.

    It maps character codes ``(batch, length)``, int64, to logits ``(batch, length, VOCABULARY)``, float32.

    Args:
        width: number of features of the embedding and of each layer.
        layers: number of layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)
        for layer in range(layers):  # forget gates start open: bias 1; torch adds a second bias (bias_hh) near 0
            getattr(self.lstm, f"bias_ih_l{layer}").data[width : 2 * width] = 1.0

    def forward(self, characters: Tensor) -> Tensor:
        """Return the logits of the next characters ``(batch, length, VOCABULARY)``, float32.

        Args:
            characters: character codes ``(batch, length)``, int64.
        """
        hidden_states, _ = self.lstm(self.characters(characters))
        logits: Tensor = self.head(hidden_states)
        return logits


@dataclass(frozen=True)
class LSTM(Characters):
    """The task ``lstm``: a character LSTM that predicts the next character. See ``Characters``.

    Attributes:
        width: width of the embedding and of the LSTM's layers at scale 1.
        layers: number of layers of the LSTM.
    """

    name: ClassVar[str] = "lstm"
    budget: ClassVar[int] = 300
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 1.6e-2
    sequences: int = 16
    context: int = 64
    width: int = 256
    layers: int = 2

    def model(self) -> nn.Module:
        """Return a new ``CharLSTM`` with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return CharLSTM(max(1, round(self.width * self.scale**0.5 / 8)) * 8, self.layers)
