# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The contract of a compressor: a generator that yields the collective it wants and is resumed with the result.

Laws, checked for every compressor by ``gravac.testing.compressor_laws``:

- the mean over ranks of ``sent`` equals ``mean``, within ``rounding`` of the sum of |terms|;
- a contractive compressor never makes the error larger than what was to be sent, ``‖x - sent‖² <= ‖x‖²``
  (summed over the ranks); an unbiased one has ``x`` as expectation of ``sent``;
- ``mean`` is bitwise the same on all ranks, and a second run gives the same bits;
- every rank yields the same collectives, of the same shapes and dtypes, whatever its data.
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
    """What came of compressing and exchanging one tensor.

    Attributes:
        mean: what is applied, the same on all ranks; flat, as long as x. An ``Addend`` spares memory: the operating
            system takes many times as long to provide a tensor's worth of it as it takes to fill it.
        sent: what this rank contributed; the residual is ``x - sent``. Of what was folded, what ``fold.left`` is still
            to be lessened by.
        cf: the compression factor achieved.
        aside: part of ``x - sent`` that the compressor keeps itself, in ``ctx.state``: the residual is made without it.
        target: what was to be sent, where that is not x (momentum correction); gain is measured against it.
        error: ``‖x - sent‖²`` as it counts for the gain, where the compressor knows it; an error made for all ranks
            at once counts as if each had made its share.
    """

    mean: torch.Tensor | Addend
    sent: torch.Tensor | Addend
    cf: float
    aside: torch.Tensor | None = None
    target: torch.Tensor | None = None
    error: torch.Tensor | None = None


MAGNITUDES = (2.0**-100, 2.0**100)
"""Magnitudes of gradients that every float32 on the wire has room for; see ``Compressor.magnitudes``."""

Rounds = Generator[Collective, Any, Reduced]
"""A generator that yields collectives, is resumed with their results, and returns a ``Reduced``."""


@dataclass(slots=True)
class Fold:
    """What a compressor does to a bare gradient in the pass in which it codes it, where it ``folds``.

    Attributes:
        residual: what is added to the gradient first, flat, ``[elements]``, float32 or bfloat16; ``None``: nothing.
        left: the residual to be made: float32, flat, ``[elements]``, overwritten with the sum of both, less what
            ``Reduced.sent`` leaves out since it is taken off already. ``None``: nothing is kept; a compressor that
            needs the sum afterwards puts a tensor of its own here.
        energy: ``‖gradient + residual‖²``, 0-d, which the compressor sets before its first collective; finite if and
            only if every element of the gradient is. Of rows, that of all.
        gradients: gradients of rows (``rounds_together``), each flat; x is then memory for their sums, ``left``.
        residuals: what is added to each row; none: nothing. All rows have one fold.
    """

    residual: torch.Tensor | None = None
    left: torch.Tensor | None = None
    energy: torch.Tensor | None = None
    gradients: Sequence[torch.Tensor] = ()
    residuals: Sequence[torch.Tensor] = ()


@dataclass(slots=True)
class Context:
    """What a compressor may know about the tensor at hand.

    Attributes:
        name: the parameter's name.
        step: number of the training step, counted from 0.
        rank: this process, 0 to world - 1.
        world: number of ranks.
        seed: the run's seed.
        shape: the parameter's shape, in memory order; x is its flat view.
        dtype: number format of the gradient; x is float32 where that is a 16-bit type.
        state: this compressor's memory of this tensor; tensors only, saved with the checkpoint. To change it, put
            another tensor in: a step that is taken back brings the old one back.
        error_feedback: share of what is not sent that will be kept.
        selections: what was selected of x already, by CF (multi-level compression).
        fold: what there is to do beside coding; only for a compressor that ``folds``, whose x is then a gradient.
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

    def part(self, elements: int) -> "Context":
        """A context for compressing some of the tensor's values again: the same but for shape; it remembers nothing."""
        return replace(self, shape=(elements,), state={}, error_feedback=0.0, selections={}, fold=None)

    def draws(self, own: bool = False, fixed: bool = False) -> Draws:
        """Random numbers of (seed, name, step), the same on every device, in any layout, after any resume.

        Args:
            own: whether the rank counts too, for rounding that ranks must not do alike; otherwise all draw the same.
            fixed: whether every step draws the same.
        """
        key = f"{self.seed}\0{self.name}" + ("" if fixed else f"\0{self.step}") + (f"\0{self.rank}" if own else "")
        return Draws(key)


class Compressor(Settings):
    """A frozen settings object without state: two models may share one.

    Attributes:
        name: what policies and traces call it.
        contractive: whether ``‖x - sent‖² <= ‖x‖²`` over the ranks. Error feedback needs it.
        unbiased: whether the expectation of ``sent`` is x.
        owns_momentum: whether it does the optimizer's momentum itself; the optimizer must then have none.
        exact_cf: whether it achieves the CF asked for on large tensors, within 2 %; otherwise it comes as close as its
            method can.
        compresses: whether it leaves something out. Otherwise it is a number format that everything is sent in, small
            tensors and those of one dimension too (``dense``).
        one_round: whether ``rounds`` yields once at every CF and number of ranks, see ``Profile``.
        error_feedback: share of what was not sent that is kept, see ``Profile``.
        coding_costs: ``(CF, encode, decode)``, ascending, in copies of the tensor, as ``gravac bench compressors``
            measures them; empty: not measured. Where they are from: ``gravac.compressors.profile``.
        efficiency_points: ``(CF, median efficiency)``, ascending, for a compressor that is not in ``gravac.beliefs``;
            empty: the points there, or cautious defaults.
        efficiency_by_gain: ``(gain, median efficiency)``, ascending; empty: likewise.
        efficiency_apart: ``(steps between two exchanges, exponent)``, ascending, see ``Profile``; empty: likewise.
        rounding: unit roundoff u of what is summed on the wire: ``|mean - mean of sent| <= (N+2) u mean of |sent|``
            for N ranks.
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
        """Unit roundoff of what is summed on the wire, see the class; float32's unless overridden."""
        return 2.0**-24

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Least and largest magnitude of gradients' elements between which what is sent scales with the gradient.

        There, gradients times a power of two give means times that power, bit for bit but for subnormal numbers.
        Beyond, a number format of the wire overflows or vanishes: every rank gets what is not finite, or what is sent
        is worse than of other gradients, as the class says. ``(1, 1)``: what is sent does not scale at all.
        """
        return MAGNITUDES

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what it encodes, as its code looks at data. False unless overridden."""
        return False

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """What is known of it at a CF before it has run; see ``Profile``.

        By default what its class says (``coding_costs``, ``efficiency_points``, ``one_round``, ...). Where settings,
        ranks or shapes count, extend this: ``replace(super().profile(cf), one_round=...)``.

        Args:
            cf: compression factor.
            world: number of ranks.
            shapes: shapes of the tensors that are compressed, for what depends on them; empty when not known.
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
        """Beliefs about its efficiency: those in force under its name, with the class's own points in their place."""
        tabulated = beliefs_in_force().of_compressor(self.name)
        own = {
            "by_cf": self.efficiency_points,
            "by_gain": self.efficiency_by_gain,
            "apart": self.efficiency_apart,
        }
        declared = {field: points for field, points in own.items() if points}
        return tabulated(**declared, kind="not measured") if declared else tabulated

    def method_at(self, cf: float) -> str:
        """The name of what compresses at a CF, with the setting that users know it by, such as ``"topk 10x"``.

        Override this where the CF is not what a user sets: a number of bits, a rank.

        Args:
            cf: compression factor; 1 or more.
        """
        return f"{self.name} {cf:.4g}x"

    @property
    def cf(self) -> float | None:
        """The one compression factor that it has; ``None``: any, or what ``candidates`` says."""
        return None

    def candidates(self, cf_range: tuple[float, float]) -> Span | tuple[float, ...]:
        """What it can do between two CFs: all of a span, or a list (ascending; empty when nothing).

        By default its one CF, if it has one and that is in the range; otherwise all of the span.

        Args:
            cf_range: lowest and highest CF wanted.
        """
        if self.cf is None:
            return Span(*cf_range)
        return (self.cf,) if cf_range[0] <= self.cf <= cf_range[1] else ()

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """What ``rounds`` will hand to collectives for one tensor, in that order, without flags and padding.

        Args:
            shape: shape of the tensor.
            cf: compression factor.
            dtype: number format of the gradient.
            world: number of ranks.

        Returns:
            The kind of every collective, and this rank's payload for it in bytes.
        """
        raise NotImplementedError

    def wire_dtype(self, gradient: torch.dtype) -> torch.dtype:
        """The number format in which a gradient of that dtype travels, where nothing is left out."""
        return gradient

    def folds(self, gradient: torch.Tensor, cf: float) -> bool:
        """Whether ``rounds`` takes this gradient as it is: flat, of 16 bits too, perhaps not finite, with ``ctx.fold``.

        What it sends of one that is not finite may be anything: every rank gets NaN, and nothing of it is kept. One
        that has a ``batch_key`` is asked of the first of several, too, whose ``rounds_together`` then fold.
        """
        return False

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Say what is expected of a tensor in ``Context.state`` that does not fit; ``""`` if it does, or is not known.

        Args:
            key: name in the state.
            memory: tensor of floating-point numbers, from a checkpoint.
            elements: number of elements of the parameter.
        """
        return ""

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """What it keeps itself of what was not sent, see ``Reduced.aside``: flat, ``[elements]``; None for nothing."""
        return None

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average x over the ranks, compressed. Where this takes several collectives, the docstring numbers the steps.

        Args:
            x: flat, ``(elements,)``, contiguous, finite, float32 or float64; not to be changed.
            cf: compression factor wanted; 1 or more.
            ctx: what may be known about the tensor.

        Returns:
            A generator that yields collectives, is resumed with their results, and returns a ``Reduced``.
        """
        raise NotImplementedError

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """Which tensors ``rounds_together`` can take at once: of one key, size and dtype; ``None``: each by itself.

        It must follow from what all ranks know. Asked off the CPU only, where launches cost more than caches save.

        Args:
            cf: compression factor wanted; 1 or more.
            ctx: what may be known about the tensor.
        """
        return None

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average tensors of one ``batch_key`` together, each as ``rounds`` does it by itself, up to rounding.

        Args:
            x: the tensors, one in each row: ``[count, elements]``, contiguous, else as ``rounds`` takes them.
            cf: compression factor wanted; 1 or more.
            contexts: what may be known about each: what is remembered, or drawn, is a tensor's own.

        Returns:
            A generator as ``rounds`` is. What it returns is of all rows: mean and sent are flat,
            ``[count * elements]``, and the error is that of all.
        """
        raise NotImplementedError

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """What this rank would not send at each CF, ``‖x - sent‖²``, found without sending.

        Args:
            x: flat, ``(elements,)``, as ``rounds`` takes it; not to be changed.
            cfs: compression factors, ascending.
            ctx: what may be known about the tensor.

        Returns:
            A scalar (0-d tensor, float32 or float64) for each CF.
        """
        raise NotImplementedError


def k_for(elements: int, cf: float) -> int:
    """How many of ``elements`` a sparsifier sends at ``cf``: the least number with elements / sent <= cf."""
    return min(elements, max(1, math.ceil(elements / cf))) if elements else 0
