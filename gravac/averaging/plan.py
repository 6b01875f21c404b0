# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Inputs of averaging: the tensors, and the plan of a step, which says how each tensor is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gravac.compressors.base import Compressor
from gravac.compressors.profile import Profile

Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a parameter's gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor to average: a parameter's gradient.

    Attributes:
        name: the parameter's name.
        flat: the gradient, a flat view in memory order; overwritten with the mean over the ranks.
        shape: the parameter's shape, in memory order.
    """

    name: str
    flat: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Position of this rank's shard within a whole parameter.

    Attributes:
        offset: index of the shard's first element in the whole parameter, for each dimension.
        shape: the shard's shape.
        padded_shape: shape in which the shard's gradient is averaged: in each dimension, zeros follow the shard.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The way in which a tensor is sent: a compressor (which may be dense) and its settings.

    Attributes:
        compressor: compressor that codes the tensor.
        cf: compression factor.
        profile: costs and efficiency of the compressor, expected at that factor and for the present number of ranks.
        strength: strength of error feedback: fraction of the unsent rest (gradient plus residual, minus what was sent)
            that becomes the residual, in [0, 1].
    """

    compressor: Compressor
    cf: float
    profile: Profile
    strength: float = 0.0

    @property
    def compresses(self) -> bool:
        """True unless the compressor is dense, that is, sends every element."""
        return self.compressor.compresses


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a step: how each tensor is sent.

    Attributes:
        step: number of the step, counted from 0.
        choice: how the large tensors (those that may be compressed) are sent, unless they are in ``choice_by_name``.
        small_choice: how tensors that are too small to be compressed are sent: dense.
        choice_by_name: how the tensors that have a choice of their own are sent, by parameter name.
        shadow_cfs: CFs at which the errors of the base compressor are computed without sending, ascending.
        sums: ``"none"``: gradients are not summed over steps. ``"add"``: they are added to the sums. ``"report"``: they
            are added to the sums, the norms of the sums are reported, and the sums are dropped. See
            ``gravac.controllers.base.Decision``.
    """

    step: int
    choice: Choice
    small_choice: Choice
    choice_by_name: Mapping[str, Choice] = field(default_factory=dict)
    shadow_cfs: tuple[float, ...] = ()
    sums: str = "none"

    def of(self, name: str, compressible: bool = True) -> Choice:
        """Return how a tensor is sent: compressor and settings.

        Args:
            name: the parameter's name.
            compressible: whether the tensor is large enough to be compressed.
        """
        tensor_choice = self.choice_by_name.get(name, self.choice)
        return tensor_choice if compressible or not tensor_choice.compresses else self.small_choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How tensors that are large enough to be compressed are sent: ``choice``, then those in ``choice_by_name``."""
        return (self.choice, *self.choice_by_name.values())

    @property
    def compresses(self) -> bool:
        """True if any tensor is compressed."""
        return any(choice.compresses for choice in self.choices)
