# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Commit policies: when residuals change. A run has one of three policies.

- ``InPlace``: the host reads whether gradients were finite (the verdict). A group's new residuals are formed in the
  memory of the previous ones. If a group is refused, its residuals are restored.
- ``Masked``: only the device knows the verdict. When a group is settled, the device selects between previous and new
  residuals, in place: memory that is freed within a step may be given to a stream while another stream reads it.
- ``AtStepEnd``: overflow safety, whether or not the host looks. New residuals are formed in other memory. They replace
  the previous ones at the end of the step if every gradient of the step was finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from gravac.compressors.dtypes import working
from gravac.exchange.executor import Verdict, choose

Residuals = dict[str, torch.Tensor]
"""Flat tensors by the names of parameters."""


@dataclass(eq=False)
class CommitPolicy:
    """Base class of the commit policies; defines when residuals change.

    Attributes:
        residual: residuals, flat, by name; changed in place.
        releasing: residuals that are released step by step, flat, by name; changed in place.
        remaining: what remains of each released residual after this step; ``None``: nothing. Changed in place.
        by_group: whether a group is also refused if its means are not finite; its residuals then stay bit for bit as
            they were.
        by_step: whether a step in which any gradient was not finite changes nothing.
    """

    residual: Residuals
    releasing: Residuals
    remaining: dict[str, torch.Tensor | None]
    by_group: bool = False
    by_step: ClassVar[bool] = False

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient plus its residual: flat, of the gradient's length, in the working dtype."""
        return torch.empty_like(gradient, dtype=working(gradient.dtype))

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Set a parameter's residual to the unsent rest, flat, or ``None`` for nothing; no change if not ``finite``."""
        raise NotImplementedError

    def settle_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Set several parameters' residuals to the rows of a matrix, ``[count, elements]``, by few launches.

        Each residual has memory of its own. If only the device knows whether gradients were finite, it either keeps a
        residual (multiplied by 1) or replaces it (multiplied by 0, plus the row).
        """
        for name, row in zip(names, rows, strict=True):
            if name not in self.residual:
                self.residual[name] = torch.zeros_like(row)
        residuals = [self.residual[name] for name in names]
        if isinstance(finite, bool):
            torch._foreach_copy_(residuals, [*rows])
        else:
            spoilt = ~finite
            torch._foreach_mul_(residuals, spoilt.to(rows.dtype))
            torch._foreach_add_(residuals, [*rows.masked_fill_(spoilt, 0.0)])
        for name in names:
            self.settle_releasing(name, finite)

    def settle_releasing(self, name: str, finite: Verdict) -> None:
        """Replace a parameter's residual in ``releasing`` by what remains of it; no change if not ``finite``."""
        if name in self.remaining:
            remaining = self.remaining.pop(name)
            if remaining is None:
                del self.releasing[name]
            else:
                self.releasing[name] = choose(finite, remaining, self.releasing[name])

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Restore a parameter's residual, since some rank's gradient was not finite.

        Args:
            name: the parameter's name.
            gradient: this rank's gradient, flat.
        """
        self.remaining.pop(name, None)

    def commit(self, finite: Verdict) -> None:
        """End a step.

        Args:
            finite: whether all gradients of the step were finite; used under ``by_step`` only.
        """
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Free the memory that a parameter has besides its residual."""


@dataclass(eq=False)
class InPlace(CommitPolicy):
    """Residuals change group by group, and are restored if a group is refused.

    Attributes:
        formed: names of residuals to which gradients were added in place, in groups whose exchange has not ended.
    """

    formed: set[str] = field(default_factory=set)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the residual itself, flat, if it may change before its group is settled."""
        if self.by_group or name not in self.residual:
            return super().buffer(name, gradient)
        self.formed.add(name)
        return self.residual[name]

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Store the unsent rest of a tensor as its residual, flat; ``None``: the tensor has no residual afterwards."""
        self.formed.discard(name)
        if unsent is None:
            self.residual.pop(name, None)
        else:
            self.residual[name] = unsent
        self.settle_releasing(name, finite)

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Subtract the gradient, flat, and the released part, which were added to the residual."""
        if name in self.formed:
            self.formed.discard(name)
            residual = self.residual[name].sub_(gradient)
            if name in self.remaining:
                releasing, remaining = self.releasing[name], self.remaining[name]
                residual.sub_(releasing if remaining is None else releasing - remaining)
        super().undo(name, gradient)

    def commit(self, finite: Verdict) -> None:
        """End a step, all of whose groups are settled."""
        self.remaining.clear()
        self.formed.clear()


@dataclass(eq=False)
class Masked(CommitPolicy):
    """Residuals change group by group, in place, by a verdict on the device."""

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Overwrite the residual with the unsent rest, flat, or with zeros for nothing."""
        if name in self.residual:
            _put(self.residual[name], unsent, finite)
        elif unsent is not None:
            self.residual[name] = unsent if isinstance(finite, bool) else unsent.masked_fill_(~finite, 0.0)
        self.settle_releasing(name, finite)

    def settle_releasing(self, name: str, finite: Verdict) -> None:
        """Overwrite a residual in ``releasing`` with what remains of it."""
        if name in self.remaining:
            _put(self.releasing[name], self.remaining.pop(name), finite)

    def commit(self, finite: Verdict) -> None:
        """End a step, all of whose groups are settled."""
        self.remaining.clear()


@dataclass(eq=False)
class AtStepEnd(CommitPolicy):
    """Residuals change at the end of a step, if all its gradients were finite; needs memory for a second copy.

    Attributes:
        pending: unsent rest of this step, flat, by name; ``None``: nothing.
        spare: memory of earlier residuals, by name, reused for the next residuals. Residuals in bfloat16 have no such
            memory, since they are computed in float32.
    """

    by_step: ClassVar[bool] = True
    pending: dict[str, torch.Tensor | None] = field(default_factory=dict)
    spare: Residuals = field(default_factory=dict)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the spare memory of a parameter, flat, of its gradient's length."""
        spare = self.spare.get(name)
        if spare is None or spare.shape != gradient.shape:
            spare = self.spare[name] = super().buffer(name, gradient)
        return spare

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Set the unsent rest, flat, aside until the end of the step."""
        self.pending[name] = unsent

    def settle_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Set rows, ``[count, elements]``, aside until the end of the step."""
        if rows.dtype == torch.bfloat16:
            copies = [torch.empty_like(row) for row in rows]
        else:
            copies = [self.buffer(name, row) for name, row in zip(names, rows, strict=True)]
        torch._foreach_copy_(copies, [*rows])
        self.pending.update(zip(names, copies, strict=True))

    def commit(self, finite: Verdict) -> None:
        """End a step: replace residuals with those set aside if ``finite``; otherwise drop those set aside."""
        for name, unsent in self.pending.items() if finite is not False else ():
            previous = self.residual.pop(name, None)
            if previous is not None and previous.dtype != torch.bfloat16:
                self.spare[name] = previous
            new = _new_residual(finite, unsent, previous)
            if new is not None and new.numel():
                self.residual[name] = new
                if self.spare.get(name) is new:
                    del self.spare[name]
            self.settle_releasing(name, finite)
        self.pending.clear()
        self.remaining.clear()

    def forget(self, name: str) -> None:
        """Free the spare memory of a parameter."""
        self.spare.pop(name, None)


def _put(previous: torch.Tensor, new: torch.Tensor | None, finite: Verdict) -> None:
    """Overwrite a tensor with a new tensor, or with zeros for ``None``, if ``finite``."""
    new = previous.new_zeros(()) if new is None else new
    if isinstance(finite, bool):
        previous.copy_(new)
    else:
        torch.where(finite, new, previous, out=previous)


def _new_residual(finite: Verdict, unsent: torch.Tensor | None, previous: torch.Tensor | None) -> torch.Tensor | None:
    """Return the unsent rest if ``finite``, else the previous residual; the result may use the memory of either."""
    if isinstance(finite, bool):
        return unsent
    if unsent is None:
        return None if previous is None else previous.masked_fill_(finite, 0.0)
    return unsent.masked_fill_(~finite, 0.0) if previous is None else torch.where(finite, unsent, previous, out=unsent)
