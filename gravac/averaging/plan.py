# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What goes into averaging: tensors, and the plan of a step, which says what each is sent by."""

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
        flat: its gradient, a flat view in memory order; overwritten with the mean.
        shape: the parameter's shape, in memory order.
    """

    name: str
    flat: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A compressor and settings that a tensor is sent by; dense is a compressor like all others.

    Attributes:
        compressor: the compressor.
        cf: its compression factor.
        profile: what is known of the compressor at that factor, over the ranks there are.
        strength: error feedback: share of what is not sent that is kept, in [0, 1].
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
    """What runs in a step.

    Attributes:
        step: number of the step, counted from 0.
        choice: what every tensor is sent by that has no choice of its own.
        small: what tensors are sent by that are too small for ``choice`` to compress them; dense.
        own: choices by name, for the tensors that have one of their own.
        shadow: CFs of the base compressor to evaluate without sending, ascending.
        sums: what becomes of each tensor's gradients, see ``gravac.controllers.base.Decision``.
    """

    step: int
    choice: Choice
    small: Choice
    own: Mapping[str, Choice] = field(default_factory=dict)
    shadow: tuple[float, ...] = ()
    sums: str = "none"

    def of(self, name: str, compressible: bool = True) -> Choice:
        """Return what a tensor is sent by.

        Args:
            name: the parameter's name.
            compressible: whether it is large enough to be compressed.
        """
        choice = self.own.get(name, self.choice)
        return choice if compressible or not choice.compresses else self.small

    def sends_whole(self, name: str) -> bool:
        """True if every element of a tensor is sent."""
        return not self.of(name).compresses

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All choices of tensors that are large enough to be compressed."""
        return (self.choice, *self.own.values())

    @property
    def compresses(self) -> bool:
        """True if any tensor is compressed."""
        return any(choice.compresses for choice in self.choices)
