# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what was not sent is kept per parameter and added to the next gradient.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019. Residuals are flat, keyed by parameter name, float32 or bfloat16 (float64 for float64 gradients).

When the CF falls, what has piled up would all leave at once. It is set aside (``held``) and released over the next
steps, each adding at most ``release`` times the gradient's norm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from gravac.averaging.residuals import masked, put, replace, rounded, unsent
from gravac.compressors.base import Fold, energy
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import dtype_of, working
from gravac.compressors.sparse import Addend
from gravac.compressors.squares import norm
from gravac.exchange.executor import Number, Verdict, choose

Residuals = dict[str, torch.Tensor]


class Feedback:
    """The residuals of one rank.

    Args:
        release: most that leaves a held residual in a step, as a multiple of the gradient's norm (per tensor).
        safe: a step in which any gradient was not finite changes nothing: new residuals are kept apart until
            ``commit``, which takes a second copy of all. ``None``: from when ``guard`` is called.
        dtype: number format of residuals; those of float64 gradients stay float64. bfloat16 is rounded to at random,
            so that on average nothing is lost: to the nearest, a residual of some 256 gradients would stand still.

    Attributes:
        judge: looks at a 0-d bool tensor where the host may; see ``Executor``.
        exact_undo: whether residuals are bit for bit as they were after a group that was refused: what is to be sent is
            formed beside the residual, which takes memory for a group, and not in its place.
        masked: whether it may not. Then a group's verdict chooses, when it is settled, what is kept of its tensors; in
            place, since what is let go of within a step may be given to a stream while another one reads it.
    """

    def __init__(self, release: float = 1.0, safe: bool | None = None, dtype: str = "float32") -> None:
        self.release = release
        self.dtype = dtype_of(dtype, torch.float32)
        self.safe = bool(safe)
        self.exact_undo = False
        self.judge: Callable[[torch.Tensor], Verdict] = bool
        self.masked = False
        self._chosen = safe is not None
        self.residual: Residuals = {}
        self.held: Residuals = {}
        self._pending: Residuals = {}
        self._pending_held: dict[str, torch.Tensor | None] = {}
        self._spare: Residuals = {}

    def guard(self) -> None:
        """Gradients may overflow: be safe, unless it was chosen whether to be."""
        self.safe = self.safe or not self._chosen

    def refuse_by_group(self) -> None:
        """Each group is applied or refused by itself, and exactly: no step is refused as a whole."""
        self.exact_undo, self.safe, self._chosen = True, False, True

    def has(self, name: str) -> bool:
        """Whether anything is kept for that parameter."""
        return name in self.residual or name in self.held

    @property
    def empty(self) -> bool:
        """Whether nothing is kept at all."""
        return not self.residual and not self.held

    @property
    def settling_bytes(self) -> int:
        """Bytes that ``settle`` takes for an element: random bits, their temporaries, and what is rounded."""
        return 9 if self.dtype == torch.bfloat16 else 0

    def fold(self, name: str, gradient: torch.Tensor, keep: bool) -> torch.Tensor:
        """The gradient plus what is due of the residual: g_ef.

        Args:
            name: the parameter's name.
            gradient: its gradient, flat, finite; not changed.
            keep: whether ``settle`` will be asked to keep what is not sent (error feedback above 0).

        Returns:
            Flat, in the working dtype. The gradient itself when there is nothing to add, to keep or to widen.
        """
        dtype = working(gradient.dtype)
        if not keep and not self.has(name):
            return gradient.to(dtype)
        x = self._buffer(name, gradient, dtype)
        residual = self.residual.get(name)
        if residual is None:
            x.copy_(gradient)
        elif residual.dtype == gradient.dtype != dtype:
            x.copy_(residual).add_(gradient)  # ``torch.add`` would round the sum to their own format
        else:
            torch.add(residual, gradient, out=x)  # in place, where x is the residual itself
        if name in self.held:
            self._let_go(name, gradient, x)
        return x

    def fold_rows(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """What ``fold`` gives for several gradients of one length, in memory of their own, by few launches.

        Args:
            names: the parameters' names.
            gradients: their gradients, flat, finite, of one dtype; not changed.

        Returns:
            A row for each, ``[count, elements]``, in the working dtype.
        """
        x = gradients[0].new_empty(len(names), gradients[0].numel(), dtype=working(gradients[0].dtype))
        rows = dict(zip(names, x.unbind(), strict=True))
        torch._foreach_copy_([*rows.values()], [*gradients])
        kept = [name for name in names if name in self.residual]
        if kept:
            torch._foreach_add_([rows[name] for name in kept], [self.residual[name] for name in kept])
        for name, gradient in zip(names, gradients, strict=True):
            if name in self.held:
                self._let_go(name, gradient, rows[name])
        return x

    def foldable(self, name: str, gradient: torch.Tensor) -> bool:
        """Whether a compressor may fold: nothing is released bit by bit, and the residual is not formed in place."""
        return self.masked and name not in self.held and gradient.dtype != torch.float64

    def to_fold(self, name: str, gradient: torch.Tensor, keep: bool) -> Fold:
        """What a compressor needs that does itself what ``fold`` does, of a gradient that is ``foldable``."""
        to_make = self._buffer(name, gradient, working(gradient.dtype)) if keep else None
        return Fold(self.residual.get(name), to_make)

    def to_fold_rows(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> Fold | None:
        """What it needs to do what ``fold_rows`` does; ``None`` where a part of the rows alone has a residual."""
        residuals = [self.residual[name] for name in names if name in self.residual]
        if residuals and len(residuals) < len(names):
            return None
        x = gradients[0].new_empty(len(names) * gradients[0].numel(), dtype=working(gradients[0].dtype))
        return Fold(left=x, gradients=gradients, residuals=residuals)

    def settle(
        self,
        name: str,
        x: torch.Tensor,
        sent: torch.Tensor | Addend,
        strength: float,
        aside: torch.Tensor | None = None,
        finite: Verdict = True,
        key: str = "",
    ) -> None:
        """Keep ``strength * (x - sent - aside)`` where it is ``finite``, what was kept before where not.

        x is what ``fold`` gave and is overwritten. Where it is rounded at random, ``key`` says how.
        """
        kept = unsent(x, sent, strength, aside)
        if kept is not None and self._narrows(kept):
            kept = rounded(kept, Draws(key))
        self._keep(name, x, kept, finite)

    def settle_rows(
        self,
        names: Sequence[str],
        x: torch.Tensor,
        sent: torch.Tensor | Addend,
        strength: float,
        aside: torch.Tensor | None,
        finite: Verdict,
        keys: Sequence[str],
    ) -> None:
        """Keep what ``settle`` does of what ``fold_rows`` gave, here flat: each row in memory of its own.

        Under masks the old are multiplied by 0, and the new ones added to them; or by 1, and zeros.
        """
        kept = unsent(x, sent, strength, aside)
        if kept is None:
            for name in names:
                self._keep(name, x, None, finite)
            return
        kept = kept.view(len(names), -1)
        if self._narrows(kept):
            kept = rounded(kept, *map(Draws, keys))
        if self.safe:
            into = [self._buffer(name, row, row.dtype) for name, row in zip(names, kept, strict=True)]
            torch._foreach_copy_(into, [*kept])
            self._pending.update(zip(names, into, strict=True))
            return
        for name, row in zip(names, kept, strict=True):
            if name not in self.residual:
                self.residual[name] = torch.zeros_like(row)
        olds = [self.residual[name] for name in names]
        if isinstance(finite, bool):
            torch._foreach_copy_(olds, [*kept])
        else:
            spoilt = ~finite
            torch._foreach_mul_(olds, spoilt.to(kept.dtype))
            torch._foreach_add_(olds, [*kept.masked_fill_(spoilt, 0.0)])
        for name in names:
            self._settle_held(name, finite)

    def _keep(self, name: str, x: torch.Tensor, kept: torch.Tensor | None, finite: Verdict) -> None:
        """Put what is kept of a parameter, perhaps nothing, in the old one's place, or apart until the step's end."""
        if self.safe:
            self._pending[name] = x.new_empty(0) if kept is None else kept
        elif self.masked:
            self._overwrite(name, kept, finite)
        else:
            if kept is None:
                self.residual.pop(name, None)
            else:
                self.residual[name] = kept
            self._settle_held(name, finite)

    def undo(self, name: str, x: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take a ``fold`` back, since some rank's gradient was not finite."""
        if self.residual.get(name) is x:
            x.sub_(gradient)
            if name in self._pending_held:
                rest = self._pending_held[name]
                x.sub_(self.held[name] if rest is None else self.held[name] - rest)
        self._pending_held.pop(name, None)

    def commit(self, finite: Verdict = True) -> None:
        """End of a step: what was settled apart takes effect now, or never when not ``finite``."""
        if finite is not False:
            for name, kept in self._pending.items():
                old = self.residual.pop(name, None)
                kept = masked(finite, kept, old)
                if old is not None and not self._narrows(old):
                    self._spare[name] = old
                if kept.numel():
                    self.residual[name] = kept
                    if self._spare.get(name) is kept:
                        del self._spare[name]
                self._commit_held(name, finite)
        self._pending.clear()
        self._pending_held.clear()

    def hold(self, fell: Callable[[str], bool] = lambda name: True) -> None:
        """Set what has piled up aside, to be released step by step, of the parameters whose CF ``fell``.

        ``release`` inf holds nothing.
        """
        if self.release == float("inf"):
            return
        for name in [name for name in self.residual if fell(name)]:
            residual, already = self.residual.pop(name), self.held.get(name)
            self.held[name] = residual.to(working(residual.dtype)) if already is None else already.add_(residual)
            self._spare.pop(name, None)

    def rescale(self, factor: Number) -> None:
        """Multiply all that is kept: the loss scale changed by ``factor``."""
        for tensor in (*self.residual.values(), *self.held.values()):
            tensor.mul_(factor)

    def load(self, residual: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor]) -> None:
        """Replace all that is kept by copies of what is given."""
        copies = {name: tensor.to(self._format(tensor), copy=True) for name, tensor in residual.items()}
        replace(self.residual, copies)
        replace(self.held, {name: tensor.clone() for name, tensor in held.items()})
        self._pending.clear()
        self._pending_held.clear()
        self._spare.clear()

    def place(self, device: torch.device) -> None:
        """Have all that is kept lie on a device: a checkpoint may have been loaded to another one."""
        for stored in (self.residual, self.held):
            replace(stored, {name: tensor.to(device) for name, tensor in stored.items()})

    def leftover(self, whole: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Squared norms, 0-d, of what is kept of parameters although it is to be sent: held, or they are sent whole."""
        kept = {name: energy(held) for name, held in self.held.items()}
        for name, residual in self.residual.items():
            if whole(name):
                kept[name] = kept[name] + energy(residual) if name in kept else energy(residual)
        return kept

    def drop(self, names: Iterable[str], whole: Callable[[str], bool]) -> None:
        """Let go of ``leftover`` of some parameters, which is known to be zero."""
        for name in names:
            self.held.pop(name, None)
            if whole(name):
                self.residual.pop(name, None)
                self._spare.pop(name, None)

    def _overwrite(self, name: str, kept: torch.Tensor | None, finite: Verdict) -> None:
        """Put what was settled of a parameter in the old one's place where its group was finite; zeros for nothing."""
        if name in self.residual:
            put(self.residual[name], kept, finite)
        elif kept is not None:
            self.residual[name] = masked(finite, kept, None)
        self._settle_held(name, finite)

    def _settle_held(self, name: str, finite: Verdict) -> None:
        """Put what is left of what is held in its place."""
        if not self.masked:
            self._commit_held(name)
        elif name in self._pending_held:
            put(self.held[name], self._pending_held.pop(name), finite)

    def _format(self, tensor: torch.Tensor) -> torch.dtype:
        """The number format in which a residual of such numbers is kept."""
        return tensor.dtype if tensor.dtype == torch.float64 else self.dtype

    def _narrows(self, tensor: torch.Tensor) -> bool:
        """Whether a residual of such numbers is kept in another format than it is formed in."""
        return self._format(tensor) == torch.bfloat16

    def _buffer(self, name: str, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Where g_ef is formed: the residual itself; where that must stay, its spare, or memory of the group's own."""
        if self._narrows(gradient) or self.exact_undo or (self.masked and not self.safe):
            return torch.empty_like(gradient, dtype=dtype)
        if self.safe:
            buffer = self._spare.get(name)
            if buffer is None or buffer.shape != gradient.shape:
                buffer = self._spare[name] = torch.empty_like(gradient, dtype=dtype)
            return buffer
        residual = self.residual.get(name)
        return residual if residual is not None else torch.empty_like(gradient, dtype=dtype)

    def _let_go(self, name: str, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """Move the share of the held residual that is due into x; the rest stays, once the step is settled.

        The share is computed where the tensors are. Whether that was all, only a host that may look can tell.
        """
        held = self.held[name]
        limit, size = self.release * norm(gradient), norm(held)
        if self.judge(size <= limit) is True:
            x.add_(held)
            self._pending_held[name] = None
        elif self.judge(limit > 0) is not False:
            share = torch.where(size <= limit, torch.ones_like(size), limit / size)
            due = held * share.to(held.dtype)
            x.add_(due)
            self._pending_held[name] = held - due

    def _commit_held(self, name: str, finite: Verdict = True) -> None:
        if name not in self._pending_held:
            return
        rest = self._pending_held.pop(name)
        if rest is None:
            del self.held[name]
        else:
            self.held[name] = choose(finite, rest, self.held[name])
