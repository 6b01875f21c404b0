# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base class of compressors, whose method ``rounds`` is a generator that yields collectives and gets their results.

``gravac.testing.check_compressor`` checks the following laws for every compressor. Here x is a rank's tensor, and
``sent`` and ``mean`` are fields of the rank's result (``Reduced``):

- The mean over ranks of ``sent`` equals ``mean``, up to the rounding error that ``Compressor.rounding`` bounds.
- If the compressor is contractive, ``‖x - sent‖² <= ‖x‖²``, both sides summed over the ranks. If the compressor is
  unbiased, the expectation of ``sent`` is x.
- ``mean`` is bitwise the same on all ranks, and bitwise the same if the run is repeated.
- All ranks yield the same collectives, of the same shapes and dtypes. These do not depend on the numbers in x.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from gravac.beliefs import CompressorBeliefs, EfficiencyPoints, beliefs_in_force, efficiency_at
from gravac.candidate import Span
from gravac.collectives import Collective, Traffic
from gravac.compressors.codes import CodedNumbers
from gravac.compressors.draws import Draws
from gravac.compressors.profile import CostPoints, Profile, coding_at
from gravac.compressors.sparse import Addend, Selection
from gravac.compressors.squares import energy as energy
from gravac.settings import Settings


@dataclass(frozen=True, slots=True)
class Reduced:
    """Result of compressing and exchanging one tensor.

    Attributes:
        mean: mean over the ranks of their ``sent`` tensors, the same on all ranks; flat, of x's length. A tensor, or an
            ``Addend``: an object that adds the mean to a tensor without storing all elements, to save memory and time.
        sent: tensor that this rank contributed to the mean, flat, of x's length; the residual is ``x - sent``.
        cf: achieved compression factor; of a sparsifier: elements of x / elements sent.
        aside: part of ``x - sent`` that the compressor itself keeps in ``ctx.state``, flat, of x's length. The caller
            subtracts this part from the residual. ``None``: the compressor keeps nothing.
        target: tensor with which the gain compares ``sent``, flat; ``None``: x. Only DGC sets another tensor, its
            velocity.
        energy: ``‖target‖²``, 0-d; ``None``: the caller computes the energy.
        error: ``‖x - sent‖²`` of this rank, 0-d, from which the gain is computed. If the mean is coded again after the
            sum, that second error is divided among the ranks, so that it counts once. ``None``: the caller computes
            the error.
        coded: numbers and their codes, whose error the caller adds to ``error``; ``None``: ``error`` is complete. The
            error of several tensors is estimated at once, which takes less time.
    """

    mean: torch.Tensor | Addend
    sent: torch.Tensor | Addend
    cf: float
    aside: torch.Tensor | None = None
    target: torch.Tensor | None = None
    energy: torch.Tensor | None = None
    error: torch.Tensor | None = None
    coded: CodedNumbers | None = None


DEFAULT_MAGNITUDES = (2.0**-100, 2.0**100)
"""Default of ``Compressor.magnitudes``, for numbers sent as float32: smallest and largest magnitude of an element."""

Rounds = Generator[Collective, Any, Reduced]
"""Type of ``Compressor.rounds``: a generator that yields collectives, gets their results, and returns a ``Reduced``."""


@dataclass(slots=True)
class Context:
    """Facts about one tensor and its step, for a compressor.

    Attributes:
        name: the parameter's name.
        step: number of the training step, counted from 0.
        rank: number of this process, 0 to world - 1.
        world: number of ranks.
        seed: seed of the run's random numbers.
        shape: the parameter's shape, in memory order; x is its flat view.
        dtype: number format of the gradient; x is float32 if that is a 16-bit type.
        state: tensors that the compressor keeps for this parameter from step to step, by keys that it chooses; saved in
            checkpoints. To change a tensor, store a new tensor, under one key only; never change it in place: if a
            gradient is not finite, gravac may restore the old tensor.
        error_feedback: strength of error feedback: fraction of the unsent rest ``x - sent`` that becomes the residual,
            from 0 (no error feedback) to 1.
        selections: coordinates of x that were selected in this step already, by CF (see ``multilevel``).
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

    def excerpt(self, elements: int) -> "Context":
        """Return a context, without state, to compress ``elements`` numbers taken from this tensor."""
        return replace(self, shape=(elements,), state={}, error_feedback=0.0, selections={})

    def draws(self, per_rank: bool = False, fixed: bool = False) -> Draws:
        """Return a source of random numbers that depend only on the run's seed, the parameter's name and the step.

        The numbers are the same on every device, and after the run is resumed from a checkpoint.

        Args:
            per_rank: whether each rank draws other numbers, for rounding that must differ between ranks; otherwise all
                ranks draw the same numbers.
            fixed: whether all steps draw the same numbers; otherwise each step draws its own.
        """
        key = f"{self.seed}\0{self.name}" + ("" if fixed else f"\0{self.step}") + (f"\0{self.rank}" if per_rank else "")
        return Draws(key)


class Compressor(Settings):
    """Base class of compressors: frozen settings without state, so that several models may share one.

    Below, x is the tensor to compress, and ``sent`` is the tensor that the rank contributes to the mean (``Reduced``).

    Attributes:
        name: name in policies and logs.
        contractive: whether ``‖x - sent‖² <= ‖x‖²``, summed over the ranks. Error feedback needs a contractive
            compressor.
        unbiased: whether the expectation of ``sent`` is x.
        owns_momentum: whether the compressor applies the optimizer's momentum; the optimizer must then have none.
        exact_cf: whether the achieved CF of large tensors is the requested CF, within 2 %; otherwise the compressor
            comes as close as its method can.
        compresses: False only for ``dense``, which sends all elements in one number format and is applied to all
            tensors; all other compressors are applied only to tensors that are large enough.
        one_round: whether ``rounds`` yields a single collective, at every CF and number of ranks.
        error_feedback: default fraction of the unsent rest ``x - sent`` that becomes the residual, 0 to 1.
        coding_costs: points ``(CF, cost of encode, cost of decode)``, ascending by CF. A cost of 1 is the time that a
            copy of the tensor takes. ``gravac bench compressors`` measures these points; empty: not measured.
        efficiency_points: ``(CF, median efficiency)``, ascending, for a compressor that is not in ``gravac.beliefs``;
            empty: the points of ``gravac.beliefs``, or cautious defaults.
        efficiency_by_gain: ``(gain, median efficiency)``, ascending; empty: as for ``efficiency_points``.
        efficiency_apart: ``(steps from one exchange to the next, exponent)``, ascending, for outer steps: a step's
            efficiency is raised to this exponent. Empty: as for ``efficiency_points``.
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
        """Unit roundoff u of the sums on the wire: ``|mean - mean of sent| <= (N+2) u mean of |sent|`` for N ranks.

        By default, the unit roundoff of float32, ``2**-24``.
        """
        return 2.0**-24

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements for which ``sent`` is proportional to the gradient.

        Within this range, multiplying all gradients by a power of two multiplies the means by the same power, bit for
        bit except for subnormal numbers. Outside the range, a number format on the wire overflows or underflows. Every
        rank then gets means that are not finite, or ``sent`` is less accurate; the compressor's class says which.
        ``(1, 1)``: ``sent`` is never proportional to the gradient.
        """
        return DEFAULT_MAGNITUDES

    @property
    def host_waits(self) -> bool:
        """True if ``rounds`` reads numbers from the GPU while it encodes, so that the host must wait for the GPU.

        False by default.
        """
        return False

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs and efficiency at a CF, known before the compressor has run.

        By default, the profile consists of the class's attributes (``coding_costs``, ``efficiency_points``,
        ``one_round``, ...). If these depend on settings, ranks or shapes, override this method:
        ``replace(super().profile(cf), one_round=...)``.

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
        """What gravac assumes about the efficiency of steps before any measurement in this run.

        The class may declare ``efficiency_points``, ``efficiency_by_gain`` and ``efficiency_apart``. For each of these
        that is empty, the points in ``gravac.beliefs`` are used.
        """
        table_beliefs = beliefs_in_force().of_compressor(self.name)
        class_points = {
            "by_cf": self.efficiency_points,
            "by_gain": self.efficiency_by_gain,
            "apart": self.efficiency_apart,
        }
        declared_points = {field_name: points for field_name, points in class_points.items() if points}
        return table_beliefs(**declared_points, kind="not measured") if declared_points else table_beliefs

    def method_at(self, cf: float) -> str:
        """Return the compressor's name with its setting at a CF, such as ``"topk 10x"``, for messages and tables.

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
        """Return the supported CFs within a range: a ``Span`` if all are supported, else a tuple (ascending, or empty).

        By default, a compressor with a single CF (``cf``) supports only that CF, any other compressor the whole range.

        Args:
            cf_range: lowest and highest CF of the range.
        """
        if self.cf is None:
            return Span(*cf_range)
        return (self.cf,) if cf_range[0] <= self.cf <= cf_range[1] else ()

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic of the collectives that ``rounds`` yields for one tensor.

        Args:
            shape: shape of the tensor.
            cf: compression factor.
            dtype: number format of the gradient.
            world: number of ranks.

        Returns:
            The kind of each collective, and this rank's payload in bytes, in the order of the collectives. Padding, and
            flags for gradients that are not finite, are sent too, but not counted here.
        """
        raise NotImplementedError

    def wire_dtype(self, gradient: torch.dtype) -> torch.dtype:
        """Return the number format in which gradients of dtype ``gradient`` are sent.

        Called only if ``compresses`` is False.
        """
        return gradient

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Check a tensor of ``Context.state`` from a checkpoint: return ``""`` if the tensor fits this compressor.

        Otherwise return what the tensor should have, for an error message, such as ``"two dimensions"``.

        Args:
            key: the tensor's key in the state.
            memory: tensor of floating-point numbers, from a checkpoint.
            elements: number of elements of the parameter.
        """
        return ""

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """Return the part of this rank's unsent rest that the compressor keeps in ``ctx.state``, not in the residual.

        Args:
            ctx: facts about the tensor, with its state.
            elements: number of elements of the tensor.

        Returns:
            A flat tensor, ``[elements]``; ``None`` if the compressor keeps nothing.
        """
        return None

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Yield the collectives that average x over the ranks, compressed; return the result.

        Args:
            x: flat, ``(elements,)``, contiguous, finite, float32 or float64; not to be changed.
            cf: requested compression factor; 1 or more.
            ctx: facts about the tensor and the step.

        Returns:
            A generator that yields collectives, is resumed with their results, and returns a ``Reduced``. Compressors
            that yield several collectives number the steps in the docstring of their method.
        """
        raise NotImplementedError

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of this rank, ``‖x - sent‖²``, at each CF, computed without sending.

        Args:
            x: flat, ``(elements,)``, contiguous, finite, float32 or float64; not to be changed.
            cfs: compression factors, ascending.
            ctx: facts about the tensor.

        Returns:
            A scalar (0-d tensor, float32 or float64) for each CF.
        """
        raise NotImplementedError


def k_for(elements: int, cf: float) -> int:
    """Return k, the number of elements that a sparsifier sends out of ``elements``: ``ceil(elements / cf)``."""
    return min(elements, max(1, math.ceil(elements / cf))) if elements else 0
