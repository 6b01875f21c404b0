# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A ladder of compressors: for a wire ratio, the member of highest efficiency there.

Gain does not tell which of two families trains better (``docs/reference/compressors.md``), so the order is not measured
here but given: members stand by the efficiency of their steps, best first, and a ratio is served by the first that
reaches it.
The default order comes from ``docs/measurements/worth.json``. A ladder's CF is a wire ratio.

Which member is best also depends on the model: low rank is far ahead on wide fully connected layers, and behind on a
transformer. So each member has rungs of its own, ratios at which it is taken and no other, and a controller that
compares efficiencies tries those: by the model's shapes, and corrected by the gain that is measured.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field, field_validator

from gravac.candidate import Span
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Rounds
from gravac.compressors.dense import dense
from gravac.compressors.powersgd import powersgd
from gravac.compressors.profile import CostPoints, Profile, coding_at
from gravac.compressors.quantize import quantize
from gravac.compressors.topkc import topkc

SHAPE = (1024, 1024)
"""Shape of the tensor that wire ratios are predicted for, over two ranks; small tensors and more ranks deviate."""

STEP = 2.0
"""Factor between neighbouring wire ratios that are offered of a member that can do any."""

HIGHEST = 1e6
"""Highest CF that is tried in order to reach a wire ratio."""


class Ladder(Compressor):
    """Members by the efficiency of their steps; the lowest ratio that reaches what was asked for is used.

    Attributes:
        members: compressors, best first; dense among them only in 16 bit.
    """

    name: ClassVar[str] = "ladder"
    contractive: ClassVar[bool] = True
    exact_cf: ClassVar[bool] = False
    coding_costs: ClassVar[CostPoints] = (
        (2, 1.3, 0.8),  # to CF 28 as 16 bit and quantize
        (3.94, 7.79, 5.02),
        (7.76, 11.45, 6.93),
        (10.24, 15.23, 8.31),
        (15.06, 9.64, 5.94),
        (28.44, 6.00, 5.07),
        (113.78, 1.88, 5.66),
        (910.22, 1.77, 2.14),
    )

    members: Annotated[tuple[Compressor, ...], Field(min_length=1)]

    def __call__(self, *members: Compressor, **changes: Any) -> "Ladder":
        """A ladder with other members, or with other settings."""
        return super().__call__(**({"members": members} if members else {}), **changes)

    @field_validator("members")
    @classmethod
    def _all_contractive(cls, members: tuple[Compressor, ...]) -> tuple[Compressor, ...]:
        wrong = [member.name for member in members if not member.contractive or member.owns_momentum]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot stand on a ladder: a member must be contractive")
        return members

    @property
    def rounding(self) -> float:
        """Unit roundoff of the member that rounds most coarsely."""
        return max(member.rounding for member in self.members)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Those that every member has room for."""
        least, largest = zip(*(member.magnitudes for member in self.members), strict=True)
        return max(least), min(largest)

    @property
    def host_waits(self) -> bool:
        """Whether on a GPU the host waits for what any member encodes."""
        return any(member.host_waits for member in self.members)

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """The profile of the member that serves ``cf``; coding costs are the ladder's, known by wire ratio."""
        member, at = self.at(cf)
        return replace(member.profile(at, world=world, shapes=shapes), coding=coding_at(self.coding_costs, cf))

    def method_at(self, cf: float) -> str:
        """The name of the member that serves ``cf``, with the member's own setting."""
        member, at = self.at(cf)
        return member.method_at(at)

    def at(self, ratio: float) -> tuple[Compressor, float]:
        """The member that serves a wire ratio, and its CF: the one whose rung it is, or the first that reaches it."""
        own = next((rung for rung in _rungs(self.members) if math.isclose(rung.ratio, ratio, rel_tol=1e-6)), None)
        return (own.member, own.cf) if own else _serving(self.members, ratio)

    def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
        """The wire ratios of all members' rungs that lie in the range."""
        return tuple(rung.ratio for rung in _rungs(self.members) if cf_range[0] <= rung.ratio <= cf_range[1])

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """The traffic of the member that serves ``cf``, in bytes."""
        member, at = self.at(cf)
        return member.traffic(shape, at, dtype, world)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by the rounds of the member that serves ``cf``."""
        member, at = self.at(cf)
        return (yield from member.rounds(x, at, ctx))

    def batch_key(self, cf: float, ctx: Context) -> Hashable | None:
        """The key of the member that serves ``cf``."""
        member, at = self.at(cf)
        return member.batch_key(at, ctx)

    def rounds_together(self, x: torch.Tensor, cf: float, contexts: Sequence[Context]) -> Rounds:
        """Average the rows of x together by the member that serves ``cf``."""
        member, at = self.at(cf)
        return (yield from member.rounds_together(x, at, contexts))

    def folds(self, gradient: torch.Tensor, cf: float) -> bool:
        """Whether the member that serves ``cf`` does."""
        member, at = self.at(cf)
        return member.folds(gradient, at)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of flat x, each by the member that serves the CF."""
        return [member.errors(x, [at], ctx)[0] for member, at in map(self.at, cfs)]

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Say what a member expects of a tensor in its memory."""
        return next(filter(None, (member.misfit(key, memory, elements) for member in self.members)), "")

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """What a member keeps of what was not sent: flat, ``[elements]``; ``None`` where none does."""
        kept = (member.kept_aside(ctx, elements) for member in self.members)
        return next((aside for aside in kept if aside is not None), None)


class Rung(NamedTuple):
    """A wire ratio that is one member's own, and the member's CF there."""

    ratio: float
    member: Compressor
    cf: float


@functools.cache
def _rungs(members: tuple[Compressor, ...]) -> tuple[Rung, ...]:
    """What members of fixed CFs reach; of one that can do any, ratios doubled from the best of those before it on.

    Ascending. Of two members at one ratio the first has it.
    """
    rungs: list[Rung] = []
    for member in members:
        reach = member.candidates((1.0, HIGHEST))
        if isinstance(reach, Span):
            last = max((rung.ratio for rung in rungs), default=1.0)
            own = [(last * STEP**more) for more in range(1, math.ceil(math.log(HIGHEST / last, STEP)))]
            found = [Rung(ratio, member, cf) for ratio in own if (cf := _lowest(member, ratio)) is not None]
        else:
            found = [Rung(wire_ratio(member, cf), member, cf) for cf in reach]
        taken = {round(rung.ratio, 6) for rung in rungs}
        rungs += [rung for rung in found if round(rung.ratio, 6) not in taken]
    return tuple(sorted(rungs, key=lambda rung: rung.ratio))


def wire_ratio(compressor: Compressor, cf: float) -> float:
    """Wire bytes of a dense float32 all-reduce of ``SHAPE`` over those of a compressor at ``cf``, between two ranks."""
    sent = sum(traffic.wire_bytes(2) for traffic in compressor.traffic(SHAPE, cf, torch.float32, 2))
    return AllReduce.wire_bytes(4 * torch.Size(SHAPE).numel(), 2) / sent


@functools.cache
def _serving(members: tuple[Compressor, ...], ratio: float) -> tuple[Compressor, float]:
    """The first member that reaches the ratio, at the lowest CF that does; the highest rung, if none does."""
    for member in members:
        cf = _lowest(member, ratio)
        if cf is not None:
            return member, cf
    last = _rungs(members)[-1]
    return last.member, last.cf


def _lowest(member: Compressor, ratio: float) -> float | None:
    """The lowest CF at which a member reaches a ratio, within 0.1 %; ``None`` if none does."""
    reach = member.candidates((1.0, HIGHEST))
    if not isinstance(reach, Span):
        return min((cf for cf in reach if wire_ratio(member, cf) >= ratio * 0.999), default=None)
    low, high = reach.low, reach.high
    if wire_ratio(member, high) < ratio:
        return None
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wire_ratio(member, middle) >= ratio else (middle, high)
    return high


ladder = Ladder(
    members=(
        dense(dtype="bfloat16"),
        quantize(8),
        quantize(4),
        quantize(3),
        quantize(2),
        quantize(1),
        topkc(values=quantize(1)),
        *(powersgd(rank) for rank in (16, 8, 4, 2, 1)),
    )
)
"""A ladder of 16 bit, then 8, 4, 3, 2 and 1, then chunks of which 1 bit is sent; low rank for models it suits.

``ladder(quantize(2), topkc)`` is another.
"""
