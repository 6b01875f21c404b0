# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: low-rank factors of the gradient, by one power iteration a step from where the last step ended.

Source: Vogels et al., "PowerSGD", NeurIPS 2019 (algorithm 1; algorithm 2 is error feedback); one factor a step: Zhang
et al., "ACP-SGD", 2023 (arXiv 2306.08881). Contractive: what a rank sends is its own matrix projected orthogonally on
a subspace that all ranks share. No gain is guaranteed; biased: error feedback brings the rest later.

x is viewed as the matrix ``M [n, m]``: the tensor's first dimension by all the others. Where low rank is no saving
(1-D, a row, a column, a low CF on a small matrix), x is sent dense. Matrices of one shape are averaged as a batch on a
GPU: all code here is for ``[..., n, m]``, where ``...`` is nothing, or the number of matrices.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field, model_validator

from gravac.beliefs import efficiency_at
from gravac.candidate import Span
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.dense import dense
from gravac.compressors.dtypes import rounds_products, unit_roundoff, working
from gravac.compressors.orthonormal import orthonormal, rescaled
from gravac.compressors.profile import CostPoints, Profile

SIDE = 1024
"""Rows, and columns, of the matrix whose CF stands for a rank that is set."""


class LowRank(NamedTuple):
    """How one matrix is sent: ``n`` rows, ``m`` columns, ``rank`` columns a factor, and the ``cf`` of that."""

    n: int
    m: int
    rank: int
    cf: float


@dataclass(frozen=True, slots=True)
class Product:
    """A flat matrix that is the product of two factors, or several one after another, multiplied out as it is added.

    Attributes:
        left: the factor with as many rows as the matrix: ``[..., n, rank]``.
        right: the factor with as many rows as the matrix has columns: ``[..., m, rank]``.
    """

    left: torch.Tensor
    right: torch.Tensor

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the product to ``dense`` (flat, as long as all matrices), in place; returns it."""
        matrix = dense.view(*self.left.shape[:-1], self.right.shape[-2])
        if matrix.dim() == 2:
            matrix.addmm_(self.left, self.right.T, alpha=alpha)
        else:
            matrix.baddbmm_(self.left, self.right.mT, alpha=alpha)
        return dense


def beyond(x: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    """Squared error of projecting flat x on an orthonormal basis, from its coordinates there: 0-d.

    Of several, x being ``[count, elements]`` and the coordinates ``[count, ..., ...]``, of all of them.
    """
    if x.dim() == 1:
        return (energy(x) - energy(projected.reshape(-1))).clamp_(min=0)
    whole: torch.Tensor = torch.linalg.vector_norm(x, dim=-1).double().square()
    captured: torch.Tensor = torch.linalg.vector_norm(projected, dim=(-2, -1)).double().square()
    return (whole - captured).clamp_(min=0).sum()


class PowerSGD(Compressor):
    """Low rank, exchanged by all-reduce: of P and of Q; or of one of them, in turn. Factors travel in x's dtype.

    Attributes:
        rank: rank of every matrix, as in the paper; ``None``: from the CF, matrix by matrix. One CF for all leaves
            small matrices with rank 1, which held a whole net back (``docs/evidence/measurements.md``); one rank for
            all does not.
        iterations: power iterations a step, each with one all-reduce of P and one of Q; they count against the CF.
        warm_start: whether to start from the factor of the last step, also when the rank has changed; otherwise from a
            drawn one.
        alternating: whether P and Q take turns, one all-reduce a step (ACP-SGD), at about twice the rank for a CF. The
            CF is that of two steps together; ``traffic`` is that of the larger factor, which the first step sends.
            Needs ``warm_start`` and one iteration. On a GPU the host waits once a batch, to learn whose turn is next.
    """

    name: ClassVar[str] = "powersgd"
    contractive: ClassVar[bool] = True
    exact_cf: ClassVar[bool] = False
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 17.34, 39.37), (100, 4.25, 7.70), (1000, 3.11, 4.73))

    rank: Annotated[int, Field(ge=1)] | None = None
    iterations: int = Field(default=1, ge=1, le=4)
    warm_start: bool = True
    alternating: bool = False

    @model_validator(mode="after")
    def _alternates_from_what_was_kept(self) -> "PowerSGD":
        if self.alternating and (self.iterations > 1 or not self.warm_start):
            raise ValueError("alternating=True needs iterations=1 and warm_start=True")
        return self

    def plan(self, shape: tuple[int, ...], cf: float) -> LowRank | None:
        """How a tensor is sent: at the rank set, or the largest that achieves ``cf``, at least 1; ``None``: dense."""
        if len(shape) < 2 or 0 in shape:
            return None
        n, m = shape[0], torch.Size(shape[1:]).numel()
        columns = (n + m) / 2 if self.alternating else (n + m) * self.iterations
        # a CF that was achieved gives its rank again, whatever the division's rounding
        rank = min(n, m, self.rank or max(1, int(n * m / (cf * columns) * (1 + 1e-9))))
        most = max(n, m) if self.alternating else columns
        if min(n, m) == 1 or rank * most >= n * m:
            return None
        return LowRank(n, m, rank, n * m / (rank * columns))

    def method_at(self, cf: float) -> str:
        """The rank that is set, or the CF that sets each matrix's rank, in words."""
        return f"low rank {self.rank}" if self.rank else f"low rank at {cf:.4g}x"

    def candidates(self, cf_range: tuple[float, float]) -> Span | tuple[float, ...]:
        """Any CF, each tensor coming as close as a whole rank can; of a rank that is set, its CF on a square matrix."""
        if self.rank is None:
            return Span(*cf_range)
        square = self.plan((SIDE, SIDE), 1.0)
        return (square.cf,) if square and cf_range[0] <= square.cf <= cf_range[1] else ()

    def __call__(self, rank: int | None = None, **changes: Any) -> "PowerSGD":
        """The same settings but for ``rank`` and other changes."""
        return super().__call__(**({} if rank is None else {"rank": rank}), **changes)

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """What is known at a CF; where shapes are, efficiency is that of the ranks it comes to, which tell more."""
        plans = [(torch.Size(shape).numel(), self.plan(shape, cf)) for shape in shapes]
        by_rank = self.beliefs.by_rank
        low = [(elements, efficiency_at(by_rank, plan.rank)) for elements, plan in plans if plan]
        elements = sum(elements for elements, _ in low)
        by_cf = replace(super().profile(cf), coding_bytes=6 + math.ceil(16 / cf))
        return replace(by_cf, efficiency=sum(n * one for n, one in low) / elements) if elements else by_cf

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """P and Q once an iteration, in bytes; the larger of them, when alternating; or x, where that is sent dense."""
        plan = self.plan(shape, cf)
        if plan is None:
            return dense.traffic(shape, 1.0, dtype)
        column = plan.rank * working(dtype).itemsize
        if self.alternating:
            return (Traffic(AllReduce, max(plan.n, plan.m) * column),)
        return (Traffic(AllReduce, plan.n * column), Traffic(AllReduce, plan.m * column)) * self.iterations

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x, seen as the matrix ``M [n, m]``, as a product ``P Q^T`` of factors common to all ranks.

        1. Start from the last step's Q, ``[m, rank]``, or a drawn one; make its columns orthonormal.
        2. Multiply ``P = M Q``, all-reduce P, ``[n, rank]``, and make its columns orthonormal.
        3. Multiply ``Q = M^T P`` and all-reduce Q; with several iterations, go on from step 2 with its basis.
        4. Keep Q for the next step (``warm_start``).

        When ``alternating``, only one factor is multiplied, all-reduced and kept in a step, and the other one in the
        next. Where low rank is no saving, x itself is all-reduced.
        """
        plan = self.plan(ctx.shape, cf)
        if plan is None:
            return (yield from dense.rounds(x, 1.0, ctx))
        return (yield from self._low_rank(x, plan, [ctx]))

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """Matrices of one shape and rank go together; when ``alternating``, those whose turns are alike."""
        plan = self.plan(ctx.shape, cf)
        return None if plan is None else (plan, self._turn(plan, ctx))

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average matrices of one shape, in the steps of ``rounds``: with one all-reduce for every P, and every Q."""
        plan = self.plan(contexts[0].shape, cf)
        if plan is None:
            raise ValueError(f"shape {contexts[0].shape} at {cf}x is sent dense, each tensor by itself")
        return (yield from self._low_rank(x, plan, contexts))

    def _low_rank(self, x: torch.Tensor, plan: LowRank, contexts: Sequence[Context]) -> Rounds:
        side, other, rows = self._turn(plan, contexts[0])
        total = first = together([factor_before(x, side, rows, plan.rank, ctx) for ctx in contexts])
        matrix = oriented(x, plan, side)
        for half in range(self._halves):
            basis = orthonormal(total)
            mine = times(matrix if half % 2 == 0 else matrix.mT, basis)
            total = yield AllReduce(mine)
        if self.alternating:
            news, olds = apart(by_importance(total)), apart(basis)
            for ctx, good, new, old in zip(contexts, usable(total).view(-1).tolist(), news, olds, strict=True):
                ctx.state.pop(side, None)
                ctx.state.update({other: new} if good else {side: old})
        elif self.warm_start:
            for ctx, factor in zip(contexts, apart(kept(total, first)), strict=True):
                ctx.state["q"] = factor
        left, mean, sent = unrounded(basis, total / contexts[0].world, mine)
        error = beyond(x, mine)
        if self.alternating and side == "q":  # what was summed is P
            return Reduced(Product(mean, left), Product(sent, left), plan.cf, error=error)
        return Reduced(Product(left, mean), Product(left, sent), plan.cf, error=error)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """``‖x‖²`` less what a power iteration on this rank's matrix alone captures, from where ``rounds`` would start.

        One run at the largest rank serves all: columns are orthogonalized in order, so that the first r of them are
        what a run at rank r gives. Exact for one rank; for more, what a subspace made for this rank would keep, which
        is more than the common one keeps.
        """
        plans = [self.plan(ctx.shape, cf) for cf in cfs]
        largest = max((plan for plan in plans if plan), key=lambda plan: plan.rank, default=None)
        if largest is None:
            return [x.new_zeros(()) for _ in cfs]
        side, _, rows = self._turn(largest, ctx)
        matrix, captured = oriented(x, largest, side), factor_before(x, side, rows, largest.rank, ctx)
        for _ in range(self._halves):
            matrix, captured = matrix.mT, times(matrix, orthonormal(captured))
        sums = captured.double().square().sum(0).cumsum(0)
        whole = energy(x)
        return [(whole - sums[plan.rank - 1]).clamp_(min=0) if plan else x.new_zeros(()) for plan in plans]

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what it encodes: to learn whose turn is next, when ``alternating``."""
        return self.alternating

    @property
    def _halves(self) -> int:
        """Half power iterations a step, each with one all-reduce."""
        return 1 if self.alternating else 2 * self.iterations

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Say what is expected: factors are matrices, ``[rows, rank]``."""
        return "" if key not in ("p", "q") or memory.dim() == 2 else "two dimensions"

    def _turn(self, plan: LowRank, ctx: Context) -> tuple[str, str, int]:
        """Whose turn it is: the factor to project on first, the other one, and the rows of the former.

        Q, unless they alternate: then the one in the state; at first the shorter, so that the longer is sent.
        """
        ps = self.alternating and ("p" in ctx.state or ("q" not in ctx.state and plan.n < plan.m))
        return ("p", "q", plan.n) if ps else ("q", "p", plan.m)

    @property
    def rounding(self) -> float:
        """64 roundings of float32: an element of ``mean`` is a sum of rank products, each of two rounded factors.

        Its error goes with the sum of their magnitudes, which cancellation makes larger than the element: an estimate
        for what is usual, not a bound.
        """
        return 64 * unit_roundoff(torch.float32)


def factor_before(x: torch.Tensor, key: str, rows: int, rank: int, ctx: Context) -> torch.Tensor:
    """The factor to start from, ``[rows, rank]`` in x's dtype: first columns of the one kept, then random ones.

    Columns are neither orthogonal nor of length 1; those kept come in order of importance. The same on all ranks.
    """
    old = ctx.state.get(key)
    if old is None or old.shape[0] != rows:
        old = x.new_empty(rows, 0)
    old = old[:, :rank].to(x)
    if old.shape[1] == rank:
        return old
    # drawn in float32, so that float64 gradients start from the same
    missing = rank - old.shape[1]
    drawn = ctx.draws().normal(missing * rows, x.device).view(missing, rows).T.to(x)
    return torch.cat([rescaled(old), drawn], dim=1) if old.shape[1] else drawn


def together(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Several tensors of one shape as a batch ``[count, ...]``; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.stack(tuple(tensors))


def apart(factors: torch.Tensor) -> Sequence[torch.Tensor]:
    """Each matrix's own of some factors ``[..., rows, rank]``."""
    return factors.unbind() if factors.dim() > 2 else (factors,)


def oriented(x: torch.Tensor, plan: LowRank, side: str) -> torch.Tensor:
    """The matrix of flat x that the factor ``side`` is multiplied to from the right: M for Q, its transpose for P."""
    matrix = x.view(*x.shape[:-1], plan.n, plan.m)
    return matrix.mT if side == "p" else matrix


def times(matrix: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """``matrix @ factor``, computed as the transpose of a product of few rows: 2 to 6 times faster on CPU so."""
    return (factor.mT.contiguous() @ matrix.mT).mT


def by_importance(factor: torch.Tensor) -> torch.Tensor:
    """A summed factor ``[..., rows, rank]``, its columns by length: the longest stay when the rank shrinks."""
    lengths = rescaled(factor).square().sum(-2, keepdim=True)
    return factor.gather(-1, lengths.argsort(descending=True, stable=True).expand_as(factor))


def usable(total: torch.Tensor) -> torch.Tensor:
    """Whether a summed factor ``[..., rows, rank]`` can be started from, being finite and not all zeros: ``[...]``."""
    flat = total.flatten(-2)
    return flat.isfinite().all(-1) & flat.any(-1)


def kept(total: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The next step's factor ``[..., rows, rank]``: the new one, by importance; the old one where that is no use."""
    good = usable(total)
    return torch.where(good[:, None, None] if good.dim() else good, by_importance(total), old)


def unrounded(basis: torch.Tensor, *factors: torch.Tensor) -> list[torch.Tensor]:
    """A basis and factors, each ``[..., rows, rank]``, such that its products with them are those in float32.

    Themselves; or where products are rounded to TF32, upper and lower halves of their numbers side by side, of thrice
    the columns: ``[high, high, low]`` by ``[high, low, high]``. Otherwise mean and sent would each be rounded by itself
    and the difference lost. (How P and Q are rounded does no harm: what they miss stays in the residual.)
    """
    if not rounds_products(basis):
        return [basis, *factors]
    high, low = halves(basis)
    wide = [torch.cat([high, high, low], -1)]
    for high, low in map(halves, factors):
        wide.append(torch.cat([high, low, high], -1))
    return wide


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of float32 in two, which add up to them: the upper 11 bits, as many as TF32 holds, and what is left."""
    high = x.view(torch.int32).bitwise_and(-1 << 13).view(torch.float32)
    return high, x - high


powersgd = PowerSGD()
"""PowerSGD, one power iteration a step, warm-started; ``powersgd(alternating=True)`` takes one all-reduce a step."""
