# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The contract of a compressor: a generator that yields the collective it wants and is resumed with the result.

Laws, checked for every compressor by ``gravac.testing.compressor_laws``:

- the mean over ranks of ``sent`` equals ``mean``, within ``rounding`` of the sum of |terms|;
- the error of a contractive compressor is at most the tensor's energy, ``‖x - sent‖² <= ‖x‖²`` (summed over the ranks);
  for an unbiased compressor, the expectation of ``sent`` is ``x``;
- ``mean`` is bitwise the same on all ranks, and a second run gives the same bits;
- every rank yields the same collectives, of the same shapes and dtypes, whatever numbers its tensors contain.
"""

import math
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from gravac.beliefs import CompressorBeliefs, EfficiencyPoints, beliefs_in_force, efficiency_at
from gravac.candidate import Span
from gravac.collectives import Collective, Traffic
from gravac.compressors.draws import Draws
from gravac.compressors.profile import CostPoints, Profile, coding_at
from gravac.compressors.sparse import Addend, Selection
from gravac.compressors.squares import energy as energy
from gravac.settings import Settings


@dataclass(frozen=True, slots=True)
class Reduced:
    """Result of compressing and exchanging one tensor.

    Attributes:
        mean: mean of the sent tensors, the same on all ranks; flat, of x's length. An ``Addend`` saves memory: the
            operating system takes many times as long to provide a tensor's memory as a processor takes to fill it.
        sent: tensor that this rank contributed to the mean, flat, of x's length; the residual is ``x - sent``. If the
            compressor folded: only the part that is still to be subtracted from ``fold.unsent``.
        cf: achieved compression factor.
        aside: part of ``x - sent`` that the compressor itself keeps, in ``ctx.state``; the residual excludes this part.
        target: tensor that was to be sent, if that is not x (momentum correction); the gain is measured against the
            target.
        error: ``‖x - sent‖²`` as counted for the gain, if the compressor knows the error. If the error is made for all
            ranks at once, each rank counts its share.
    """

    mean: torch.Tensor | Addend
    sent: torch.Tensor | Addend
    cf: float
    aside: torch.Tensor | None = None
    target: torch.Tensor | None = None
    error: torch.Tensor | None = None


MAGNITUDES = (2.0**-100, 2.0**100)
"""Smallest and largest magnitude of gradients that are sent as float32; see ``Compressor.magnitudes``."""

Rounds = Generator[Collective, Any, Reduced]
"""A generator that yields collectives, is resumed with their results, and returns a ``Reduced``."""


@dataclass(slots=True)
class Fold:
    """Error feedback that a compressor which ``folds`` computes in the same pass as it codes a bare gradient.

    Attributes:
        residual: residual that is added to the gradient first, flat, ``[elements]``, float32 or bfloat16; ``None``:
            nothing is added.
        unsent: memory for the new residual: float32, flat, ``[elements]``; overwritten with the sum of gradient and
            residual. The compressor may subtract sent numbers itself; ``Reduced.sent`` then excludes them. ``None``: no
            residual is kept; a compressor that needs the sum later sets a tensor of its own.
        energy: ``‖gradient + residual‖²``, 0-d, which the compressor sets before its first collective; finite if and
            only if every element of the gradient is. For rows, the energy of all rows.
        gradients: gradients of rows (``rounds_together``), each flat; x is then ``unsent``, the memory for their sums.
        residuals: residual that is added to each row; empty: nothing is added. All rows share one fold.
    """

    residual: torch.Tensor | None = None
    unsent: torch.Tensor | None = None
    energy: torch.Tensor | None = None
    gradients: Sequence[torch.Tensor] = ()
    residuals: Sequence[torch.Tensor] = ()


@dataclass(slots=True)
class Context:
    """Facts about one tensor that a compressor may use.

    Attributes:
        name: the parameter's name.
        step: number of the training step, counted from 0.
        rank: this process, 0 to world - 1.
        world: number of ranks.
        seed: the run's seed.
        shape: the parameter's shape, in memory order; x is its flat view.
        dtype: number format of the gradient; x is float32 if that is a 16-bit type.
        state: this compressor's memory of this tensor; tensors only, saved with the checkpoint. To change a tensor,
            replace it by a new tensor: if the step is undone, the old tensor is restored.
        error_feedback: fraction of the unsent rest that will be kept.
        selections: selections of x that were already made, by CF (multi-level compression).
        fold: error feedback to compute while coding, if the compressor ``folds``: x is then a bare gradient.
    """

    name: str = ""
    step: int = 0
    rank: int = 0
    world: int = 1
    seed: int = 0
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    error_feedback: float = 0.0
    selections: dict[float, Selection] = field(default_factory=dict)
    fold: Fold | None = None

    def excerpt(self, elements: int) -> "Context":
        """Return a context for compressing some of the tensor's numbers again: of another shape, without memory."""
        return replace(self, shape=(elements,), state={}, error_feedback=0.0, selections={}, fold=None)

    def draws(self, per_rank: bool = False, fixed: bool = False) -> Draws:
        """Return random numbers of (seed, name, step): the same on every device, in any layout, after any resume.

        Args:
            per_rank: whether each rank draws other numbers, for rounding that must differ between ranks; otherwise all
                ranks draw the same numbers.
            fixed: whether every step draws the same numbers.
        """
        key = f"{self.seed}\0{self.name}" + ("" if fixed else f"\0{self.step}") + (f"\0{self.rank}" if per_rank else "")
        return Draws(key)


class Compressor(Settings):
    """A compressor: a frozen settings object without state, which several models may share.

    Attributes:
        name: name in policies and traces.
        contractive: whether ``‖x - sent‖² <= ‖x‖²``, summed over the ranks. Error feedback needs a contractive
            compressor.
        unbiased: whether the expectation of ``sent`` is x.
        owns_momentum: whether the compressor applies the optimizer's momentum; the optimizer must then have none.
        exact_cf: whether the achieved CF of large tensors is the requested CF, within 2 %; otherwise the compressor
            comes as close as its method can.
        compresses: whether the compressor leaves anything out. Otherwise it is a number format for all tensors, small
            tensors and those of one dimension too (``dense``).
        one_round: whether ``rounds`` yields once at every CF and number of ranks, see ``Profile``.
        error_feedback: fraction of the unsent rest that is kept, see ``Profile``.
        coding_costs: ``(CF, encode, decode)``, ascending, in copies of the tensor, as ``gravac bench compressors``
            measures them; empty: not measured. ``gravac.compressors.profile`` has their source.
        efficiency_points: ``(CF, median efficiency)``, ascending, for a compressor that is not in ``gravac.beliefs``;
            empty: the points of ``gravac.beliefs``, or cautious defaults.
        efficiency_by_gain: ``(gain, median efficiency)``, ascending; empty: likewise.
        efficiency_apart: ``(steps between two exchanges, exponent)``, ascending, see ``Profile``; empty: likewise.
        rounding: unit roundoff u of the sums on the wire: ``|mean - mean of sent| <= (N+2) u mean of |sent|`` for N
            ranks.
    """

    name: ClassVar[str]
    contractive: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = False
    exact_cf: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    one_round: ClassVar[bool] = False
    error_feedback: ClassVar[float] = 0.0
    coding_costs: ClassVar[CostPoints] = ()
    efficiency_points: ClassVar[EfficiencyPoints] = ()
    efficiency_by_gain: ClassVar[EfficiencyPoints] = ()
    efficiency_apart: ClassVar[EfficiencyPoints] = ()

    @property
    def rounding(self) -> float:
        """Unit roundoff of the sums on the wire, see the class; that of float32 unless overridden."""
        return 2.0**-24

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of gradients' elements between which ``sent`` scales with the gradient.

        Between them, gradients times a power of two give means times that power, bit for bit except for subnormal
        numbers. Beyond them, a number format of the wire overflows or underflows. Then every rank gets means that are
        not finite, or ``sent`` is less accurate, as the compressor's class says. ``(1, 1)``: ``sent`` never scales.
        """
        return MAGNITUDES

    @property
    def host_waits(self) -> bool:
        """True if on a GPU the host waits while encoding, as the code reads a tensor. False unless overridden."""
        return False

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return what is known at a CF before the compressor has run; see ``Profile``.

        By default, the profile has what the class says (``coding_costs``, ``efficiency_points``, ``one_round``, ...).
        If settings, ranks or shapes count, extend this: ``replace(super().profile(cf), one_round=...)``.

        Args:
            cf: compression factor.
            world: number of ranks.
            shapes: shapes of the tensors that are compressed, for numbers that depend on them; empty if not known.
        """
        beliefs = self.beliefs
        return Profile(
            family=self.name,
            coding=coding_at(self.coding_costs, cf),
            efficiency=efficiency_at(beliefs.by_cf, cf),
            efficiency_by_gain=beliefs.by_gain,
            efficiency_apart=beliefs.apart,
            kind=beliefs.kind,
            one_round=self.one_round,
            error_feedback=self.error_feedback,
        )

    @property
    def beliefs(self) -> CompressorBeliefs:
        """Beliefs about efficiency: those in force for this name, with the points of the class in place of theirs."""
        tabulated = beliefs_in_force().of_compressor(self.name)
        class_points = {
            "by_cf": self.efficiency_points,
            "by_gain": self.efficiency_by_gain,
            "apart": self.efficiency_apart,
        }
        declared = {field: points for field, points in class_points.items() if points}
        return tabulated(**declared, kind="not measured") if declared else tabulated

    def method_at(self, cf: float) -> str:
        """Return the method's name at a CF, with the setting that users know, such as ``"topk 10x"``.

        Override this if users set a number of bits or a rank instead of a CF.

        Args:
            cf: compression factor; 1 or more.
        """
        return f"{self.name} {cf:.4g}x"

    @property
    def cf(self) -> float | None:
        """The compressor's only compression factor; ``None``: any factor, or those that ``candidates`` returns."""
        return None

    def candidates(self, cf_range: tuple[float, float]) -> Span | tuple[float, ...]:
        """Return the supported CFs within a range: the span if all are supported, else a list (ascending, or empty).

        By default the compressor's only CF, if it has one and that is in the range; otherwise the span.

        Args:
            cf_range: lowest and highest CF of the range.
        """
        if self.cf is None:
            return Span(*cf_range)
        return (self.cf,) if cf_range[0] <= self.cf <= cf_range[1] else ()

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Predict the traffic of the collectives that ``rounds`` yields for one tensor, without flags and padding.

        Args:
            shape: shape of the tensor.
            cf: compression factor.
            dtype: number format of the gradient.
            world: number of ranks.

        Returns:
            The kind of each collective, and this rank's payload in bytes, in the order of the collectives.
        """
        raise NotImplementedError

    def wire_dtype(self, gradient: torch.dtype) -> torch.dtype:
        """Return the number format in which gradients of a dtype are sent if nothing is left out."""
        return gradient

    def folds(self, gradient: torch.Tensor, cf: float) -> bool:
        """True if ``rounds`` accepts a bare gradient, with ``ctx.fold``: flat, perhaps of 16 bits or not finite.

        If a gradient is not finite, ``rounds`` may send anything: every rank then gets NaN, and keeps nothing of the
        gradient. If there is a ``batch_key``, ``folds`` is asked for the first gradient of a batch too;
        ``rounds_together`` then folds the batch.
        """
        return False

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Describe the expected tensor if one of ``Context.state`` does not fit; ``""`` if it fits, or if unknown.

        Args:
            key: name in the state.
            memory: tensor of floating-point numbers, from a checkpoint.
            elements: number of elements of the parameter.
        """
        return ""

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """Return the rest that the compressor itself keeps, see ``Reduced.aside``: flat, ``[elements]``, or None."""
        return None

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average x over the ranks, compressed. If this takes several collectives, the docstring numbers the steps.

        Args:
            x: flat, ``(elements,)``, contiguous, finite, float32 or float64; not to be changed.
            cf: requested compression factor; 1 or more.
            ctx: facts about the tensor.

        Returns:
            A generator that yields collectives, is resumed with their results, and returns a ``Reduced``.
        """
        raise NotImplementedError

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """Return a key: ``rounds_together`` accepts tensors of equal key, size and dtype. ``None``: no batches.

        The key must depend only on what all ranks know. Keys are used off the CPU only, where launches cost more than
        caches save.

        Args:
            cf: requested compression factor; 1 or more.
            ctx: facts about the tensor.
        """
        return None

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average tensors of one ``batch_key`` at once, with the results of ``rounds`` for each, up to rounding.

        Args:
            x: the tensors, one in each row: ``[count, elements]``, contiguous, otherwise as for ``rounds``.
            cf: requested compression factor; 1 or more.
            contexts: facts about each tensor; each has its own memory and its own random numbers.

        Returns:
            A generator like that of ``rounds``. Its result is for all rows: mean and sent are flat,
            ``[count * elements]``, and the error is that of all rows.
        """
        raise NotImplementedError

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of this rank, ``‖x - sent‖²``, at each CF, computed without sending.

        Args:
            x: flat, ``(elements,)``, as for ``rounds``; not to be changed.
            cfs: compression factors, ascending.
            ctx: facts about the tensor.

        Returns:
            A scalar (0-d tensor, float32 or float64) for each CF.
        """
        raise NotImplementedError


def k_for(elements: int, cf: float) -> int:
    """Return how many of ``elements`` a sparsifier sends at ``cf``: the smallest number with elements / sent <= cf."""
    return min(elements, max(1, math.ceil(elements / cf))) if elements else 0
