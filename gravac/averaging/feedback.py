# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what was not sent is kept per parameter and added to the next gradient.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019. Residuals are flat, keyed by parameter name, float32 or bfloat16 (float64 for float64 gradients).
When they change is said by a policy (``gravac.averaging.commit``).

When the CF falls, what has piled up would all leave at once. It is set aside (``held``) and released over the next
steps, each adding at most ``release`` times the gradient's norm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from gravac.averaging.commit import Apart, CommitPolicy, InPlace, Masked, Residuals
from gravac.averaging.residuals import replace, rounded
from gravac.compressors.base import energy
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import dtype_of, working
from gravac.compressors.squares import norm
from gravac.exchange.executor import Number, Verdict


class Feedback:
    """The residuals of one rank.

    Args:
        release: most that leaves a held residual in a step, as a multiple of the gradient's norm (per tensor).
        safe: whether a step in which any gradient was not finite changes nothing, which takes a second copy of all
            residuals. ``None``: not before ``guard`` is called.
        dtype: number format of residuals; those of float64 gradients stay float64. bfloat16 is rounded to at random,
            so that on average nothing is lost: to the nearest, a residual of some 256 gradients would stand still.

    Attributes:
        residual: what was not sent, flat, by name; the dict stays the same, its tensors may not.
        held: what is released step by step, flat, by name; likewise.
        commits: when residuals change; undoes a ``fold``, and ends a step.
    """

    def __init__(self, release: float = 1.0, safe: bool | None = None, dtype: str = "float32") -> None:
        self.release = release
        self.dtype = dtype_of(dtype, torch.float32)
        self.residual: Residuals = {}
        self.held: Residuals = {}
        self._remaining: dict[str, torch.Tensor | None] = {}
        self._safe = safe
        self._by_group = False
        self.use(bool, host_looks=True)

    # how residuals change

    def use(self, judge: Callable[[torch.Tensor], Verdict], host_looks: bool) -> None:
        """Learn whether the host may look at data; called between steps.

        Args:
            judge: looks at a 0-d bool tensor if the host may, and returns the tensor otherwise; see ``Executor``.
            host_looks: whether the host may.
        """
        self._judge, self._host_looks = judge, host_looks
        self._choose()

    def guard(self) -> None:
        """Turn on overflow safety, unless set: gradients may overflow. Called between steps."""
        if self._safe is None:
            self._safe = True
            self._choose()

    def refuse_by_group(self, by_group: bool = True) -> None:
        """Let a group whose mean is not finite change nothing of its tensors, whatever other groups of the step do.

        Residuals are then bit for bit as they were. This takes the place of overflow safety, and is called between
        steps.

        Args:
            by_group: whether groups count one by one from here on.
        """
        self._by_group = by_group
        self._choose()

    def _choose(self) -> None:
        """Choose when residuals change: by overflow safety, and by whether the host looks at data."""
        kind = Apart if self._safe and not self._by_group else InPlace if self._host_looks else Masked
        self.commits: CommitPolicy = kind(self.residual, self.held, self._remaining, self._by_group)

    # a step

    def has(self, name: str) -> bool:
        """True if a parameter has a residual, or one that is held back."""
        return name in self.residual or name in self.held

    @property
    def empty(self) -> bool:
        """True if no parameter has a residual, nor one that is held back."""
        return not self.residual and not self.held

    @property
    def settling_bytes(self) -> int:
        """Bytes that ``settle`` takes for an element: random bits, their temporaries, and what is rounded."""
        return 9 if self.dtype == torch.bfloat16 else 0

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient with what is fed back: flat, as long, in the working dtype.

        Residuals in bfloat16 are never formed in place.
        """
        if self._stored(gradient.dtype) == torch.bfloat16:
            return torch.empty_like(gradient, dtype=working(gradient.dtype))
        return self.commits.buffer(name, gradient)

    def fold(self, name: str, gradient: torch.Tensor, keep: bool) -> torch.Tensor:
        """Add to a gradient what is due of the residual: g_ef.

        Args:
            name: the parameter's name.
            gradient: its gradient, flat, finite; not changed.
            keep: whether ``settle`` will be asked to keep what is not sent (error feedback above 0).

        Returns:
            Flat, in the working dtype. The gradient itself if there is nothing to add, to keep or to widen.
        """
        dtype = working(gradient.dtype)
        if not keep and not self.has(name):
            return gradient.to(dtype)
        residual, x = self.residual.get(name), self.buffer(name, gradient)
        if residual is None:
            x.copy_(gradient)
        elif residual.dtype == gradient.dtype != dtype:
            x.copy_(residual).add_(gradient)  # ``torch.add`` would round the sum to their own format
        else:
            torch.add(residual, gradient, out=x)  # in place, if x is the residual itself
        if name in self.held:
            self._release(name, gradient, x)
        return x

    def fold_rows(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Do what ``fold`` does for several gradients of one length, in memory of their own, by few launches.

        Args:
            names: the parameters' names.
            gradients: their gradients, flat, finite, of one dtype; not changed.

        Returns:
            A row for each, ``[count, elements]``, in the working dtype.
        """
        x = gradients[0].new_empty(len(names), gradients[0].numel(), dtype=working(gradients[0].dtype))
        rows = dict(zip(names, x.unbind(), strict=True))
        torch._foreach_copy_([*rows.values()], [*gradients])
        residuals = {name: self.residual[name] for name in names if name in self.residual}
        if residuals:
            torch._foreach_add_([rows[name] for name in residuals], [*residuals.values()])
        for name, gradient in zip(names, gradients, strict=True):
            if name in self.held:
                self._release(name, gradient, rows[name])
        return x

    def _release(self, name: str, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """Move the share of the held residual that is due into x; the rest stays, once the step is settled.

        The share is computed on the tensors' device. Whether that was all, only a host that may look can tell.
        """
        held = self.held[name]
        limit, size = self.release * norm(gradient), norm(held)
        if self._judge(size <= limit) is True:
            x.add_(held)
            self._remaining[name] = None
        elif self._judge(limit > 0) is not False:
            share = torch.where(size <= limit, torch.ones_like(size), limit / size)
            due = held * share.to(held.dtype)
            x.add_(due)
            self._remaining[name] = held - due

    def settle(
        self, names: Sequence[str], unsent: torch.Tensor | None, finite: Verdict = True, keys: Sequence[str] = ()
    ) -> None:
        """Make what was not sent the parameters' residuals if ``finite``; otherwise residuals stay as they were.

        Args:
            names: the parameters' names; of several, what was not sent is as ``fold_rows`` laid it.
            unsent: what was not sent, flat: ``unsent`` of what ``fold`` or ``fold_rows`` gave; ``None``: nothing.
            finite: whether every gradient of the group was finite, on every rank.
            keys: what random numbers each parameter's residual is rounded by, if it is stored in bfloat16.
        """
        if unsent is None:
            for name in names:
                self.commits.settle(name, None, finite)
            return
        rows = unsent.view(len(names), -1) if len(names) > 1 else unsent
        if self._stored(rows.dtype) == torch.bfloat16:
            rows = rounded(rows, *map(Draws, keys))
        if len(names) > 1:
            self.commits.settle_rows(names, rows, finite)
        else:
            self.commits.settle(names[0], rows, finite)

    # between steps

    def hold(self, fell: Callable[[str], bool] = lambda name: True) -> None:
        """Set what has piled up aside, to be released step by step, of the parameters whose CF ``fell``.

        ``release`` inf holds nothing.
        """
        if self.release == float("inf"):
            return
        for name in [name for name in self.residual if fell(name)]:
            residual, held = self.residual.pop(name), self.held.get(name)
            self.held[name] = residual.to(working(residual.dtype)) if held is None else held.add_(residual)
            self.commits.forget(name)

    def rescale(self, factor: Number) -> None:
        """Multiply all that is kept: the loss scale changed by ``factor``."""
        for tensor in (*self.residual.values(), *self.held.values()):
            tensor.mul_(factor)

    def load(self, residual: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor]) -> None:
        """Replace residuals, and those held back, by copies of flat tensors, by name."""
        copies = {name: tensor.to(self._stored(tensor.dtype), copy=True) for name, tensor in residual.items()}
        replace(self.residual, copies)
        replace(self.held, {name: tensor.clone() for name, tensor in held.items()})
        self._remaining.clear()
        self._choose()

    def place(self, device: torch.device) -> None:
        """Move residuals, and those held back, to a device: a checkpoint may have been loaded to another one."""
        for stored in (self.residual, self.held):
            replace(stored, {name: tensor.to(device) for name, tensor in stored.items()})

    def leftover(self, sent_whole: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Squared norms, 0-d, of what is kept of parameters although it is to be sent: held, or they are sent whole."""
        squares = {name: energy(held) for name, held in self.held.items()}
        for name, residual in self.residual.items():
            if sent_whole(name):
                squares[name] = squares[name] + energy(residual) if name in squares else energy(residual)
        return squares

    def drop(self, names: Iterable[str], sent_whole: Callable[[str], bool]) -> None:
        """Let go of ``leftover`` of some parameters, which is known to be zero."""
        for name in names:
            self.held.pop(name, None)
            if sent_whole(name):
                self.residual.pop(name, None)
                self.commits.forget(name)

    def _stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the number format in which residuals formed in ``dtype`` are stored."""
        return dtype if dtype == torch.float64 else self.dtype
