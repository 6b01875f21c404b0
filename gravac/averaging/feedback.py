# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Error feedback: the unsent rest of each gradient is kept, as a residual, and added to the next gradient.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019. Residuals are flat, keyed by parameter name, float32 or bfloat16 (float64 for float64 gradients).
A policy says when they change (``gravac.averaging.commit``).

If the CF falls, all that a residual has accumulated would be sent at once. The residual is therefore set aside
(``releasing``), and released over the next steps. Each step adds at most ``release`` times the gradient's norm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from gravac.averaging.commit import AtStepEnd, CommitPolicy, InPlace, Masked, Residuals
from gravac.averaging.residuals import replace, rounded
from gravac.compressors.base import energy
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import dtype_of, working
from gravac.compressors.squares import norm
from gravac.exchange.executor import Number, Verdict


class Feedback:
    """The residuals of one rank.

    Args:
        release: largest norm that is released from a residual in a step, as a multiple of the gradient's norm (per
            tensor).
        safe: whether residuals stay as they are in a step in which any gradient was not finite, which takes a second
            copy. ``None``: only after ``guard`` is called.
        dtype: number format of residuals; those of float64 gradients stay float64. Rounding to bfloat16 is random, so
            that on average nothing is lost: with rounding to the nearest number, a residual that is 256 times as large
            as a gradient would never change.

    Attributes:
        release: largest norm that is released from a residual in a step, as a multiple of the gradient's norm.
        dtype: number format of residuals.
        residual: unsent rests, flat, by name; always the same dict, whose tensors may be replaced.
        releasing: residuals that are released step by step, flat, by name; always the same dict.
        commits: policy that says when residuals change.
    """

    def __init__(self, release: float = 1.0, safe: bool | None = None, dtype: str = "float32") -> None:
        self.release = release
        self.dtype = dtype_of(dtype, torch.float32)
        self.residual: Residuals = {}
        self.releasing: Residuals = {}
        self._remaining: dict[str, torch.Tensor | None] = {}
        self._safe = safe
        self._by_group = False
        self.use(bool, host_looks=True)

    # commit policy

    def use(self, judge: Callable[[torch.Tensor], Verdict], host_looks: bool) -> None:
        """Set whether the host may look at tensors; called between steps.

        Args:
            judge: reads a 0-d bool tensor if the host may, and returns the tensor otherwise; see ``Executor``.
            host_looks: whether the host may look at tensors.
        """
        self._judge, self._host_looks = judge, host_looks
        self._choose_policy()

    def guard(self) -> None:
        """Turn on overflow safety, unless the user has set it: gradients may overflow. Called between steps."""
        if self._safe is None:
            self._safe = True
            self._choose_policy()

    def refuse_by_group(self, by_group: bool = True) -> None:
        """Set whether each group of tensors is refused by its own mean, regardless of the step's other groups.

        Residuals of a group whose mean is not finite stay bit for bit as they were. This replaces overflow safety.
        Called between steps.

        Args:
            by_group: whether each group has a verdict of its own.
        """
        self._by_group = by_group
        self._choose_policy()

    def _choose_policy(self) -> None:
        """Choose the commit policy: by overflow safety, and by whether the host looks at tensors."""
        kind = AtStepEnd if self._safe and not self._by_group else InPlace if self._host_looks else Masked
        self.commits: CommitPolicy = kind(self.residual, self.releasing, self._remaining, self._by_group)

    # a step

    def has(self, name: str) -> bool:
        """True if a parameter has a residual, in ``residual`` or ``releasing``."""
        return name in self.residual or name in self.releasing

    @property
    def empty(self) -> bool:
        """True if no parameter has a residual."""
        return not self.residual and not self.releasing

    @property
    def settling_bytes(self) -> int:
        """Memory that ``settle`` takes, in bytes per element: random bits, temporaries and the rounded residual."""
        return 9 if self.dtype == torch.bfloat16 else 0

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return memory for a gradient plus its residual: flat, of the gradient's length, in the working dtype.

        Residuals in bfloat16 are never formed in place.
        """
        if self._stored(gradient.dtype) == torch.bfloat16:
            return torch.empty_like(gradient, dtype=working(gradient.dtype))
        return self.commits.buffer(name, gradient)

    def fold(self, name: str, gradient: torch.Tensor, keep: bool) -> torch.Tensor:
        """Return a gradient plus its residual, or plus the part of the residual that this step releases: g_ef.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat, finite; not changed.
            keep: whether ``settle`` will store an unsent rest (error feedback above 0).

        Returns:
            The sum, flat, in the working dtype; the gradient itself if nothing is added, kept or converted.
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
        if name in self.releasing:
            self._release(name, gradient, x)
        return x

    def fold_rows(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return gradients of equal length plus their residuals, as ``fold`` does, by few launches.

        Args:
            names: the parameters' names.
            gradients: the parameters' gradients, flat, finite, of one dtype; not changed.

        Returns:
            The sums, a row for each parameter, ``[count, elements]``, in the working dtype.
        """
        x = gradients[0].new_empty(len(names), gradients[0].numel(), dtype=working(gradients[0].dtype))
        rows = dict(zip(names, x.unbind(), strict=True))
        torch._foreach_copy_([*rows.values()], [*gradients])
        residuals = {name: self.residual[name] for name in names if name in self.residual}
        if residuals:
            torch._foreach_add_([rows[name] for name in residuals], [*residuals.values()])
        for name, gradient in zip(names, gradients, strict=True):
            if name in self.releasing:
                self._release(name, gradient, rows[name])
        return x

    def _release(self, name: str, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """Add the released fraction of a residual in ``releasing`` to x; the rest stays, once the step is settled.

        The fraction is computed on the tensors' device. Only a host that may look knows whether nothing remains.
        """
        releasing = self.releasing[name]
        limit, size = self.release * norm(gradient), norm(releasing)
        if self._judge(size <= limit) is True:
            x.add_(releasing)
            self._remaining[name] = None
        elif self._judge(limit > 0) is not False:
            fraction = torch.where(size <= limit, torch.ones_like(size), limit / size)
            released = releasing * fraction.to(releasing.dtype)
            x.add_(released)
            self._remaining[name] = releasing - released

    def settle(
        self, names: Sequence[str], unsent: torch.Tensor | None, finite: Verdict = True, keys: Sequence[str] = ()
    ) -> None:
        """Set the parameters' residuals to the unsent rests if ``finite``; otherwise residuals stay as they were.

        Args:
            names: the parameters' names.
            unsent: unsent rest of the sum that ``fold`` or ``fold_rows`` returned, flat, in the same order; ``None``:
                nothing.
            finite: whether every gradient of the group was finite, on every rank.
            keys: keys of the random numbers by which each residual is rounded, if residuals are in bfloat16.
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

    def set_aside(self, fell: Callable[[str], bool] = lambda name: True) -> None:
        """Move residuals to ``releasing``; do nothing if ``release`` is inf, so that the next step adds them in full.

        Args:
            fell: returns whether the CF of a parameter, given by name, fell; only residuals of such parameters are
                moved.
        """
        if self.release == float("inf"):
            return
        for name in [name for name in self.residual if fell(name)]:
            residual, releasing = self.residual.pop(name), self.releasing.get(name)
            self.releasing[name] = (
                residual.to(working(residual.dtype)) if releasing is None else releasing.add_(residual)
            )
            self.commits.forget(name)

    def rescale(self, factor: Number) -> None:
        """Multiply all residuals by ``factor``, since the loss scale was multiplied by it."""
        for tensor in (*self.residual.values(), *self.releasing.values()):
            tensor.mul_(factor)

    def load(self, residual: Mapping[str, torch.Tensor], releasing: Mapping[str, torch.Tensor]) -> None:
        """Replace ``residual`` and ``releasing`` by copies of flat tensors, by name."""
        copies = {name: tensor.to(self._stored(tensor.dtype), copy=True) for name, tensor in residual.items()}
        replace(self.residual, copies)
        replace(self.releasing, {name: tensor.clone() for name, tensor in releasing.items()})
        self._remaining.clear()
        self._choose_policy()

    def to_device(self, device: torch.device) -> None:
        """Move all residuals to a device: a checkpoint may have been loaded to another one."""
        for stored in (self.residual, self.releasing):
            replace(stored, {name: tensor.to(device) for name, tensor in stored.items()})

    def leftover(self, sends_all: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Return squared norms, 0-d, of residuals that are to be sent completely, by name.

        These are all residuals in ``releasing``, and those of parameters of which every element is sent.

        Args:
            sends_all: returns whether every element of a parameter is sent, by name.
        """
        squares = {name: energy(releasing) for name, releasing in self.releasing.items()}
        for name, residual in self.residual.items():
            if sends_all(name):
                squares[name] = squares[name] + energy(residual) if name in squares else energy(residual)
        return squares

    def drop(self, names: Iterable[str], sends_all: Callable[[str], bool]) -> None:
        """Drop residuals that ``leftover`` returned, and that are zero on all ranks.

        Args:
            names: the parameters' names.
            sends_all: returns whether every element of a parameter is sent, by name.
        """
        for name in names:
            self.releasing.pop(name, None)
            if sends_all(name):
                self.residual.pop(name, None)
                self.commits.forget(name)

    def _stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the number format in which residuals formed in ``dtype`` are stored."""
        return dtype if dtype == torch.float64 else self.dtype
