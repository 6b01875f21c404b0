# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tasks ``gpt2`` and ``modernbert``: transformers' own models from scratch, small, on ``charlm``'s text in bytes.

Tied embeddings, places of the norms and activations are those of the models that people train; depth, width, batch and
length are such that two cores make a step in a fraction of a second. Dropout is off: a run depends on its seed alone.
BERT itself is not among them: so small, and in so few steps, it learns little more than how frequent each byte is.
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
from gravac.lab.tasks.characters import NOT_ASKED, Characters
from gravac.settings import SettingsError

BYTES = 256
"""Number of bytes told apart."""

MASK = BYTES
"""Token that stands where a byte is to be found."""

MASKED = 0.15
"""Share of a sequence's bytes that ``modernbert`` is to find."""

SHOWN_AS = (0.8, 0.1)
"""Shares of those that are shown as ``MASK`` and as a random byte; the others are shown as they are (Devlin et al.,
https://arxiv.org/abs/1810.04805, section 3.1)."""

HEAD = 32
"""Width of an attention head."""

VALIDATION = 2**32
"""Seed of the masks of validation, above those of runs: the same masks for every seed, step and rank."""


@dataclass(frozen=True)
class Language(Characters):
    """A task with a model of transformers; what is left to a subclass is which.

    Attributes:
        width: width of the embedding at scale 1, a multiple of 32.
        layers: number of transformer blocks.
        initializer_range: standard deviation of initial weights; transformers' own, 0.02, is for wider models.

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
        """Return a freshly initialised model: the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._model(max(1, round(self.width / HEAD * self.scale**0.5)))

    @abstractmethod
    def _model(self, heads: int) -> nn.Module:
        """Make the model with so many heads of width ``HEAD``."""

    def _logits(self, model: nn.Module, characters: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=characters).logits
        return logits


@dataclass(frozen=True)
class GPT2(Language):
    """Model, data, optimizer and metric of ``gpt2``: the next byte; see ``Language`` and ``Characters``."""

    name: ClassVar[str] = "gpt2"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a byte")
    budget: ClassVar[int] = 160
    every: ClassVar[int] = 10

    def _model(self, heads: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=BYTES,
            n_positions=self.context,
            n_embd=heads * HEAD,
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
    """Model, data, optimizer and metric of ``modernbert``: masked bytes; see ``Language`` and ``Characters``.

    Each sequence has the same number of masked bytes, so that the ranks' mean is that over all of them.
    """

    name: ClassVar[str] = "modernbert"
    metric: ClassVar[Metric] = Metric("validation loss", "nats a masked byte")
    budget: ClassVar[int] = 160
    every: ClassVar[int] = 10

    layers: int = 4

    def batch(self, step: int, rank: int) -> Tensor:
        """Training sequences of one step on one rank: ``(batch_size, 2, context)``, int64; see ``masked``."""
        return masked(super().batch(step, rank)[:, :-1], np.random.default_rng((self.seed, rank, step, MASK)))

    def _validation_batch(self, starts: npt.NDArray[np.int64]) -> Tensor:
        sequences = super()._validation_batch(starts)[:, :-1]
        generators = (np.random.default_rng((VALIDATION, int(start))) for start in starts)  # whatever a share's others
        return torch.cat([masked(one[None], generator) for one, generator in zip(sequences, generators, strict=True)])

    def _asked(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        shown, targets = batch.unbind(1)
        return shown, targets

    def _model(self, heads: int) -> nn.Module:
        from transformers import ModernBertConfig, ModernBertForMaskedLM

        config = ModernBertConfig(
            vocab_size=BYTES + 1,
            max_position_embeddings=self.context,
            hidden_size=heads * HEAD,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            intermediate_size=heads * HEAD * 3 // 2,
            initializer_range=self.initializer_range,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
        )
        model: nn.Module = ModernBertForMaskedLM(config)
        return model


def masked(sequences: Tensor, generator: np.random.Generator) -> Tensor:
    """Hide ``MASKED`` of the bytes of each sequence, at least one.

    Args:
        sequences: bytes, shape ``(n, length)``, int64.
        generator: where random numbers are taken from.

    Returns:
        What is shown and what is asked for, shape ``(n, 2, length)``, int64: of the first, some places hold ``MASK`` or
        another byte; the second is ``NOT_ASKED`` elsewhere, and the byte that was there in these places.

    Example:
        >>> shown, asked = masked(torch.arange(20)[None], np.random.default_rng(0))[0]
        >>> int((asked != NOT_ASKED).sum()), int((shown != torch.arange(20)).sum())
        (3, 3)
    """
    count, length = sequences.shape
    places = torch.from_numpy(np.argsort(generator.random((count, length)))[:, : max(1, round(MASKED * length))])
    originals = sequences.gather(1, places)
    draw = torch.from_numpy(generator.random(places.shape))
    others = torch.from_numpy(generator.integers(0, BYTES, places.shape))
    as_mask, as_other = SHOWN_AS
    hidden = originals.where(draw >= as_mask + as_other, others).masked_fill(draw < as_mask, MASK)
    shown = sequences.scatter(1, places, hidden)
    asked = torch.full_like(sequences, NOT_ASKED).scatter(1, places, originals)
    return torch.stack((shown, asked), dim=1)
