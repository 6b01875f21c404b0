# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tasks ``gpt2`` and ``modernbert``: small models of the package transformers, trained from scratch on bytes.

The text is that of ``charlm``. Tied embeddings, positions of the norms, and activations are those of the large models.
Depth, width, batch size and sequence length are so small that two cores make a step in a fraction of a second. Dropout
is off, so a run depends on its seed alone. BERT is not among the tasks: with so few weights and steps, BERT learns
little more than the frequency of each byte.
"""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric
from gravac.lab.tasks.characters import NO_TARGET, Characters
from gravac.settings import SettingsError

BYTE_COUNT = 256
"""Number of different byte values, which is the size of the vocabulary of ``gpt2``."""

MASK_TOKEN = BYTE_COUNT
"""Token that hides a byte which ``modernbert`` is to predict; its number is outside the byte values 0 to 255."""

TARGET_FRACTION = 0.15
"""Fraction of the bytes of a sequence that ``modernbert`` is to predict, chosen at random."""

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""Fractions of the bytes to predict: fraction that ``MASK_TOKEN`` replaces, and fraction that a random byte replaces.

The other bytes to predict are not replaced (Devlin et al., https://arxiv.org/abs/1810.04805, section 3.1).
"""

HEAD_WIDTH = 32
"""Number of features of an attention head."""

VALIDATION_SEED = 2**32
"""Seed of the validation masks, which are the same in every run; higher than the seeds of runs."""


@dataclass(frozen=True)
class Language(Characters):
    """Base class of tasks with a model of the package transformers; subclasses make the model. See ``Characters``.

    Attributes:
        width: width of the embedding at scale 1, a multiple of ``HEAD_WIDTH``.
        layers: number of transformer blocks.
        initializer_range: standard deviation of the initial weights. transformers' default, 0.02, suits wider models.

    Raises:
        SettingsError: transformers is not installed.
    """

    learning_rate: float = 2e-3
    sequences: int = 32
    context: int = 32
    validation_sequences: int = 256
    width: int = 192
    layers: int = 3
    initializer_range: float = 0.06

    def __post_init__(self) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise SettingsError(f"task: {self.name!r} needs transformers; pip install 'gravac[transformers]'")

    def model(self) -> nn.Module:
        """Return a new model of the package transformers, with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._model(max(1, round(self.width / HEAD_WIDTH * self.scale**0.5)))

    @abstractmethod
    def _model(self, heads: int) -> nn.Module:
        """Return a new model with random weights.

        Args:
            heads: number of attention heads of a block, with ``HEAD_WIDTH`` features each.
        """

    def _logits(self, model: nn.Module, characters: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=characters).logits
        return logits


@dataclass(frozen=True)
class GPT2(Language):
    """The task ``gpt2``: a small GPT-2 predicts the next byte. See ``Language`` and ``Characters``."""

    name: ClassVar[str] = "gpt2"
    blocks: ClassVar[str] = "transformer.h"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a byte")
    budget: ClassVar[int] = 160
    steps_per_evaluation: ClassVar[int] = 10

    def _model(self, heads: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=BYTE_COUNT,
            n_positions=self.context,
            n_embd=heads * HEAD_WIDTH,
            n_layer=self.layers,
            n_head=heads,
            initializer_range=self.initializer_range,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        model: nn.Module = GPT2LMHeadModel(config)
        return model


@dataclass(frozen=True)
class ModernBERT(Language):
    """The task ``modernbert``: a small ModernBERT predicts masked bytes. See ``Language`` and ``Characters``.

    All sequences have the same number of bytes to predict, so the mean of the ranks' losses is the loss of all bytes.
    """

    name: ClassVar[str] = "modernbert"
    blocks: ClassVar[str] = "model.layers"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a masked byte")
    budget: ClassVar[int] = 160
    steps_per_evaluation: ClassVar[int] = 10

    layers: int = 4

    def batch(self, step: int, rank: int) -> Tensor:
        """Return the inputs ``[:, 0]`` and targets ``[:, 1]`` of a step on a rank, ``(batch_size, 2, context)``, int64.

        Random bytes of the inputs are masked; see ``mask_bytes``.
        """
        return mask_bytes(super().batch(step, rank)[:, :-1], np.random.default_rng((self.seed, rank, step, MASK_TOKEN)))

    def _validation_batch(self, start_positions: npt.NDArray[np.int64]) -> Tensor:
        sequences = super()._validation_batch(start_positions)[:, :-1]
        # each sequence has its own generator, so that its mask is the same in any split of the sequences over ranks
        generators = (
            np.random.default_rng((VALIDATION_SEED, int(start_position))) for start_position in start_positions
        )
        return torch.cat(
            [mask_bytes(sequence[None], generator) for sequence, generator in zip(sequences, generators, strict=True)]
        )

    def _inputs_and_targets(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = batch.unbind(1)
        return inputs, targets

    def _model(self, heads: int) -> nn.Module:
        from transformers import ModernBertConfig, ModernBertForMaskedLM

        config = ModernBertConfig(
            vocab_size=BYTE_COUNT + 1,
            max_position_embeddings=self.context,
            hidden_size=heads * HEAD_WIDTH,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            intermediate_size=heads * HEAD_WIDTH * 3 // 2,
            initializer_range=self.initializer_range,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
        )
        model: nn.Module = ModernBertForMaskedLM(config)
        return model


def mask_bytes(sequences: Tensor, generator: np.random.Generator) -> Tensor:
    """Mask random bytes of sequences, for masked language modelling; return inputs and targets.

    In each sequence, the model is to predict the fraction ``TARGET_FRACTION`` of the bytes, but one byte or more.

    Args:
        sequences: bytes, shape ``(n, length)``, int64.
        generator: source of random numbers.

    Returns:
        Inputs and targets, shape ``(n, 2, length)``, int64. Inputs ``[:, 0]`` are the bytes, with ``MASK_TOKEN`` or a
        random byte in place of most of the bytes to predict. Targets ``[:, 1]`` are the bytes to predict, and
        ``NO_TARGET`` at all other positions.

    Example:
        >>> inputs, targets = mask_bytes(torch.arange(20)[None], np.random.default_rng(0))[0]
        >>> int((targets != NO_TARGET).sum()), int((inputs != torch.arange(20)).sum())
        (3, 3)
    """
    sequence_count, length = sequences.shape
    target_positions = torch.from_numpy(
        np.argsort(generator.random((sequence_count, length)))[:, : max(1, round(TARGET_FRACTION * length))]
    )
    original_bytes = sequences.gather(1, target_positions)
    uniform_draws = torch.from_numpy(generator.random(target_positions.shape))
    random_bytes = torch.from_numpy(generator.integers(0, BYTE_COUNT, target_positions.shape))
    replaced_bytes = original_bytes.where(uniform_draws >= MASK_FRACTION + RANDOM_FRACTION, random_bytes)
    inputs = sequences.scatter(
        1, target_positions, replaced_bytes.masked_fill(uniform_draws < MASK_FRACTION, MASK_TOKEN)
    )
    targets = torch.full_like(sequences, NO_TARGET).scatter(1, target_positions, original_bytes)
    return torch.stack((inputs, targets), dim=1)
