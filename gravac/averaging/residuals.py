# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Residuals: the unsent rest of each gradient, which is added to the parameter's next gradient (error feedback).

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019. Residuals are flat, by parameter name, float32 (float64 for float64 gradients).

A new residual is pending until it is committed: stored if the gradients were finite on every rank, and dropped
otherwise. The groups of tensors that are exchanged together are committed one by one, when their exchange has ended.
With overflow safety, all residuals are committed at the end of the step, if every gradient of the step was finite.

If groups are committed one by one, and the host may read tensors, a pending residual takes no memory of its own: the
gradient is added to the residual in the residual's memory, and subtracted again if another rank's gradient was not
finite.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch

from gravac.compressors.dtypes import working
from gravac.compressors.sparse import Addend
from gravac.exchange.reading import AT_ONCE, Finite, Number, Reads

StoredT = TypeVar("StoredT")


class Residuals:
    """The residuals of one rank, and how steps add them to gradients and replace them.

    Args:
        overflow_safety: whether all residuals stay unchanged in a step in which any gradient was not finite; takes a
            second copy of the residuals during a step. False: only the residuals of tensors that are exchanged together
            with this gradient stay unchanged. ``None``: False until ``turn_on_overflow_safety`` is called.

    Attributes:
        by_name: residuals, flat, by parameter name; always the same dict, but its tensors may be replaced.
        checks_group_means: whether the residuals of a group stay unchanged, bit for bit, if a mean of the group is not
            finite; for outer steps. Groups are then committed one by one, even with overflow safety.
        reads: when the host may read whether gradients were finite.
        emptied: names of the parameters whose residuals the device has overwritten with zeros since the set was last
            cleared, if gradients were finite. The host does not know whether they were.
    """

    def __init__(self, overflow_safety: bool | None = None) -> None:
        self.by_name: dict[str, torch.Tensor] = {}
        self.checks_group_means = False
        self.reads: Reads = AT_ONCE
        self.emptied: set[str] = set()
        self._overflow_safety = overflow_safety
        self._pending: dict[str, torch.Tensor | None] = {}
        self._added_in_place: set[str] = set()

    @property
    def wait_for_step(self) -> bool:
        """True if residuals are committed at the end of the step, False if group by group."""
        return bool(self._overflow_safety) and not self.checks_group_means

    def turn_on_overflow_safety(self) -> None:
        """Turn on overflow safety, unless the user has turned it on or off; called between steps."""
        if self._overflow_safety is None:
            self._overflow_safety = True

    # a step

    def added_to(self, name: str, gradient: torch.Tensor, keeps_unsent: bool) -> torch.Tensor:
        """Return a gradient plus its residual.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat, finite; not changed.
            keeps_unsent: whether the sum will be overwritten with a new residual, that is, whether error feedback is
                above 0.

        Returns:
            The sum, flat, float32 (float64 for float64 gradients); the gradient itself if nothing is added or
            converted.
        """
        dtype, residual = working(gradient.dtype), self.by_name.get(name)
        if residual is None:
            return gradient.to(dtype, copy=True) if keeps_unsent else gradient.to(dtype)
        if self.wait_for_step or self.checks_group_means:
            return torch.add(residual, gradient)
        x = self.reads.sum_in_place(residual, gradient)
        if x is residual:
            self._added_in_place.add(name)
        return x

    def pend(self, name: str, unsent: torch.Tensor | None) -> None:
        """Set the residual that a parameter will have when it is committed: flat; ``None``: it will have none."""
        self._pending[name] = unsent

    def undo(self, name: str, gradient: torch.Tensor) -> None:
        """Drop what is pending of a parameter, because a gradient was not finite on some rank.

        Args:
            name: the parameter's name.
            gradient: this rank's gradient, flat; subtracted from the residual if the step added it.
        """
        self._pending.pop(name, None)
        if name in self._added_in_place:
            self._added_in_place.discard(name)
            self.by_name[name].sub_(gradient)

    def commit(self, finite: Finite, names: Iterable[str] | None = None) -> None:
        """Store pending residuals, or drop them unless gradients were finite.

        Args:
            finite: whether the gradients were finite on every rank.
            names: names of the parameters; ``None``: all that are pending.
        """
        for name in [*self._pending] if names is None else names:
            if name not in self._pending:
                continue
            unsent = self._pending.pop(name)
            self._added_in_place.discard(name)
            residual = self.reads.settle(finite, unsent, self.by_name.get(name))
            if residual is None:
                self.by_name.pop(name, None)
                continue
            self.by_name[name] = residual
            if unsent is None and self.reads.known(finite) is None:
                self.emptied.add(name)

    # between steps

    def rescale(self, factor: Number) -> None:
        """Multiply all residuals by ``factor``, by which the loss scale was multiplied."""
        for residual in self.by_name.values():
            residual.mul_(factor)

    def load(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Replace all residuals by copies of saved ones: flat tensors, by parameter name."""
        for names in (self._pending, self._added_in_place, self.emptied):
            names.clear()
        replace_entries(self.by_name, {name: residual.clone() for name, residual in residuals.items()})

    def to_device(self, device: torch.device) -> None:
        """Move all residuals to a device, for example after a checkpoint was loaded to another device."""
        replace_entries(self.by_name, {name: residual.to(device) for name, residual in self.by_name.items()})

    def drop(self, names: Iterable[str]) -> None:
        """Drop the residuals of some parameters, given by name; called when they are known to be zero."""
        for name in names:
            self.by_name.pop(name, None)


def unsent_rest(
    x: torch.Tensor, sent: torch.Tensor | Addend, strength: float, kept_aside: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the new residual, ``strength * (x - sent - kept_aside)``, in the memory of flat x; ``None``: none.

    Args:
        x: gradient plus residual, flat; overwritten.
        sent: numbers that were sent, flat, of x's length: a tensor, or an ``Addend``. An ``Addend`` adds the numbers to
            a tensor without storing all of them.
        strength: fraction of the unsent rest, ``x - sent - kept_aside``, that becomes the residual, 0 to 1; 0: there is
            no residual.
        kept_aside: part of ``x - sent`` that the compressor keeps in its own memory, flat; ``None``: it keeps nothing.
    """
    if strength <= 0 or sent is x:
        return None
    rest = x.sub_(sent) if isinstance(sent, torch.Tensor) else sent.add_to(x, alpha=-1.0)
    if kept_aside is not None:
        rest.sub_(kept_aside)
    return rest.mul_(strength) if strength < 1.0 else rest


def replace_entries(replaced_dict: dict[str, StoredT], new_entries: dict[str, StoredT]) -> None:
    """Replace all entries of a dict by ``new_entries``, in place, since other objects refer to the dict."""
    replaced_dict.clear()
    replaced_dict.update(new_entries)
