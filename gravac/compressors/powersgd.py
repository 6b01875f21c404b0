# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: low-rank factors of the gradient, by a power iteration that starts from the previous step's factor.

Source: Vogels et al., "PowerSGD", NeurIPS 2019 (algorithm 1; algorithm 2 is error feedback); for sending only one
factor per step: Zhang et al., "ACP-SGD", 2023 (arXiv 2306.08881). Contractive: each rank sends its own matrix,
projected orthogonally on a subspace that all ranks share. No gain is guaranteed. PowerSGD is biased: error feedback
sends the rest later.

x is viewed as the matrix ``M [n, m]``: the tensor's first dimension by all the others. If low rank saves no bytes (1-D,
a row, a column, a low CF on a small matrix), x is sent dense.
"""

import functools
import math
from collections.abc import Callable, Sequence
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
from gravac.compressors.sparse import Addend

MIN_ONEDNN_MULTIPLICATIONS = 1 << 21
"""Smallest number of multiplications of a matrix product that oneDNN computes on a CPU: its calls cost 10 us more."""

SQUARE_SIDE = 1024
"""Side of the square matrix for which ``candidates`` computes the CF of a fixed ``rank``."""


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
class Product(Addend):
    """A flat matrix, stored as two factors; ``add_to`` multiplies them.

    Attributes:
        left: the factor with as many rows as the matrix: ``[n, rank]``.
        right: the factor with as many rows as the matrix has columns: ``[m, rank]``.
    """

    left: torch.Tensor
    right: torch.Tensor

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the product to ``dense`` (flat, ``[n * m]``), in place; return ``dense``."""
        dense.view(len(self.left), len(self.right)).addmm_(self.left, self.right.T, alpha=alpha)
        return dense


class PowerSGD(Compressor):
    """PowerSGD: low-rank factors P and Q, averaged by two all-reduces per step, or by one (``alternating``).

    Attributes:
        rank: rank of every matrix, as in the paper, 1 or more. ``None``, the default: each matrix gets the largest rank
            that achieves the CF. At a high CF, small matrices then get rank 1, which slowed the training of a whole net
            (``docs/evidence/decisions.md``).
        iterations: power iterations per step, 1 (the default) to 4. Each all-reduces P and Q, so that at the same CF
            more iterations leave a lower rank.
        warm_start: whether to start from the previous step's factor, even if the rank has changed (default: True);
            otherwise from a random factor.
        alternating: whether one step sends P and the next step Q, by one all-reduce per step (ACP-SGD); default: False.
            At the same CF, the rank is about twice as high. The CF is the average over both steps; ``traffic`` returns
            the bytes of the larger factor, which the first step sends. Needs ``warm_start`` and one iteration. On a GPU
            the host waits once per tensor, to learn which factor the next step sends.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range, or ``alternating`` is set without
            ``warm_start`` and one iteration.
    """

    name: ClassVar[str] = "powersgd"
    contractive: ClassVar[bool] = True
    exact_cf: ClassVar[bool] = False
    error_feedback: ClassVar[float] = 1.0
    coding_costs: ClassVar[CostPoints] = ((10, 13.50, 29.33), (100, 4.47, 7.78), (1000, 2.13, 3.14))

    rank: Annotated[int, Field(ge=1)] | None = None
    iterations: int = Field(default=1, ge=1, le=4)
    warm_start: bool = True
    alternating: bool = False

    @model_validator(mode="after")
    def _check_alternating(self) -> "PowerSGD":
        if self.alternating and (self.iterations > 1 or not self.warm_start):
            raise ValueError(
                f"alternating=True needs iterations=1 and warm_start=True, not iterations={self.iterations} and "
                f"warm_start={self.warm_start}; change these, or set alternating=False"
            )
        return self

    def plan(self, shape: tuple[int, ...], cf: float) -> LowRank | None:
        """Return the matrix dimensions of a tensor and its factors' rank at a CF; ``None`` if the tensor is sent dense.

        The rank is the setting ``rank``, or the largest rank that achieves ``cf``.
        """
        if len(shape) < 2 or 0 in shape:
            return None
        n, m = shape[0], torch.Size(shape[1:]).numel()
        elements_per_column = (n + m) / 2 if self.alternating else (n + m) * self.iterations
        # 1 + 1e-9: a CF that a rank achieved gives this rank again, although the division rounds
        rank = min(n, m, self.rank or max(1, int(n * m / (cf * elements_per_column) * (1 + 1e-9))))
        max_elements_per_column = max(n, m) if self.alternating else elements_per_column
        if min(n, m) == 1 or rank * max_elements_per_column >= n * m:
            return None
        return LowRank(n, m, rank, n * m / (rank * elements_per_column))

    def method_at(self, cf: float) -> str:
        """Return a name for messages and tables: ``"low rank 16"`` if ``rank`` is set, else ``"low rank at 50x"``."""
        return f"low rank {self.rank}" if self.rank else f"low rank at {cf:.4g}x"

    def candidates(self, cf_range: tuple[float, float]) -> Span | tuple[float, ...]:
        """Return the CFs that a controller may choose in the range: all CFs, unless ``rank`` is set.

        Without ``rank``, each tensor's achieved CF is as close to the requested CF as a whole rank allows. If ``rank``
        is set, the only CF is that of this rank on a 1024 x 1024 matrix; the result is empty if this CF is outside the
        range.
        """
        if self.rank is None:
            return Span(*cf_range)
        square_plan = self.plan((SQUARE_SIDE, SQUARE_SIDE), 1.0)
        return (square_plan.cf,) if square_plan and cf_range[0] <= square_plan.cf <= cf_range[1] else ()

    def __call__(self, rank: int | None = None, **changes: Any) -> "PowerSGD":
        """Return a copy of this compressor with changed settings; with ``rank=None``, the copy has the same rank."""
        return super().__call__(**({} if rank is None else {"rank": rank}), **changes)

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs and efficiency at a CF.

        If shapes are given, each matrix has the efficiency of its rank. The result has the mean of these efficiencies,
        weighted by the matrices' numbers of elements.
        """
        elements_and_plans = [(torch.Size(shape).numel(), self.plan(shape, cf)) for shape in shapes]
        by_rank = self.beliefs.by_rank
        matrix_efficiencies = [
            (elements, efficiency_at(by_rank, plan.rank)) for elements, plan in elements_and_plans if plan
        ]
        total_elements = sum(elements for elements, _ in matrix_efficiencies)
        cf_profile = replace(super().profile(cf), coding_bytes_per_element=6 + math.ceil(16 / cf))
        if not total_elements:
            return cf_profile
        return replace(
            cf_profile, efficiency=sum(n * efficiency for n, efficiency in matrix_efficiencies) / total_elements
        )

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic in bytes: all-reduces of P and Q per iteration.

        If ``alternating``, there is only one all-reduce, of the larger factor. If the tensor is sent dense, there is
        only one all-reduce, of all elements.
        """
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
        3. Multiply ``Q = M^T P`` and all-reduce Q. With several iterations, make Q's columns orthonormal, and repeat
           from step 2.
        4. Keep Q for the next step (``warm_start``).

        If ``alternating``, a step computes, all-reduces and keeps only one factor, and the next step the other factor.
        If low rank saves no bytes, x itself is all-reduced.
        """
        plan = self.plan(ctx.shape, cf)
        if plan is None:
            return (yield from dense.rounds(x, 1.0, ctx))
        return (yield from self._low_rank(x, plan, ctx))

    def _low_rank(self, x: torch.Tensor, plan: LowRank, ctx: Context) -> Rounds:
        start_key, computed_key, start_factor_rows = self._sides(plan, ctx)
        factor = first_factor = start_factor(x, start_key, start_factor_rows, plan.rank, ctx)
        matrix = matrix_for(x, plan, start_key)
        x_energy = energy(x)
        for product_number in range(self._products_per_step):
            basis = orthonormal(factor)
            rows = multiply(matrix if product_number % 2 == 0 else matrix.mT, basis)
            factor = (yield AllReduce(rows)).mT
        projected = rows.mT
        if self.alternating:
            ctx.state.pop(start_key, None)
            new_factor = {computed_key: longest_columns_first(factor)}
            ctx.state.update(new_factor if bool(is_usable(factor)) else {start_key: basis})
        elif self.warm_start:
            ctx.state["q"] = next_factor(factor, first_factor)
        wide_basis, mean, sent = split_factors_for_tf32(basis, factor / ctx.world, projected)
        error = (x_energy - energy(rows.view(-1))).clamp_(min=0)
        if self.alternating and start_key == "q":  # P was all-reduced
            return Reduced(Product(mean, wide_basis), Product(sent, wide_basis), plan.cf, energy=x_energy, error=error)
        return Reduced(Product(wide_basis, mean), Product(wide_basis, sent), plan.cf, energy=x_energy, error=error)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error at each CF, 0-d, as if this rank, with its flat x, trained alone.

        A power iteration at the largest matrix rank gives the errors at lower ranks too. Columns are orthogonalized one
        after another, so that the first r columns equal the factor of rank r. With several processes, the errors are
        too low: a subspace computed from this process's matrix alone fits that matrix better than the subspace that all
        processes share.
        """
        plans = [self.plan(ctx.shape, cf) for cf in cfs]
        largest_plan = max((plan for plan in plans if plan), key=lambda plan: plan.rank, default=None)
        if largest_plan is None:
            return [x.new_zeros(()) for _ in cfs]
        start_key, _, rows = self._sides(largest_plan, ctx)
        matrix = matrix_for(x, largest_plan, start_key)
        factor = start_factor(x, start_key, rows, largest_plan.rank, ctx)
        for _ in range(self._products_per_step):
            matrix, factor = matrix.mT, multiply(matrix, orthonormal(factor)).mT
        captured_energies = factor.double().square().sum(0).cumsum(0)
        x_energy = energy(x)
        return [
            (x_energy - captured_energies[plan.rank - 1]).clamp_(min=0) if plan else x.new_zeros(()) for plan in plans
        ]

    @property
    def host_waits(self) -> bool:
        """True if the host waits for a GPU during encoding: if ``alternating``, to learn the next step's factor."""
        return self.alternating

    @property
    def _products_per_step(self) -> int:
        """Number of matrix products per step, each followed by an all-reduce: two per power iteration."""
        return 1 if self.alternating else 2 * self.iterations

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Return how many dimensions a factor from a checkpoint should have; ``""`` if the factor has them."""
        return "" if key not in ("p", "q") or memory.dim() == 2 else "two dimensions"

    def _sides(self, plan: LowRank, ctx: Context) -> tuple[str, str, int]:
        """Return the factor from which a step starts, the factor that it computes first, and the start factor's rows.

        Factors are ``"p"`` or ``"q"``. Unless ``alternating``, a step starts from Q. If ``alternating``, a step starts
        from the factor that the last step stored in ``ctx.state``, and the first step from the factor with fewer rows,
        so that the first step sends the factor with more rows.
        """
        starts_from_p = self.alternating and ("p" in ctx.state or ("q" not in ctx.state and plan.n < plan.m))
        return ("p", "q", plan.n) if starts_from_p else ("q", "p", plan.m)

    @property
    def rounding(self) -> float:
        """Unit roundoff of ``mean``: 64 times that of float32, an estimate for usual tensors and not a bound.

        An element of ``mean`` is a sum of ``rank`` products, whose factors are both rounded. The error grows with the
        sum of the products' magnitudes, which may be far larger than the element.
        """
        return 64 * unit_roundoff(torch.float32)


def start_factor(x: torch.Tensor, start_key: str, rows: int, rank: int, ctx: Context) -> torch.Tensor:
    """Return the factor from which a step starts, ``[rows, rank]`` in x's dtype, the same on all ranks.

    The result has the columns of the previous step's factor, the longest first, then random columns if more are needed.
    Columns are neither orthogonal nor of length 1.

    Args:
        x: flat matrix, for dtype and device.
        start_key: key of the factor in ``ctx.state``: ``"p"`` or ``"q"``.
        rows: rows of the factor.
        rank: columns of the factor.
        ctx: the tensor's context.
    """
    previous_factor = ctx.state.get(start_key)
    if previous_factor is None or previous_factor.shape[0] != rows:
        previous_factor = x.new_empty(rows, 0)
    previous_factor = previous_factor[:, :rank].to(x)
    if previous_factor.shape[1] == rank:
        return previous_factor
    # drawn in float32, so that float64 gradients start from the same factor
    missing_columns = rank - previous_factor.shape[1]
    random_columns = ctx.draws().normal(missing_columns * rows, x.device).view(missing_columns, rows).T.to(x)
    return torch.cat([rescaled(previous_factor), random_columns], dim=1) if previous_factor.shape[1] else random_columns


def matrix_for(x: torch.Tensor, plan: LowRank, start_key: str) -> torch.Tensor:
    """Return flat x as the matrix that a step multiplies by the factor that it starts from.

    Args:
        x: flat matrix, ``[elements]``.
        plan: dimensions of the matrix.
        start_key: key of the start factor: ``"q"`` gives the matrix, ``[n, m]``; ``"p"`` gives its transpose,
            ``[m, n]``.
    """
    matrix = x.view(plan.n, plan.m)
    return matrix.mT if start_key == "p" else matrix


def multiply(matrix: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return the transpose of ``matrix @ factor``, contiguous, ``[rank, matrix rows]``.

    On a CPU, a product with few rows is 2 to 6 times faster than a product with few columns. Large products are 1.1 to
    1.6 times faster still by oneDNN, which does not copy the matrix.
    """
    rows = factor.mT.contiguous()
    onednn_linear = _onednn_linear()
    is_large = matrix.numel() * len(rows) >= MIN_ONEDNN_MULTIPLICATIONS
    if onednn_linear is None or not is_large or not matrix.is_cpu or matrix.dtype != torch.float32:
        return rows @ matrix.mT
    return onednn_linear(rows, matrix, None, "none", [], "")


@functools.cache
def _onednn_linear() -> Callable[..., torch.Tensor] | None:
    """Return torch's operator that computes ``x @ weight.T`` by oneDNN; ``None`` if torch has none."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def longest_columns_first(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor ``[rows, rank]`` with its longest columns first; these are kept if the rank falls."""
    squared_lengths = rescaled(factor).square().sum(0)
    return factor.mT.index_select(0, squared_lengths.argsort(descending=True, stable=True)).mT


def is_usable(summed_factor: torch.Tensor) -> torch.Tensor:
    """Return whether the next step can start from a summed factor ``[rows, rank]``: 0-d bool tensor.

    A factor is usable if it is finite and not all zeros.
    """
    largest_magnitude = summed_factor.abs().amax()
    return (largest_magnitude > 0) & (largest_magnitude < torch.inf)


def next_factor(summed_factor: torch.Tensor, previous_factor: torch.Tensor) -> torch.Tensor:
    """Return the factor from which the next step starts, ``[rows, rank]``.

    Args:
        summed_factor: this step's factor, summed over the ranks. If it is usable (see ``is_usable``), it is returned,
            its longest columns first.
        previous_factor: the factor from which this step started; returned otherwise.
    """
    return torch.where(is_usable(summed_factor), longest_columns_first(summed_factor), previous_factor)


def split_factors_for_tf32(basis: torch.Tensor, *factors: torch.Tensor) -> list[torch.Tensor]:
    """Split a basis and factors, ``[rows, rank]``, so that their products in TF32 are as exact as in float32.

    If the GPU does not round products to TF32, all are returned unchanged. Otherwise each result has three times the
    columns: upper bits (high) and lower bits (low) of the numbers, side by side. The basis becomes
    ``[high, high, low]``, a factor ``[high, low, high]``. Without the split, TF32 would round ``mean`` and ``sent``
    differently, so that the mean of ``sent`` would differ from ``mean``. Rounding P and Q themselves is harmless, since
    the error stays in the residual.
    """
    if not rounds_products(basis):
        return [basis, *factors]
    high, low = split_for_tf32(basis)
    split_factors = [torch.cat([high, high, low], -1)]
    for high, low in map(split_for_tf32, factors):
        split_factors.append(torch.cat([high, low, high], -1))
    return split_factors


def split_for_tf32(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split float32 numbers, any shape, into two addends: the upper 11 bits, which TF32 keeps, and the rest."""
    high = x.view(torch.int32).bitwise_and(-1 << 13).view(torch.float32)
    return high, x - high


powersgd = PowerSGD()
"""PowerSGD with its default settings; ``powersgd(rank=16)`` uses rank 16 for every matrix."""
