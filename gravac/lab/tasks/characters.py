# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The common part of tasks on text: sequences of the library's source, judged by cross-entropy per character."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric, Score, Task
from gravac.lab.tasks.text import Text, library_text

NOT_ASKED = -100
"""Target of a place where no character is asked for."""


@dataclass(frozen=True)
class Characters(Task):
    """A task of predicting the next character; what is left to a subclass is the model. A *sample* is one sequence.

    Attributes:
        learning_rate: learning rate of AdamW.
        sequences: number of sequences per rank and step.
        context: number of characters per sequence.
        validation_sequences: number of sequences that the validation loss is taken over; the same ones each time.
    """

    metric: ClassVar[Metric] = Metric("validation loss", "nats a character")

    sequences: int = 8
    context: int = 96
    validation_sequences: int = 128

    @property
    def batch_size(self) -> int:
        """Sequences per rank and step."""
        return self.sequences

    @property
    def text(self) -> Text:
        """Text to train and to validate on; read once."""
        return _text()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over the model's parameters."""
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def batch(self, step: int, rank: int) -> Tensor:
        """Training sequences of one step on one rank: ``(batch_size, context + 1)``, int64."""
        generator = np.random.default_rng((self.seed, rank, step))
        starts = generator.integers(0, len(self.text.train) - self.context - 1, self.batch_size)
        return self._sequences(self.text.train, starts)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next character in nats, a scalar."""
        return self._cross_entropy(model, batch, "mean")

    def validate(self, model: nn.Module, part: int = 0, parts: int = 1) -> Score:
        """Return the loss over the ``part``-th of ``parts`` shares of the validation sequences, without gradients."""
        starts = np.linspace(0, len(self.text.validation) - self.context - 2, self.validation_sequences, dtype=np.int64)
        total, count = 0.0, 0
        training = model.training
        model.eval()
        with torch.no_grad():
            for chunk in np.array_split(starts[part::parts], max(1, len(starts[part::parts]) // 16)):
                batch = self._validation_batch(chunk)
                total += float(self._cross_entropy(model, batch, "sum"))
                count += int((self._asked(batch)[1] != NOT_ASKED).sum())
        model.train(training)
        return Score(total, count)

    def _cross_entropy(self, model: nn.Module, batch: Tensor, reduction: str) -> Tensor:
        shown, targets = self._asked(batch)
        return F.cross_entropy(
            self._logits(model, shown).flatten(0, 1), targets.flatten(), ignore_index=NOT_ASKED, reduction=reduction
        )

    def _validation_batch(self, starts: npt.NDArray[np.int64]) -> Tensor:
        """Return the sequences of the validation text that start there, in the form of a training batch."""
        return self._sequences(self.text.validation, starts)

    def _asked(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a batch shows the model, and what it asks for at each place, both ``(sequences, context)``."""
        return batch[:, :-1], batch[:, 1:]

    def _logits(self, model: nn.Module, characters: Tensor) -> Tensor:
        logits: Tensor = model(characters)
        return logits

    def _sequences(self, text: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(text[starts[:, None] + np.arange(self.context + 1)].astype(np.int64))


@lru_cache(maxsize=1)
def _text() -> Text:
    return library_text()
