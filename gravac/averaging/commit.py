# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""When residuals change: three policies, of which a run has one.

- ``InPlace``: the host looks at verdicts. A group's residuals are formed in place of the last ones, and a group that is
  refused is undone.
- ``Masked``: only the device knows the verdict. It chooses, when a group is settled, between old and new residuals, in
  place: memory that is released within a step may be given to a stream while another one reads it.
- ``Apart``: overflow safety, whoever looks. New residuals are formed apart from the last ones until the step's end, and
  take effect if every gradient of the step was finite.
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
    """When residuals change. The base of the three policies; not one itself.

    Attributes:
        residual: residuals, flat, by name; changed in place.
        held: residuals that are held back, flat, by name; changed in place.
        remaining: what remains of held residuals once their group is settled; ``None``: nothing. Changed in place.
        by_group: whether each group is refused exactly, by its means too: nothing of it is settled before, and
            residuals are then bit for bit as they were.
        by_step: whether a step in which any gradient was not finite changes nothing.
    """

    residual: Residuals
    held: Residuals
    remaining: dict[str, torch.Tensor | None]
    by_group: bool = False
    by_step: ClassVar[bool] = False

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient with what is fed back: flat, as long, in the working dtype."""
        return torch.empty_like(gradient, dtype=working(gradient.dtype))

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Make a parameter's residual what was not sent: flat, or ``None`` for nothing; no change if not ``finite``."""
        raise NotImplementedError

    def settle_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Settle parameters by a matrix with a row for each, ``[count, elements]``, by few launches.

        Each residual has memory of its own. Under masks it is multiplied by 0, and a row added; or by 1, and zeros.
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
            self.settle_held(name, finite)

    def settle_held(self, name: str, finite: Verdict) -> None:
        """Replace a parameter's held residual by what remains of it; no change if not ``finite``."""
        if name in self.remaining:
            remaining = self.remaining.pop(name)
            if remaining is None:
                del self.held[name]
            else:
                self.held[name] = choose(finite, remaining, self.held[name])

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Restore a parameter's residual: some rank's gradient was not finite; this rank's is given, flat."""
        self.remaining.pop(name, None)

    def commit(self, finite: Verdict) -> None:
        """End a step; ``finite`` says whether all gradients of the step were, which counts ``by_step`` only."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Free what memory a parameter has beside its residual."""


@dataclass(eq=False)
class InPlace(CommitPolicy):
    """Residuals change group by group, and are undone if a group is refused.

    Attributes:
        formed: names of residuals that gradients were added to, in groups that are not settled yet.
    """

    formed: set[str] = field(default_factory=set)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the residual itself, flat, if it may change before its group is settled."""
        if self.by_group or name not in self.residual:
            return super().buffer(name, gradient)
        self.formed.add(name)
        return self.residual[name]

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Put what was not sent, flat, in the residual's place."""
        self.formed.discard(name)
        if unsent is None:
            self.residual.pop(name, None)
        else:
            self.residual[name] = unsent
        self.settle_held(name, finite)

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Take a gradient, flat, and what was released out of the residual again."""
        if name in self.formed:
            self.formed.discard(name)
            residual = self.residual[name].sub_(gradient)
            if name in self.remaining:
                held, remaining = self.held[name], self.remaining[name]
                residual.sub_(held if remaining is None else held - remaining)
        super().undo(name, gradient)

    def commit(self, finite: Verdict) -> None:
        """End a step, all of whose groups are settled."""
        self.remaining.clear()
        self.formed.clear()


@dataclass(eq=False)
class Masked(CommitPolicy):
    """Residuals change group by group, in place, as a verdict on the device says."""

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Overwrite the residual with what was not sent, flat, or with zeros for nothing."""
        if name in self.residual:
            _put(self.residual[name], unsent, finite)
        elif unsent is not None:
            self.residual[name] = unsent if isinstance(finite, bool) else unsent.masked_fill_(~finite, 0.0)
        self.settle_held(name, finite)

    def settle_held(self, name: str, finite: Verdict) -> None:
        """Overwrite a held residual with what remains of it."""
        if name in self.remaining:
            _put(self.held[name], self.remaining.pop(name), finite)

    def commit(self, finite: Verdict) -> None:
        """End a step, all of whose groups are settled."""
        self.remaining.clear()


@dataclass(eq=False)
class Apart(CommitPolicy):
    """Residuals change at the end of a step, if at all, which takes a second copy of all.

    Attributes:
        pending: what was not sent in this step, flat, by name; ``None``: nothing.
        spare: memory for the next residuals, by name: the last but one; none for bfloat16, formed in float32.
    """

    by_step: ClassVar[bool] = True
    pending: dict[str, torch.Tensor | None] = field(default_factory=dict)
    spare: Residuals = field(default_factory=dict)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the spare memory of a parameter, flat, as long as its gradient."""
        spare = self.spare.get(name)
        if spare is None or spare.shape != gradient.shape:
            spare = self.spare[name] = super().buffer(name, gradient)
        return spare

    def settle(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Put what was not sent, flat, aside until the step's end."""
        self.pending[name] = unsent

    def settle_rows(self, names: Sequence[str], rows: torch.Tensor, finite: Verdict) -> None:
        """Put rows, ``[count, elements]``, aside until the step's end."""
        if rows.dtype == torch.bfloat16:
            copies = [torch.empty_like(row) for row in rows]
        else:
            copies = [self.buffer(name, row) for name, row in zip(names, rows, strict=True)]
        torch._foreach_copy_(copies, [*rows])
        self.pending.update(zip(names, copies, strict=True))

    def commit(self, finite: Verdict) -> None:
        """End a step: residuals put aside take effect if ``finite``, and are dropped otherwise."""
        for name, unsent in self.pending.items() if finite is not False else ():
            old = self.residual.pop(name, None)
            if old is not None and old.dtype != torch.bfloat16:
                self.spare[name] = old
            new = _new_residual(finite, unsent, old)
            if new is not None and new.numel():
                self.residual[name] = new
                if self.spare.get(name) is new:
                    del self.spare[name]
            self.settle_held(name, finite)
        self.pending.clear()
        self.remaining.clear()

    def forget(self, name: str) -> None:
        """Free the spare memory of a parameter."""
        self.spare.pop(name, None)


def _put(old: torch.Tensor, new: torch.Tensor | None, finite: Verdict) -> None:
    """Overwrite a tensor with a new one, or with zeros for none, if ``finite``."""
    new = old.new_zeros(()) if new is None else new
    if isinstance(finite, bool):
        old.copy_(new)
    else:
        torch.where(finite, new, old, out=old)


def _new_residual(finite: Verdict, unsent: torch.Tensor | None, old: torch.Tensor | None) -> torch.Tensor | None:
    """Return what was not sent if ``finite``, else the old residual; under a mask, in the memory of either."""
    if isinstance(finite, bool):
        return unsent
    if unsent is None:
        return None if old is None else old.masked_fill_(finite, 0.0)
    return unsent.masked_fill_(~finite, 0.0) if old is None else torch.where(finite, unsent, old, out=unsent)
