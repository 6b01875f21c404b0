# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What goes into averaging, and what it reports: tensors, the plan of a step, the stats of a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gravac.compressors.dense import Dense

Scalar = torch.Tensor | float

Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a parameter's gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor to average.

    Attributes:
        name: of the parameter.
        flat: its gradient, a flat view in memory order; overwritten with the mean.
        shape: the parameter's shape, in memory order.
    """

    name: str
    flat: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs in a step.

    Attributes:
        step: counted from 0.
        cf: of the base compressor; ``None`` for dense.
        shadow: CFs of the base compressor to evaluate without sending, ascending.
        dense: format in which all is sent where ``cf`` is ``None``; ``None`` is the averager's.
        cfs: by name, of the tensors that have one of their own; ``None`` as above.
        sums: what becomes of each tensor's gradients, see ``gravac.controllers.base.Decision``.
        survey: CFs at which to evaluate each tensor by itself, ascending.
    """

    step: int
    cf: float | None
    shadow: tuple[float, ...] = ()
    dense: Dense | None = None
    cfs: Mapping[str, float | None] = field(default_factory=dict)
    sums: str = "none"
    survey: tuple[float, ...] = ()

    def cf_of(self, name: str) -> float | None:
        """Of one tensor."""
        return self.cfs.get(name, self.cf)

    @property
    def uncompressed(self) -> bool:
        """Whether no tensor is compressed."""
        return self.cf is None and all(cf is None for cf in self.cfs.values())


@dataclass(slots=True)
class StepStats:
    """What a step came to on this rank.

    Attributes:
        error: ``Σ‖g_ef - sent‖²``.
        energy: ``Σ‖g_ef‖²``.
        shadow: the same error for the plan's shadow CFs.
        elements: of all tensors.
        compressed: elements of the tensors that were compressed.
        sent: elements of them that were sent, ``Σ elements / achieved CF``.
        finite: whether every gradient was, on every rank.
        sums: by name, ``‖Σg‖²`` of the tensors that may be compressed, where the plan asked for a report.
        curves: by name, of the same tensors, energy and the error at each of the plan's survey CFs; nan where the
            gradient was not finite.
        forms: of the tensors in ``curves``.
    """

    error: Scalar = 0.0
    energy: Scalar = 0.0
    shadow: list[Scalar] = field(default_factory=list)
    elements: int = 0
    compressed: int = 0
    sent: float = 0.0
    finite: bool = True
    sums: dict[str, Scalar] = field(default_factory=dict)
    curves: dict[str, list[Scalar]] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)

    @property
    def achieved_cf(self) -> float:
        """Dense elements / sent elements of the compressed tensors; 1 when there is none."""
        return self.compressed / self.sent if self.sent else 1.0
