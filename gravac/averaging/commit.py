# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Commit policies: when residuals change in a step, and how they stay unchanged if a gradient was not finite.

Whether all gradients were finite on all ranks is called the verdict. A group is a set of tensors that are exchanged
together. A run has one of three policies.

- ``InPlace``: the host reads the verdict. A group's gradients are added to the residuals in place. If the verdict is
  False, the group's residuals are restored.
- ``Masked``: the host must not read the verdict. After a group's exchange, the device keeps the previous residuals if
  the verdict is False, and otherwise overwrites them with the new ones. The policy frees no memory: memory that is
  freed within a step may be given to a stream while another stream reads it.
- ``AtStepEnd``: overflow safety, whether or not the host reads the verdict. New residuals are computed in other memory.
  At the end of the step they replace the previous ones if every gradient of the step was finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from gravac.compressors.dtypes import working
from gravac.exchange.executor import Verdict, choose

Residuals = dict[str, torch.Tensor]
"""Residuals, or parts of them: flat tensors, by parameter name."""


@dataclass(eq=False)
class CommitPolicy:
    """Base class of the commit policies, which say when residuals change.

    Attributes:
        residual: residuals, flat, by parameter name; the dict is changed in place.
        releasing: residuals of which each step adds only a part to the gradient, flat, by parameter name; the dict is
            changed in place.
        next_releasing: what each residual in ``releasing`` will be after this step, by parameter name; ``None``: the
            whole residual was added to the gradient. The dict is changed in place.
        by_group: whether a group's residuals stay bit for bit the same not only if one of its gradients is not finite,
            but also if one of its means is not.
        by_step: whether a step in which any gradient was not finite changes no residual at all.
    """

    residual: Residuals
    releasing: Residuals
    next_releasing: dict[str, torch.Tensor | None]
    by_group: bool = False
    by_step: ClassVar[bool] = False

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient plus its residual: flat, float32 (float64 for float64 gradients)."""
        return torch.empty_like(gradient, dtype=working(gradient.dtype))

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Set a parameter's residual after its exchange, if ``finite``; otherwise the residual stays as it was.

        Args:
            name: the parameter's name.
            unsent: the new residual, flat; ``None``: the parameter has no residual.
            finite: whether every gradient of the group was finite on every rank: a bool, or a 0-d bool tensor.
        """
        raise NotImplementedError

    def store_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Set several parameters' residuals to the rows of a matrix, ``[count, elements]``, by few launches.

        Each residual gets a copy of its row. If ``finite`` is a tensor, which the host does not read, the device
        multiplies a residual by 1 and adds 0, or multiplies it by 0 and adds the row.
        """
        for name, row in zip(names, rows, strict=True):
            if name not in self.residual:
                self.residual[name] = torch.zeros_like(row)
        residuals = [self.residual[name] for name in names]
        if isinstance(finite, bool):
            torch._foreach_copy_(residuals, [*rows])
        else:
            not_finite = ~finite
            torch._foreach_mul_(residuals, not_finite.to(rows.dtype))
            torch._foreach_add_(residuals, [*rows.masked_fill_(not_finite, 0.0)])
        for name in names:
            self.store_remaining(name, finite)

    def store_remaining(self, name: str, finite: Verdict) -> None:
        """Subtract the part that this step added to the gradient from the residual in ``releasing``, if ``finite``."""
        if name in self.next_releasing:
            remaining_part = self.next_releasing.pop(name)
            if remaining_part is None:
                del self.releasing[name]
            else:
                self.releasing[name] = choose(finite, remaining_part, self.releasing[name])

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Restore a parameter's residual, because some rank's gradient was not finite.

        Args:
            name: the parameter's name.
            gradient: this rank's gradient, flat.
        """
        self.next_releasing.pop(name, None)

    def commit(self, finite: Verdict) -> None:
        """End a step, after the exchange of all its groups.

        Args:
            finite: whether all gradients of the step were finite: a bool, or a 0-d bool tensor; used if ``by_step``.
        """
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Free the memory that the policy keeps for a parameter besides its residual."""


@dataclass(eq=False)
class InPlace(CommitPolicy):
    """Policy: residuals change group by group, and are restored if a gradient of the group was not finite.

    Attributes:
        summed_in_place: names of the residuals to which gradients were added, of groups whose exchange has not ended.
    """

    summed_in_place: set[str] = field(default_factory=set)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient plus its residual, flat: the residual's own memory, unless ``by_group``."""
        if self.by_group or name not in self.residual:
            return super().buffer(name, gradient)
        self.summed_in_place.add(name)
        return self.residual[name]

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Make the tensor ``unsent``, flat, the parameter's residual; ``None``: remove the residual."""
        self.summed_in_place.discard(name)
        if unsent is None:
            self.residual.pop(name, None)
        else:
            self.residual[name] = unsent
        self.store_remaining(name, finite)

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Subtract the gradient, flat, and the part of ``releasing`` from the residual to which they were added."""
        if name in self.summed_in_place:
            self.summed_in_place.discard(name)
            residual = self.residual[name].sub_(gradient)
            if name in self.next_releasing:
                releasing, remaining = self.releasing[name], self.next_releasing[name]
                residual.sub_(releasing if remaining is None else releasing - remaining)
        super().undo(name, gradient)

    def commit(self, finite: Verdict) -> None:
        """End a step, after the exchange of all its groups: forget what only that step needed."""
        self.next_releasing.clear()
        self.summed_in_place.clear()


@dataclass(eq=False)
class Masked(CommitPolicy):
    """Policy: the device overwrites the residuals of each group in place, if all gradients of the group were finite."""

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Overwrite the residual with ``unsent``, flat, or with zeros for ``None``, if ``finite``."""
        if name in self.residual:
            _overwrite_if_finite(self.residual[name], unsent, finite)
        elif unsent is not None:
            self.residual[name] = unsent if isinstance(finite, bool) else unsent.masked_fill_(~finite, 0.0)
        self.store_remaining(name, finite)

    def store_remaining(self, name: str, finite: Verdict) -> None:
        """Overwrite a residual in ``releasing`` with what this step did not add to the gradient, if ``finite``."""
        if name in self.next_releasing:
            _overwrite_if_finite(self.releasing[name], self.next_releasing.pop(name), finite)

    def commit(self, finite: Verdict) -> None:
        """End a step, after the exchange of all its groups: forget what only that step needed."""
        self.next_releasing.clear()


@dataclass(eq=False)
class AtStepEnd(CommitPolicy):
    """Policy: residuals change at the end of a step, if all its gradients were finite.

    The new residuals take as much memory as the previous ones.

    Attributes:
        pending_residuals: new residuals of this step, flat, by parameter name; ``None``: the parameter has none.
        spare_memory: memory of earlier residuals, flat, by parameter name, in which the next residuals are computed.
            Residuals in bfloat16 have no such memory, since they are computed in float32.
    """

    by_step: ClassVar[bool] = True
    pending_residuals: dict[str, torch.Tensor | None] = field(default_factory=dict)
    spare_memory: Residuals = field(default_factory=dict)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient plus its residual, flat: the parameter's memory in ``spare_memory``."""
        spare = self.spare_memory.get(name)
        if spare is None or spare.shape != gradient.shape:
            spare = self.spare_memory[name] = super().buffer(name, gradient)
        return spare

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Keep ``unsent``, flat, as the parameter's new residual until the end of the step."""
        self.pending_residuals[name] = unsent

    def store_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Keep copies of the rows, ``[count, elements]``, as new residuals until the end of the step."""
        if rows.dtype == torch.bfloat16:
            copies = [torch.empty_like(row) for row in rows]
        else:
            copies = [self.buffer(name, row) for name, row in zip(names, rows, strict=True)]
        torch._foreach_copy_(copies, [*rows])
        self.pending_residuals.update(zip(names, copies, strict=True))

    def commit(self, finite: Verdict) -> None:
        """End a step: replace residuals by the pending ones if ``finite``; otherwise drop the pending ones."""
        for name, unsent in self.pending_residuals.items() if finite is not False else ():
            previous_residual = self.residual.pop(name, None)
            if previous_residual is not None and previous_residual.dtype != torch.bfloat16:
                self.spare_memory[name] = previous_residual
            new_residual = _new_residual(finite, unsent, previous_residual)
            if new_residual is not None and new_residual.numel():
                self.residual[name] = new_residual
                if self.spare_memory.get(name) is new_residual:
                    del self.spare_memory[name]
            self.store_remaining(name, finite)
        self.pending_residuals.clear()
        self.next_releasing.clear()

    def forget(self, name: str) -> None:
        """Free the spare memory of a parameter."""
        self.spare_memory.pop(name, None)


def _overwrite_if_finite(previous: torch.Tensor, new: torch.Tensor | None, finite: Verdict) -> None:
    """Overwrite a tensor with a new tensor of its shape, or with zeros for ``None``, if ``finite``."""
    new = previous.new_zeros(()) if new is None else new
    if isinstance(finite, bool):
        previous.copy_(new)
    else:
        torch.where(finite, new, previous, out=previous)


def _new_residual(finite: Verdict, unsent: torch.Tensor | None, previous: torch.Tensor | None) -> torch.Tensor | None:
    """Return ``unsent`` if ``finite``, else the previous residual; the result may use the memory of either.

    ``finite`` is True or a 0-d bool tensor, never False.
    """
    if isinstance(finite, bool):
        return unsent
    if unsent is None:
        return None if previous is None else previous.masked_fill_(finite, 0.0)
    return unsent.masked_fill_(~finite, 0.0) if previous is None else torch.where(finite, unsent, previous, out=unsent)
