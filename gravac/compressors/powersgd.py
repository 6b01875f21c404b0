# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: low-rank factors of the gradient, by a power iteration that starts from the previous step's factor.

Source: Vogels et al., "PowerSGD", NeurIPS 2019 (algorithm 1; algorithm 2 is error feedback); one factor a step: Zhang
et al., "ACP-SGD", 2023 (arXiv 2306.08881). Contractive: each rank sends its own matrix, projected orthogonally on a
subspace that all ranks share. No gain is guaranteed; biased: error feedback sends the rest later.

x is viewed as the matrix ``M [n, m]``: the tensor's first dimension by all the others. If low rank saves no bytes (1-D,
a row, a column, a low CF on a small matrix), x is sent dense. On a GPU, matrices of equal shape are averaged as a
batch; in shapes ``[..., n, m]``, ``...`` is the number of matrices, or nothing.
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
"""Rows, and columns, of the square matrix for which a fixed rank is expressed as a CF."""


class LowRank(NamedTuple):
    """Dimensions of a matrix and of its factors.

    Attributes:
        n: rows of the matrix.
        m: columns of the matrix.
        rank: columns of each factor.
        cf: achieved compression factor.
    """

    n: int
    m: int
    rank: int
    cf: float


@dataclass(frozen=True, slots=True)
class Product:
    """One or several flat matrices, side by side, stored as two factors, which are multiplied by ``add_to`` only.

    Attributes:
        left: the factor with as many rows as the matrix: ``[..., n, rank]``.
        right: the factor with as many rows as the matrix has columns: ``[..., m, rank]``.
    """

    left: torch.Tensor
    right: torch.Tensor

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the product to ``dense`` (flat, as long as all matrices), in place; return ``dense``."""
        matrix = dense.view(*self.left.shape[:-1], self.right.shape[-2])
        if matrix.dim() == 2:
            matrix.addmm_(self.left, self.right.T, alpha=alpha)
        else:
            matrix.baddbmm_(self.left, self.right.mT, alpha=alpha)
        return dense


def projection_error(x: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    """Return the squared error of projecting x on an orthonormal basis: 0-d.

    Args:
        x: one flat matrix, ``[elements]``, or several, ``[count, elements]``, whose errors are added up.
        projected: coordinates of x in the basis, ``[..., ..., rank]``.
    """
    if x.dim() == 1:
        return (energy(x) - energy(projected.reshape(-1))).clamp_(min=0)
    total: torch.Tensor = torch.linalg.vector_norm(x, dim=-1).double().square()
    captured: torch.Tensor = torch.linalg.vector_norm(projected, dim=(-2, -1)).double().square()
    return (total - captured).clamp_(min=0).sum()


class PowerSGD(Compressor):
    """PowerSGD: low-rank factors P and Q, averaged by two all-reduces per step, or by one (``alternating``).

    Attributes:
        rank: rank of every matrix, as in the paper, 1 or more; ``None``, the default: by the CF, matrix by matrix. One
            CF for all matrices gives small matrices rank 1, which slowed the training of a whole net
            (``docs/evidence/measurements.md``); one rank for all matrices does not.
        iterations: power iterations a step, 1 (the default) to 4, each with an all-reduce of P and of Q; more
            iterations mean a lower rank at the same CF.
        warm_start: whether to start from the previous step's factor, even if the rank has changed (default: True);
            otherwise from a random factor.
        alternating: whether one step sends P and the next step Q, with one all-reduce a step (ACP-SGD), at about twice
            the rank for a CF; default: False. The CF is that of both steps; ``traffic`` is that of the larger factor,
            which the first step sends. Needs ``warm_start`` and one iteration. On a GPU the host waits once per batch,
            to learn which factor the next step sends.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range, or ``alternating`` is set without
            ``warm_start`` and one iteration.
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
    def _check_alternating(self) -> "PowerSGD":
        if self.alternating and (self.iterations > 1 or not self.warm_start):
            raise ValueError("alternating=True needs iterations=1 and warm_start=True")
        return self

    def plan(self, shape: tuple[int, ...], cf: float) -> LowRank | None:
        """Return a tensor's dimensions and rank: ``rank``, or the largest that achieves ``cf``; ``None``: dense."""
        if len(shape) < 2 or 0 in shape:
            return None
        n, m = shape[0], torch.Size(shape[1:]).numel()
        columns = (n + m) / 2 if self.alternating else (n + m) * self.iterations
        # the factor makes an achieved CF give the same rank again, whatever the division's rounding
        rank = min(n, m, self.rank or max(1, int(n * m / (cf * columns) * (1 + 1e-9))))
        max_columns = max(n, m) if self.alternating else columns
        if min(n, m) == 1 or rank * max_columns >= n * m:
            return None
        return LowRank(n, m, rank, n * m / (rank * columns))

    def method_at(self, cf: float) -> str:
        """Return a name for users: with the rank if one is set, otherwise with the CF."""
        return f"low rank {self.rank}" if self.rank else f"low rank at {cf:.4g}x"

    def candidates(self, cf_range: tuple[float, float]) -> Span | tuple[float, ...]:
        """Return the range as a span; if ``rank`` is set, only that rank's CF on a square matrix.

        Each tensor's achieved CF is as close to the requested CF as a whole rank allows.
        """
        if self.rank is None:
            return Span(*cf_range)
        square = self.plan((SIDE, SIDE), 1.0)
        return (square.cf,) if square and cf_range[0] <= square.cf <= cf_range[1] else ()

    def __call__(self, rank: int | None = None, **changes: Any) -> "PowerSGD":
        """Return the same settings, except for ``rank`` and other changes."""
        return super().__call__(**({} if rank is None else {"rank": rank}), **changes)

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs and efficiency; if shapes are given, the efficiency is that of the matrices' ranks."""
        plans = [(torch.Size(shape).numel(), self.plan(shape, cf)) for shape in shapes]
        by_rank = self.beliefs.by_rank
        low_rank = [(elements, efficiency_at(by_rank, plan.rank)) for elements, plan in plans if plan]
        elements = sum(elements for elements, _ in low_rank)
        by_cf = replace(super().profile(cf), coding_bytes=6 + math.ceil(16 / cf))
        if not elements:
            return by_cf
        return replace(by_cf, efficiency=sum(n * efficiency for n, efficiency in low_rank) / elements)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Predict all-reduces of P and Q per iteration, or of the larger factor if alternating; or of x, if dense."""
        plan = self.plan(shape, cf)
        if plan is None:
            return dense.traffic(shape, 1.0, dtype)
        row_bytes = plan.rank * working(dtype).itemsize
        if self.alternating:
            return (Traffic(AllReduce, max(plan.n, plan.m) * row_bytes),)
        return (Traffic(AllReduce, plan.n * row_bytes), Traffic(AllReduce, plan.m * row_bytes)) * self.iterations

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x, viewed as the matrix ``M [n, m]``, as a product ``P Q^T`` of factors common to all ranks.

        1. Start from the last step's Q, ``[m, rank]``, or a random Q; make its columns orthonormal.
        2. Multiply ``P = M Q``, all-reduce P, ``[n, rank]``, and make its columns orthonormal.
        3. Multiply ``Q = M^T P`` and all-reduce Q; with several iterations, repeat from step 2 with Q's basis.
        4. Keep Q for the next step (``warm_start``).

        If ``alternating``, one step multiplies, all-reduces and keeps only one factor, and the next step the other. If
        low rank saves no bytes, x itself is all-reduced.
        """
        plan = self.plan(ctx.shape, cf)
        if plan is None:
            return (yield from dense.rounds(x, 1.0, ctx))
        return (yield from self._low_rank(x, plan, [ctx]))

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """Return a key of shape, rank and, if ``alternating``, the factor that the step sends; None if sent dense."""
        plan = self.plan(ctx.shape, cf)
        return None if plan is None else (plan, self._sides(plan, ctx))

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average matrices of equal shape, in the steps of ``rounds``; one all-reduce sends all P, another all Q."""
        plan = self.plan(contexts[0].shape, cf)
        if plan is None:
            raise ValueError(f"shape: {contexts[0].shape} at CF {cf:g} is sent dense; use rounds() for each tensor")
        return (yield from self._low_rank(x, plan, contexts))

    def _low_rank(self, x: torch.Tensor, plan: LowRank, contexts: Sequence[Context]) -> Rounds:
        side, other, rows = self._sides(plan, contexts[0])
        total = start = stack([start_factor(x, side, rows, plan.rank, ctx) for ctx in contexts])
        matrix = oriented(x, plan, side)
        for half in range(self._halves):
            basis = orthonormal(total)
            projected = multiply(matrix if half % 2 == 0 else matrix.mT, basis)
            total = yield AllReduce(projected)
        if self.alternating:
            new_factors, previous_factors = unstack(by_importance(total)), unstack(basis)
            usable_list = usable(total).view(-1).tolist()
            for ctx, is_usable, new, previous in zip(contexts, usable_list, new_factors, previous_factors, strict=True):
                ctx.state.pop(side, None)
                ctx.state.update({other: new} if is_usable else {side: previous})
        elif self.warm_start:
            for ctx, factor in zip(contexts, unstack(next_factor(total, start)), strict=True):
                ctx.state["q"] = factor
        wide_basis, mean, sent = unrounded(basis, total / contexts[0].world, projected)
        error = projection_error(x, projected)
        if self.alternating and side == "q":  # the sum is P
            return Reduced(Product(mean, wide_basis), Product(sent, wide_basis), plan.cf, error=error)
        return Reduced(Product(wide_basis, mean), Product(wide_basis, sent), plan.cf, error=error)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of a power iteration on this rank's matrix alone, started as in ``rounds``.

        The error is ``‖x‖²`` minus the captured energy. One power iteration at the largest rank gives all errors:
        orthogonalization goes from column to column, so the first r columns equal the factor of rank r. The errors are
        exact for one process. For several processes they are too low, since this process's subspace fits its matrix
        better than the subspace of all processes.
        """
        plans = [self.plan(ctx.shape, cf) for cf in cfs]
        largest = max((plan for plan in plans if plan), key=lambda plan: plan.rank, default=None)
        if largest is None:
            return [x.new_zeros(()) for _ in cfs]
        side, _, rows = self._sides(largest, ctx)
        matrix, captured = oriented(x, largest, side), start_factor(x, side, rows, largest.rank, ctx)
        for _ in range(self._halves):
            matrix, captured = matrix.mT, multiply(matrix, orthonormal(captured))
        captured_energies = captured.double().square().sum(0).cumsum(0)
        total = energy(x)
        return [(total - captured_energies[plan.rank - 1]).clamp_(min=0) if plan else x.new_zeros(()) for plan in plans]

    @property
    def host_waits(self) -> bool:
        """True if on a GPU the host waits while encoding: if ``alternating``, to learn the next step's factor."""
        return self.alternating

    @property
    def _halves(self) -> int:
        """Number of all-reduces per step: half a power iteration each."""
        return 1 if self.alternating else 2 * self.iterations

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Check a factor from a checkpoint: describe what is expected, unless it is a matrix ``[rows, rank]``."""
        return "" if key not in ("p", "q") or memory.dim() == 2 else "two dimensions"

    def _sides(self, plan: LowRank, ctx: Context) -> tuple[str, str, int]:
        """Return the factor that a step starts from, the factor that it computes first, and the former's rows.

        A step starts from Q. If ``alternating``, it starts from the factor in the state; the first step starts from the
        shorter factor, so that it sends the longer factor.
        """
        starts_from_p = self.alternating and ("p" in ctx.state or ("q" not in ctx.state and plan.n < plan.m))
        return ("p", "q", plan.n) if starts_from_p else ("q", "p", plan.m)

    @property
    def rounding(self) -> float:
        """Unit roundoff: 64 times float32's, since an element of ``mean`` is a sum of ``rank`` products.

        Both factors of each product are rounded. The error grows with the sum of the products' magnitudes, which may be
        far larger than the element. The number is an estimate for usual tensors, not a bound.
        """
        return 64 * unit_roundoff(torch.float32)


def start_factor(x: torch.Tensor, key: str, rows: int, rank: int, ctx: Context) -> torch.Tensor:
    """Return the factor from which a step starts, ``[rows, rank]`` in x's dtype, the same on all ranks.

    The first columns are the previous step's, in order of importance; the others are random. Columns are neither
    orthogonal nor of length 1.
    """
    previous = ctx.state.get(key)
    if previous is None or previous.shape[0] != rows:
        previous = x.new_empty(rows, 0)
    previous = previous[:, :rank].to(x)
    if previous.shape[1] == rank:
        return previous
    # drawn in float32, so that float64 gradients start from the same factor
    missing = rank - previous.shape[1]
    sampled = ctx.draws().normal(missing * rows, x.device).view(missing, rows).T.to(x)
    return torch.cat([rescaled(previous), sampled], dim=1) if previous.shape[1] else sampled


def stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return several tensors of one shape as a batch ``[count, ...]``; a single tensor unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.stack(tuple(tensors))


def unstack(factors: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the factor ``[rows, rank]`` of each matrix, from ``[..., rows, rank]``."""
    return factors.unbind() if factors.dim() > 2 else (factors,)


def oriented(x: torch.Tensor, plan: LowRank, side: str) -> torch.Tensor:
    """Return flat x as the matrix by which the factor ``side`` is multiplied: M for Q, the transpose of M for P."""
    matrix = x.view(*x.shape[:-1], plan.n, plan.m)
    return matrix.mT if side == "p" else matrix


def multiply(matrix: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return ``matrix @ factor``, computed as the transpose of a product with few rows: 2 to 6 times faster on CPU."""
    return (factor.mT.contiguous() @ matrix.mT).mT


def by_importance(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor ``[..., rows, rank]`` with its longest columns first: those remain if the rank falls."""
    lengths = rescaled(factor).square().sum(-2, keepdim=True)
    return factor.gather(-1, lengths.argsort(descending=True, stable=True).expand_as(factor))


def usable(total: torch.Tensor) -> torch.Tensor:
    """Return whether each summed factor ``[..., rows, rank]`` is finite and not all zeros: bool, ``[...]``."""
    flat = total.flatten(-2)
    return flat.isfinite().all(-1) & flat.any(-1)


def next_factor(total: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Return the factor that the next step starts from, ``[..., rows, rank]``: the sum, if usable, else the old one."""
    is_usable = usable(total)
    return torch.where(is_usable[:, None, None] if is_usable.dim() else is_usable, by_importance(total), previous)


def unrounded(basis: torch.Tensor, *factors: torch.Tensor) -> list[torch.Tensor]:
    """Return a basis and factors ``[..., rows, rank]``, split so that TF32 products are as exact as float32's.

    If products are rounded to TF32, each result has three times the columns: upper and lower halves of its numbers,
    side by side. The basis becomes ``[high, high, low]``, a factor ``[high, low, high]``. If not, both are returned
    unchanged. TF32 would round ``mean`` and ``sent`` differently, and their difference would be lost. (The rounding of
    P and Q itself is harmless: their errors stay in the residual.)
    """
    if not rounds_products(basis):
        return [basis, *factors]
    high, low = halves(basis)
    wide = [torch.cat([high, high, low], -1)]
    for high, low in map(halves, factors):
        wide.append(torch.cat([high, low, high], -1))
    return wide


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split float32 numbers into two addends: the upper 11 bits, which TF32 has, and the rest."""
    high = x.view(torch.int32).bitwise_and(-1 << 13).view(torch.float32)
    return high, x - high


powersgd = PowerSGD()
"""PowerSGD with its default settings; ``powersgd(rank=16)`` has a fixed rank."""
