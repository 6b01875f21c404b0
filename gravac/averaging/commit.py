# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Commit policies: when residuals change in a step, and how they stay unchanged if a gradient was not finite.

A group is a set of tensors that are exchanged together. The verdict says whether all gradients of a group, or of a
step, were finite on all ranks. A run has one of three policies.

- ``InPlace``: for a host that may read the verdict, as on a CPU. A group's gradients are added to the residuals in the
  residuals' memory. If the verdict is False, the gradients are subtracted again.
- ``Masked``: for a host that must not read the verdict, as on a GPU, where reading would make the host wait. After a
  group's exchange, the device overwrites the previous residuals with the new ones if the verdict is True. The policy
  frees no memory: memory that is freed within a step may be given to a stream while another stream reads it.
- ``AtStepEnd``: overflow safety, whether or not the host may read the verdict. New residuals are computed in other
  memory. At the end of the step they replace the previous ones if every gradient of the step was finite.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from gravac.compressors.dtypes import working
from gravac.exchange.executor import Verdict, choose

Residuals = dict[str, torch.Tensor]
"""Residuals, or what remains of them: flat tensors, by parameter name."""


@dataclass(eq=False)
class CommitPolicy:
    """Base class of the commit policies, which say when residuals change.

    A group is a set of tensors that are exchanged together.

    Attributes:
        residual: residuals, flat, by parameter name; the dict is changed in place.
        releasing: residuals of parameters whose CF fell, flat, by parameter name. Each step adds only a part of them to
            the gradient. The dict is changed in place.
        next_releasing: what will remain of each residual in ``releasing`` after this step, flat, by parameter name;
            ``None``: nothing, since the step added the whole residual to the gradient. The dict is changed in place.
        checks_group_means: whether the residuals of a group stay unchanged, bit for bit, if a mean of the group is not
            finite. If a gradient of the group is not finite, the residuals stay unchanged in either case.
        drops_whole_step: True if a single gradient that is not finite keeps all residuals of the step unchanged; False
            if it keeps only the residuals of its group unchanged.
    """

    residual: Residuals
    releasing: Residuals
    next_releasing: dict[str, torch.Tensor | None]
    checks_group_means: bool = False
    drops_whole_step: ClassVar[bool] = False

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return a flat tensor that the caller overwrites with a gradient plus its residual.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat.

        Returns:
            A tensor of the gradient's length, float32 (float64 for float64 gradients).
        """
        return torch.empty_like(gradient, dtype=working(gradient.dtype))

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Set a parameter's residual after the parameter was exchanged, if ``finite``; otherwise keep the old residual.

        Args:
            name: the parameter's name.
            unsent: the new residual, flat; ``None``: the parameter has no residual.
            finite: whether every gradient of the group was finite on every rank: True, or a 0-d bool tensor that only
                the device reads. If the host knows that a gradient was not finite, it calls ``undo`` instead.
        """
        raise NotImplementedError

    def store_remaining(self, name: str, finite: Verdict) -> None:
        """Reduce a residual in ``releasing`` by the part that this step added to the gradient, if ``finite``.

        ``releasing`` has the residuals of parameters whose CF fell; each step adds only a part of them to the gradient.

        Args:
            name: the parameter's name; nothing is done if this step added no such part.
            finite: whether all gradients were finite: True, or a 0-d bool tensor that only the device reads.
        """
        if name in self.next_releasing:
            remaining_part = self.next_releasing.pop(name)
            if remaining_part is None:
                del self.releasing[name]
            else:
                self.releasing[name] = choose(finite, remaining_part, self.releasing[name])

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Restore a parameter's residual to its state before the step, because a gradient was not finite on some rank.

        Args:
            name: the parameter's name.
            gradient: this rank's gradient, flat.
        """
        self.next_releasing.pop(name, None)

    def commit(self, finite: Verdict) -> None:
        """End a step; called after all groups of the step were exchanged.

        Args:
            finite: whether all gradients of the step were finite: a bool, or a 0-d bool tensor that only the device
                reads; used only if ``drops_whole_step`` is True.
        """
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Free the memory that the policy keeps for a parameter besides its residual."""


@dataclass(eq=False)
class InPlace(CommitPolicy):
    """Commit policy that adds gradients to residuals in place, and subtracts them again if a gradient was not finite.

    Attributes:
        uncommitted_parameters: names of the parameters to whose residual this step's gradient was added, and whose
            exchange has not ended.
    """

    uncommitted_parameters: set[str] = field(default_factory=set)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the tensor that the caller overwrites with a gradient plus its residual: the residual itself, flat.

        A new tensor is returned if the parameter has no residual, or if ``checks_group_means`` is True.
        """
        if self.checks_group_means or name not in self.residual:
            return super().buffer(name, gradient)
        self.uncommitted_parameters.add(name)
        return self.residual[name]

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Make the tensor ``unsent``, flat, the parameter's residual; ``None``: remove the residual."""
        self.uncommitted_parameters.discard(name)
        if unsent is None:
            self.residual.pop(name, None)
        else:
            self.residual[name] = unsent
        self.store_remaining(name, finite)

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Subtract from the residual what this step added: the gradient, flat, and a part of ``releasing``."""
        if name in self.uncommitted_parameters:
            self.uncommitted_parameters.discard(name)
            residual = self.residual[name].sub_(gradient)
            if name in self.next_releasing:
                releasing_before, releasing_after = self.releasing[name], self.next_releasing[name]
                residual.sub_(releasing_before if releasing_after is None else releasing_before - releasing_after)
        super().undo(name, gradient)

    def commit(self, finite: Verdict) -> None:
        """End a step: forget which residuals this step released, and to which residuals it added gradients."""
        self.next_releasing.clear()
        self.uncommitted_parameters.clear()


@dataclass(eq=False)
class Masked(CommitPolicy):
    """Commit policy: the device overwrites a group's residuals in place, if all gradients of the group were finite.

    The host does not read whether they were finite.
    """

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Overwrite a parameter's residual with ``unsent``, flat, or with zeros for ``None``, if ``finite``.

        ``finite`` says whether all gradients of the group were finite on every rank.
        """
        if name in self.residual:
            _overwrite_if_finite(self.residual[name], unsent, finite)
        elif unsent is not None:
            self.residual[name] = unsent if isinstance(finite, bool) else unsent.masked_fill_(~finite, 0.0)
        self.store_remaining(name, finite)

    def store_remaining(self, name: str, finite: Verdict) -> None:
        """Reduce a residual in ``releasing`` by the part that this step added to the gradient, if ``finite``.

        The device changes the residual in place, without the host reading ``finite``.
        """
        if name in self.next_releasing:
            _overwrite_if_finite(self.releasing[name], self.next_releasing.pop(name), finite)

    def commit(self, finite: Verdict) -> None:
        """End a step: clear ``next_releasing``, which holds for one step only."""
        self.next_releasing.clear()


@dataclass(eq=False)
class AtStepEnd(CommitPolicy):
    """Commit policy in which residuals change at the end of a step, if all gradients of the step were finite.

    Until then, the new residuals need as much memory again as the previous ones.

    Attributes:
        pending_residuals: new residuals of this step, flat, by parameter name; ``None``: the parameter will have none.
        spare_memory: flat tensors, by parameter name, in which the next residuals are computed: residuals of earlier
            steps, which are no longer needed. Residuals in bfloat16 are not reused, since new residuals are computed in
            float32.
    """

    drops_whole_step: ClassVar[bool] = True
    pending_residuals: dict[str, torch.Tensor | None] = field(default_factory=dict)
    spare_memory: Residuals = field(default_factory=dict)

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the tensor of ``spare_memory`` that the caller overwrites with a gradient plus its residual.

        The tensor is created if it is missing, or of another shape than the gradient (flat).
        """
        spare_tensor = self.spare_memory.get(name)
        if spare_tensor is None or spare_tensor.shape != gradient.shape:
            spare_tensor = self.spare_memory[name] = super().buffer(name, gradient)
        return spare_tensor

    def store_residual(self, name: str, unsent: torch.Tensor | None, finite: Verdict) -> None:
        """Note ``unsent``, flat or ``None``, as the parameter's new residual, which ``commit`` will store."""
        self.pending_residuals[name] = unsent

    def commit(self, finite: Verdict) -> None:
        """End a step: if all its gradients were ``finite``, replace the residuals by its new ones; else leave them."""
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


def _overwrite_if_finite(residual: torch.Tensor, new_residual: torch.Tensor | None, finite: Verdict) -> None:
    """Overwrite a residual with another of the same shape, or with zeros for ``None``, if gradients were ``finite``."""
    new_residual = residual.new_zeros(()) if new_residual is None else new_residual
    if isinstance(finite, bool):
        residual.copy_(new_residual)
    else:
        torch.where(finite, new_residual, residual, out=residual)


def _new_residual(
    finite: Verdict, unsent: torch.Tensor | None, previous_residual: torch.Tensor | None
) -> torch.Tensor | None:
    """Return ``unsent`` if all gradients were ``finite``, otherwise the previous residual; ``None``: no residual.

    The result may use the memory of either. ``finite`` is True or a 0-d bool tensor, never False.
    """
    if isinstance(finite, bool):
        return unsent
    if unsent is None:
        return None if previous_residual is None else previous_residual.masked_fill_(finite, 0.0)
    return (
        unsent.masked_fill_(~finite, 0.0)
        if previous_residual is None
        else torch.where(finite, unsent, previous_residual, out=unsent)
    )
