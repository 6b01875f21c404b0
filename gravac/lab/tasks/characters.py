# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base class of tasks that predict characters of Python source code; the metric is the cross-entropy per character."""

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

NO_TARGET = -100
"""Target that marks a position at which no character is to be predicted; the loss ignores the position."""


@dataclass(frozen=True)
class Characters(Task):
    """Base class of tasks that predict characters of a text; subclasses make the model. A *sample* is one sequence.

    Attributes:
        learning_rate: learning rate of AdamW after the warm-up.
        sequences: number of sequences that a rank trains on in a step.
        context: number of characters of a sequence that the model gets as input.
        validation_sequences: number of sequences for the validation loss. Every evaluation uses the same sequences.
    """

    metric: ClassVar[Metric] = Metric("validation loss", "nats a character")

    sequences: int = 8
    context: int = 96
    validation_sequences: int = 128

    @property
    def batch_size(self) -> int:
        """Number of sequences that a rank trains on in a step."""
        return self.sequences

    @property
    def text(self) -> Text:
        """Training text and validation text of the task; the files are read once per process."""
        return _library_text()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a new AdamW optimizer for the model's parameters, with betas 0.9 and 0.98 and weight decay 0.01."""
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def batch(self, step: int, rank: int) -> Tensor:
        """Return the training sequences of a step on a rank, as character codes ``(batch_size, context + 1)``, int64.

        The first ``context`` characters are inputs; the last ``context`` characters are targets.
        """
        generator = np.random.default_rng((self.seed, rank, step))
        start_positions = generator.integers(0, len(self.text.train) - self.context - 1, self.batch_size)
        return self._sequences_at(self.text.train, start_positions)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of the characters to predict, in nats, a scalar tensor."""
        return self._cross_entropy(model, batch, "mean")

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Return the summed cross-entropy in nats, and the number of characters, over a part of the sequences.

        The sequences are from the validation text; see ``Task.validate`` for the arguments.
        """
        start_positions = np.linspace(
            0, len(self.text.validation) - self.context - 2, self.validation_sequences, dtype=np.int64
        )
        loss_sum, target_count = 0.0, 0
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for chunk_positions in np.array_split(
                start_positions[portion_index::portion_count],
                max(1, len(start_positions[portion_index::portion_count]) // 16),
            ):
                batch = self._validation_batch(chunk_positions)
                loss_sum += float(self._cross_entropy(model, batch, "sum"))
                target_count += int((self._inputs_and_targets(batch)[1] != NO_TARGET).sum())
        model.train(was_training)
        return Score(loss_sum, target_count)

    def _cross_entropy(self, model: nn.Module, batch: Tensor, reduction: str) -> Tensor:
        """Return the cross-entropy of a model on a batch, in nats, as a scalar tensor.

        Args:
            model: model, or DDP around the model.
            batch: batch that ``batch`` or ``_validation_batch`` returned.
            reduction: ``"mean"`` or ``"sum"`` over the positions that have a target.
        """
        inputs, targets = self._inputs_and_targets(batch)
        return F.cross_entropy(
            self._logits(model, inputs).flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction=reduction
        )

    def _validation_batch(self, start_positions: npt.NDArray[np.int64]) -> Tensor:
        """Return the batch of sequences that start at ``start_positions``, positions in the validation text."""
        return self._sequences_at(self.text.validation, start_positions)

    def _inputs_and_targets(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(inputs, targets)`` of a batch, both character codes ``(sequences, context)``, int64.

        A target is the character to predict at a position, or ``NO_TARGET``.
        """
        return batch[:, :-1], batch[:, 1:]

    def _logits(self, model: nn.Module, characters: Tensor) -> Tensor:
        """Return the model's logits, ``(sequences, context, size of the vocabulary)``.

        Args:
            model: model, or DDP around the model.
            characters: inputs, character codes ``(sequences, context)``, int64.
        """
        logits: Tensor = model(characters)
        return logits

    def _sequences_at(self, text: npt.NDArray[np.uint8], start_positions: npt.NDArray[np.int64]) -> Tensor:
        """Return sequences of a text as character codes ``(len(starts), context + 1)``, int64.

        Args:
            text: text as character codes ``(characters,)``.
            start_positions: position in the text at which each sequence starts.
        """
        return torch.from_numpy(text[start_positions[:, None] + np.arange(self.context + 1)].astype(np.int64))


@lru_cache(maxsize=1)
def _library_text() -> Text:
    """Return the text of all tasks that predict characters; the files are read once per process."""
    return library_text()
