# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What averaging reports: what a step was to send, what it left out, and how much it sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from gravac.averaging.fused_tensors import Part
from gravac.averaging.norms import lost, summed
from gravac.averaging.plan import Form
from gravac.compressors.base import Reduced, energy
from gravac.exchange.executor import Number, Verdict


@dataclass(slots=True)
class StepStats:
    """What a step came to on this rank.

    Attributes:
        errors: squared norms of what was not sent, ``Σ‖g_ef - sent‖²``, of each group of tensors.
        energies: squared norms of what was to be sent, ``Σ‖g_ef‖²``, likewise.
        shadows: the same errors at each of the plan's shadow CFs, of each tensor.
        elements: number of elements of all tensors.
        compressed: number of elements of the tensors that were compressed.
        sent: number of elements of these that were sent, ``Σ elements / achieved CF``.
        verdicts: whether every gradient was finite, on every rank, of groups that were looked at.
        sums: ``‖Σg‖²`` by name of the tensors that may be compressed, where the plan asked for a report.
        curves: energy, then the error at each of the plan's survey CFs, by name of the same tensors; nan where the
            gradient was not finite.
        forms: shapes and dtypes of the tensors in ``curves``, by name.
    """

    errors: list[Number] = field(default_factory=list)
    energies: list[Number] = field(default_factory=list)
    shadows: list[list[Number]] = field(default_factory=list)
    elements: int = 0
    compressed: int = 0
    sent: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)
    sums: dict[str, Number] = field(default_factory=dict)
    curves: dict[str, list[Number]] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)

    @property
    def achieved_cf(self) -> float:
        """Dense elements / sent elements of the compressed tensors; 1 when there is none."""
        return self.compressed / self.sent if self.sent else 1.0

    @property
    def error(self) -> Number:
        """Squared norm of what was not sent."""
        return _total(self.errors)

    @property
    def energy(self) -> Number:
        """Squared norm of what was to be sent."""
        return _total(self.energies)

    @property
    def shadow(self) -> list[Number]:
        """The error at each of the plan's shadow CFs; empty where no tensor was evaluated."""
        return [sum(errors, 0.0) for errors in zip(*self.shadows, strict=True)]

    @property
    def finite(self) -> Verdict:
        """Whether every gradient was finite, on every rank."""
        known = all(verdict for verdict in self.verdicts if isinstance(verdict, bool))
        masks = [verdict for verdict in self.verdicts if not isinstance(verdict, bool)]
        if not known or not masks:
            return known
        return masks[0] if len(masks) == 1 else torch.stack(masks).all()

    def looked_at(self, read: Callable[[Sequence[torch.Tensor]], list[float]]) -> "StepStats":
        """Return the same with numbers in place of 0-d tensors, all read at once."""
        error, energy, finite, shadow = self.error, self.energy, self.finite, self.shadow
        found = [error, energy, finite, *shadow, *self.sums.values()]
        found += [number for numbers in self.curves.values() for number in numbers]
        tensors = [one for one in found if isinstance(one, torch.Tensor)]
        looked = dict(zip(map(id, tensors), read(tensors) if tensors else (), strict=True))

        def number(one: Number) -> Number:
            return looked.get(id(one), one)

        return replace(
            self,
            errors=[number(error)],
            energies=[number(energy)],
            verdicts=[bool(number(finite))],
            shadows=[[number(one) for one in shadow]] if self.shadows else [],
            sums={name: number(one) for name, one in self.sums.items()},
            curves={name: [number(one) for one in numbers] for name, numbers in self.curves.items()},
        )

    def count(self, parts: Sequence[Part], reduced: Sequence[Reduced], finite: Verdict = True) -> None:
        """Add what was to be sent of some tensors, and what was not.

        Args:
            parts: the tensors, as they were handed to the compressors.
            reduced: what came of each of them.
            finite: whether all gradients were finite: what was coded unseen does not count where they were not.
        """
        energies: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for part, result in zip(parts, reduced, strict=True):
            target = part.x if result.target is None else result.target
            energies.append(part.energy if part.energy is not None and target is part.x else energy(target))
            if result.error is not None:
                errors.append(result.error)
            elif result.sent is not target:
                errors.append(lost(target, energies[-1], result.sent))
            if part.tensors.choice.compresses:
                self.compressed += part.tensors.elements
                self.sent += part.tensors.elements / result.cf
        unseen = any(part.fold is not None for part in parts)
        spoilt = ~finite if unseen and isinstance(finite, torch.Tensor) else None
        for numbers, of_all in ((summed(energies), self.energies), (summed(errors), self.errors)):
            if spoilt is not None and isinstance(numbers, torch.Tensor):
                numbers = numbers.masked_fill(spoilt, 0.0)
            of_all.append(numbers)


def _total(numbers: Sequence[Number]) -> Number:
    """The sum of numbers; of one, itself."""
    return numbers[0] if len(numbers) == 1 else sum(numbers, 0.0)
