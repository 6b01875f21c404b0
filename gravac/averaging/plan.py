# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What averaging gets: the tensors, and the plan of a step, which says how each tensor is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gravac.compressors.base import Compressor
from gravac.compressors.profile import Profile

Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a parameter's gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor to average.

    Attributes:
        name: the parameter's name.
        flat: the parameter's gradient, a flat view in memory order; overwritten with the mean.
        shape: the parameter's shape, in memory order.
    """

    name: str
    flat: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A compressor and its settings, by which a tensor is sent; dense is a compressor like all others.

    Attributes:
        compressor: the compressor.
        cf: compression factor.
        profile: the compressor's profile at that factor, for the present number of ranks.
        strength: strength of error feedback: fraction of the unsent rest that is kept, in [0, 1].
    """

    compressor: Compressor
    cf: float
    profile: Profile
    strength: float = 0.0

    @property
    def compresses(self) -> bool:
        """False if the compressor is dense: every element is sent."""
        return self.compressor.compresses


@dataclass(frozen=True, slots=True)
class Plan:
    """How each tensor is sent in a step.

    Attributes:
        step: number of the step, counted from 0.
        choice: choice of every tensor that is large enough and not in ``by_name``.
        small: choice of tensors that are too small to be compressed; dense.
        by_name: choices by name, for the tensors that have a choice of their own.
        shadow: CFs of the base compressor to evaluate without sending, ascending.
        sums: whether gradients are summed over steps, and the sums' norms reported; see
            ``gravac.controllers.base.Decision``.
    """

    step: int
    choice: Choice
    small: Choice
    by_name: Mapping[str, Choice] = field(default_factory=dict)
    shadow: tuple[float, ...] = ()
    sums: str = "none"

    def of(self, name: str, compressible: bool = True) -> Choice:
        """Return the choice of a tensor.

        Args:
            name: the parameter's name.
            compressible: whether the tensor is large enough to be compressed.
        """
        choice = self.by_name.get(name, self.choice)
        return choice if compressible or not choice.compresses else self.small

    def sends_all(self, name: str) -> bool:
        """True if every element of a tensor is sent."""
        return not self.of(name).compresses

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All choices of tensors that are large enough to be compressed."""
        return (self.choice, *self.by_name.values())

    @property
    def compresses(self) -> bool:
        """True if any tensor is compressed."""
        return any(choice.compresses for choice in self.choices)
